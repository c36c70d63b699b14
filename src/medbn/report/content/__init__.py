"""What a report shows: from the results in a store to a document. Each kind of table or figure has a file."""

from .headline import headline
from .sections import build
from .timeline import build_timeline

__all__ = ["build", "build_timeline", "headline"]
