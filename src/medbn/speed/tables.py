"""Rows as tables of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from .attack import AUTHORS
from .timing import Row, Spread, geometric_mean

CLOCKS = {"wall": "wall clock", "graph": "device time, CUDA graph replay"}
MEMORY = {
    "peak": "peak memory of forward + backward beyond what was allocated before",
    "kept": "output + what autograd saves for the backward pass, input included",
}
NONE = "–"


class Table(NamedTuple):
    """A heading, columns, rows, and what there is to say below."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def tables(rows: Sequence[Row], device: str = "") -> list[Table]:
    """The tables of one part; ``device`` is the name of what it was measured on."""
    rows = sorted(rows, key=lambda row: row.clock != "graph")  # the headline on a GPU
    part = rows[0].part if rows else ""
    if part == "layer":
        return [_layer(group) for group in _groups(rows, "layout", "direction")]
    if part == "scaling":
        return [_scaling(group) for group in _groups(rows)]
    if part == "memory":
        return [_memory(group) for group in _groups(rows, "layout")]
    return [_whole(part, rows, device)] if rows else []


def _groups(rows: Iterable[Row], *keys: str) -> list[list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((*(row.where[key] for key in keys), row.clock), []).append(row)
    return list(found.values())


def _layer(rows: list[Row]) -> Table:
    """Shapes below each other, candidates beside each other; below them what they come to."""
    names = _names(rows)
    lines = []
    for shape, beside in _by_shape(rows).items():
        texts = {_name(row): _spread(row) for row in beside}
        lines.append(["×".join(map(str, shape)), _time(_base(beside)), *(texts.get(name, NONE) for name in names)])
    middle: dict[str, list[float]] = {name: [] for name in names}
    shortest: dict[str, list[float]] = {name: [] for name in names}
    for row in rows:
        if row.values:
            middle[_name(row)].append(median(row.ratios))
            shortest[_name(row)].append(min(row.values) / min(row.base))  # of as many runs of each
    lines.append(["geometric mean", "", *(_ratio(middle[name], geometric_mean) for name in names)])
    lines.append(["worst", "", *(_ratio(middle[name], max) for name in names)])
    lines.append(["of shortest runs", "", *(_ratio(shortest[name], geometric_mean) for name in names)])
    where, clock = rows[0].where, CLOCKS[rows[0].clock]
    title = f"layer: time / BatchNorm's, {where['layout']}, {where['direction']}, {where['dtype']}, {clock}"
    return Table(title, ["shape", "batch_norm", *names], lines, _notes(rows))


def _scaling(rows: list[Row]) -> Table:
    names = _names(rows)
    lines = []
    for beside in _by_shape(rows).values():
        where = beside[0].where
        size = where["values"] * where["channels"]
        texts = {_name(row): _nanoseconds(median(row.values), size) if row.values else NONE for row in beside}
        start = [
            f"{where['values']:.0e}".replace("e+0", "e"),
            str(where["channels"]),
            _nanoseconds(_base(beside), size),
        ]
        lines.append([*start, *(texts.get(name, NONE) for name in names)])
    title = f"scaling: ns per element, forward+backward, {rows[0].where['dtype']}, {CLOCKS[rows[0].clock]}"
    return Table(title, ["values", "channels", "batch_norm", *names], lines, _notes(rows))


def _whole(part: str, rows: Sequence[Row], device: str) -> Table:
    """A whole model: one line per candidate, below the BatchNorm that it stood beside."""
    first = rows[0].where
    attack = part == "attack"
    authors = attack and "H200" in device and (first["steps"], first["batch"]) == (100, 200)
    lines = []
    for group in _groups(rows, "method", "layout"):
        where = group[0].where
        start = [where["method"], where["layout"]]
        base = [s for row in group for s in row.base]
        entries = [("mean", "torch", base, "1")] if base else []
        entries += [(row.estimator, row.path, row.values, _spread(row)) for row in group]
        for estimator, path, values, ratio in entries:
            seconds = median(values) if values else None
            line = [*start, estimator, path, _time(seconds)]
            if attack:
                line.append(_time(None if seconds is None else seconds / where["steps"]))
            line.append(ratio)
            if authors:
                line.append(f"{AUTHORS / seconds:.1f}" if seconds else NONE)
            lines.append(line)
    columns = ["method", "layout", "estimator", "path", "one batch", "/ BatchNorm's"]
    what = f"{first['model']}, batches of {first['batch']}, {first['dtype']}, {CLOCKS['wall']}"
    if not attack:
        return Table(f"step: one step of TENT, {what}", columns, lines, _notes(rows))
    columns.insert(5, "one step")
    title = f"attack: DIA, targeted, {first['steps']} steps, {what}"
    return Table(title, [*columns, *["× authors' throughput"] * authors], lines, _notes(rows))


def _memory(rows: list[Row]) -> Table:
    where, names = rows[0].where, _names(rows)
    lines = []
    for shape, beside in _by_shape(rows).items():
        unit = float(beside[0].where["activation"])
        texts = {_name(row): f"{row.values[0] / unit:.2f} ({row.ratios[0]:.2f})" for row in beside}
        start = ["×".join(map(str, shape)), f"{unit / 2**20:.1f} MiB", f"{beside[0].base[0] / unit:.2f}"]
        lines.append([*start, *(texts.get(name, NONE) for name in names)])
    title = f"memory: {MEMORY[where['kind']]}, in activations (/ BatchNorm's), {where['layout']}, {where['dtype']}"
    return Table(title, ["shape", "activation", "batch_norm", *names], lines, _notes(rows))


def _names(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(_name(row) for row in rows))


def _by_shape(rows: Iterable[Row]) -> dict[tuple[int, ...], list[Row]]:
    found: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.where["shape"]), []).append(row)
    return found


def _base(rows: Iterable[Row]) -> float | None:
    """BatchNorm's time beside these."""
    seconds = [s for row in rows for s in row.base]
    return median(seconds) if seconds else None


def _name(row: Row) -> str:
    return row.estimator if row.path == "torch" else f"{row.estimator}, {row.path}"


def _spread(row: Row) -> str:
    if not row.values:
        return NONE
    low, middle, high = Spread.of(row.ratios)
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def _ratio(ratios: Sequence[float], reduce: Callable[[Sequence[float]], float]) -> str:
    return f"{reduce(ratios):.2f}" if ratios else NONE


def _time(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    scale, unit = (1.0, "s") if seconds >= 0.9995 else (1e3, "ms") if seconds >= 0.9995e-3 else (1e6, "µs")
    return f"{scale * seconds:.3g} {unit}"


def _nanoseconds(seconds: float | None, size: float) -> str:
    return NONE if seconds is None else f"{1e9 * seconds / size:.3g}"


def _notes(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(f"{NONE} {_name(row)}: {row.note}" for row in rows if row.note))
