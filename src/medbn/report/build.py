"""From a store to a document: which tables and pictures there are, and what they say."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .. import methods
from ..bench import published
from ..bench.cell import Attack, Cell
from ..bench.intervals import Interval
from ..bench.results import Results, read
from ..bench.store import Store
from ..data import corruptions
from .document import (
    Curves,
    Document,
    Facts,
    Gallery,
    Heatmap,
    Measure,
    Part,
    Picture,
    Point,
    Scatter,
    Section,
    Table,
    Text,
    Value,
)
from .values import fewer

DEFENCES = {
    "mean": ("BatchNorm", "the mean and the variance of the batch: no defence"),
    "median": ("MedBN", "the median, and the mean squared deviation from it (the paper's defence)"),
    "image_median": ("image_median", "medians over whole images, of their means and variances (ours)"),
    "mad": ("MAD", "the median, and the squared median absolute deviation (appendix H)"),
    "mad_scaled": ("scaled MAD", "the same, scaled to be the variance of a normal distribution"),
}
SWEEPS = {"malicious": "malicious images per batch", "batch_size": "images per batch, a fifth of them malicious"}


def build(store: Store, names: Sequence[str] | None = None) -> Document:
    """The report on a store, or on some of its recipes."""
    found = [results for results in read(store, names) if results.cells]
    if not found:
        raise ValueError(f"there are no results in {store.path} yet: medbn run RECIPE --store {store.path}.")
    used = {cell.cell.estimator for results in found for cell in results.cells}
    series = {defence(e): _explained(e) for e in _ordered(used)}
    several = len(found) > 1
    sections = [section for results in found for section in _sections(results, store, several)]
    what = found[0].recipe["name"] if not several else f"{len(found)} experiments"
    lead = "Each has its tables, its pictures and the commands that ran it." if several else _lead(found[0])
    return Document(f"medbn: {what}", lead, sections, series)


def defence(estimator: str) -> str:
    """What an estimator is called in a report."""
    name, _, prior = estimator.partition("@")
    name = DEFENCES.get(name, (name, ""))[0]
    return f"{name}, prior {prior}" if prior else name


def _explained(estimator: str) -> str:
    name, _, prior = estimator.partition("@")
    said = DEFENCES.get(name, ("", "registered by its user"))[1]
    return f"{said}; the training statistics have the weight {prior}" if prior else said


def _ordered(estimators: set[str]) -> list[str]:
    known = list(DEFENCES)

    def rank(estimator: str) -> tuple[int, str]:
        name = estimator.partition("@")[0]
        return known.index(name) if name in known else len(known), estimator

    return sorted(estimators, key=rank)


def method_name(method: str) -> str:
    """A method's name as its authors write it."""
    return {"tent": "TENT", "sema": "sEMA", "mdia": "mDIA"}.get(method) or methods.get(method).__name__


def measure(found: Interval | None, count: int | None = None, note: str = "") -> Measure | None:
    """An interval of shares as one of per cents."""
    if found is None:
        return None
    low, high = (None if x != x else 100 * x for x in (found.low, found.high))
    return Measure(100 * found.value, low, high, count, note)


def headline(store: Store, name: str) -> list[tuple[str, list[str], list[list[str]]]]:
    """The first tables of a recipe as text, for a terminal: title, columns, rows."""
    tables = []
    for results in read(store, [name]):
        for title, panel in _panels(results) if results.cells else ():
            table = _headline(title, panel)[0]
            assert isinstance(table, Table)
            rows = [[f"{v.value:.1f}" if isinstance(v, Measure) else str(v or "") for v in row] for row in table.rows]
            tables.append((f"{table.title}: {table.caption.split(',')[0]}; lower is better.", [*table.columns], rows))
    return tables


# --- what a recipe's results fall into --------------------------------------------------------------------------------


def _panels(results: Results) -> list[tuple[str, Results]]:
    """The results by dataset, model, sizes and objective, each with a title; a sweep stays together."""
    axis = results.recipe["axis"]

    def of(cell: Cell) -> tuple[str, ...]:
        setting = cell.setting
        sizes = "" if axis in SWEEPS else f"{setting.malicious} of {setting.batch_size} malicious"
        objective = f"{cell.attack.objective} attack" if cell.attack else ""
        return setting.dataset, setting.model, f"severity {setting.severity}", sizes, objective

    keys = results.values(of)
    told = [i for i in range(5) if len({key[i] for key in keys}) > 1 or i == 4]
    if not any(key[4] for key in keys):
        told = sorted({0, *told})
    return [
        (", ".join(key[i] for i in told if key[i]), results.select(lambda cell, key=key: of(cell) == key))  # type: ignore[misc]
        for key in sorted(keys)
    ]


