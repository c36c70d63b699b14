"""The unit of work: one stream of batches under one configuration, and what its numbers depend on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from .. import attacks, methods
from .._errors import unknown_name
from ..data import corruptions
from ..data.dataset import digest

ALGORITHM = 3
"""Raised whenever the same cell gives other numbers: stored results of older numbers are then not taken up."""


def check_types(value: Any) -> None:
    """Refuse a field of another kind than its annotation says: a TOML file may hold anything."""
    kinds: dict[str, Any] = {"str": str, "int": int, "float": (int, float), "bool": bool}
    for one in fields(value):
        given = getattr(value, one.name)
        names = str(one.type).replace(" ", "").split("|")
        if given is None and "None" in names:
            continue
        expected = kinds.get(names[0])
        if expected and (not isinstance(given, expected) or (isinstance(given, bool) and names[0] != "bool")):
            raise ValueError(f"{one.name} must be {names[0]}, got {given!r}.")


@dataclass(frozen=True)
class Attack:
    """An attack by its options, which are those of ``medbn.attacks.DIA``."""

    objective: str = "targeted"
    steps: int = 100
    step_size: float = 1 / 255
    epsilon: float = 1.0
    knowledge: str = "white"
    gradient: str = "exact"
    unroll: int = 0
    alignment: float = 0.0
    start: str = "grey"
    restarts: int = 1

    def __post_init__(self) -> None:
        check_types(self)
        if attacks.objectives.get(self.objective).dense:
            raise ValueError(f"objective {self.objective!r} is for segmentation models, which the bench does not run.")
        self.make(0)  # says what is wrong with the rest

    def make(self, seed: int) -> attacks.DIA:
        """The attack itself."""
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "objective"}
        return attacks.DIA(attacks.objectives.get(self.objective)(), seed=seed, **options)

    @property
    def label(self) -> str:
        """What makes it different from the paper's attack, in words."""
        words = [self.gradient.replace("_", "-")]
        words += [f"{self.knowledge}-white-box"] if self.knowledge != "white" else []
        words += ["adaptive"] if self.alignment else []
        words += [f"ε {self.epsilon * 255:.0f}/255"] if self.epsilon < 1 else []
        words += ["unrolled"] if self.unroll else []
        return ", ".join(words)


@dataclass(frozen=True)
class Setting:
    """Which images go through which model."""

    data: str
    model: str
    weights: str | None = None
    """A file, "shipped", "default" (torchvision's or timm's); None is ``ROOT/models/MODEL-CLEAN.safetensors``."""
    clean: str | None = None
    """The clean dataset, whose training images EATA needs; a name or a folder."""
    preset: str = "cifar10"
    severity: int = 5
    batch_size: int = 200
    malicious: int = 40
    frost: str | None = None
    """For images that are corrupted as they are read: a folder of photographs, or "synthetic"."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.preset not in methods.PRESETS:
            raise unknown_name("preset", self.preset, methods.PRESETS)
        if self.severity not in corruptions.SEVERITIES:
            raise ValueError(f"severity must be 1, 2, 3, 4 or 5, got {self.severity}.")
        if not 0 <= self.malicious < self.batch_size:
            raise ValueError(
                f"malicious images must be fewer than the batch: got malicious={self.malicious} of"
                f" batch_size={self.batch_size}."
            )

    @property
    def dataset(self) -> str:
        """The name under which the paper's tables have it."""
        return self.data if self.data.endswith("-c") or "/" in self.data else f"{self.data}-c"


@dataclass(frozen=True)
class Cell:
    """One stream under one configuration. ``attack`` None is a stream without attack."""

    setting: Setting
    corruption: str
    method: str
    estimator: str
    attack: Attack | None
    scenario: str
    seed: int = 0
    predict: str = "after"
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    """Of the method, beside its preset."""
    warm_up: int = 0
    """Batches of the stream before the first that is attacked."""

    def describe(self) -> dict[str, Any]:
        """The cell as plain values, which ``of`` reads back."""
        return asdict(self)

    @classmethod
    def of(cls, described: dict[str, Any]) -> Cell:
        """The inverse of ``describe``."""
        attack = described["attack"]
        return cls(
            **{
                **described,
                "setting": Setting(**described["setting"]),
                "attack": None if attack is None else Attack(**attack),
            }
        )

    def key(self, data: str, weights: str, clean: str = "", code: str = "") -> str:
        """A hash of everything that determines the numbers.

        ``data``, ``weights`` and ``clean`` are fingerprints, ``code`` is the text of what the user brings.

        How many batches are run is not part of it, since that only says where the stream ends; nor are the places of
        files, since the fingerprints say what is in them.
        """
        described = self.describe()
        for place in ("data", "weights", "clean", "frost"):
            del described["setting"][place]
        if not self.warm_up:
            del described["warm_up"]  # as in stores from before there was one
        return digest(json.dumps([ALGORITHM, described, data, weights, clean, code], sort_keys=True))

    @property
    def label(self) -> str:
        """One line that tells it from its neighbours."""
        attack = f"{self.attack.objective} ({self.attack.label}), {self.scenario}" if self.attack else "no attack"
        sizes = f"{self.setting.malicious}/{self.setting.batch_size}"
        return f"{self.setting.dataset} {self.corruption} · {self.method} + {self.estimator} · {attack} · {sizes}"
