"""A document as one HTML file that needs nothing else: no network, no server, no other file."""

from __future__ import annotations

import base64
from importlib import resources

from . import figures, markup, tables, values
from .document import (
    Curves,
    Document,
    Facts,
    Gallery,
    Heatmap,
    Part,
    Picture,
    Scatter,
    Section,
    Table,
    Text,
)
from .palette import Palette, heat_css, swatch

# The page may do nothing but show itself: a browser refuses whatever a document could smuggle in.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


HEADLINE_COLUMNS = 6
"""Large numbers in more columns than these do not fit on a desk."""


def _file(name: str) -> str:
    return resources.files("medbn.report").joinpath(name).read_text(encoding="utf-8")


def _numbers(part: Part, colours: Palette) -> str:
    """The numbers of a picture, folded away: for those who cannot see it, and those who want to copy them."""
    table = values.as_table(part, turned=True)
    if table is None or all(values.number(value) is None for row in table.rows for value in row[table.labels :]):
        return ""
    bare = Table(f"{table.title}: numbers", table.columns, table.rows, labels=table.labels)
    return f"<details><summary>Numbers</summary>\n{tables.table(bare, colours)}\n</details>"


def _figure(kind: str, drawing: str, caption: str, rest: str = "") -> str:
    said = f"<figcaption>{markup.inline(caption)}</figcaption>" if caption else ""
    return f'<figure class="{kind}">\n{drawing}\n{said}\n{rest}</figure>'


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode("ascii")
    said = f"<figcaption>{markup.inline(picture.caption)}</figcaption>" if picture.caption else ""
    return f'<figure><img alt="{markup.escape(picture.alt)}" src="data:image/png;base64,{data}">{said}</figure>'


def _gallery(part: Gallery) -> str:
    rows = [(label, pictures) for label, pictures in part.rows if pictures]
    if not rows:
        return '<p class="empty">No pictures were kept.</p>'
    lines = "\n".join(
        f'<div class="strip"><h4>{markup.inline(label)}</h4><div>{"".join(map(_picture, pictures))}</div></div>'
        for label, pictures in rows
    )
    return _figure("gallery", lines, part.caption)


def _facts(part: Facts) -> str:
    items = "\n".join(f"<dt>{markup.inline(name)}</dt><dd>{markup.inline(value)}</dd>" for name, value in part.items)
    return f'<dl class="facts">\n{items}\n</dl>' if items else '<p class="empty">Nothing is known.</p>'


def _text(part: Text) -> str:
    if not part.code:
        return markup.paragraphs(part.text)
    code = markup.escape(part.text.strip("\n"))
    return (
        f'<div class="code"><pre><code>{code}</code></pre>'
        '<button type="button" class="copy" aria-live="polite">Copy</button></div>'
    )


def _part(part: Part, colours: Palette, headline: bool) -> str:
    if isinstance(part, Text):
        return _text(part)
    if isinstance(part, Table):
        body = tables.table(part, colours, headline)
    elif isinstance(part, Heatmap):
        body = _figure("heatmap", tables.heatmap(part, colours), part.caption, _numbers(part, colours))
    elif isinstance(part, Scatter):
        body = _figure("plot", figures.scatter(part, colours), part.caption, _numbers(part, colours))
    elif isinstance(part, Curves):
        body = _figure("plot", figures.curves(part, colours), part.caption, _numbers(part, colours))
    elif isinstance(part, Gallery):
        body = _gallery(part)
    else:
        body = _facts(part)
    title = f"<h3>{markup.inline(part.title)}</h3>\n" if part.title else ""
    return f'<div class="part">\n{title}{body}\n</div>'


def _section(section: Section, name: str, colours: Palette, first: bool) -> str:
    """A section; the first table of the first one is what the whole report is about, if that is about one thing."""
    headline = next((part for part in section.parts if isinstance(part, Table)), None) if first else None
    if headline and len(headline.columns) > HEADLINE_COLUMNS:
        headline = None
    parts = "\n".join(_part(part, colours, part is headline) for part in section.parts)
    return (
        f'<section id="{name}" aria-labelledby="{name}-title">\n'
        f'<h2 id="{name}-title">{markup.inline(section.title)}</h2>\n{markup.paragraphs(section.lead, "lead")}\n'
        f"{parts or '<p class=empty>Nothing to show.</p>'}\n</section>"
    )


def _series(document: Document, colours: Palette) -> str:
    """The defences with their colours and what each is."""
    items = "".join(
        f"<div><dt>{swatch(colours.colour(name), colours.place(name))}{markup.inline(name)}</dt>"
        f"<dd>{markup.inline(said)}</dd></div>"
        for name, said in document.series.items()
    )
    return f'<dl class="series">{items}</dl>' if items else ""


def html(document: Document) -> str:
    """The page of a document."""
    colours, used = Palette(document.series), {"top"}
    named = [(markup.slug(section.title, used), section) for section in document.sections]
    entries: dict[str, str] = {}
    for name, section in named:
        entries.setdefault(section.group or section.title, name)
    links = "".join(f'<li><a href="#{name}">{markup.inline(entry)}</a></li>' for entry, name in entries.items())
    sections = "\n".join(
        _section(section, name, colours, i == 0 and not section.group) for i, (name, section) in enumerate(named)
    )
    title = markup.escape(document.title)
    nav = f'<nav aria-label="Contents"><p>Contents</p><ol>{links}</ol></nav>' if links else ""
    return f"""<!DOCTYPE html>
<html lang="en-GB">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="medbn report">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{_file("style.css")}
{heat_css()}
</style>
</head>
<body id="top">
<a class="skip" href="#main">Skip to the results</a>
<div class="page">
<header>
<h1>{markup.inline(document.title)}</h1>
{markup.paragraphs(document.lead, "lead")}
{_series(document, colours)}
</header>
{nav}
<main id="main">
{sections}
</main>
</div>
<script>
{_file("script.js")}
</script>
</body>
</html>
"""
