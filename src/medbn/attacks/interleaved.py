"""An attacker who owns whole batches of a stream, or sends her images one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..methods import Adapter, predict_logits
from ._batch import check_batch
from .base import Attack, Malicious, advance, learn_from
from .scenarios import Cumulative, Outcome, register

PLACES = ("even", "start")
VICTIMS = ("next", "last")

OwnImages = Callable[[int], tuple[Tensor, Tensor]]
"""From the number of an owned batch, from 0 on, to the images that the attacker has for it, and their labels."""


@register("interleaved")
class Interleaved(Cumulative):
    """Let some batches of the stream be the attacker's, and count errors on the benign ones between them.

    The poison stays, and no benign batch has a malicious image. Each step serves the attacker's batches that are due,
    and then one benign batch. The attack crafts an owned batch beside the benign batch that it is to harm, with
    statistics over both; they share the batch half and half, which is as near as an attack on one batch comes to one on
    the next. An objective on her own images is crafted without any benign image beside them. An attack without steps,
    such as ``DIA(steps=0, start="checkerboard")``, needs no gradient.

    Her images start as ``own`` says, and no other batch has them. Without attack, they are then served as they are, as
    those of any user: that is the stream of the clean state. Without ``own`` her images start as those of the benign
    batch that is to be harmed, and the clean stream has the benign batches alone.

    Args:
        adapter: the victim.
        attack: what crafts the images of an owned batch.
        malicious: not used, because batches are owned whole.
        share: of the batches of the stream that are the attacker's, less than 1.
        at: ``"even"`` spreads them evenly; ``"start"`` puts those of ``period`` benign batches before these.
        period: for how many benign batches a condition lasts.
        victims: the benign batch that is to be harmed: the ``"next"`` one, known beforehand, or the ``"last"`` one,
            which stands for the next.
        call_size: cut the attacker's images into calls of that many, such as 1; None for a call per owned batch.
        own: returns the images of an owned batch by its number, and their labels. The same number always gives the same
            images, so that a stopped stream continues.
    """

    def __init__(
        self,
        adapter: Adapter,
        attack: Attack,
        malicious: Malicious = slice(0, 0),
        *,
        share: float = 0.1,
        at: str = "even",
        period: int = 1,
        victims: str = "next",
        call_size: int | None = None,
        own: OwnImages | None = None,
    ) -> None:
        super().__init__(adapter, attack, malicious)
        for name, value, names in (("at", at, PLACES), ("victims", victims, VICTIMS)):
            if value not in names:
                raise ValueError(f"{name} is {' or '.join(map(repr, names))}; got {value!r}.")
        if not 0.0 <= share < 1.0:
            raise ValueError(f"share is a share of the batches, from 0 to less than 1; got {share!r}.")
        for name, number in (("period", period), ("call_size", call_size)):
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}.")
        self.share, self.at, self.period = share, at, period
        self.victims, self.call_size, self.own = victims, call_size, own
        self._steps = 0
        self._owned = 0
        self._last: tuple[Tensor, Tensor] | None = None

    def step(self, images: Tensor, labels: Tensor) -> Outcome:
        """Serve the attacker's batches that are due; then predict and adapt on a benign batch, in both states."""
        images, labels, _ = check_batch(images, labels, slice(0, 1))
        due = self._due()
        if due:
            known = self._last if self.victims == "last" and self._last is not None else (images, labels)
            clean = [self._own_images(self._owned + number, known) for number in range(due)]
            self.strike(known, clean)
            if self.own is not None:
                for own, _ in clean:
                    self._serve_clean(own)
            self._owned += due
        self._steps += 1
        self._last = (images, labels)
        attacked = predict_logits(self.adapter, images)
        benign = torch.ones(len(images), dtype=torch.bool, device=images.device)
        return Outcome(self.attack.objective, images, attacked, self._serve_clean(images), labels, benign)

    def strike(self, known: tuple[Tensor, Tensor], clean: list[tuple[Tensor, Tensor]]) -> None:
        """Craft the owned batches that are due, and send them.

        Args:
            known: the images to harm, and their labels.
            clean: for each owned batch, the attacker's images as they are, and their labels.
        """
        crafted = torch.cat([self._craft(*known, *own) for own in clean])
        for call in torch.split(crafted, self.call_size or len(known[0])):
            self.query(call)

    def query(self, images: Tensor) -> Tensor:
        """Send a call of the attacker's, and return its logits, as she sees them."""
        answers = predict_logits(self.adapter, images)
        learn_from(self.attack, self.adapter, images, answers)
        return answers

    def _own_images(self, number: int, known: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the images that the attacker has for an owned batch, and their labels."""
        if self.own is None:
            return known
        images, labels = self.own(number)
        return images.to(known[0].device), labels.to(known[1].device)

    def _due(self) -> int:
        """Return how many owned batches come before the next benign one."""
        if self.at == "start" and self._steps % self.period:
            return 0
        benign = self._steps + (self.period if self.at == "start" else 1)
        return owned_before(benign, self.share) - self._owned

    def _craft(self, images: Tensor, labels: Tensor, own: Tensor, own_labels: Tensor) -> Tensor:
        """Return an owned batch that harms these images."""
        if self.attack.objective.own:
            crafted = self.attack(self.adapter, own, own_labels, slice(None))
            advance(self.attack)
            return crafted
        both, classes = torch.cat([images, own]), torch.cat([labels, own_labels])
        return self.attack(self.adapter, both, classes, slice(len(images), len(both)))[len(images) :]

    def state(self) -> dict[str, Any]:
        """Return both states, and where in the stream they are."""
        return {**super().state(), "steps": self._steps, "owned": self._owned, "last": self._last}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from both states."""
        super().load(state)
        self._steps, self._owned, self._last = state["steps"], state["owned"], state["last"]


def owned_before(benign: int, share: float) -> int:
    """Return how many owned batches come before the end of so many benign ones, where they are spread evenly.

    >>> [owned_before(benign, 0.5) for benign in range(4)], [owned_before(benign, 0.25) for benign in range(7)]
    ([0, 1, 2, 3], [0, 0, 0, 1, 1, 1, 2])
    """
    return int(benign * share / (1.0 - share) + 1e-9)
