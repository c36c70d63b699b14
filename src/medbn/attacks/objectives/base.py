"""The base class of objectives, and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from ..._registry import Registry

Class = TypeVar("Class", bound="type[Objective]")


class Objective(ABC):
    """What an attack maximises. A subclass is a frozen dataclass of options that defines ``value`` and ``harm``."""

    name: ClassVar[str] = ""
    """The name that it is registered under."""
    label: ClassVar[str] = ""
    """What a report calls the attack; the name if a subclass does not set one."""
    harm_label: ClassVar[str] = "error under attack"
    """What a report calls the average of ``harm``."""
    targeted: ClassVar[bool] = False
    """True where ``harm`` is 0 or 1, so that hits are counted; False where it is a share of wrong predictions."""
    dense: ClassVar[bool] = False
    """True where labels are ``(B, H, W)`` and logits ``(B, classes, H, W)``."""
    observes: ClassVar[bool] = False
    """True where ``observed_value`` is to be maximised, which may depend on what the adapter observes."""
    own: ClassVar[bool] = False
    """True where ``value`` reads the malicious images alone, so that all images of a batch may be the attacker's."""
    stateful: ClassVar[bool] = False
    """True where ``value`` depends on earlier batches; then ``advance``, ``state`` and ``load`` do something."""
    label_free: bool = False
    """True where the attacker takes her surrogate's predictions for her own clean images in place of their labels."""
    ignore: int | None = None
    """The label of pixels that do not count, where outputs are dense."""

    def check(self, labels: Tensor, benign: Tensor) -> None:  # noqa: B027 - an objective may accept every batch
        """Raise a ValueError for a batch on which this objective makes no sense."""

    @abstractmethod
    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the number to maximise, differentiable in the logits."""

    def observed_value(
        self, logits: Tensor, labels: Tensor, benign: Tensor, first: Tensor, memory: dict[str, Any]
    ) -> Tensor:
        """Return the number to maximise, which may also depend on more than the logits.

        Args:
            logits: of the surrogate.
            labels: of all images.
            benign: mask of the images that are not malicious.
            first: the input of the first normalisation layer, differentiable in the malicious images.
            memory: the adapter's, in the state in which the attacker knows it.
        """
        return self.value(logits, labels, benign)

    @abstractmethod
    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the damage done, between 0 and 1: success of the attack, or the share of wrong predictions."""

    def advance(self) -> None:  # noqa: B027 - most objectives keep nothing
        """Keep what later batches need of the one that was crafted; a scenario calls this after each."""

    def state(self) -> dict[str, Any]:
        """Return what is kept between batches; it loads with ``weights_only=True``."""
        return {}

    def load(self, state: dict[str, Any]) -> None:  # noqa: B027 - most objectives keep nothing
        """Continue from what ``state`` returned."""


_registry: Registry[type[Objective]] = Registry("objective")


def available() -> list[str]:
    """Return the names of all objectives.

    >>> available()  # doctest: +NORMALIZE_WHITESPACE
    ['balanced_low_entropy', 'balanced_low_entropy_label_free', 'entropy', 'false_alarm', 'hidden_change',
    'indiscriminate', 'indiscriminate_segmentation', 'notch_high_entropy', 'notch_high_entropy_label_free', 'targeted',
    'targeted_pixel', 'wrong_memory']
    """
    return sorted(_registry.available())


def get(name: str) -> type[Objective]:
    """Return the class of that name.

    >>> get("targeted")(index=3)
    Targeted(index=3, target_class=None)
    """
    return _registry.get(name)


def register(name: str, *, replace: bool = False) -> Callable[[Class], Class]:
    """Return a decorator that registers an objective's class under a name.

    Args:
        name: what recipes call it. The bench passes those of the options ``classes`` (which are scored), ``seed`` and
            ``target_class`` that the class has: give all options defaults.
        replace: overwrite a name that exists already.
    """
    return _registry.register_class(name, replace=replace)


def unregister(name: str) -> None:
    """Remove a name."""
    _registry.unregister(name)
