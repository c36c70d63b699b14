"""An experiment as a typed description: the product of data, corruptions, methods, estimators, attacks and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from .. import attacks, estimators, methods
from .._errors import unknown_name
from ..data import corruptions
from . import published
from .cell import Attack, Cell, Setting, check_types

INSTANT = ("tebn", "tent", "eta", "sar", "sotta", "sema", "mdia")
"""The seven methods of the paper's tables; EATA stands for ETA where the attack is cumulative."""
AXES = ("method", "corruption", "malicious", "batch_size", "epsilon", "knowledge", "gradient")
DEFENCES = ("mean", "median", "image_median")
DIGITS = Setting("digits", "resnet-small", weights="shipped", clean="digits", frost="synthetic")
"""The embedded default."""


@dataclass(frozen=True)
class Recipe:
    """What to run: the product of all these."""

    name: str
    about: str
    settings: tuple[Setting, ...]
    methods: tuple[str, ...] = INSTANT
    estimators: tuple[str, ...] = DEFENCES
    attacks: tuple[Attack, ...] = ()
    """None at all is a run without attack."""
    scenario: str = "instant"
    corruptions: tuple[str, ...] = corruptions.NAMES
    seeds: tuple[int, ...] = (0,)
    batches: int | None = None
    """Batches of each stream; None is all of it."""
    warm_up: int = 0
    """How many of these come before the first that is attacked."""
    predict: str = "after"
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of methods, by their names, beside their presets: ``{"tent": {"lr": 0.01}}``."""
    published: tuple[str, ...] = ()
    """The paper's tables to show beside the results."""
    axis: str = "method"
    """What the results are laid out along: method, corruption, malicious, batch_size, epsilon, knowledge, gradient."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("methods", "estimators", "corruptions", "seeds", "published"):
            value = getattr(self, name)
            kind = int if name == "seeds" else str
            if not isinstance(value, tuple) or not all(isinstance(one, kind) for one in value):
                raise ValueError(f"{name} must be a list of {kind.__name__}, got {value!r}.")
            lowered = (one.lower() if name == "methods" else one for one in value)
            object.__setattr__(self, name, tuple(dict.fromkeys(lowered)))
        if any(seed < 0 for seed in self.seeds):
            raise ValueError(f"seeds are whole numbers from 0 on, got {min(self.seeds)}.")
        if self.axis not in AXES:
            raise unknown_name("axis", self.axis, AXES)
        if self.predict not in ("before", "after"):
            raise unknown_name("predict", self.predict, ("before", "after"))
        for name in self.published:
            published.get(name)
        if not isinstance(self.options, dict) or not all(isinstance(one, dict) for one in self.options.values()):
            raise ValueError(f"options must be tables by method, as in [options.tent], got {self.options!r}.")
        attacks.scenarios.get(self.scenario)
        for method in self.methods:
            methods.get(method)
        for estimator in self.estimators:
            estimators.get(estimator)
        for corruption in self.corruptions:
            corruptions.get(corruption)
        if self.batches is not None and self.batches < 1:
            raise ValueError(f"batches must be at least 1, got {self.batches}.")
        if self.warm_up < 0 or (self.batches is not None and self.attacks and self.warm_up >= self.batches):
            raise ValueError(f"warm_up must be fewer batches than there are, got {self.warm_up} of {self.batches}.")
        for method, given in self.options.items():
            known = methods.options(method)
            for option in given:
                if option not in known:
                    raise unknown_name(f"option of {method}", option, known)
        for name in ("settings", "methods", "estimators", "corruptions", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"recipe {self.name!r} has no {name}.")

    def cells(self) -> Iterator[Cell]:
        """All cells. Methods come last: those whose first batch has the same surrogate then share what is crafted."""
        kinds: Sequence[Attack | None] = self.attacks or (None,)
        axes = product(self.seeds, self.corruptions, self.settings, kinds, self.estimators, self.methods)
        for seed, corruption, setting, attack, estimator, method in axes:
            if method == "source" and estimator != self.estimators[0]:
                continue  # the un-adapted model takes no statistics
            if attack is not None and setting.malicious == 0:
                continue
            if estimator == "mean" and attack is not None and self._has_exact(attack):
                continue  # a mean's own gradient is the stand-in
            options = self.options.get(method, {})
            warm_up = self.warm_up if attack else 0
            yield Cell(
                setting, corruption, method, estimator, attack, self.scenario, seed, self.predict, options, warm_up
            )

    def _has_exact(self, attack: Attack) -> bool:
        return attack.gradient != "exact" and replace(attack, gradient="exact") in self.attacks

    def narrowed(self, **given: Any) -> Recipe:
        """Other methods, estimators, corruptions, seeds, batches, warm-up or options, or only some of the ``data``.

        None changes nothing.

        ``limit`` keeps the first corruptions, ``weights`` sets those of the one model that there is.
        """
        changes: dict[str, Any] = {}
        for name in ("methods", "estimators", "corruptions"):
            if given.get(name):
                changes[name] = tuple(given[name])
        if given.get("data"):
            there = {setting.data for setting in self.settings}
            for name in given["data"]:
                if name not in there:
                    raise unknown_name(f"dataset of recipe {self.name!r}", name, there)
            changes["settings"] = tuple(s for s in self.settings if s.data in given["data"])
        for name in ("batches", "seeds", "warm_up", "options"):
            if given.get(name) is not None:
                changes[name] = given[name]
        if given.get("limit") is not None:
            if given["limit"] < 1:
                raise ValueError(f"limit must be at least 1, got {given['limit']}.")
            changes["corruptions"] = changes.get("corruptions", self.corruptions)[: given["limit"]]
        if given.get("weights"):
            settings = changes.get("settings", self.settings)
            if len({(s.model, s.clean) for s in settings}) > 1:
                raise ValueError("weights can be given for one model only: narrow the recipe to one dataset with data.")
            changes["settings"] = tuple(replace(s, weights=str(given["weights"])) for s in settings)
        return replace(self, **changes)

    def smoke(self) -> Recipe:
        """The same methods, estimators, attacks and scenario on digits and the shipped model, in a few seconds."""
        settings = []
        for setting in self.settings:
            small = replace(DIGITS, batch_size=setting.batch_size, malicious=setting.malicious)
            if self.axis not in ("malicious", "batch_size"):
                small = replace(small, batch_size=40, malicious=8 if setting.malicious else 0)
            if small not in settings:
                settings.append(small)
        quick = tuple(dict.fromkeys(replace(attack, steps=2, step_size=0.1) for attack in self.attacks))
        return replace(
            self,
            name=f"{self.name} (smoke)",
            settings=tuple(settings),
            attacks=quick,
            corruptions=("contrast",),
            batches=1 if len(self.methods) > 1 and len(self.attacks) > 2 and not self.warm_up else 2,
            warm_up=min(self.warm_up, 1),
            seeds=self.seeds[:1],
            options={"mdia": {"terminal": 3}, **self.options},  # the small model has nine layers
        )
