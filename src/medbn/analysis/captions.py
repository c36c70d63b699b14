"""Words that the captions of several figures have in common."""

from __future__ import annotations

from typing import Any

from .numbers import Numbers


def epsilon_label(epsilon: float) -> str:
    """Return a bound ε as papers write it.

    >>> epsilon_label(8 / 255), epsilon_label(1.0)
    ('8/255', '1')
    """
    return f"{epsilon * 255:.3g}/255" if epsilon < 1 else f"{epsilon:g}"


def describe(numbers: Numbers, *, batches: int | None = None, epsilon: bool = True) -> str:
    """Return the data, the sizes, the model, the method and the attack of a figure's numbers as a sentence.

    Args:
        numbers: of the figure.
        batches: how many batches it shows; None for as many as were asked for.
        epsilon: whether to say the ε of the attack.
    """
    s = numbers.settings
    count = s["batches"] if batches is None else batches
    corruptions = s["corruptions"]
    names = corruptions[0].replace("_", " ") if len(corruptions) == 1 else f"{len(corruptions)} corruptions"
    sizes = f"{s['batch_size']} images, {s['malicious']} of them malicious"
    images = f"one batch of {sizes}" if count == 1 else f"{count} batches of {sizes} each"
    bounds = f", ε = {' and '.join(map(epsilon_label, s['epsilons']))}" if epsilon else ""
    return (
        f"{s['data']} with {names} (severity {s['severity']}), {images}; {s['model']} under {s['method']};"
        f" {_attack(s)}{bounds}."
    )


def _attack(settings: dict[str, Any]) -> str:
    gradient = "" if settings["gradient"] == "exact" else f"{settings['gradient'].replace('_', '-')} gradients, "
    return (
        f"{settings['objective']} instant attack, {gradient}{settings['steps']} steps of"
        f" {settings['step_size'] * 255:.3g}/255"
    )
