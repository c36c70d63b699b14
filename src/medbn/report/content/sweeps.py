"""The curves of a panel: what changes along a number of images, with the paper's numbers beside ours."""

from __future__ import annotations

from typing import Any

from ...bench import published
from ..document import Curves, Measure, Part
from .labels import capitalise, estimator_label, method_label
from .measures import measure_harm
from .panels import Panel


def sweep_parts(panel: Panel) -> list[Part]:
    """Return one plot for each method of a sweep, with one curve for each estimator; nothing for other panels."""
    if not panel.sweep:
        return []
    parts: list[Part] = []
    for method in panel.results.values(lambda cell: cell.method):
        series: dict[str, list[tuple[float, Measure]]] = {}
        reference: dict[str, list[tuple[float, float]]] = {}
        for estimator in panel.estimators:
            results = panel.group(method, estimator)
            label = estimator_label(estimator)
            values = sorted(results.values(panel.column_of))
            measures = [(float(value), measure_harm(panel.in_column(value, results))) for value in values]
            series[label] = [(x, y) for x, y in measures if y is not None]
            printed = [(x, _published_number(panel, method, estimator, x)) for x, _ in series[label]]
            if line := [(x, y) for x, y in printed if y is not None]:
                reference[label] = line
        alt = "Curves. " + " ".join(
            f"{name}: " + ", ".join(f"{y.value:.1f} at {x:g}" for x, y in line) + "." for name, line in series.items()
        )
        title = f"{capitalise(panel.title)}, {method_label(method)}"
        parts.append(Curves(title, alt, panel.sweep, f"{panel.harm}, %", series, reference))
    return parts


def _published_number(panel: Panel, method: str, estimator: str, value: float) -> float | None:
    """Return the number that the paper prints for one place of a sweep, if it prints one."""
    dataset, axis = panel.results.cells[0].cell.dataset, panel.results.recipe["axis"]
    keys: dict[str, Any] = {"dataset": dataset, "method": method, "estimator": estimator, axis: int(value)}
    for name in panel.results.recipe["published"]:
        number = published.get(name).lookup(**keys)
        if number is not None:
            return number
    return None
