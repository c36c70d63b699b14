"""What a report shows: from the results in a store to a document. Each kind of table or figure has a file."""

from .headline import headline
from .sections import build

__all__ = ["build", "headline"]
