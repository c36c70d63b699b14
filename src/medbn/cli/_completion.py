"""Names that a shell completes, from the registries; nothing is imported before a shell asks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable


def complete(action: argparse.Action, names: Callable[[], Iterable[str]]) -> None:
    """Let argcomplete complete an argument with the names that ``names()`` returns."""

    def completer(**_: object) -> list[str]:
        return list(names())

    action.completer = completer  # type: ignore[attr-defined]


def recipe_names() -> list[str]:
    """Return the recipes of ``medbn recipes``."""
    from .. import bench

    return bench.recipes.available()


def dataset_names() -> list[str]:
    """Return the datasets of ``medbn data list``."""
    from .. import data

    return data.available()


def corruption_names() -> list[str]:
    """Return the corruptions of the benchmark."""
    from .. import data

    return list(data.corruptions.NAMES)


def model_names() -> list[str]:
    """Return the models of ``medbn models``."""
    from .. import models

    return models.available()


def weights_names() -> list[str]:
    """Return the weights that ``medbn models fetch`` knows."""
    from .. import models

    return list(models.WEIGHTS)


def method_names() -> list[str]:
    """Return the adaptation methods."""
    from .. import methods

    return methods.available()


def estimator_names() -> list[str]:
    """Return the estimators."""
    from .. import estimators

    return estimators.available()


def format_names() -> list[str]:
    """Return the formats of reports."""
    from .. import report

    return report.FORMATS.available()


def figure_names() -> list[str]:
    """Return the figures of ``medbn figure``."""
    from .. import analysis

    return [*analysis.available(), "all"]


def speed_parts() -> list[str]:
    """Return the parts of ``medbn speed``."""
    from .. import speed

    return list(speed.PARTS)


def speed_layouts() -> list[str]:
    """Return the memory formats that ``medbn speed`` measures."""
    from .. import speed

    return list(speed.LAYOUTS)


def speed_dtypes() -> list[str]:
    """Return the types of activations that ``medbn speed`` measures."""
    from .. import speed

    return list(speed.DTYPES)
