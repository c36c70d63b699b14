"""The main table of a panel: error without an attack and harm under each attack; and differences to BatchNorm."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...bench import Cell, Store
from ...bench import results as stored
from ..document import Measure, Part, Table, Value
from ..values import finite_number, format_value, interval_ends
from .best import Sample, best_cells
from .classes import describe_iou
from .labels import BASELINE, attack_label, capitalise, method_label, normalisation_label
from .measures import counts, coverage_notes, difference, measure_harm, measure_without, measure_worst
from .panels import Panel, split_into_panels

_WORST = "worst of them"


def headline(store: Store, name: str) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return the main tables of a recipe as text, for a terminal: title, columns, rows."""
    tables = []
    for results in stored.read(store, [name]):
        for panel in split_into_panels(results) if results.cells else ():
            table = headline_table(panel)
            rows = [[format_value(value) or "–" for value in row] for row in table.rows]
            tables.append((f"{table.title}: {_unit(panel)}; {_better(panel)}.", [*table.columns], rows))
    return tables


def headline_parts(panel: Panel) -> list[Part]:
    """Return the main table of a panel, and the differences to BatchNorm where an attack was run."""
    return [headline_table(panel), *_difference_table(panel)]


def headline_table(panel: Panel) -> Table:
    """Return one row for each method and estimator, one column for each attack or number of a sweep."""
    compares_attacks = panel.attack is not None and not panel.sweep
    worst = compares_attacks and len(panel.columns) > 1 and panel.one_attacker
    rows: list[list[Value]] = []
    samples: dict[tuple[int, int], Sample] = {}
    for method, estimator in panel.groups:
        results = panel.group(method, estimator)
        shown: list[Sample] = [(results, "wrong_without")] if compares_attacks else []
        shown += [(panel.in_column(column, results), "wrong") for column in panel.columns]
        values = [measure_without(one) if which == "wrong_without" else measure_harm(one) for one, which in shown]
        if worst:
            shown.append((results.hardest(panel.columns), "wrong"))
            values.append(measure_worst(shown[-1][0]))
        samples |= {(len(rows), 2 + c): sample for c, sample in enumerate(shown)}
        rows.append([method_label(method), normalisation_label(method, estimator), *values])
    columns = ["method", "normalisation", *_value_columns(panel, compares_attacks), *([_WORST] if worst else [])]
    axis = f" In columns: {panel.sweep}." if panel.sweep else ""
    intervals = any(isinstance(value, Measure) and interval_ends(value) for row in rows for value in row)
    caption = f"{_unit(panel)}{', with 95 % intervals' if intervals else ''}; {_better(panel)}.{axis}"
    notes = [*_notes(panel, intervals), *coverage_notes(rows)]
    if worst and any(len(counts([row[3:]])) > 1 or finite_number(row[-1]) is None for row in rows):
        notes.append(
            f"The column {_WORST!r} is over the batches on which all of these attacks were run; a dash means none."
        )
    best = best_cells(rows, samples, labels=2)
    if best:
        notes.append(
            "Highlighted: better than the runner-up; the interval of the difference on the same batches excludes 0."
        )
    return Table(capitalise(panel.title) or "Error", columns, rows, caption, notes, best, labels=2)


def _unit(panel: Panel) -> str:
    return f"{panel.harm[0].upper()}{panel.harm[1:]} in per cent"


def _better(panel: Panel) -> str:
    """Return which numbers are good ones, in words."""
    if panel.high_is_better:
        return "higher is better"
    return f"lower is better{', but not of the mean IoU' if panel.results.dense else ''}"


def _value_columns(panel: Panel, compares_attacks: bool) -> list[str]:
    if compares_attacks:
        several = len(panel.columns) > 1
        harms = [
            f"{panel.harm}, {attack_label(one, panel.columns)}" if several else panel.harm for one in panel.columns
        ]
        return [f"{panel.quality} without attack", *harms]
    return [panel.quality] if panel.attack is None else [str(column) for column in panel.columns]


def _notes(panel: Panel, intervals: bool) -> list[str]:
    """Return notes on the numbers: what they count, how their intervals are made, and from how many batches."""
    results, notes = panel.results, []
    lengths = {len(result.batches) for result in results.cells}
    which = "are a bootstrap over batches" if intervals else "need at least five batches"
    if panel.targeted:
        target = "pixel" if results.dense else "image"
        notes.append(f"Success: the target {target} is predicted as the target class. The intervals are Wilson's.")
    elif panel.attack is not None and not results.dense:
        notes.append(f"Errors are those of benign images. Intervals {which}.")
    if results.dense:
        notes.append(f"{describe_iou(panel)} Intervals {which}.")
    if intervals and lengths == {1} and len(results.values(lambda cell: cell.corruption)) > 1:
        notes.append(f"{_per_corruption(panel)}: the intervals include how corruptions differ, which makes them wide.")
    if len(lengths) > 1:
        so_far = " so far: the run is not complete." if results.has_unfinished_streams() else "."
        notes.append(f"Streams have between {min(lengths)} and {max(lengths)} batches{so_far}")
    return notes


def _per_corruption(panel: Panel) -> str:
    """Return how many batches there are of each corruption, where every stream has one."""

    def configuration(cell: Cell) -> tuple[Any, ...]:
        return cell.setting, cell.method, cell.estimator, cell.attack

    batches = Counter((configuration(result.cell), result.cell.corruption) for result in panel.results.cells)
    covered = set(Counter(one for one, _ in batches).values())
    fewest, most = min(batches.values()), max(batches.values())
    number = "One batch" if most == 1 else f"{fewest} batches" if fewest == most else f"{fewest} to {most} batches"
    which = "each corruption" if len(covered) == 1 else f"each of {min(covered)} to {max(covered)} corruptions"
    return f"{number} of {which}"


def _difference_table(panel: Panel) -> list[Part]:
    """Return paired differences to BatchNorm, whose intervals are narrower than those of two separate errors."""
    others = [name for name in panel.estimators if name != BASELINE]
    if panel.attack is None or not others or BASELINE not in panel.estimators:
        return []
    first = panel.columns[0]
    compared = Panel(panel.title, panel.results if panel.sweep else panel.in_column(first))
    rows: list[list[Value]] = []
    for method, estimator in panel.groups:
        results, base = compared.group(method, estimator), compared.group(method, BASELINE)
        if estimator != BASELINE and base.cells:
            differences = [difference(results, base, which) for which in ("wrong_without", "wrong")]
            if any(differences):
                rows.append([method_label(method), normalisation_label(method, estimator), *differences])
    columns = ["method", "normalisation", f"{panel.quality} without attack", panel.harm]
    several = len(panel.columns) > 1 and not panel.sweep
    which = f" ({attack_label(first, panel.columns)} attack)" if several else ""
    caption = f"Differences to BatchNorm on the same batches{which}, in points. {_sign(panel)}"
    return [Table("Difference to BatchNorm", columns, rows, caption, labels=2)]


def _sign(panel: Panel) -> str:
    """Return which sign of a difference is good, in words."""
    if panel.high_is_better:
        return "Positive is better."
    return "Negative is better, of the mean IoU positive." if panel.results.dense else "Negative is better."
