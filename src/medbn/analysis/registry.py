"""The figures by their names. Each is a file of this folder: a function that measures, and one that draws."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .._registry import Registry
from ..bench import Cell, deterministic, machine_facts
from ..data import digest
from .cache import read_numbers, write_numbers
from .experiment import Experiment, OnStep, ignore
from .numbers import Numbers
from .settings import SHORT_STEPS, Settings, attack_of

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

    from .theme import Theme


@dataclass(frozen=True)
class Figure:
    """How one figure is measured and drawn.

    Args:
        title: what it shows, in a few words.
        paper: the figure's number in the paper, ``"5, 6"``, or ``"ours"``.
        measure: returns its numbers. It needs torch and numpy alone.
        draw: draws numbers into an empty figure of matplotlib, or into a part of one.
        caption: returns the caption: what is shown, with sample sizes, model and attack.
        size: width and height in inches for these numbers, at most as wide as the theme is.
        version: of the numbers; raise it when they change, so that stored ones are measured again.
        on_data: False for a figure that needs no data and no model.
        short_steps: how many steps attacks take on digits by default.
        parts: returns how many attacks and other parts that take long are reported (``Experiment.on_step``) while the
            figure is measured and completed, for the display of progress; None if that is not known.
        complete: adds to measured numbers what needs ``medbn[figures]``, or returns them as they are without it.
        choose: returns the numbers of the layers that ``--layers`` names, from those of all layers.
        cells: returns the cells of the bench whose data, model and methods the numbers depend on; None for TeBN with
            each estimator on the first corruption.
    """

    title: str
    paper: str
    measure: Callable[[Experiment], Numbers]
    draw: Callable[[Numbers, FigureBase, Theme], None]
    caption: Callable[[Numbers], str]
    size: Callable[[Numbers, Theme], tuple[float, float]]
    version: int = 1
    on_data: bool = True
    short_steps: int = SHORT_STEPS
    parts: Callable[[Settings], int] | None = None
    complete: Callable[[Numbers, OnStep], Numbers] = lambda numbers, on_step: numbers
    choose: Callable[[Numbers, str], Numbers] = lambda numbers, layers: numbers
    cells: Callable[[Experiment], Iterable[Cell]] | None = None


_registry = Registry[Figure]("figure")

available = _registry.available
get = _registry.get
register = _registry.register
unregister = _registry.unregister


def measure(name: str, experiment: Experiment | None = None) -> Numbers:
    """Return the numbers of a figure, from the store of the experiment if it has them, and else measure them.

    >>> from medbn import analysis
    >>> numbers = analysis.measure("illustration")
    >>> numbers.columns
    ['value', 'estimator', 'centre', 'shift']
    """
    figure, experiment = get(name), experiment or Experiment(default_settings(name))
    key = numbers_key(name, experiment)
    stored = read_numbers(experiment.store, key) if experiment.store else None
    numbers = figure.complete(stored or _measure(figure, experiment), experiment.on_step)
    if experiment.store is not None and numbers is not stored:
        write_numbers(experiment.store, key, numbers)
    return numbers


def default_settings(name: str) -> Settings:
    """Return what a figure is measured on by default: digits, in as few steps as its attacks need."""
    return Settings(attack=attack_of(get(name).short_steps))


def complete(numbers: Numbers, on_step: OnStep = ignore) -> Numbers:
    """Return the numbers of a figure, which another machine may have measured, with what ``medbn[figures]`` adds."""
    return get(numbers.figure).complete(numbers, on_step)


def choose_layers(numbers: Numbers, layers: str) -> Numbers:
    """Return the numbers of a figure with ``"stages"`` or ``"all"`` of the layers that were measured."""
    return get(numbers.figure).choose(numbers, layers)


def _measure(figure: Figure, experiment: Experiment) -> Numbers:
    began = time.perf_counter()
    with deterministic(experiment.place):
        numbers = figure.measure(experiment)
    return replace(
        numbers,
        command=experiment.command,
        machine=machine_facts(experiment.place),
        seconds=round(time.perf_counter() - began, 1),
    )


def numbers_key(name: str, experiment: Experiment) -> str:
    """Return a hash of everything that the numbers of a figure depend on."""
    figure = get(name)
    corruptions = list(experiment.settings.corruptions or [experiment.settings.corruption])
    settings = json.dumps({**experiment.settings.describe(), "corruptions": corruptions}, sort_keys=True)
    cells = (figure.cells or _tebn_cells)(experiment) if figure.on_data else ()
    return digest(name, str(figure.version), settings, *(experiment.load(cell).key for cell in cells))


def _tebn_cells(experiment: Experiment) -> Iterator[Cell]:
    return (experiment.cell(estimator) for estimator in experiment.settings.estimators)
