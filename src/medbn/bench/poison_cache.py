"""Craft once what several methods would craft alike: on the first batch, TENT's surrogate is TeBN's.

Methods that differ in what they learn alone come one after the other, and only their first batches are alike.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from ..attacks import DIA, Objective
from ..methods.base import Adapter

KEPT = 4


class Memo:
    """The last few poisoned batches, by everything that they depend on."""

    def __init__(self) -> None:
        self.batches: OrderedDict[str, Tensor] = OrderedDict()

    def get(self, key: str) -> Tensor | None:
        """A poisoned batch, if it is remembered."""
        if key in self.batches:
            self.batches.move_to_end(key)
        return self.batches.get(key)

    def put(self, key: str, poisoned: Tensor) -> None:
        """Remember one, and forget the oldest."""
        self.batches[key] = poisoned
        while len(self.batches) > KEPT:
            self.batches.popitem(last=False)


class Remembering:
    """An attack that looks into a memo first, and measures the time that crafting took (or would have taken)."""

    def __init__(self, attack: DIA, memo: Memo, weights: str) -> None:
        self.attack, self.memo = attack, memo
        self.weights = weights
        """The fingerprint of the model: of all that no method learns."""
        self.seconds = 0.0
        self.shared = False
        self.first = True
        """Whether this is the first batch of a stream: later ones differ between methods, and are not kept."""

    @property
    def objective(self) -> Objective:
        """What the attack raises."""
        return self.attack.objective

    def __call__(self, adapter: Adapter, images: Tensor, labels: Tensor, malicious: Any) -> Tensor:
        """The poisoned batch."""
        alike = self.first and not self.attack.unroll
        key = self.key(adapter, images, labels, malicious) if alike else ""
        began = time.perf_counter()
        found = self.memo.get(key) if alike else None
        self.shared = found is not None
        if found is None:
            found = self.attack(adapter, images, labels, malicious)
            if alike:
                self.memo.put(key, found)
        if images.is_cuda:
            torch.cuda.synchronize(images.device)
        self.seconds = time.perf_counter() - began
        return found

    def key(self, adapter: Adapter, images: Tensor, labels: Tensor, malicious: Any) -> str:
        """A hash of the surrogate and of what it is attacked with.

        The surrogate is the model under its layers' policies and estimators, in the state that the attacker knows. How
        a method learns does not enter, as long as no step of it is unrolled.
        """
        attack = self.attack
        state = adapter.source_state if attack.knowledge == "semi" else adapter.snapshot()
        total = hashlib.blake2b(digest_size=16)
        own = {name: (layer.estimator, layer.policy) for name, layer in adapter.layers.items()}
        layers = [(name, id(e.function), e.prior, policy) for name, (e, policy) in own.items()]
        own_ways = tuple(getattr(type(adapter), name).__qualname__ for name in ("normalising", "attacked"))
        weighing = getattr(adapter, "weighing", None)  # past, whose layers' policies do not say it
        weight = weighing(len(images), state["memory"]) if weighing else None
        normalising = own_ways, getattr(adapter, "statistics", None), weight, adapter.logits
        total.update(repr((attack, str(adapter.model), layers, normalising, malicious, images.shape)).encode())
        total.update(self.weights.encode())
        affine = {
            f"{name}.{kind}": value
            for name, layer in adapter.layers.items()
            for kind, value in (("weight", layer.weight), ("bias", layer.bias))
            if value is not None
        }
        known = {**affine, **state["learned"]}  # in the layers' order, whatever is learned
        values = [*known.values(), *(value for pair in state["averages"].values() for value in pair)]
        for value in (*values, images, labels):
            total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return total.hexdigest()
