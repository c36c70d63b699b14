"""What estimators, methods, attacks and corruptions are called in a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ... import methods
from ...bench import Attack

BASELINE = "mean"
"""The estimator that every other is compared with: plain BatchNorm."""

_DEFENCES = {
    "mean": ("BatchNorm", "the mean and the variance of the batch: no defence"),
    "median": ("MedBN", "the median, and the mean squared deviation from it (the paper's defence)"),
    "image_median": ("image_median", "medians over whole images, of their means and variances (ours)"),
    "mad": ("MAD", "the median, and the squared median absolute deviation (appendix H)"),
    "mad_scaled": ("scaled MAD", "the same, scaled to be the variance of a normal distribution"),
}


def estimator_label(estimator: str) -> str:
    """Return what a report calls an estimator, for instance "MedBN" or "MedBN, prior 0.6"."""
    name, _, prior = estimator.partition("@")
    label = _DEFENCES.get(name, (name, ""))[0]
    return f"{label}, prior {prior}" if prior else label


def estimator_about(estimator: str) -> str:
    """Return what an estimator computes, in one line."""
    name, _, prior = estimator.partition("@")
    about = _DEFENCES.get(name, ("", "registered by its user"))[1]
    return f"{about}; the training statistics have the weight {prior}" if prior else about


def order_estimators(names: Iterable[str]) -> list[str]:
    """Return estimators in the order of the registry, each before its variants with a prior."""
    registered = list(_DEFENCES)

    def rank(estimator: str) -> tuple[int, str]:
        name = estimator.partition("@")[0]
        return registered.index(name) if name in registered else len(registered), estimator

    return sorted(names, key=rank)


def method_label(method: str) -> str:
    """Return what a report calls a method: its name as its authors write it."""
    return methods.get(method).label


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


def attack_rank(label: str) -> tuple[bool, bool, str]:
    """Return the key by which attacks are ordered: the exact gradient, the straight-through one, then by label."""
    return not label.startswith("exact"), not label.startswith("straight-through"), label


def corruption_label(corruption: str) -> str:
    """Return the name of a corruption in words."""
    return corruption.replace("_", " ")


def capitalise(title: str) -> str:
    """Return a title with a capital letter, unless it begins with the name of a dataset."""
    return title if title.split(",")[0].endswith("-c") else title[:1].upper() + title[1:]
