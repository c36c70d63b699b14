"""Tables and heat maps as HTML tables."""

from __future__ import annotations

from dataclasses import dataclass

from . import markup, palette, values
from .document import Heatmap, Measure, Table, Value
from .palette import Palette

_NOTHING = '<span class="nothing" aria-label="not measured">–</span>'
_UPRIGHT = 8
"""Heat maps with more columns than this have upright headings."""


@dataclass(frozen=True)
class _Column:
    """What a column holds as a whole: text alone, or numbers with so many decimals."""

    text: bool
    places: int | None


def _name(text: str, colours: Palette) -> str:
    """A label; the name of a defence has its mark before it, as in the pictures."""
    sign = palette.swatch(colours.colour(text), colours.place(text)) if text in colours.known else ""
    return f"{sign}{_heading(text, colours)}"


def _heading(text: str, colours: Palette) -> str:
    """A name that may break in a narrow column, but not within the name of a defence."""
    return markup.inline(text) if any(name in text for name in colours.known) else markup.heading(text)


def _label(value: Value, colours: Palette, repeated: bool) -> str:
    name = "repeated" if repeated else "series-name" if values.shown(value) in colours.known else ""
    kind = markup.attribute("class", name)
    value_number = values.number(value)
    key = "" if value_number is None else f' data-sort="{value_number!r}"'
    return f'<th scope="row"{kind}{key}>{_name(values.shown(value), colours)}</th>'


def _cell(value: Value, column: _Column, best: bool, bar: str, count: int | None) -> str:
    """One value. The key to sort by is the number itself, not its rounded text."""
    if isinstance(value, str) or column.text:
        return f'<td class="text">{markup.inline(values.shown(value))}</td>'
    key = values.number(value)
    sort = "" if key is None else f' data-sort="{key!r}"'
    kind = f"value{' best' if best else ''}"
    if not values.shown(value):
        return f'<td class="{kind}">{_NOTHING}</td>'
    title, extra = "", '<span class="unseen"> (best)</span>' if best else ""
    if isinstance(value, Measure):
        title = markup.attribute("title", values.remark(value))
        if bar and key is not None and 0 <= key <= 100:
            extra += f'<span class="bar {bar}" style="--share:{key:.1f}%"></span>'
        inside = markup.measure(value, count)
    else:
        inside = f'<span class="number">{markup.escape(values.shown(value, column.places))}</span>'
    return f'<td class="{kind}"{sort}{title}>{inside}{extra}</td>'


def _head(text: str, colours: Palette, sortable: bool, is_label: bool) -> str:
    kind = "label" if is_label else "value"
    if not text:
        return f'<td class="{kind}"></td>'
    inside = _heading(text, colours)
    if sortable:
        inside = f'<button type="button">{inside}</button>'
    return f'<th scope="col" class="{kind}">{inside}</th>'


def _column(found: list[Value]) -> _Column:
    text = any(isinstance(value, str) for value in found)
    return _Column(text and all(isinstance(value, str | None) for value in found), values.places(found))


def _caption(title: str, caption: str) -> str:
    """The caption, which is the title for those who only hear the page: they already met it as a heading."""
    if not caption:
        return f'<caption class="unseen">{markup.inline(title)}</caption>' if title else ""
    return f"<caption><span>{markup.inline(caption)}</span></caption>"


def table(part: Table, colours: Palette, headline: bool = False) -> str:
    """A table in a box of its own that scrolls where it is wider than the page.

    ``headline`` makes its numbers large, with a bar under each in the colour of its row's defence.
    """
    columns, rows = values.padded(part)
    if not rows:
        return '<p class="empty">Nothing was measured.</p>'
    best, short = values.best(part), values.fewer(part)
    kinds = [_column([row[c] for row in rows]) for c in range(len(columns))]
    lines = []
    for r, row in enumerate(rows):
        labels = [values.shown(value) for value in row[: part.labels]]
        before = [values.shown(value) for value in rows[r - 1][: part.labels]] if r else []
        series = next((label for label in labels if label in colours.known), None)
        bar = (colours.colour(series) if series else "plain") if headline else ""
        cells = [
            # A repeated label is quiet, except the last, which tells the row from its neighbours.
            _label(row[c], colours, c < part.labels - 1 and labels[: c + 1] == before[: c + 1])
            if c < part.labels
            else _cell(row[c], kinds[c], (r, c) in best, bar, short.get((r, c)))
            for c in range(len(columns))
        ]
        new_group = r > 0 and part.labels > 1 and labels[0] != before[0]
        lines.append(('<tr class="group">' if new_group else "<tr>") + "".join(cells) + "</tr>")
    heads = "".join(_head(c, colours, len(rows) > 1, i < part.labels or kinds[i].text) for i, c in enumerate(columns))
    kind = "headline" if headline else ""
    notes = "".join(f"<li>{markup.inline(note)}</li>" for note in part.notes)
    # Buttons to sort by bring the keyboard into the box already; without them the box itself must take the focus.
    focus = "" if len(rows) > 1 else ' tabindex="0"'
    return (
        f'<div class="scroll" role="group"{focus}{markup.attribute("aria-label", part.title)}>\n'
        f'<table class="sortable {kind}">{_caption(part.title, part.caption)}\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{chr(10).join(lines)}\n</tbody></table></div>"
        + (f'\n<ul class="notes">{notes}</ul>' if notes else "")
    )


def _warm(value: Measure | None, part: Heatmap) -> str:
    key = values.number(value)
    if value is None or key is None:
        return f"<td>{_NOTHING}</td>"
    title = markup.attribute("title", values.remark(value))
    return f'<td class="{palette.heat_class(key, part.low, part.high)}"{title}>{values.decimal(key)}</td>'


def heatmap(part: Heatmap, colours: Palette) -> str:
    """A heat map: a real table whose cells are coloured, so that it can be read aloud as well."""
    if not part.rows or not part.columns:
        return '<p class="empty">Nothing was measured.</p>'
    kind = " upright" if len(part.columns) > _UPRIGHT else ""
    heads = "".join(f'<th scope="col"><span>{markup.inline(name)}</span></th>' for name in part.columns)
    lines = []
    for r, name in enumerate(part.rows):
        line = part.values[r] if r < len(part.values) else ()
        cells = "".join(_warm(line[c] if c < len(line) else None, part) for c in range(len(part.columns)))
        lines.append(f'<tr><th scope="row">{_name(name, colours)}</th>{cells}</tr>')
    scale = (
        f'<div class="scale" aria-hidden="true"><span>{values.shown(part.low)}</span><i></i>'
        f"<span>{values.shown(part.high)}</span></div>"
    )
    return (
        f'<div class="scroll" role="group" tabindex="0"{markup.attribute("aria-label", part.title)}>\n'
        f'<table class="heat{kind}">{_caption(part.alt or part.title, "")}\n'
        f"<thead><tr><td></td>{heads}</tr></thead>\n<tbody>\n{chr(10).join(lines)}\n</tbody></table></div>\n{scale}"
    )
