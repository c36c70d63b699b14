"""Reuse a poisoned batch for all methods with the same surrogate: before it has learned, TENT has TeBN's.

Only the first attacked batch of a stream is cached: after it, methods that learn differ from those that do not.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from ..attacks import DIA, Objective
from ..methods import Adapter

SIZE = 4
"""Poisoned batches in a cache."""


class PoisonCache:
    """The last few poisoned batches, by a hash of everything that they depend on."""

    def __init__(self) -> None:
        self.batches: OrderedDict[Hashable, Tensor] = OrderedDict()

    def get(self, key: Hashable) -> Tensor | None:
        """Return a poisoned batch, or None if it is not cached."""
        if key in self.batches:
            self.batches.move_to_end(key)
        return self.batches.get(key)

    def put(self, key: Hashable, poisoned: Tensor) -> None:
        """Add a batch, and drop the one that was used least recently."""
        self.batches[key] = poisoned
        while len(self.batches) > SIZE:
            self.batches.popitem(last=False)


class CachedAttack:
    """An attack that uses a poisoned batch of the cache if there is one, and measures the time.

    Args:
        attack: the attack.
        cache: the poisoned batches that can be reused.
        fingerprint: of the model's weights, which stand for all parameters that no method learns.
    """

    def __init__(self, attack: DIA, cache: PoisonCache, fingerprint: str) -> None:
        self.attack, self.cache = attack, cache
        self.fingerprint = fingerprint
        self.seconds = 0.0
        """How long the last batch took to craft or to fetch."""
        self.shared = False
        """Whether the last batch came from the cache."""
        self.first = True
        """Whether the next batch is the first attacked one of a stream."""

    @property
    def objective(self) -> Objective:
        """The objective of the attack."""
        return self.attack.objective

    def __call__(self, adapter: Adapter, images: Tensor, labels: Tensor, malicious: Any) -> Tensor:
        """Return the poisoned batch."""
        # An unrolled attack depends on how the method learns; an objective with a state has to see every batch. What
        # other models an attacker has is not in the key.
        known = self.attack.knowledge in ("white", "semi")
        cacheable = self.first and known and not self.attack.unroll and not self.objective.stateful
        key = self.key(adapter, images, labels, malicious) if cacheable else ""
        began = time.perf_counter()
        poisoned = self.cache.get(key) if cacheable else None
        self.shared = poisoned is not None
        if poisoned is None:
            poisoned = self.attack(adapter, images, labels, malicious)
            if cacheable:
                self.cache.put(key, poisoned)
        if images.is_cuda:
            torch.cuda.synchronize(images.device)
        self.seconds = time.perf_counter() - began
        return poisoned

    def learn_from(self, adapter: Adapter, images: Tensor, answers: Tensor) -> None:
        """Let the attack take note of the logits that were returned for the attacker's images."""
        self.attack.learn_from(adapter, images, answers)

    def advance(self) -> None:
        """Let the attack keep what later batches need."""
        self.attack.advance()

    def state(self) -> dict[str, Any]:
        """Return what the attack keeps between batches."""
        return self.attack.state()

    def load(self, state: dict[str, Any], device: torch.device) -> None:
        """Let the attack continue from that."""
        self.attack.load(state, device)

    def key(self, adapter: Adapter, images: Tensor, labels: Tensor, malicious: Any) -> Hashable:
        """Return a key of the surrogate, which says itself what it depends on, its tensors, and the attack on it."""
        attack = self.attack
        state = adapter.source_state if attack.knowledge == "semi" else adapter.snapshot()
        total = hashlib.blake2b(digest_size=16)
        total.update(repr((attack, str(adapter.model), malicious, images.shape)).encode())
        total.update(self.fingerprint.encode())
        affine = {
            f"{name}.{kind}": value
            for name, layer in adapter.layers.items()
            for kind, value in (("weight", layer.weight), ("bias", layer.bias))
            if value is not None
        }
        learned = {**affine, **state["learned"]}  # in the order of the layers, not of what is learned
        values = [*learned.values(), *(value for pair in state["averages"].values() for value in pair)]
        remembered = adapter.surrogate_tensors(state["memory"], len(images)).values()
        for value in (*values, *remembered, images, labels):
            total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return adapter.surrogate_key(state, len(images)), total.digest()
