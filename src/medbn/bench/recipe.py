"""A recipe: an experiment as the product of data, corruptions, methods, estimators, attacks and seeds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from .. import attacks, data, estimators, methods
from .._check_types import check_fields
from .._errors import unknown_name
from ..data import corruptions
from ..data.corruptions import NAMES
from . import published
from .cell import CONTINUAL, UNCORRUPTED, Attack, Cell, Setting

INSTANT = ("tebn", "tent", "eta", "sar", "sotta", "sema", "mdia")
"""The seven methods of the paper's tables of instant attacks; its cumulative ones have EATA in ETA's place."""
DEFENCES = ("mean", "median", "image_median")
"""BatchNorm, the paper's estimator and ours."""
SWEEPS = {"malicious": "malicious images per batch", "batch_size": "images per batch, a fifth of them malicious"}
"""Axes along which the sizes of a batch vary, each with its description."""
SMOKE_SUFFIX = " (smoke)"
"""The end of the name of a recipe's short form, by which a stored run is known to be one."""
AXES = ("method", "corruption", *SWEEPS, "epsilon", "knowledge", "gradient")
DIGITS = Setting("digits", "resnet-small", weights="shipped", clean="digits", frost="synthetic")
"""Data and model that ship with the package."""
SMALL_MODELS = {"vit-small": "vit-tiny"}
"""Models that ship with weights for the digits and take the place of larger ones in smoke forms; else a ResNet does."""
SCENES = Setting(
    "scenes",
    "unet-small",
    weights="shipped",
    clean="scenes",
    frost="synthetic",
    preset="imagenet",
    batch_size=3,
    malicious=1,
)
"""Data and model for segmentation that ship with the package."""


