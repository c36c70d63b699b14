"""The scatter plot of a panel: error or mean IoU without an attack against harm under the worst attack."""

from __future__ import annotations

from ..document import Part, Point, Scatter
from .labels import capitalise, estimator_label, method_label
from .measures import measure_harm, measure_without
from .panels import Panel


def frontier_parts(panel: Panel) -> list[Part]:
    """Return one point for each method and estimator; nothing for a sweep or without an attack."""
    if panel.attack is None or panel.sweep:
        return []
    points, partial, missing = [], [], []
    for method, estimator in panel.groups:
        results = panel.group(method, estimator)
        complete = results.complete(panel.columns)
        x, y = measure_without(complete), measure_harm(results.hardest(panel.columns))
        label = f"{method_label(method)} + {estimator_label(estimator)}"
        if x is None or y is None:
            missing.append(label)
        else:
            points.append(Point(label, estimator_label(estimator), x, y, method_label(method)))
            partial += [label] if complete.batch_ids() != results.batch_ids() else []
    alt = "Scatter plot. " + " ".join(
        f"{p.label}: {p.x.value:.1f} without, {p.y.value:.1f} under attack." for p in points
    )
    worst = "the worst attack" if len(panel.columns) > 1 else "the attack"
    without = f"{panel.quality} without attack"
    title = f"{capitalise(panel.title)}: {panel.harm} against {without}"
    captions = []
    if partial:
        captions.append(
            "Both axes are over the batches on which all of these attacks were run. These are fewer than under Results,"
            f" and the {panel.quality} without attack differs, for {', '.join(partial)}."
        )
    if missing:
        captions.append(f"Not all of these attacks were run on the same batches with {', '.join(missing)}.")
    caption = " ".join(captions)
    better = ("high" if panel.results.dense else "low", "high" if panel.high_is_better else "low")
    return [Scatter(title, alt, f"{without}, %", f"{panel.harm} ({worst}), %", points, caption=caption, better=better)]
