"""What estimators, methods, attacks and corruptions are called in a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ... import estimators, gradients, methods
from ...attacks import Objective, objectives
from ...bench import UNCORRUPTED, Attack

BASELINE = "mean"
"""The estimator that every other is compared with: plain BatchNorm."""


def estimator_label(name: str) -> str:
    """Return what a report calls an estimator, for instance "MedBN" or "MedBN, prior 0.6"."""
    estimator = _find_estimator(name)
    return estimator.label if estimator else name


def estimator_about(name: str) -> str:
    """Return what an estimator computes, in one line."""
    estimator = _find_estimator(name)
    return estimator.about if estimator else "not registered here"


def _find_estimator(name: str) -> estimators.Estimator | None:
    """Return an estimator by its name, or None if it is not registered: a store may come from a user's own code."""
    return estimators.get(name) if name.partition("@")[0] in estimators.available() else None


def order_estimators(names: Iterable[str]) -> list[str]:
    """Return estimators in the order of the registry, each before its variants with a prior."""
    registered = estimators.available()

    def rank(name: str) -> tuple[int, str]:
        base = name.partition("@")[0]
        return registered.index(base) if base in registered else len(registered), name

    return sorted(names, key=rank)


def method_label(name: str) -> str:
    """Return what a report calls a method: its name as its authors write it."""
    return methods.get(name).label if name in methods.available() else name


def normalisation_label(method: str, estimator: str) -> str:
    """Return the label of the estimator, or what stands in its place where a method uses none."""
    if method not in methods.available() or methods.get(method).uses_estimator():
        return estimator_label(estimator)
    return "training statistics" if methods.get(method).adapts else "un-adapted"


def objective_class(name: str) -> type[Objective]:
    """Return an objective's class; the base class, with its general labels, if it is not registered here."""
    return objectives.get(name) if name in objectives.available() else Objective


def objective_label(name: str) -> str:
    """Return what a report calls an attack with that objective."""
    return objective_class(name).label or name


def attack_label(attack: Attack | None, among: Sequence[Attack | None]) -> str:
    """Return what a report calls an attack: its own label, and the options in which those of ``among`` differ."""
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


def attack_rank(attack: Attack | None, among: Sequence[Attack | None] = ()) -> tuple[int, str]:
    """Return the key by which attacks are ordered: gradients as in their registry, then others, then by label."""
    if attack is None:
        return 0, ""
    names = gradients.available()
    rank = names.index(attack.gradient) if attack.gradient in names else len(names)
    return rank, attack_label(attack, among)


def corruption_label(corruption: str) -> str:
    """Return the name of a corruption in words."""
    if corruption == UNCORRUPTED:
        return "not corrupted"
    return corruption.replace("_", " ")


def capitalise(title: str) -> str:
    """Return a title with a capital letter, unless it begins with the name of a dataset."""
    return title if title.split(",")[0].endswith("-c") else title[:1].upper() + title[1:]