def _variant(results: Results) -> tuple[str, Callable[[Cell], Any]]:
    """What the columns of a recipe's tables are: a sweep over sizes, or kinds of attack."""
    axis = results.recipe["axis"]
    if axis == "malicious":
        return axis, lambda cell: cell.setting.malicious
    if axis == "batch_size":
        return axis, lambda cell: cell.setting.batch_size
    return "attack", lambda cell: cell.attack


def _variants(results: Results) -> list[Any]:
    axis, of = _variant(results)
    found = results.values(of)
    return sorted(found, key=lambda attack: _rank(_told(attack, found))) if axis == "attack" else sorted(found)


def _rank(label: str) -> tuple[bool, bool, str]:
    return not label.startswith("exact"), not label.startswith("straight-through"), label


def _told(attack: Attack | None, among: Sequence[Attack | None]) -> str:
    """What an attack is called among others: its label, and whatever else they differ in."""
    if attack is None:
        return ""
    others = [one for one in among if one is not None]
    words = [attack.label]
    if len({one.steps for one in others}) > 1:
        words.append(f"{attack.steps} steps")
    if len({one.step_size for one in others}) > 1:
        words.append(f"steps of {attack.step_size * 255:.3g}/255")
    for name in ("start", "restarts"):
        if len({getattr(one, name) for one in others}) > 1:
            words.append(f"{name} {getattr(attack, name)}")
    return ", ".join(words)


def _of_variant(panel: Results, variant: Any) -> Results:
    """A panel's cells of one column; a mean has but one gradient, and its cells stand in the other columns too."""
    _, of = _variant(panel)

    def belongs(cell: Cell) -> bool:
        if of(cell) == variant:
            return True
        if cell.estimator != "mean" or not isinstance(variant, Attack) or cell.attack is None:
            return False
        return cell.attack == replace(variant, gradient="exact")

    chosen = panel.select(belongs)
    own = chosen.select(lambda cell: of(cell) == variant)
    stand = chosen.select(lambda cell: of(cell) != variant and cell.estimator not in own.values(lambda c: c.estimator))
    return Results(panel.recipe, panel.runs, own.cells + stand.cells)


def _harm_name(panel: Results) -> str:
    cell = panel.cells[0].cell
    if cell.attack is None:
        return "error"
    return "attack success" if cell.attack.objective == "targeted" else "error under attack"


def _groups(results: Results) -> list[tuple[str, str]]:
    """Methods and estimators that occur together, in order."""
    order = list(results.recipe["methods"])
    there = set(results.values(lambda cell: (cell.method, cell.estimator)))
    estimators = _ordered({estimator for _, estimator in there})
    names = order + sorted({method for method, _ in there} - set(order))
    return [(method, estimator) for method in names for estimator in estimators if (method, estimator) in there]


def _at(results: Results, method: str, estimator: str) -> Results:
    return results.select(lambda cell: (cell.method, cell.estimator) == (method, estimator))


# --- sections ---------------------------------------------------------------------------------------------------------


def _sections(results: Results, store: Store, several: bool) -> list[Section]:
    group = results.recipe["name"] if several else ""
    prefix = f"{group}: " if group else ""
    panels = _panels(results)
    made: list[tuple[str, str, list[Part]]] = [
        ("Results", results.recipe["about"], [part for title, panel in panels for part in _headline(title, panel)]),
        (
            "Where the defences stand",
            "Low and left is good: little error without an attack, and little harm under one.",
            [part for title, panel in panels for part in _frontier(title, panel)],
        ),
        (
            "Along the sweep",
            "What changes with the attacker's share, or with the size of the batch.",
            [part for title, panel in panels for part in _curves(title, panel)],
        ),
        (
            "By corruption",
            "The most harmful of the attacks on each batch." if results.recipe["attacks"] else "",
            [part for title, panel in panels for part in _heatmaps(title, panel)],
        ),
        (
            "Beside the paper",
            "The paper's numbers belong to other weights: compare what an attack or a defence changes.",
            [part for name in results.recipe["published"] for part in _published(name, results)],
        ),
        ("Examples", "Images of the attacker before and after crafting.", _examples(results, store)),
        ("Time", "Seconds per batch, on the machine below.", [_time(results)]),
        ("What was run", "", [_facts(results), *_commands(results)]),
    ]
    return [Section(prefix + title, parts, lead, group) for title, lead, parts in made if parts]


