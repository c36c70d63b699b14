"""Reports: the results in a store as one page that works offline, or as text for other programs.

From Python:

    from medbn import bench, report

    with bench.Store("medbn.db") as store:
        document = report.build(store)
    page = report.FORMATS.get("html").write(document)

``content`` decides what is shown and makes a ``Document`` of it; ``html`` and ``export`` write a document.
"""

from __future__ import annotations

from . import export, html
from .content import build, build_timeline, headline
from .document import Document
from .formats import FORMATS, Format, register_format

__all__ = ["FORMATS", "Document", "Format", "build", "build_timeline", "export", "headline", "html", "register_format"]
