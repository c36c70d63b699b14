"""The first sentences of a report: what the attacks do to each estimator, and whether it was a smoke run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...bench import Results
from .labels import estimator_label
from .panels import Panel, split_into_panels


def smoke_warning(several: Sequence[Results]) -> str:
    """Return the paragraph that a page begins with if it shows the short form of a recipe, else ""."""
    names = [results.recipe["name"] for results in several if results.is_smoke]
    if not names:
        return ""
    which = f" ({', '.join(names)})" if len(names) < len(several) else ""
    return (
        f"This is a smoke run{which}: it checks that the machinery works, with few images and weak attacks. Its numbers"
        " prove nothing about any defence."
    )


def lead(results: Results) -> str:
    """Return the finding of the first panel with an attack, or else what the recipe is about.

    Estimators are compared on the batches that all of them have.
    """
    incomplete = results.has_unfinished_streams() or results.has_unstarted_streams()
    stopped = "The run is not complete. " if incomplete else ""
    for panel in split_into_panels(results):
        if panel.attack is not None and not panel.sweep and (finding := _describe_finding(panel)):
            return stopped + finding
    return stopped + (results.recipe["about"] or "The predictions without attack.")


def _describe_finding(panel: Panel) -> str:
    """Return what the worst attack does to each estimator, or "" where nothing can be compared."""
    shared = shared_batches(panel, panel.estimators)
    findings = []
    for estimator in panel.estimators:
        results = of_estimator(panel.results, estimator).only(shared)
        worst, before = results.worst(panel.columns), results.measure("wrong_without")
        if worst is None or before is None:
            continue
        change = "" if panel.targeted else f"from {100 * before.value:.0f} to "
        findings.append(f"{change}{100 * worst.value:.0f} % with {estimator_label(estimator)}")
    if not findings:
        return ""
    batches = "one batch" if len(shared) == 1 else f"{len(shared)} batches"
    rest = (
        "" if panel.results.batch_ids() <= shared else f" These numbers are over the {batches} that all of them have."
    )
    if panel.targeted:
        target = "pixel" if panel.results.dense else "image"
        return f"The target {target} is predicted as the attacker's class in {', '.join(findings)}.{rest}"
    return (
        f"Under the worst attack that was run, the {panel.quality} on benign images goes {', '.join(findings)}.{rest}"
    )


def of_estimator(results: Results, estimator: str) -> Results:
    """Return the results of one estimator."""
    return results.select(lambda cell: cell.estimator == estimator)


def shared_batches(panel: Panel, estimators: Sequence[str]) -> set[tuple[Any, ...]]:
    """Return the batches that all of some estimators have under every attack, or at each number of a sweep."""
    if not estimators:
        return set()
    columns = [panel.in_column(column) for column in panel.columns]
    shared = [set.intersection(*(of_estimator(one, name).batch_ids() for name in estimators)) for one in columns]
    return set.union(*shared) if panel.sweep else set.intersection(*shared)
