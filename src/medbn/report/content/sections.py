"""The sections of a report, in order."""

from __future__ import annotations

from collections.abc import Sequence

from ...bench import Results, Store
from ...bench import results as stored
from ..document import Document, Part, Section
from .cells import describe_cells
from .classes import class_parts
from .facts import run_parts, time_parts
from .frontier import frontier_parts
from .gallery import gallery_parts
from .headline import headline_parts
from .heatmaps import heatmap_parts
from .labels import estimator_about, estimator_label, order_estimators
from .lead import lead, smoke_warning
from .panels import split_into_panels
from .paper import paper_parts
from .strips import strip_parts
from .summary import summary_sections
from .sweeps import sweep_parts

DETAILS = ("By corruption", "By class", "Examples", "Time", "What was run")
"""Sections that a page folds away; of a report on several experiments all but the results."""


def build(store: Store, names: Sequence[str] | None = None) -> Document:
    """Return the report on a store, or on some of its recipes.

    Args:
        store: an open store with results.
        names: the recipes to show, by name; all of them without it.
    """
    recipes = [results for results in stored.read(store, names) if results.cells]
    if not recipes:
        raise ValueError(f"there are no results in {store.path} yet: medbn run RECIPE --store {store.path}.")
    estimators = {result.cell.estimator for results in recipes for result in results.cells}
    labels = {estimator_label(name): name for name in order_estimators(estimators)}
    series = {label: estimator_about(name) for label, name in labels.items()}
    several = len(recipes) > 1
    sections = summary_sections(recipes) if several else []
    sections += [section for results in recipes for section in _sections(results, store, several)]
    title = f"{len(recipes)} experiments" if several else recipes[0].recipe["name"]
    first = "The summary has a row for each experiment, which leads to its tables." if several else lead(recipes[0])
    first = "\n\n".join(filter(None, [smoke_warning(recipes), first]))
    return Document(f"medbn: {title}", first, sections, series, labels, describe_cells(recipes))


def _sections(results: Results, store: Store, several: bool) -> list[Section]:
    """Return the sections of one recipe that have something to show; with ``several``, its name is in their titles."""
    recipe, panels = results.recipe, split_into_panels(results)
    group = recipe["name"] if several else ""
    prefix = f"{group}: " if group else ""
    sections: list[tuple[str, str, list[Part]]] = [
        ("Results", recipe["about"], [part for panel in panels for part in headline_parts(panel)]),
        (
            "Pictures",
            "What a defence predicts for a benign image, and the image of the attacker that was in its batch.",
            [part for panel in panels for part in strip_parts(panel, store)],
        ),
        (
            "Where the defences stand",
            "The arrow points to where it is better: good predictions without an attack, and little harm under one.",
            [part for panel in panels for part in frontier_parts(panel)],
        ),
        (
            "Along the sweep",
            "How the results change with the number of malicious images, or with the size of the batch.",
            [part for panel in panels for part in sweep_parts(panel)],
        ),
        (
            "By corruption",
            "For each batch on which all attacks were run, the most harmful of them." if recipe["attacks"] else "",
            [part for panel in panels for part in heatmap_parts(panel)],
        ),
        (
            "By class",
            "The intersection over union of each class. Strong colours are the bad ones.",
            [part for panel in panels for part in class_parts(panel)],
        ),
        (
            "Beside the paper",
            "The paper's models have other weights: compare how much an attack or a defence changes, not the values.",
            [part for name in recipe["published"] for part in paper_parts(name, results)],
        ),
        ("Examples", "The attacker's images before and after crafting.", gallery_parts(results, store)),
        ("Time", "Seconds per batch, on the machine below.", time_parts(results)),
        ("What was run", "", run_parts(results)),
    ]
    return [
        Section(prefix + title, parts, about, group, folded=title in DETAILS or (several and title != "Results"))
        for title, about, parts in sections
        if parts
    ]
