"""A cell: one stream of batches under one configuration, and the key under which its numbers are stored."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

from torch import nn

from .. import attacks, data, methods
from .._check_types import check_fields
from .._errors import unknown_name
from ..data import corruptions, digest

ALGORITHM = 3
"""The version of the numbers of all cells: raise it when they change, so that stored ones are run again.

Where one method's or one corruption's numbers change, raise its own ``version``.
"""
UNCORRUPTED = "none"
"""In place of a corruption's name: the images as they are."""
CONTINUAL = "continual"
"""In place of a corruption's name: all fifteen, one after the other, in one stream."""


KNOWLEDGE_WORDS = {"semi": "semi-white-box", "grey": "grey-box", "transfer": "transferred"}


@dataclass(frozen=True)
class Attack:
    """An attack by its options, which are those of ``medbn.attacks.DIA``; ``objective`` is a name.

    An attack that was stored may name an objective that is registered only where it ran: ``check`` is called by a
    recipe, not by the constructor.
    """

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
    consistency: float = 0.0
    model: str | None = None
    """The attacker's own model, for ``knowledge="transfer"``; with the weights of a setting that has this model."""
    target_class: int | None = None
    """The class that a targeted pixel is to be predicted as; None for the class after its true one."""

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self) -> None:
        """Raise a ValueError unless the attack can be built."""
        if self.target_class is not None and not (self.dense and "target_class" in self._objective_options()):
            raise ValueError(f"target_class is for the objective targeted_pixel, not for {self.objective}.")
        self.build(0, model=None if self.model is None else nn.Identity())  # DIA checks the other options

    @property
    def dense(self) -> bool:
        """Whether the attack is on segmentation."""
        return attacks.objectives.get(self.objective).dense

    def build(self, seed: int, scored: tuple[int, ...] | None = None, model: nn.Module | None = None) -> attacks.DIA:
        """Return the attack as a callable object.

        Args:
            seed: of random starts, and of the draw of a targeted pixel.
            scored: the classes that the labels of a segmentation dataset may have.
            model: the attacker's own model, if she has one.
        """
        values = {"classes": scored, "seed": seed, "target_class": self.target_class}
        chosen = {name: values[name] for name in self._objective_options() if name in values}
        own = ("objective", "target_class", "model")
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in own}
        return attacks.DIA(attacks.objectives.get(self.objective)(**chosen), seed=seed, model=model, **options)

    def _objective_options(self) -> set[str]:
        objective = attacks.objectives.get(self.objective)
        return {f.name for f in fields(objective)} if is_dataclass(objective) else set()

    @property
    def label(self) -> str:
        """The gradient, and every other difference to the paper's attack, in words."""
        words = [self.gradient.replace("_", "-")]
        words += [KNOWLEDGE_WORDS.get(self.knowledge, self.knowledge)] if self.knowledge != "white" else []
        words += [f"from {self.model}"] if self.model else []
        words += ["adaptive"] if self.alignment else []
        words += ["consistent"] if self.consistency else []
        words += [f"ε {self.epsilon * 255:.0f}/255"] if self.epsilon < 1 else []
        words += ["unrolled"] if self.unroll else []
        words += [f"target class {self.target_class}"] if self.target_class is not None else []
        return ", ".join(words)


def effective_attack(attack: Attack | None, estimator: str) -> Attack | None:
    """Return an attack with the gradient "exact" for a mean: its straight-through and smooth gradients are the same."""
    return attack if attack is None or estimator != "mean" else replace(attack, gradient="exact")


@dataclass(frozen=True)
class Setting:
    """The data, the model and the batches.

    Args:
        data: the name of a dataset, or a folder of images.
        model: the name of a model, or ``MODULE:FUNCTION``.
        weights: a file, ``"shipped"`` or ``"default"`` (torchvision's or timm's); None for the file that
            ``medbn train`` writes, ``ROOT/models/MODEL-CLEAN.safetensors``.
        clean: the clean dataset, a name or a folder; EATA computes its Fisher information from its training images.
        preset: the benchmark whose published options the methods use.
        severity: of the corruptions, 1 to 5.
        batch_size: images per batch.
        malicious: how many of them the attacker controls, the last ones of each batch.
        frost: for images that are corrupted as they are read: a folder of photographs, or ``"synthetic"``.
        size: for segmentation, the height and width that images are read at; None for their own.
        owned: the share of batches that are the attacker's, with images of her own, in scenarios that have such:
            "interleaved" and "replay". Then no other batch has a malicious image, and ``malicious`` is 0.
        per_corruption: of how many images of each corruption a stream consists; None for all of them.
        by_label: whether the images of each corruption are sorted by their labels, and not in random order.
    """

    data: str
    model: str
    weights: str | None = None
    clean: str | None = None
    preset: str = "cifar10"
    severity: int = 5
    batch_size: int = 200
    malicious: int = 40
    frost: str | None = None
    size: tuple[int, int] | None = None
    owned: float = 0.0
    per_corruption: int | None = None
    by_label: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.size is not None:
            object.__setattr__(self, "size", _check_size(self.size))
        if self.preset not in methods.PRESETS:
            raise unknown_name("preset", self.preset, methods.PRESETS)
        if self.severity not in corruptions.SEVERITIES:
            raise ValueError(f"severity must be 1, 2, 3, 4 or 5, got {self.severity}.")
        if not 0 <= self.malicious < self.batch_size:
            raise ValueError(
                f"malicious images must be fewer than the batch: got malicious={self.malicious} of"
                f" batch_size={self.batch_size}."
            )
        if not 0.0 <= self.owned < 1.0 or (self.owned and self.malicious):
            raise ValueError(
                "owned is a share of all batches, from 0 to less than 1, and malicious is then 0; got"
                f" owned={self.owned} and malicious={self.malicious}."
            )
        if self.per_corruption is not None and self.per_corruption < 1:
            raise ValueError(f"per_corruption is a number of images, at least 1; got {self.per_corruption}.")

    @property
    def attacker(self) -> str:
        """What the attacker controls, in words."""
        if self.owned:
            return f"{100 * self.owned:.3g} % of all batches of {self.batch_size}"
        return f"{self.malicious} of {self.batch_size}"

    @property
    def dense(self) -> bool:
        """Whether the data is for segmentation."""
        return data.task_of(self.data) == "segmentation"

    @property
    def corrupted(self) -> bool:
        """Whether the dataset consists of corrupted images, one part per corruption."""
        return self.data in data.available() and data.get(self.data).corrupted

    @property
    def dataset(self) -> str:
        """The name in the paper's tables of the dataset with its corruptions."""
        return self.data if self.data.endswith("-c") or "/" in self.data else f"{self.data}-c"


