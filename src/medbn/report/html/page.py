"""The page: header, contents and sections, with style and script inside."""

from __future__ import annotations

from importlib import resources

from markupsafe import Markup

from ..document import Document, Section, Table
from .markup import render as render_template
from .markup import replace_forbidden, slug
from .palette import Palette, heat_css, series_css
from .parts import render_part

HEADLINE_COLUMNS = 6
"""A table with more columns than this has no room for large numbers."""


def render(document: Document) -> str:
    """Return a document as a page."""
    palette, used = Palette(document.series, document.estimators), {"top"}
    sections = [
        {"id": slug(section.title, used), "title": section.title, "lead": section.lead, "parts": parts}
        for section, parts in zip(document.sections, _parts(document, palette), strict=True)
    ]
    contents: dict[str, str] = {}
    for section, shown in zip(document.sections, sections, strict=True):
        contents.setdefault(section.group or section.title, str(shown["id"]))
    page = render_template(
        "page.html",
        document=document,
        palette=palette,
        contents=contents,
        sections=sections,
        style=Markup("\n").join([_resource("style.css"), series_css(), heat_css()]),
        script=_resource("script.js"),
    )
    return replace_forbidden(page)


def _parts(document: Document, palette: Palette) -> list[list[Markup]]:
    """Return the parts of each section; a report on one recipe begins with its main table in large numbers."""
    large = _main_table(document.sections[0]) if document.sections and not document.sections[0].group else None
    return [[render_part(part, palette, part is large) for part in section.parts] for section in document.sections]


def _main_table(section: Section) -> Table | None:
    table = next((part for part in section.parts if isinstance(part, Table)), None)
    return table if table and len(table.columns) <= HEADLINE_COLUMNS else None


def _resource(name: str) -> Markup:
    """Return a file of this folder as markup, which is not escaped: no text of a document is in it."""
    return Markup(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))
