"""A document as one HTML file that works offline."""

from __future__ import annotations

from ..document import Document
from ..formats import register_format


@register_format("html", ".html")
def html(document: Document) -> str:
    """Return a document as a page with its style, script and images inside: it loads no other file."""
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise ImportError("HTML reports need jinja2: pip install 'medbn[bench]'.") from error
    from .page import render

    return render(document)
