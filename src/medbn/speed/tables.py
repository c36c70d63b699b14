"""Measurements as tables of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from .attack import AUTHORS_SECONDS
from .measurement import Measurement, Quartiles, geometric_mean

CLOCKS = {"wall": "wall clock", "graph": "device time, CUDA graph replay"}
MEMORY = {
    "peak": "peak memory of forward + backward beyond what was allocated before",
    "saved": "output + tensors saved for backward, input included",
}
NONE = "–"


class Table(NamedTuple):
    """A title, names of columns, rows of text, and notes below."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def build_tables(measurements: Sequence[Measurement], device: str = "") -> list[Table]:
    """Return the tables of one part.

    Args:
        measurements: all measurements of the part.
        device: the name of the device, which decides whether the authors' time is comparable.
    """
    rows = sorted(measurements, key=lambda row: row.clock != "graph")  # device time is the headline on a GPU
    part = rows[0].part if rows else ""
    if part == "layer":
        return [_layer_table(group) for group in _groups(rows, "layout", "direction")]
    if part == "scaling":
        return [_scaling_table(group) for group in _groups(rows)]
    if part == "memory":
        return [_memory_table(group) for group in _groups(rows, "layout")]
    if part == "model":
        return [_serving_table(rows)]
    return [_model_table(part, rows, device)] if rows else []


def _layer_table(rows: list[Measurement]) -> Table:
    """Return a line per shape with the ratios of each candidate, and summaries over shapes below."""
    names = _names(rows)
    lines = []
    for shape, group in _by_shape(rows).items():
        texts = {_name(row): _quartiles(row) for row in group}
        time = _time(_batch_norm_time(group))
        lines.append(["×".join(map(str, shape)), time, *(texts.get(name, NONE) for name in names)])
    medians: dict[str, list[float]] = {name: [] for name in names}
    shortest: dict[str, list[float]] = {name: [] for name in names}
    for row in rows:
        if row.values:
            medians[_name(row)].append(median(row.ratios))
            shortest[_name(row)].append(min(row.values) / min(row.batch_norm))
    lines.append(["geometric mean", "", *(_ratio(medians[name], geometric_mean) for name in names)])
    lines.append(["worst", "", *(_ratio(medians[name], max) for name in names)])
    lines.append(["of shortest runs", "", *(_ratio(shortest[name], geometric_mean) for name in names)])
    case, clock = rows[0].case, CLOCKS[rows[0].clock]
    title = f"layer: time / BatchNorm's, {case['layout']}, {case['direction']}, {case['dtype']}, {clock}"
    return Table(title, ["shape", "batch_norm", *names], lines, _notes(rows))


def _scaling_table(rows: list[Measurement]) -> Table:
    names = _names(rows)
    lines = []
    for group in _by_shape(rows).values():
        case = group[0].case
        size = case["values"] * case["channels"]
        texts = {_name(row): _nanoseconds(median(row.values), size) if row.values else NONE for row in group}
        values = f"{case['values']:.0e}".replace("e+0", "e")
        start = [values, str(case["channels"]), _nanoseconds(_batch_norm_time(group), size)]
        lines.append([*start, *(texts.get(name, NONE) for name in names)])
    title = f"scaling: ns per element, forward+backward, {rows[0].case['dtype']}, {CLOCKS[rows[0].clock]}"
    return Table(title, ["values", "channels", "batch_norm", *names], lines, _notes(rows))


def _model_table(part: str, rows: Sequence[Measurement], device: str) -> Table:
    """Return a line per candidate on a whole model, below the BatchNorm that it was measured beside."""
    first = rows[0].case
    attack = part == "attack"
    authors = attack and "H200" in device and (first["steps"], first["batch"]) == (100, 200)
    lines = []
    for group in _groups(rows, "method", "layout"):
        case = group[0].case
        batch_norm = [seconds for row in group for seconds in row.batch_norm]
        entries = [("mean", "torch", batch_norm, "1")] if batch_norm else []
        entries += [(row.estimator, row.path, row.values, _quartiles(row)) for row in group]
        for estimator, path, values, ratio in entries:
            seconds = median(values) if values else None
            line = [case["method"], case["layout"], estimator, path, _time(seconds)]
            if attack:
                line.append(_time(None if seconds is None else seconds / case["steps"]))
            line.append(ratio)
            if authors:
                line.append(f"{AUTHORS_SECONDS / seconds:.1f}" if seconds else NONE)
            lines.append(line)
    columns = ["method", "layout", "estimator", "path", "one batch", "/ BatchNorm's"]
    settings = f"{first['model']}, batches of {first['batch']}, {first['dtype']}, {CLOCKS['wall']}"
    if not attack:
        return Table(f"step: one step of TENT, {settings}", columns, lines, _notes(rows))
    columns.insert(5, "one step")
    title = f"attack: DIA, targeted, {first['steps']} steps, {settings}"
    return Table(title, [*columns, *["× authors' throughput"] * authors], lines, _notes(rows))


