"""Words that the captions of several figures have in common."""

from __future__ import annotations

from .numbers import Numbers


def epsilon_label(epsilon: float) -> str:
    """Return a bound ε as papers write it.

    >>> epsilon_label(8 / 255), epsilon_label(1.0)
    ('8/255', '1')
    """
    return f"{epsilon * 255:.3g}/255" if epsilon < 1 else f"{epsilon:g}"


def describe(
    numbers: Numbers, *, batches: int | None = None, epsilons: bool = True, objective: str | None = None
) -> str:
    """Return the data, the sizes, the model, the method and the attack of a figure's numbers as sentences.

    Args:
        numbers: of the figure.
        batches: how many batches it shows; None for as many as were asked for.
        epsilons: whether to say the ε of the attack.
        objective: what the attack aims at; None for what the settings say.
    """
    s = numbers.settings
    count = s["batches"] if batches is None else batches
    corruptions = s["corruptions"]
    names = corruptions[0].replace("_", " ") if len(corruptions) == 1 else f"{len(corruptions)} corruptions"
    sizes = f"{s['batch_size']} images, {s['malicious']} of them malicious"
    images = f"one batch of {sizes}" if count == 1 else f"{count} batches of {sizes} each"
    gradient = "" if s["gradient"] == "exact" else f" {s['gradient'].replace('_', '-')} gradients,"
    return (
        f"Data: {s['data']}, {names} of severity {s['severity']}, {images}. Model: {s['model']} under {s['method']}."
        f" Attack: {objective or s['objective']}, instant,{gradient} {describe_steps(numbers, epsilons=epsilons)}."
    )


def describe_steps(numbers: Numbers, *, epsilons: bool = True) -> str:
    """Return the number and the size of an attack's steps, where they start if not at grey images, and ε."""
    s = numbers.settings
    start = "" if s.get("start", "grey") == "grey" else f" from the start {s['start']!r}"
    bounds = f", ε = {' and '.join(map(epsilon_label, s['epsilons']))}" if epsilons else ""
    return f"{s['steps']} steps of {s['step_size'] * 255:.3g}/255{start}{bounds}"
