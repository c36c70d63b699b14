"""The parts of a document as markup: one template for each kind."""

from __future__ import annotations

import base64

from markupsafe import Markup

from ..document import Curves, Facts, Gallery, Heatmap, Part, Scatter, Table, Text, Timeline
from ..tables import as_table
from ..values import finite_number
from .context import Context
from .curves import draw_curves
from .markup import render
from .scatter import draw_scatter
from .tables import render_heatmap, render_table
from .timeline import draw_timeline


def render_part(part: Part, context: Context, large: bool = False) -> Markup:
    """Return a part with its title; ``large`` shows a table in large numbers."""
    if isinstance(part, Text):
        return render("text.html", part=part)
    return render("part.html", title=part.title, body=_body(part, context, large))


def _body(
    part: Table | Heatmap | Scatter | Curves | Timeline | Gallery | Facts, context: Context, large: bool
) -> Markup:
    if isinstance(part, Table):
        return render_table(part, context, large)
    if isinstance(part, Facts):
        return render("facts.html", part=part)
    if isinstance(part, Gallery):
        rows = [(label, pictures) for label, pictures in part.rows if pictures]
        return render("gallery.html", part=part, rows=rows, base64=_base64)
    if isinstance(part, Heatmap):
        kind, drawing = "heatmap", render_heatmap(part, context)
    elif isinstance(part, Timeline):
        kind, drawing = "plot", draw_timeline(part)
    else:
        drawing = (
            draw_scatter(part, context.palette) if isinstance(part, Scatter) else draw_curves(part, context.palette)
        )
        kind = "plot"
    return render("figure.html", kind=kind, drawing=drawing, caption=part.caption, numbers=_numbers(part, context))


def _numbers(part: Heatmap | Scatter | Curves | Timeline, context: Context) -> Markup | None:
    """Return the numbers of a figure as a table, to be copied or read aloud; None without any."""
    table = as_table(part, upright=True)
    assert table is not None
    if all(finite_number(value) is None for row in table.rows for value in row[table.labels :]):
        return None
    bare = Table(f"{table.title}: numbers", table.columns, table.rows, labels=table.labels)
    return render_table(bare, context)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
