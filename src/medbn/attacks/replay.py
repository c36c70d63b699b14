"""An attacker without gradients, who sends again what was misread."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..methods import Adapter
from .base import Attack, Malicious
from .interleaved import Interleaved
from .scenarios import register


@register("replay")
class Replay(Interleaved):
    """Send again, unchanged, those of the attacker's own images that were misread (Hoang et al., R.I.P., 2024).

    She knows the labels of her images and the answers to her own queries, and nothing else: no model, no gradient, no
    image of anybody else. A method that learns from its predictions takes the same wrong ones as labels again and
    again. An owned batch has the images that were misread when she sent them last, the latest first, and new images
    of hers where there is room. What is read correctly is not sent again.

    The first owned batch is of new images. The attack only says what counts as harm; it crafts nothing.

    Args:
        adapter: the victim.
        attack: its objective says what the harm is.
        malicious: not used, because batches are owned whole.
        options: those of ``Interleaved``; without ``own``, her images are copies of benign ones.
    """

    def __init__(self, adapter: Adapter, attack: Attack, malicious: Malicious = slice(0, 0), **options: Any) -> None:
        super().__init__(adapter, attack, malicious, **options)
        self._misread: tuple[Tensor, Tensor] | None = None

    def strike(self, known: tuple[Tensor, Tensor], clean: list[tuple[Tensor, Tensor]]) -> None:
        """Send what was misread before, with new images where there is room, one owned batch after the other."""
        for new, new_labels in clean:
            size = len(new)
            images, labels = new, new_labels
            if self._misread is not None:
                images, labels = (torch.cat(both)[:size] for both in zip(self._misread, (new, new_labels), strict=True))
            answers = torch.cat([self.query(call) for call in torch.split(images, self.call_size or size)])
            wrong = answers.argmax(dim=1) != labels
            self._misread = images[wrong], labels[wrong]

    def state(self) -> dict[str, Any]:
        """Return what ``Interleaved`` does, and the images that were misread."""
        return {**super().state(), "misread": self._misread}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from that."""
        super().load(state)
        misread = state["misread"]
        device = next(self.adapter.model.parameters()).device
        self._misread = None if misread is None else (misread[0].to(device), misread[1].to(device))