def _headline(title: str, panel: Results) -> list[Part]:
    variants = _variants(panel)
    attacked = panel.cells[0].cell.attack is not None
    axis, _ = _variant(panel)
    harm = _harm_name(panel)
    columns = ["method", "normalisation"]
    if attacked and axis not in SWEEPS:
        columns.append("error without attack")
        columns += [f"{harm}, {_told(variant, variants)}" if len(variants) > 1 else harm for variant in variants]
        columns += ["worst of them"] if len(variants) > 1 and _gradients(panel) else []
    elif attacked:
        columns += [str(variant) for variant in variants]
    else:
        columns.append("error")
    rows: list[list[Value]] = []
    for method, estimator in _groups(panel):
        cells = _at(panel, method, estimator)
        row: list[Value] = [method_name(method), defence(estimator) if method != "source" else "un-adapted"]
        if attacked and axis not in SWEEPS:
            row.append(_measured(cells, "wrong_without"))
        row += [_measured(_of_variant(cells, variant)) for variant in variants]
        if columns[-1] == "worst of them":
            row.append(_measured(cells.hardest()))
        rows.append(row)
    per = f" In columns: {SWEEPS[axis]}." if axis in SWEEPS else ""
    caption = f"{harm[0].upper()}{harm[1:]} in per cent, with 95 % intervals; lower is better.{per}"
    notes = [*_notes(panel), *_coverage(rows)]
    if columns[-1] == "worst of them" and any(len(_counts([row[3:]])) > 1 for row in rows):
        notes.append("The worst of them is that of the batches on which all of these attacks were run.")
    table = Table(_head(title) or "Error", columns, rows, caption, notes, "low", labels=2)
    return [table, *_differences(panel)]


def _counts(rows: Sequence[Sequence[Value]]) -> set[int]:
    """From how many batches the measures in some rows are."""
    return {value.count for row in rows for value in row if isinstance(value, Measure) and value.count is not None}


def _coverage(rows: Sequence[Sequence[Value]]) -> list[str]:
    """What is to be said where the cells of a column are from different numbers of batches."""
    if not fewer(Table("", [], rows)):
        return []
    counts = _counts(rows)
    return [
        f"Cells are from {min(counts)} to {max(counts)} batches. Those with fewer than the most of their column say how"
        " many (n), and are not compared for the best."
    ]


def _head(title: str) -> str:
    """A title with a capital, unless it begins with the name of a dataset."""
    return title if title.split(",")[0].endswith("-c") else title[:1].upper() + title[1:]


def _gradients(panel: Results) -> bool:
    """Whether the attacks of a panel differ in their gradient alone, so that the worst of them is one attacker."""
    kinds = {cell.cell.attack for cell in panel.cells if cell.cell.attack}
    return len({replace(attack, gradient="exact") for attack in kinds}) == 1


def _measured(results: Results, which: str = "wrong") -> Measure | None:
    found = results.harm(which)
    targeted = which == "wrong" and any("hit" in batch for batch in results.batches)
    unit = "targets" if targeted else "batches"
    once = which == "wrong" or not results.cells
    count = len(results.batches) if once else len(results.places())
    note = f"{count} {unit}"
    already = [batch["already"] for batch in results.batches if "already" in batch]
    if targeted:
        note += f"; {sum(already)} of them predicted so without attack" if sum(already) else ""
    elif already and "hit" not in results.batches[0]:
        note += f"; {sum(already)} of {len(already)} targets predicted as an attacker would like, without attack"
    return measure(found, count, note)