def _check_size(size: Any) -> tuple[int, int]:
    """Return a height and a width as a tuple; a stored one is a list."""
    values = tuple(size) if isinstance(size, list | tuple) else ()
    if len(values) != 2 or not all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in values):
        raise ValueError(f"size must be a height and a width, such as [256, 512], got {size!r}.")
    return values


@dataclass(frozen=True)
class Cell:
    """One stream of batches under one configuration.

    Args:
        setting: the data, the model and the batches.
        corruption: the corruption of the images; ``"none"`` for the images as they are.
        method: the name of the adaptation method.
        estimator: the name of the estimator of its layers.
        attack: the attack on every batch; None for a stream without attack.
        scenario: whether poison stays in the adapter; see ``medbn.attacks``.
        seed: of the order of the images and of the method's random choices.
        predict: take predictions ``"before"`` or ``"after"`` the update.
        options: of the method, in addition to its preset.
        warm_up: batches of the stream before the first that is attacked.
        fuse: whether BatchNorm and the ReLU behind it are computed in one kernel.
    """

    setting: Setting
    corruption: str
    method: str
    estimator: str
    attack: Attack | None
    scenario: str
    seed: int = 0
    predict: str = "after"
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    warm_up: int = 0
    fuse: bool = False

    @property
    def dataset(self) -> str:
        """The name of what was served: the dataset, with ``-c`` where its images are corrupted."""
        return self.setting.data if self.corruption == UNCORRUPTED else self.setting.dataset

    @property
    def corruptions(self) -> tuple[str, ...]:
        """The names of the corruptions of the images, in their order."""
        if self.corruption == CONTINUAL:
            return corruptions.NAMES
        return () if self.corruption == UNCORRUPTED else (self.corruption,)

    @property
    def owned(self) -> float:
        """The share of batches that are the attacker's; 0 without attack."""
        return self.setting.owned if self.attack is not None else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the cell as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Cell:
        """Return the cell from which ``to_dict`` made these values."""
        attack = values["attack"]
        return cls(
            **{
                **values,
                "setting": Setting(**values["setting"]),
                "attack": None if attack is None else Attack(**attack),
            }
        )

    def key(self, data: str, weights: str, clean: str = "", code: str = "", foreign: str = "") -> str:
        """Return a hash of everything that determines the cell's numbers.

        The number of batches is not part of it, because it only says where the stream ends. Nor are the paths of files:
        their fingerprints say what is in them.

        Args:
            data: the fingerprint of the images.
            weights: the fingerprint of the model's weights.
            clean: the fingerprint of the clean images, if the method uses them.
            code: the source of the user's own model and estimator.
            foreign: the fingerprint of the weights of the attacker's own model, if she has one.
        """
        values = self.to_dict()
        for path in ("data", "weights", "clean", "frost"):
            del values["setting"][path]
        if not self.warm_up:
            del values["warm_up"]  # stores from before this field existed stay valid
        if not self.fuse:
            del values["fuse"]  # likewise
        if self.attack is not None and self.attack.target_class is None:
            del values["attack"]["target_class"]  # likewise
        if self.setting.size is None:
            del values["setting"]["size"]  # likewise
        for name, default in (("owned", 0.0), ("per_corruption", None), ("by_label", False)):
            if values["setting"][name] == default:
                del values["setting"][name]  # likewise
        for name, default in (("consistency", 0.0), ("model", None)):
            if values["attack"] is not None and values["attack"][name] == default:
                del values["attack"][name]  # likewise
        if foreign:
            values["foreign"] = foreign
        versions: dict[str, int] = {"method": methods.get(self.method).version}
        for name in self.corruptions:
            kind = "corruption" if len(self.corruptions) == 1 else f"corruption {name}"
            versions[kind] = corruptions.get(name).version
        versions = {name: version for name, version in versions.items() if version > 1}
        if versions:  # all other stored cells stay valid
            values["versions"] = versions
        return digest(json.dumps([ALGORITHM, values, data, weights, clean, code], sort_keys=True))

    @property
    def label(self) -> str:
        """The cell in one line."""
        attack = f"{self.attack.objective} ({self.attack.label}), {self.scenario}" if self.attack else "no attack"
        setting = self.setting
        sizes = setting.attacker if setting.owned else f"{setting.malicious}/{setting.batch_size}"
        images = self.dataset if self.corruption == UNCORRUPTED else f"{self.dataset} {self.corruption}"
        fused = ", fused" if self.fuse else ""
        return f"{images} · {self.method} + {self.estimator}{fused} · {attack} · {sizes}"