SET_BY_RECIPE = {
    "seed": "a recipe sets the seeds of all methods, seeds = [0]",
    "predict": 'a recipe sets it for all methods, predict = "before" or "after"',
    "source": "a recipe takes the source images from the dataset of a setting, clean",
    "graph": "the bench decides which passes are captured",
    "logits": "the models of the bench return logits",
}
"""Options of methods that a recipe cannot set for one method, and why."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """An experiment: it runs every combination of these.

    Args:
        name: the name of ``medbn run``.
        about: one sentence for the report.
        settings: data, models and batches.
        methods: names of methods.
        estimators: names of estimators.
        attacks: attacks; none for a run without attack.
        scenario: whether poison stays in the adapter; see ``medbn.attacks``.
        corruptions: names of corruptions; "none" for the images as they are, "continual" for one stream of all fifteen,
            one after the other.
        seeds: of the order of the images; 0 is the order of the files.
        batches: batches of each stream; None for all of it.
        warm_up: how many of these are served before the first that is attacked.
        predict: take predictions ``"before"`` or ``"after"`` the update.
        options: of methods by their names, in addition to their presets: ``{"tent": {"lr": 0.01}}``.
        fuse: compute BatchNorm and the ReLU behind it in one kernel on a GPU, as in ``medbn.convert``. Results are
            equal to rounding, and stored apart from others.
        published: the paper's tables that the report shows beside the results.
        axis: what the report's tables vary: a name of ``AXES``.
    """

    name: str = ""
    about: str = ""
    settings: tuple[Setting, ...]
    methods: tuple[str, ...] = INSTANT
    estimators: tuple[str, ...] = DEFENCES
    attacks: tuple[Attack, ...] = ()
    scenario: str = "instant"
    corruptions: tuple[str, ...] = NAMES
    seeds: tuple[int, ...] = (0,)
    batches: int | None = None
    warm_up: int = 0
    predict: str = "after"
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    fuse: bool = False
    published: tuple[str, ...] = ()
    axis: str = "method"

    def __post_init__(self) -> None:
        check_fields(self)
        names = ("methods", "estimators", "corruptions", "published")
        kinds = {"settings": Setting, "attacks": Attack, "seeds": int, **dict.fromkeys(names, str)}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(one, kind) for one in value):
                raise ValueError(f"{name} must be a list of {kind.__name__}, got {value!r}.")
        for name in (*names, "seeds"):
            lowered = (one.lower() if name == "methods" else one for one in getattr(self, name))
            object.__setattr__(self, name, tuple(dict.fromkeys(lowered)))
        for name in ("settings", "methods", "estimators", "corruptions", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"recipe {self.name!r} has no {name}.")
        self._check_names()
        self._check_options()
        if any(setting.owned for setting in self.settings) and self.attacks:
            if not issubclass(attacks.scenarios.get(self.scenario), attacks.Interleaved):
                raise ValueError(f"owned batches are for the scenarios interleaved and replay, not {self.scenario!r}.")
            if self.warm_up:
                raise ValueError("warm_up is for batches with malicious images; a stream with owned ones has none.")
        if any(seed < 0 for seed in self.seeds):
            raise ValueError(f"seeds are whole numbers from 0 on, got {min(self.seeds)}.")
        if self.batches is not None and self.batches < 1:
            raise ValueError(f"batches must be at least 1, got {self.batches}.")
        if self.warm_up < 0 or (self.batches is not None and self.attacks and self.warm_up >= self.batches):
            raise ValueError(f"warm_up must be fewer batches than there are, got {self.warm_up} of {self.batches}.")

    def _check_names(self) -> None:
        if self.axis not in AXES:
            raise unknown_name("axis", self.axis, AXES)
        if self.predict not in ("before", "after"):
            raise unknown_name("predict", self.predict, ("before", "after"))
        attacks.scenarios.get(self.scenario)
        for attack in self.attacks:
            attack.check()
        for table in self.published:
            published.get(table)
        for method in self.methods:
            methods.get(method)
        for estimator in self.estimators:
            estimators.get(estimator)
        for corruption in self.corruptions:
            if corruption not in (UNCORRUPTED, CONTINUAL):
                corruptions.get(corruption)

    def _check_options(self) -> None:
        if not isinstance(self.options, dict) or not all(isinstance(one, dict) for one in self.options.values()):
            raise ValueError(f"options must be tables by method, as in [options.tent], got {self.options!r}.")
        for method, options in self.options.items():
            names = methods.options(method)
            for option in options:
                if option in SET_BY_RECIPE:
                    raise ValueError(f"options.{method}.{option}: {SET_BY_RECIPE[option]}.")
                if option not in names:
                    raise unknown_name(f"option of {method}", option, names)

    def cells(self) -> Iterator[Cell]:
        """Yield all cells. Methods vary fastest, so that neighbours can share a poisoned batch."""
        each_attack: Sequence[Attack | None] = self.attacks or (None,)
        axes = product(self.seeds, self.corruptions, self.settings, each_attack, self.estimators, self.methods)
        for seed, corruption, setting, attack, estimator, method in axes:
            if estimator != self.estimators[0] and not methods.get(method).uses_estimator():
                continue  # the source model and LAME estimate nothing, so one estimator is enough
            if attack is not None and setting.malicious == 0 and not setting.owned:
                continue
            if estimator == "mean" and attack is not None and self._has_exact(attack):
                continue  # a mean's exact gradient is its straight-through and smooth one too
            options = self.options.get(method, {})
            warm_up = self.warm_up if attack else 0
            rest = (self.scenario, seed, self.predict, options, warm_up, self.fuse)
            yield Cell(setting, corruption, method, estimator, attack, *rest)

    def _has_exact(self, attack: Attack) -> bool:
        return attack.gradient != "exact" and replace(attack, gradient="exact") in self.attacks

    def narrow(
        self,
        *,
        data: Sequence[str] | None = None,
        methods: Sequence[str] | None = None,
        estimators: Sequence[str] | None = None,
        corruptions: Sequence[str] | None = None,
        limit: int | None = None,
        batches: int | None = None,
        warm_up: int | None = None,
        seeds: tuple[int, ...] | None = None,
        options: dict[str, dict[str, Any]] | None = None,
        weights: str | None = None,
        size: tuple[int, int] | None = None,
    ) -> Recipe:
        """Return the recipe with some of its fields changed; None leaves a field as it is.

        Args:
            data: keep the settings with these datasets. A path, or for segmentation another dataset, takes the place of
                the first setting's, with images of its own size.
            size: the height and width that segmentation images are read at.
            methods: run these methods.
            estimators: run these estimators.
            corruptions: run these corruptions.
            limit: keep the first corruptions, up to this number.
            batches: how many batches of each stream to run.
            warm_up: how many batches to serve before the first attack.
            seeds: run these seeds.
            options: of methods, by their names.
            weights: the weights of the model, of which there must be one only.
        """
        settings = self.settings
        if data:
            settings = tuple(setting for name in dict.fromkeys(data) for setting in self._settings_with(name))
        if size:
            settings = tuple(replace(s, size=size) for s in settings)
        if weights:
            if len({(s.model, s.clean) for s in settings}) > 1:
                raise ValueError("weights can be given for one model only: narrow the recipe to one dataset with data.")
            settings = tuple(replace(s, weights=str(weights)) for s in settings)
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}.")
        chosen = tuple(corruptions or self.corruptions)
        if chosen == (UNCORRUPTED,) and all(setting.corrupted for setting in settings):
            chosen = NAMES
        return replace(
            self,
            settings=settings,
            methods=tuple(methods or self.methods),
            estimators=tuple(estimators or self.estimators),
            corruptions=chosen if limit is None else chosen[:limit],
            batches=self.batches if batches is None else batches,
            warm_up=self.warm_up if warm_up is None else warm_up,
            seeds=self.seeds if seeds is None else seeds,
            options=self.options if options is None else options,
        )

    def _settings_with(self, name: str) -> list[Setting]:
        """Return the settings with a dataset.

        Any set of street scenes can be the target of a model that was trained on another one, so that a recipe for
        segmentation takes other datasets too: the paper's cannot be downloaded by everybody.
        """
        named = [setting for setting in self.settings if setting.data == name]
        if named:
            return named
        first = self.settings[0]
        others = [n for n in data.available() if data.task_of(n) == "segmentation"] if first.dense else []
        if "/" not in name and os.sep not in name and name not in others:
            known = dict.fromkeys([*(setting.data for setting in self.settings), *others])
            raise unknown_name(f"dataset of recipe {self.name!r}", name, known)
        if first.dense and os.path.isdir(name) and data.task_of(name) != "segmentation":
            raise ValueError(f"{name} is not for segmentation: such a folder has images/ and labels/ (docs/data.md).")
        other = SCENES if name == SCENES.data else replace(first, data=name, size=None)
        sizes = dict.fromkeys((setting.batch_size, setting.malicious) for setting in self.settings)
        return [replace(other, batch_size=size, malicious=malicious) for size, malicious in sizes]

    def smoke(self) -> Recipe:
        """Return the recipe on data and a model that ship with the package, which runs in a few seconds."""
        settings = []
        for setting in self.settings:
            base = SCENES if setting.dense else replace(DIGITS, model=SMALL_MODELS.get(setting.model, DIGITS.model))
            small = replace(base, batch_size=setting.batch_size, malicious=setting.malicious, owned=setting.owned)
            small = replace(small, by_label=setting.by_label)
            if self.axis not in SWEEPS and not setting.dense:
                small = replace(small, batch_size=40, malicious=8 if setting.malicious else 0)
            if setting.per_corruption:
                small = replace(small, per_corruption=80 if setting.by_label else 40)
            if small not in settings:
                settings.append(small)
        dense = any(setting.dense for setting in self.settings)
        # The small model has nine layers.
        options: dict[str, dict[str, Any]] = {"mdia": {"terminal": 3}, "cotta": {"augmentations": 2}}
        continual, several = CONTINUAL in self.corruptions, len(self.methods) > 1 or dense
        if dense or continual:
            options["eata"] = {"fisher_samples": 30}
        quick = tuple(dict.fromkeys(map(_shorten, self.attacks)))
        return replace(
            self,
            name=f"{self.name}{SMOKE_SUFFIX}",
            settings=tuple(settings),
            attacks=quick,
            corruptions=(CONTINUAL,) if continual else ("contrast",),
            batches=1 if continual or (len(self.attacks) > 2 and not self.warm_up and several) else 2,
            warm_up=min(self.warm_up, 1),
            seeds=self.seeds[:1],
            options={**options, **self.options},
        )


def _shorten(attack: Attack) -> Attack:
    """Return an attack in its short form, which takes two steps at most."""
    model = None if attack.model is None else SMALL_MODELS["vit-small"]
    return replace(attack, steps=min(attack.steps, 2), step_size=0.1, model=model)