def _notes(panel: Results) -> list[str]:
    notes = []
    counts = {len(result.batches) for result in panel.cells}
    if panel.cells[0].cell.attack is not None:
        if panel.cells[0].cell.attack.objective == "targeted":
            notes.append("Success: the target class is predicted for the target image; Wilson's intervals.")
        else:
            notes.append("Errors are those of images that nobody touched; intervals by bootstrap over batches.")
    if counts == {1} and len(panel.values(lambda cell: cell.corruption)) > 1:
        notes.append(f"{_per_corruption(panel)}: the intervals cover how corruptions differ, and are wide for it.")
    if len(counts) > 1:
        so_far = " so far: the run is not complete." if panel.unfinished() else "."
        notes.append(f"Streams have between {min(counts)} and {max(counts)} batches{so_far}")
    return notes


def _per_corruption(panel: Results) -> str:
    """How many batches there are of each corruption, where every stream has one."""

    def run(cell: Cell) -> tuple[Any, ...]:
        return cell.setting, cell.method, cell.estimator, cell.attack

    batches = Counter((run(result.cell), result.cell.corruption) for result in panel.cells)
    covered = set(Counter(of for of, _ in batches).values())
    fewest, most = min(batches.values()), max(batches.values())
    said = "One batch" if most == 1 else f"{fewest} batches" if fewest == most else f"{fewest} to {most} batches"
    there = "each corruption" if len(covered) == 1 else f"each of {min(covered)} to {max(covered)} corruptions"
    return f"{said} of {there}"


def _differences(panel: Results) -> list[Part]:
    """Paired differences to BatchNorm on the same batches, which say more than two intervals that overlap."""
    estimators = [e for e in _ordered(set(panel.values(lambda cell: cell.estimator))) if e != "mean"]
    if panel.cells[0].cell.attack is None or not estimators or "mean" not in panel.values(lambda c: c.estimator):
        return []
    first = _variants(panel)[0]
    exact = panel if _variant(panel)[0] in SWEEPS else _of_variant(panel, first)
    rows: list[list[Value]] = []
    for method, estimator in _groups(panel):
        ours, base = _at(exact, method, estimator), _at(exact, method, "mean")
        if estimator != "mean" and base.cells:
            differences = [_difference(ours, base, which) for which in ("wrong_without", "wrong")]
            rows.append([method_name(method), defence(estimator), *differences])
    columns = ["method", "normalisation", "error without attack", _harm_name(panel)]
    several = len(_variants(panel)) > 1 and _variant(panel)[0] not in SWEEPS
    what = f" ({_told(first, _variants(panel))} attack)" if several else ""
    caption = f"Differences to BatchNorm on the same batches{what}, in points; negative is better."
    return [Table("Difference to BatchNorm", columns, rows, caption, labels=2)]


def _difference(ours: Results, base: Results, which: str) -> Measure | None:
    shared = ours.by_batch(which).keys() & base.by_batch(which).keys()
    return measure(ours.minus(base, which), len(shared))


def _frontier(title: str, panel: Results) -> list[Part]:
    axis, _ = _variant(panel)
    if panel.cells[0].cell.attack is None or axis in SWEEPS:
        return []
    points, others = [], []
    for method, estimator in _groups(panel):
        cells = _at(panel, method, estimator)
        x, y = _measured(cells.complete(), "wrong_without"), _measured(cells.hardest())
        if x is not None and y is not None:
            label = f"{method_name(method)} + {defence(estimator)}"
            points.append(Point(label, defence(estimator), x, y, method_name(method)))
            others += [label] if cells.complete().places() != cells.places() else []
    what = _harm_name(panel)
    alt = "Scatter plot. " + " ".join(
        f"{p.label}: {p.x.value:.1f} without, {p.y.value:.1f} under attack." for p in points
    )
    worst = "the worst attack" if len(_variants(panel)) > 1 else "the attack"
    head = f"{_head(title)}: {what} against error without attack"
    caption = others and (
        "Both are over the batches on which all of these attacks were run: fewer than under Results, and so with other"
        f" errors without attack, for {', '.join(others)}."
    )
    return [Scatter(head, alt, "error without attack, %", f"{what} ({worst}), %", points, caption=caption or "")]


