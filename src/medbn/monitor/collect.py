"""Collect what a monitor needs from the calls of an adapter, by hooks that change no number and cost no extra pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..layers import RobustBatchNorm
from ..methods import Adapter, Predictions, extract_logits
from .batch import Batch, first_images
from .moments import Moments, Reduced, reduce_layer

PIXELS = 4096
"""Of dense outputs, at most about this many pixels per image are read."""


class Hook:
    """A hook of a module. Copies and pickles of the module have one that does nothing: the monitor is not theirs."""

    def __init__(self, function: Callable[..., None] | None = None) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> None:
        """Call the function, except while torch compiles the model."""
        if self.function is not None and not torch.compiler.is_compiling():
            self.function(*arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return Hook()

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, ()


class Collector:
    """Hooks on an adapter and on some of its layers, which pass each batch on when the call has ended.

    The hooks run inside the adapter's call, so one thread at a time runs them. Layers are read in the first forward
    pass of a call alone, which is the one that predicts before the update.

    Args:
        adapter: the adapter.
        layers: the layers to read, by name; the first one comes first.
        bounds: the range that images should be in, or None.
        receive: is called with each batch.
    """

    def __init__(
        self,
        adapter: Adapter,
        layers: dict[str, RobustBatchNorm],
        bounds: tuple[float, float] | None,
        receive: Callable[[Batch], None],
    ) -> None:
        self.adapter, self.bounds, self.receive = adapter, bounds, receive
        self.first = next(iter(layers), None)
        self.collecting = False
        self._valid: Tensor | None = None
        self._reduced: dict[str, Reduced] = {}
        self._warned = False
        self._handles: list[Any] = [
            adapter.register_forward_pre_hook(Hook(self._begin), with_kwargs=True),
            adapter.register_forward_hook(Hook(self._end), with_kwargs=True),
        ]
        for name, layer in layers.items():
            self._handles.append(layer.register_forward_pre_hook(Hook(partial(self._read, name))))

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _begin(self, adapter: Any, args: Any, kwargs: dict[str, Any]) -> None:
        valid = kwargs.get("valid")
        self._valid = valid if isinstance(valid, Tensor) else None
        self._reduced = {}
        self.collecting = True

    def _read(self, name: str, layer: Any, args: tuple[Any, ...]) -> None:
        if not self.collecting or name in self._reduced or not args or args[0].dim() < 2 or not len(args[0]):
            return
        with torch.no_grad():
            self._reduced[name] = reduce_layer(layer, args[0].detach(), name == self.first)

    def _end(self, adapter: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        self.collecting, reduced = False, self._reduced
        self._reduced = {}
        images = first_images(tree_leaves((args, {k: v for k, v in kwargs.items() if k != "valid"})))
        if images is None or not len(images):  # a process of a group may have none
            return
        # In the order of the layers' names, however the model runs them.
        ordered = {name: reduced[name] for name in sorted(reduced, key=lambda name: name != self.first)}
        with torch.no_grad():
            moments = Moments.of(ordered, self._valid)
            predictions = self._predictions(output, len(images))
            self.receive(Batch(self.adapter, images.detach(), self._valid, predictions, moments, self.bounds))

    def _predictions(self, output: Any, size: int) -> Predictions | None:
        """Return the predictions in the output; None, with one warning, if there are no logits in it."""
        try:
            logits = extract_logits(output, self.adapter.logits, size).detach()
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            if not self._warned:
                self._warned = True
                warnings.warn(f"the monitor shows nothing about predictions: {error}", stacklevel=2)
            return None
        if logits.dim() > 2:
            logits = logits.flatten(2)
            logits = logits[..., :: -(-logits.shape[2] // PIXELS)]
        return Predictions.of(logits, self._valid)
