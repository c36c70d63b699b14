"""Collect what a monitor needs from the calls of an adapter, by hooks that change no number and cost no extra pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .._errors import unknown_name
from ..layers import RobustBatchNorm
from ..methods import Adapter, extract_logits, group_stages
from .batch import Batch, first_images
from .moments import Moments, Reduced, SourceCache, reduce_layer

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
        receive: is called with each batch, at the end of its call.
        begin: is called at the begin of each call.
    """

    def __init__(
        self,
        adapter: Adapter,
        layers: dict[str, RobustBatchNorm],
        bounds: tuple[float, float] | None,
        receive: Callable[[Batch], None],
        begin: Callable[[], None],
    ) -> None:
        self.adapter, self.bounds, self.receive, self.begin = adapter, bounds, receive, begin
        self.first = next(iter(layers), None)
        self.collecting = False
        self._valid: Tensor | None = None
        self._reduced: dict[str, Reduced] = {}
        self._caches: dict[tuple[str, ...], SourceCache] = {}
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
        self.begin()
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
            moments = Moments.of(ordered, self._valid, self._caches)
            logits = self._logits(output, len(images))
            self.receive(Batch(self.adapter, images.detach(), self._valid, logits, moments, self.bounds))

    def _logits(self, output: Any, size: int) -> Tensor | None:
        """Return the logits in the output; None, with one warning, if there are none in it."""
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
        return logits


def choose_layers(adapter: Adapter, names: Iterable[str] | None) -> dict[str, RobustBatchNorm]:
    """Return the layers to read in the order of the model: the first and the last of each stage, or those named."""
    every = list(adapter.layers)
    if names is None:
        chosen = {*every[:1], *(stage[-1] for stage in group_stages(every))}
    else:
        chosen = {names} if isinstance(names, str) else set(names)
        for name in chosen:
            if name not in adapter.layers:
                raise unknown_name("layer", name, every)
    return {name: adapter.layers[name] for name in every if name in chosen}