def _curves(title: str, panel: Results) -> list[Part]:
    axis, of = _variant(panel)
    if axis not in SWEEPS:
        return []
    parts: list[Part] = []
    for method in panel.values(lambda cell: cell.method):
        series, reference = {}, {}
        for estimator in _ordered(set(panel.values(lambda cell: cell.estimator))):
            cells = _at(panel, method, estimator)
            line = [(float(v), _measured(_of_variant(cells, v))) for v in sorted(cells.values(of))]
            series[defence(estimator)] = [(x, y) for x, y in line if y is not None]
            printed = [(x, _printed(panel, method, estimator, axis, x)) for x, _ in series[defence(estimator)]]
            reference[defence(estimator)] = [(x, y) for x, y in printed if y is not None]
        alt = "Curves. " + " ".join(
            f"{name}: " + ", ".join(f"{y.value:.1f} at {x:g}" for x, y in line) + "." for name, line in series.items()
        )
        head = f"{_head(title)}, {method_name(method)}"
        drawn = {name: line for name, line in reference.items() if line}
        parts.append(Curves(head, alt, SWEEPS[axis], f"{_harm_name(panel)}, %", series, drawn))
    return parts


def _printed(panel: Results, method: str, estimator: str, axis: str, value: float) -> float | None:
    cell = panel.cells[0].cell
    for name in panel.recipe["published"]:
        keys: dict[str, Any] = {
            "dataset": cell.setting.dataset,
            "method": method,
            "estimator": estimator,
            axis: int(value),
        }
        found = published.get(name).lookup(**keys)
        if found is not None:
            return found
    return None


def _heatmaps(title: str, panel: Results) -> list[Part]:
    there = panel.values(lambda cell: cell.corruption)
    if len(there) < 2 or _variant(panel)[0] in SWEEPS:
        return []
    names = [name for name in corruptions.available() if name in there]
    parts: list[Part] = []
    attacked = panel.cells[0].cell.attack is not None
    labels = [name.replace("_", " ") for name in names]
    groups = _groups(panel)
    if len({method for method, _ in groups}) == 1 and len(groups) > 1:
        values = [[_heat(_at(panel, *group), group[0], name, attacked) for name in names] for group in groups]
        what = f"{_harm_name(panel)} of {method_name(groups[0][0])}"
        rows = [defence(estimator) for _, estimator in groups]
        alt = f"{what} by normalisation and corruption, in per cent."
        return [Heatmap(f"{method_name(groups[0][0])}: {title or _harm_name(panel)}", alt, rows, labels, values)]
    for estimator in _ordered(set(panel.values(lambda cell: cell.estimator))):
        of_estimator = panel.select(lambda cell, estimator=estimator: cell.estimator == estimator)  # type: ignore[misc]
        methods_ = [method for method, e in groups if e == estimator]
        values = [[_heat(of_estimator, method, corruption, attacked) for corruption in names] for method in methods_]
        head = f"{defence(estimator)}: {title or _harm_name(panel)}"
        alt = f"{_harm_name(panel)} of {defence(estimator)} by method and corruption, in per cent."
        parts.append(Heatmap(head, alt, [method_name(m) for m in methods_], labels, values))
    return parts


def _heat(results: Results, method: str, corruption: str, attacked: bool) -> Measure | None:
    cells = results.select(lambda cell: cell.method == method and cell.corruption == corruption)
    if not cells.cells:
        return None
    counted = cells.hardest() if attacked else cells
    return measure(counted.harm(), len(counted.batches))


def _published(name: str, results: Results) -> list[Part]:
    """Every number of a published table beside ours, where we have measured the same."""
    table = published.get(name)
    labels: dict[tuple[str, ...], dict[str, tuple[Measure | None, float]]] = {}
    heads = ["dataset", "method", *sorted(_varying(table))]
    estimators = list(dict.fromkeys(row.estimator for row in table.rows))
    there = {(cell.cell.setting.dataset, cell.cell.method) for cell in results.cells}
    for row in table.rows:
        if (row.dataset, row.method) in there:
            key = tuple(_shown(head, row.keys.get(head, "")) for head in heads)
            same = results.select(lambda cell, row=row: _same(cell, row))  # type: ignore[misc]
            attacked = any(result.cell.attack for result in same.cells)
            ours = _measured(same, "wrong_without" if row.objective == "none" and attacked else "wrong")
            labels.setdefault(key, {})[row.estimator] = (ours, row.value)
    if not labels:
        return []
    columns = [*heads]
    for estimator in estimators:
        columns += [f"{defence(estimator)}, ours", f"{defence(estimator)}, paper"]
    rows: list[list[Value]] = []
    for key, values in labels.items():
        line: list[Value] = [*key]
        for estimator in estimators:
            line += list(values.get(estimator, (None, None)))
        rows.append(line)
    notes = [*table.notes]
    for keys, printed, recomputed in table.disagreements():
        who = ", ".join(str(keys[k]) for k in ("dataset", "objective", "method", "estimator") if k in keys)
        notes.append(f"{who}: printed average {printed:.2f}, mean of the printed corruptions {recomputed:.2f}.")
    measured = len(results.values(lambda cell: cell.corruption))
    if measured < len(corruptions.NAMES) and not any(row.corruption for row in table.rows):
        notes.insert(0, f"Ours are means over {measured} of the fifteen corruptions, the paper's over all of them.")
    caption = f"{table.where[0].upper()}{table.where[1:]}: {table.caption}"
    return [
        Table(f"{table.where.split(',')[0].capitalize()}: {name}", columns, rows, caption, notes, labels=len(heads))
    ]


