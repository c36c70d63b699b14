"""What figures are measured on: the paper's setting on any data, with any model and attack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from .. import estimators, methods
from ..bench import DEFENCES, DIGITS, Attack, Setting, recipes
from ..data import corruptions

PAPER_STEPS = 100
"""Steps of 1/255 of the paper's attack."""

SHORT_DIGITS = replace(DIGITS, batch_size=100, malicious=20)
"""The embedded digits in batches of half the paper's size, with the paper's share of malicious images."""

SHORT_STEPS = 20
"""Steps of the attack on digits by default, so that a figure takes seconds: 5/255 each, below the smaller ε."""

LAYERS = ("stages", "all")
"""Which layers a figure shows: one per stage of the model, or all."""


def attack_of(steps: int, step_size: float | None = None) -> Attack:
    """Return the paper's attack with a number of steps, which reaches as far with fewer of them.

    >>> attack_of(100) == Attack()
    True
    >>> round(attack_of(20).step_size * 255, 3)
    5.0
    """
    return Attack(steps=steps, step_size=step_size or max(1.0, PAPER_STEPS / steps) / 255)


def check_layers(layers: str) -> None:
    """Raise a ValueError unless figures can show these layers."""
    if layers not in LAYERS:
        raise ValueError(f"layers is one of {', '.join(map(repr, LAYERS))}, got {layers!r}.")


@dataclass(frozen=True)
class Settings:
    """What a figure is measured on. The defaults are the embedded digits in smaller batches and fewer steps.

    Args:
        setting: the data, the model and the batches.
        attack: the attack; figures choose its objective and ε themselves.
        estimators: the names of the estimators to compare.
        epsilons: the bounds ε of the attack that are compared.
        corruptions: the corruptions; none for those of the paper's figure, which is mostly gaussian noise.
        objectives: what the attack aims at, for figures that compare objectives; none for those of the paper's figure.
        batches: how many batches of the stream are attacked, for figures that average over batches.
        seed: of the order of the images, of permutations and of embeddings.
        layers: ``"stages"`` for one layer per stage of the model, or ``"all"``.
    """

    setting: Setting = SHORT_DIGITS
    attack: Attack = field(default_factory=lambda: attack_of(SHORT_STEPS))
    estimators: tuple[str, ...] = DEFENCES
    epsilons: tuple[float, ...] = (1.0, 8 / 255)
    corruptions: tuple[str, ...] = ()
    objectives: tuple[str, ...] = ()
    batches: int = 1
    seed: int = 0
    layers: str = "stages"

    def __post_init__(self) -> None:
        check_layers(self.layers)
        if self.batches < 1:
            raise ValueError(f"batches must be at least 1, got {self.batches}.")
        if self.setting.malicious < 1:
            raise ValueError("the figures show malicious images: malicious must be at least 1, got 0.")
        if not self.estimators or not self.epsilons:
            raise ValueError("name at least one estimator and one ε.")
        for name in self.estimators:
            estimators.get(name)
        for name in self.corruptions:
            corruptions.get(name)
        for epsilon in self.epsilons:
            replace(self.attack, epsilon=epsilon).check()
        for name in self.objectives:
            replace(self.attack, objective=name).check()

    @property
    def corruption(self) -> str:
        """The corruption of a figure that shows one: the first of ``corruptions``, or gaussian noise."""
        return self.corruptions[0] if self.corruptions else "gaussian_noise"

    def describe(self) -> dict[str, Any]:
        """Return plain values that say what was measured, without paths of this machine.

        A figure that shows several corruptions says itself which.
        """
        setting = self.setting
        return {
            "data": setting.data.rstrip("/").rpartition("/")[2],
            "model": setting.model,
            "corruptions": [self.corruption],
            "severity": setting.severity,
            "batch_size": setting.batch_size,
            "malicious": setting.malicious,
            "batches": self.batches,
            "method": methods.get("tebn").label,
            "objective": self.attack.objective,
            "objectives": list(self.objectives),
            "steps": self.attack.steps,
            "step_size": self.attack.step_size,
            "gradient": self.attack.gradient,
            "start": self.attack.start,
            "epsilons": list(self.epsilons),
            "estimators": list(self.estimators),
            "layers": self.layers,
            "seed": self.seed,
        }


def known_setting(data: str) -> Setting | None:
    """Return the setting of the paper's first table, or of the embedded digits, with this dataset; None if unknown."""
    return next((one for one in _known_settings() if one.data == data), None)


def _known_settings() -> Iterator[Setting]:
    yield SHORT_DIGITS
    yield from recipes.get("targeted-instant").settings
