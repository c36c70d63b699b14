"""The IoU of each class, without and under attack, where predictions are those of pixels."""

from __future__ import annotations

from typing import Any

from ...bench import Interval, Results
from ..document import Colour, Heatmap, Measure, Part
from .labels import capitalise, estimator_label, method_label
from .measures import as_percent, keys_of
from .panels import Panel


def class_parts(panel: Panel) -> list[Part]:
    """Return a heat map with the IoU of each class; nothing for classification and for sweeps."""
    if not panel.results.dense or panel.sweep:
        return []
    rows: list[tuple[str, list[Interval | None], Results]] = []
    several = len({method for method, _ in panel.groups}) > 1
    for method, estimator in panel.groups:
        results = panel.group(method, estimator)
        name = f"{method_label(method)}, {estimator_label(estimator)}" if several else estimator_label(estimator)
        for condition, chosen, which in _conditions(panel, results):
            label = f"{name}, {condition}" if condition else name
            rows.append((label, chosen.class_iou(which), chosen))
    names, colours = class_names(panel.results), class_colours(panel.results)
    shown = [k for k in range(len(names)) if any(k < len(line) and line[k] for _, line, _ in rows)]
    values = []
    for _, line, chosen in rows:
        count, keys = len(chosen.batch_ids()), keys_of(chosen)
        values.append([as_percent(line[k], count, cells=keys) if k < len(line) else None for k in shown])
    title = f"{capitalise(panel.title)}: IoU by class" if panel.title else "IoU by class"
    words = [_in_words(label, line) for (label, _, _), line in zip(rows, values, strict=True)]
    alt = " ".join(["IoU by class in per cent.", *words])
    caption = "Pixels of the class that are predicted so, of all that have the class or are predicted so, in per cent."
    chosen_colours = {names[k]: colours[k] for k in shown if k < len(colours)}
    columns = [names[k] for k in shown]
    return [Heatmap(title, alt, [row[0] for row in rows], columns, values, 0, 100, caption, True, chosen_colours)]


def _conditions(panel: Panel, results: Results) -> list[tuple[str, Results, str]]:
    """Return what the rows of a defence are: the condition in words, the results, and which of their predictions."""
    if panel.attack is None:
        return [("", results, "wrong")]
    under = "worst attack" if len(panel.columns) > 1 else "under attack"
    return [("without attack", results, "wrong_without"), (under, results.hardest(panel.columns), "wrong")]


def _in_words(label: str, line: list[Measure | None]) -> str:
    numbers = [measure.value for measure in line if measure is not None]
    return f"{label}: {min(numbers):.0f} to {max(numbers):.0f}." if numbers else ""


def describe_iou(panel: Panel) -> str:
    """Return a sentence that says what a mean IoU is over: which pixels, and how many classes."""
    which = "wrong" if panel.attack is None else "wrong_without"
    counts = panel.results.confusion(which)
    occurring = int((counts.sum(dim=1) > 0).sum()) if counts is not None else 0
    known = len(class_names(panel.results)) or occurring
    images = "all images" if panel.attack is None else "the benign images"
    classes = f"{occurring} classes" if occurring == known else f"{occurring} classes (of {known})"
    return (
        f"The mean IoU is over the pixels of {images} of all batches together, and over the {classes} that occur in"
        " their labels; predictions of other classes are errors."
    )


def class_names(results: Results) -> list[str]:
    """Return the names of the classes as they were stored, or their numbers."""
    facts = _facts(results)
    names = facts.get("classes")
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return [str(name) for name in names]
    counts = results.confusion("wrong_without")
    counts = results.confusion() if counts is None else counts
    return [] if counts is None else [f"class {k}" for k in range(len(counts))]


def class_colours(results: Results) -> list[Colour]:
    """Return the colours of the classes as they were stored; none if they cannot be read."""
    stored = _facts(results).get("colours")
    colours = []
    for colour in stored if isinstance(stored, list) else ():
        if not isinstance(colour, list) or len(colour) != 3 or not all(_is_channel(channel) for channel in colour):
            return []
        colours.append((colour[0], colour[1], colour[2]))
    return colours


def class_legend(results: Results) -> dict[str, Colour]:
    """Return the names of the classes with their colours."""
    return dict(zip(class_names(results), class_colours(results), strict=False))


def _facts(results: Results) -> dict[str, Any]:
    return results.cells[0].facts if results.cells else {}


def _is_channel(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255