def _varying(table: published.Table) -> set[str]:
    """What tells the rows of a published table apart, beside dataset, method and estimator."""
    candidates = ("objective", "corruption", "malicious", "batch_size", "epsilon", "knowledge", "attack")
    found = set()
    for name in candidates:
        seen = {row.keys.get(name) for row in table.rows}
        if len(seen) > 1 and not (
            name == "malicious" and table.id not in ("malicious-targeted", "malicious-indiscriminate")
        ):
            found.add(name)
    return found - ({"attack", "knowledge", "epsilon"} if "objective" in found else set())


def _shown(head: str, value: object) -> str:
    if head == "method":
        return method_name(str(value))
    if head == "epsilon" and isinstance(value, float):
        return "1" if value == 1 else f"{value * 255:.0f}/255"
    return str(value).replace("_", " ")


def _same(cell: Cell, row: published.Row) -> bool:
    """Whether a cell measures what a row of the paper prints."""
    wanted = row.settings
    if (cell.setting.dataset, cell.method, cell.estimator) != (row.dataset, row.method, row.estimator):
        return False
    if row.corruption is not None and cell.corruption != row.corruption:
        return False
    if cell.attack is None:
        return row.objective == "none"
    if row.objective != "none":
        if cell.attack.objective != row.objective or cell.attack.gradient != "exact":
            return False
        if abs(cell.attack.epsilon - float(wanted.get("epsilon", 1.0))) > 1e-9:
            return False
        if (cell.attack.alignment > 0) != (wanted.get("attack") == "adaptive"):
            return False
        if cell.attack.knowledge != wanted.get("knowledge", "white"):
            return False
        if cell.setting.malicious != wanted.get("malicious", cell.setting.malicious):
            return False
    return cell.setting.batch_size == wanted.get("batch_size", cell.setting.batch_size)


def _examples(results: Results, store: Store) -> list[Part]:
    rows: list[tuple[str, Sequence[Picture]]] = []
    seen: set[tuple[str, str]] = set()
    ranked = sorted(results.cells, key=lambda result: _rank(result.cell.attack.label if result.cell.attack else ""))
    for estimator in _ordered(set(results.values(lambda cell: cell.estimator))):
        for result in ranked:
            attack = result.cell.attack
            if result.cell.estimator != estimator or attack is None or (estimator, attack.label) in seen:
                continue
            pairs = store.examples(result.key)
            if not pairs:
                continue
            seen.add((estimator, attack.label))
            if not rows:
                clean = [Picture(c, f"image {i + 1} of the attacker, as it was") for i, (c, _) in enumerate(pairs)]
                rows.append((f"clean ({result.cell.corruption.replace('_', ' ')})", clean))
            crafted = [Picture(p, f"image {i + 1} of the attacker, crafted") for i, (_, p) in enumerate(pairs)]
            rows.append((f"{defence(estimator)}, {attack.label}", crafted))
    return [Gallery("The attacker's images", rows[:8])] if rows else []


