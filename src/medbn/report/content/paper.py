"""Tables of the paper with our numbers beside the printed ones, where we measured the same."""

from __future__ import annotations

from ...bench import UNCORRUPTED, Cell, Results, published
from ...data import corruptions
from ..document import Measure, Part, Table, Value
from .labels import estimator_label, method_label
from .measures import measure_harm, measure_without

_KEYS = ("objective", "corruption", "malicious", "batch_size", "epsilon", "knowledge", "attack")
"""The keys of published rows, beside dataset, method and estimator."""


def paper_parts(name: str, results: Results) -> list[Part]:
    """Return the published table of that name with our results; nothing if we measured none of it."""
    table = published.get(name)
    heads = ["dataset", "method", *_varying_keys(table)]
    measured = {(result.cell.dataset, result.cell.method) for result in results.cells}
    elsewhere = _other_data(table, results)
    numbers: dict[tuple[str, ...], dict[str, tuple[Measure | None, float]]] = {}
    for row in table.rows:
        if (elsewhere or row.dataset, row.method) in measured:
            labels = tuple(_label(head, row.keys.get(head, "")) for head in heads)
            numbers.setdefault(labels, {})[row.estimator] = (_ours(row, results, elsewhere or row.dataset), row.value)
    if not numbers:
        return []
    columns, estimators = [*heads], list(dict.fromkeys(row.estimator for row in table.rows))
    for estimator in estimators:
        columns += [f"{estimator_label(estimator)}, ours", f"{estimator_label(estimator)}, paper"]
    rows: list[list[Value]] = [
        [*labels, *(value for estimator in estimators for value in pairs.get(estimator, (None, None)))]
        for labels, pairs in numbers.items()
    ]
    title = f"{table.where.split(',')[0].capitalize()}: {name}"
    caption = f"{table.where[0].upper()}{table.where[1:]}: {table.caption}"
    notes = _notes(table, results)
    if elsewhere:
        notes = [_describe_other_data(table, results, elsewhere), *table.notes]
    return [Table(title, columns, rows, caption, notes, labels=len(heads))]


def _other_data(table: published.Table, results: Results) -> str:
    """Return the dataset of results on segmentation if the paper has another one, else "".

    The paper's target set must be requested from its owners, so that most readers have another: what an attack and a
    defence change can be compared all the same.
    """
    ours = {result.cell.dataset for result in results.cells}
    theirs = {row.dataset for row in table.rows}
    dense = results.dense and any(row.metric == "mean IoU" for row in table.rows)
    return ours.pop() if dense and len(ours) == 1 and not ours & theirs else ""


def _describe_other_data(table: published.Table, results: Results, dataset: str) -> str:
    """Return a note that says how our data, model and attack differ from the paper's."""
    cell, row = results.cells[0].cell, table.rows[0]
    steps = sorted({str(result.cell.attack.steps) for result in results.cells if result.cell.attack})
    attack = f", attacks of {' or '.join(steps)} steps" if steps else ""
    theirs = (
        f"{row.dataset}, {row.settings.get('model', '')}, attacks of {table.rows[0].settings.get('steps', '')} steps"
    )
    return f"Other data. Ours: {dataset}, {cell.setting.model}{attack}. The paper's: {theirs}."


def _ours(row: published.Row, results: Results, dataset: str) -> Measure | None:
    same = results.select(lambda cell: cell.dataset == dataset and _measures_the_same(cell, row))
    attacked = any(result.cell.attack for result in same.cells)
    return measure_without(same) if row.objective == "none" and attacked else measure_harm(same)


def _measures_the_same(cell: Cell, row: published.Row) -> bool:
    """Return whether a cell measures what a row of the paper prints."""
    settings, attack = row.settings, cell.attack
    if (cell.method, cell.estimator) != (row.method, row.estimator):
        return False
    if row.corruption is not None and cell.corruption != row.corruption:
        return False
    if attack is None:
        return row.objective == "none"
    if row.objective != "none":
        if attack.objective != row.objective or attack.gradient != "exact":
            return False
        if abs(attack.epsilon - float(settings.get("epsilon", 1.0))) > 1e-9:
            return False
        if (attack.alignment > 0) != (settings.get("attack") == "adaptive"):
            return False
        if attack.knowledge != settings.get("knowledge", "white"):
            return False
        if cell.setting.malicious != settings.get("malicious", cell.setting.malicious):
            return False
    return cell.setting.batch_size == settings.get("batch_size", cell.setting.batch_size)


def _varying_keys(table: published.Table) -> list[str]:
    """Return the keys that tell the rows of a table apart, beside dataset, method and estimator."""
    attacked = [row for row in table.rows if row.objective != "none"] or table.rows

    def varies(key: str) -> bool:
        rows = table.rows if key == "objective" else attacked
        values = {(row.dataset, row.keys.get(key)) for row in rows}
        return len(values) > len({row.dataset for row in rows})

    varying = {key for key in _KEYS if varies(key)}
    if any(row.metric == "mean IoU" for row in table.rows):
        varying.add("metric")  # the higher the better, unlike all others
    # The paper's malicious images are a share of the batch.
    return sorted(varying - {"malicious"} if "batch_size" in varying else varying)


def _label(head: str, value: object) -> str:
    if head == "method":
        return method_label(str(value))
    if head == "epsilon" and isinstance(value, float):
        return "1" if value == 1 else f"{value * 255:.0f}/255"
    return str(value).replace("_", " ")


def _notes(table: published.Table, results: Results) -> list[str]:
    """Return the notes on a published table, and which of its averages are not the means of what they average."""
    notes = [*table.notes]
    for keys, printed, recomputed in table.disagreements():
        place = ", ".join(str(keys[key]) for key in ("dataset", "objective", "method", "estimator") if key in keys)
        notes.append(f"{place}: printed average {printed:.2f}, mean of the printed corruptions {recomputed:.2f}.")
    used = results.values(lambda cell: cell.corruption)
    measured = len(used)
    if UNCORRUPTED not in used and measured < len(corruptions.NAMES) and not any(row.corruption for row in table.rows):
        notes.insert(0, f"Ours are means over {measured} of the fifteen corruptions, the paper's over all of them.")
    return notes