def _serving_table(rows: Sequence[Measurement]) -> Table:
    """Return a line per way to serve a model, with what the device does of its time."""
    lines = []
    timed = [row for row in rows if row.clock == "wall"]
    for group in _groups(timed, "model", "layout", "method"):
        case = group[0].case
        batch_norm = [seconds for row in group for seconds in row.batch_norm]
        entries = [("mean", "torch", batch_norm, "1")] if batch_norm else []
        entries += [(row.estimator, row.path, row.values, _quartiles(row)) for row in group]
        for estimator, path, values, ratio in entries:
            line = [case["method"], case["layout"], estimator, path, _time(median(values) if values else None), ratio]
            for clock in ("device", "kernels"):
                beside = [row for row in rows if row.case == case and row.clock == clock]
                found = [row.values[0] for row in beside if (row.estimator, row.path) == (estimator, path)]
                found = [row.batch_norm[0] for row in beside] if path == "torch" else found
                line.append((_time(found[0]) if clock == "device" else f"{found[0]:.0f}") if found else NONE)
            lines.append(line)
    case = rows[0].case
    columns = ["method", "layout", "estimator", "path", "one batch", "/ BatchNorm's", "device works", "kernels"]
    settings = f"{case['batch']} images of {case['pixels']} pixels, {case['dtype']}, {CLOCKS['wall']}"
    names = ", ".join(dict.fromkeys(row.case["model"] for row in rows))
    return Table(f"model: {names}, {settings}", columns, lines, _notes(timed))


def _memory_table(rows: list[Measurement]) -> Table:
    case, names = rows[0].case, _names(rows)
    lines = []
    for shape, group in _by_shape(rows).items():
        unit = float(group[0].case["activation"])
        texts = {_name(row): f"{row.values[0] / unit:.2f} ({row.ratios[0]:.2f})" for row in group}
        start = ["×".join(map(str, shape)), f"{unit / 2**20:.1f} MiB", f"{group[0].batch_norm[0] / unit:.2f}"]
        lines.append([*start, *(texts.get(name, NONE) for name in names)])
    title = f"memory: {MEMORY[case['kind']]}, in activations (/ BatchNorm's), {case['layout']}, {case['dtype']}"
    return Table(title, ["shape", "activation", "batch_norm", *names], lines, _notes(rows))


def _groups(rows: Iterable[Measurement], *keys: str) -> list[list[Measurement]]:
    """Return the measurements grouped by some facts of their cases, and by clock."""
    groups: dict[tuple[Any, ...], list[Measurement]] = {}
    for row in rows:
        groups.setdefault((*(row.case[key] for key in keys), row.clock), []).append(row)
    return list(groups.values())


def _by_shape(rows: Iterable[Measurement]) -> dict[tuple[int, ...], list[Measurement]]:
    groups: dict[tuple[int, ...], list[Measurement]] = {}
    for row in rows:
        groups.setdefault(tuple(row.case["shape"]), []).append(row)
    return groups


def _names(rows: Iterable[Measurement]) -> list[str]:
    return list(dict.fromkeys(_name(row) for row in rows))


def _name(row: Measurement) -> str:
    return row.estimator if row.path == "torch" else f"{row.estimator}, {row.path}"


def _batch_norm_time(rows: Iterable[Measurement]) -> float | None:
    """Return the median time of BatchNorm beside these measurements."""
    seconds = [seconds for row in rows for seconds in row.batch_norm]
    return median(seconds) if seconds else None


def _quartiles(row: Measurement) -> str:
    if not row.values:
        return NONE
    low, middle, high = Quartiles.of(row.ratios)
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


def _notes(rows: Iterable[Measurement]) -> list[str]:
    return list(dict.fromkeys(f"{NONE} {_name(row)}: {row.note}" for row in rows if row.note))