def _time(results: Results) -> Table:
    rows: list[list[Value]] = []
    for estimator in _ordered(set(results.values(lambda cell: cell.estimator))):
        cells = results.select(lambda cell, estimator=estimator: cell.estimator == estimator)  # type: ignore[misc]
        attack, rest = cells.seconds()
        crafted = sum(1 for batch in cells.batches if "attack_s" in batch and not batch.get("shared"))
        per_attack = round(attack / crafted, 2) if crafted else None
        total = len(cells.batches)
        rows.append([defence(estimator), total, crafted, per_attack, round(rest / total, 3), round(attack + rest)])
    columns = ["normalisation", "batches", "of them crafted", "attack, s", "prediction and adaptation, s", "all, s"]
    caption = "A batch that two methods would craft alike is crafted once."
    return Table("Time spent", columns, rows, caption)


def _facts(results: Results) -> Facts:
    recipe, last = results.recipe, results.runs[-1]
    kinds = {result.cell.attack for result in results.cells if result.cell.attack}
    settings = {result.cell.setting for result in results.cells}
    items = [
        ("recipe", recipe["name"]),
        ("data and model", "; ".join(sorted({f"{s.dataset} (severity {s.severity}), {s.model}" for s in settings}))),
        ("batches", f"{len(results.batches):,} in {len(results.cells):,} streams"),
        ("malicious images", ", ".join(sorted({f"{s.malicious} of {s.batch_size}" for s in settings}, key=_natural))),
        ("corruptions", ", ".join(name.replace("_", " ") for name in results.values(lambda cell: cell.corruption))),
        ("attacks", "; ".join(sorted(map(_spelled, kinds))) or "none"),
        ("scenario", recipe["scenario"] if kinds else "no attack"),
        ("seeds", ", ".join(str(seed) for seed in sorted(results.values(lambda cell: cell.seed)))),
        ("device", "; ".join(sorted({batch.get("device", "unknown") for batch in results.batches}))),
        ("versions", f"medbn {last.facts['medbn']}, torch {last.facts['torch']}, Python {last.facts['python']}"),
        ("last run", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(last.began))),
    ]
    return Facts("Facts", items)


def _natural(text: str) -> tuple[int, str]:
    return int(text.split(" ")[0]), text


def _spelled(attack: Attack) -> str:
    return (
        f"{attack.objective}, {attack.label} gradient, {attack.steps} steps of {attack.step_size * 255:.3g}/255,"
        f" ε {attack.epsilon:.3g}"
    )


def _commands(results: Results) -> list[Part]:
    commands = [run.command for run in results.runs if run.command]
    return [Text(command, code=True) for command in dict.fromkeys(commands)]


def _lead(results: Results) -> str:
    """The finding in one sentence, from the first panel that has an attack; over batches that can be compared."""
    stopped = "The run is not complete. " if results.unfinished() or results.unbegun() else ""
    for _, panel in _panels(results):
        if panel.cells[0].cell.attack is None or results.recipe["axis"] in SWEEPS:
            continue
        shared = _shared(panel)
        same = panel.places() <= shared
        said = []
        for estimator in _ordered(set(panel.values(lambda cell: cell.estimator))):
            cells = _by(panel, estimator).only(shared)
            worst, before = cells.worst(), cells.error("wrong_without")
            if worst is None or before is None:
                continue
            if _harm_name(panel) == "attack success":
                said.append(f"{100 * worst.value:.0f} % with {defence(estimator)}")
            else:
                said.append(f"from {100 * before.value:.0f} to {100 * worst.value:.0f} % with {defence(estimator)}")
        if not said:
            continue
        batches = "one batch" if len(shared) == 1 else f"{len(shared)} batches"
        rest = "" if same else f" These are of the {batches} that all of them have."
        if _harm_name(panel) == "attack success":
            return f"{stopped}The attacker's target class is predicted in {', '.join(said)}.{rest}"
        worst_of = "under the worst attack that was run"
        return f"{stopped}The error on images that nobody touched goes {', '.join(said)}, {worst_of}.{rest}"
    return stopped + (results.recipe["about"] or "Error without attack.")


def _by(panel: Results, estimator: str) -> Results:
    return panel.select(lambda cell: cell.estimator == estimator)


def _shared(panel: Results) -> set[tuple[Any, ...]]:
    """The batches that all estimators of a panel have met under all of its attacks."""
    estimators = panel.values(lambda cell: cell.estimator)
    columns = [_of_variant(panel, variant) for variant in _variants(panel)]
    return set.intersection(*(_by(column, estimator).places() for column in columns for estimator in estimators))
