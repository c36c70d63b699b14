"""The page: header, contents and sections, with style and script inside."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources

from markupsafe import Markup

from ..document import Document, Gallery, Section, Table
from .cells import CellIndex
from .context import Context
from .markup import render as render_template
from .markup import replace_forbidden, slug
from .palette import Palette, heat_css, series_css
from .parts import render_part

HEADLINE_COLUMNS = 6
"""A table with more columns than this has no room for large numbers."""


LIMIT = 3_000_000
"""A page with more bytes than this leaves something out, if that helps."""


def render(document: Document) -> str:
    """Return a document as a page, without pictures or even the list of cells where it would be too large."""
    page = _render(document)
    for reduce in (_without_pictures, _without_cells):
        if len(page.encode()) <= LIMIT:
            break
        document = reduce(document)
        page = _render(document)
    return page


def _without_pictures(document: Document) -> Document:
    sections = [
        replace(section, parts=[part for part in section.parts if not isinstance(part, Gallery)])
        for section in document.sections
    ]
    left = [section for section in sections if section.parts]
    return _without("Pictures are", replace(document, sections=left))


def _without_cells(document: Document) -> Document:
    return _without("The cells behind the numbers are", replace(document, cells={}))


def _without(what: str, document: Document) -> Document:
    """Return a document whose lead says what the page lacks."""
    note = f"{what} left out of this page, which would be too large; a report on fewer experiments has them."
    return replace(document, lead=f"{document.lead}\n\n{note}")


def _render(document: Document) -> str:
    used, contents = {"top", "cells"}, dict[str, str]()
    names = [slug(section.title, used) for section in document.sections]
    for section, name in zip(document.sections, names, strict=True):
        contents.setdefault(section.group or section.title, name)
    index = CellIndex(document.cells)
    palette = Palette(document.series, document.estimators)
    context = Context(palette, index, contents)
    sections = [
        {"id": name, "title": section.title, "lead": section.lead, "folded": section.folded, "parts": parts}
        for section, name, parts in zip(document.sections, names, _parts(document, context), strict=True)
    ]
    page = render_template(
        "page.html",
        document=document,
        palette=palette,
        contents=contents,
        sections=sections,
        cells=index.as_json(),
        style=Markup("\n").join([_resource("style.css"), series_css(), heat_css()]),
        script=_resource("script.js"),
    )
    return replace_forbidden(page)


def _parts(document: Document, context: Context) -> list[list[Markup]]:
    """Return the parts of each section; a report on one recipe begins with its main table in large numbers."""
    large = _main_table(document.sections[0]) if document.sections and not document.sections[0].group else None
    return [[render_part(part, context, part is large) for part in section.parts] for section in document.sections]


def _main_table(section: Section) -> Table | None:
    table = next((part for part in section.parts if isinstance(part, Table)), None)
    return table if table and len(table.columns) <= HEADLINE_COLUMNS and not table.groups else None


def _resource(name: str) -> Markup:
    """Return a file of this folder as markup, which is not escaped: no text of a document is in it."""
    return Markup(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))
