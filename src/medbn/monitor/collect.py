"""Collect what a monitor needs from the calls of an adapter, by hooks that change no number and cost no extra pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .._errors import unknown_name
from ..layers import RobustBatchNorm
from ..methods import Adapter, extract_logits, group_stages
from .batch import Batch, first_images
from .measure import Early
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


class _Predicted(NamedTuple):
    """A batch as it was when it was predicted, and by what it is known whether it still is."""

    batch: Batch
    early: Early
    images: Tensor
    """The argument of the call."""
    layers: int
    """How many layers had been read."""
    versions: tuple[int | None, ...]
    """Of the images and of the mask of padding."""
    logits: Tensor | None
    """Those in the output; None if they were not looked for or not found. As long as they are kept, nothing else is in
    their place."""
    place: tuple[object, ...]
    """Where they were, and how often they had been written to."""


class Collector:
    """Hooks on an adapter and on some of its layers, which pass each batch on when the call has ended.

    They pass it on a first time as soon as it is predicted, before the call waits for a GPU. What has been computed
    then comes back with the batch at the end. That is the same object, or another one if something has changed: the
    images, or the predictions, where a call returns others. If those alone are others, it has the same ``images``.

    The hooks run inside the adapter's call, so one thread at a time runs them. Layers are read in the first forward
    pass of a call alone, which is the one that predicts before the update.

    Args:
        adapter: the adapter.
        layers: the layers to read, by name; the first one comes first.
        bounds: the range that images should be in, or None.
        predicted: is called with each batch as soon as it is predicted, if the adapter adapts; its logits may be None.
        receive: is called with each batch and with what ``predicted`` has returned, or None, at the end of its call.
        begin: is called at the begin of each call.
    """

    def __init__(
        self,
        adapter: Adapter,
        layers: dict[str, RobustBatchNorm],
        bounds: tuple[float, float] | None,
        predicted: Callable[[Batch], Early],
        receive: Callable[[Batch, Early | None], None],
        begin: Callable[[], None],
    ) -> None:
        self.adapter, self.bounds = adapter, bounds
        self.predicted, self.receive, self.begin = predicted, receive, begin
        self.first = next(iter(layers), None)
        self.collecting = False
        self._valid: Tensor | None = None
        self._reduced: dict[str, Reduced] = {}
        self._caches: dict[tuple[str, ...], SourceCache] = {}
        self._images: Tensor | None = None
        self._predicted: _Predicted | None = None
        self._returns_prediction = True
        """Whether calls have returned what the first forward pass predicts, as far as is known."""
        self._warned = False
        self._handles: list[Any] = [
            adapter.register_forward_pre_hook(Hook(self._begin), with_kwargs=True),
            adapter.register_prediction_hook(Hook(self._predict)),
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
        self._reduced, self._predicted = {}, None
        self._images = _images_of(args, kwargs)
        self.begin()
        self.collecting = True

    def _read(self, name: str, layer: Any, args: tuple[Any, ...]) -> None:
        if not self.collecting or name in self._reduced or not args or args[0].dim() < 2 or not len(args[0]):
            return
        with torch.no_grad():
            self._reduced[name] = reduce_layer(layer, args[0].detach(), name == self.first)

    def _predict(self, output: Any) -> None:
        """Pass the batch on for what can be computed now; whatever fails is left to the end of the call."""
        images = self._images
        if images is None:
            return
        logits = None
        with torch.no_grad():
            if self._returns_prediction:
                with suppress(Exception):
                    logits = extract_logits(output, self.adapter.logits, len(images)).detach()
            with suppress(Exception):
                batch = self._make(images, logits)
                state = len(self._reduced), _versions(images, self._valid), logits, _place(logits)
                self._predicted = _Predicted(batch, self.predicted(batch), images, *state)

    def _end(self, adapter: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        self.collecting = False
        images = _images_of(args, kwargs)
        if images is not None:
            with torch.no_grad():
                batch = self._complete(images, self._logits(output, len(images)))
                self.receive(batch, None if self._predicted is None else self._predicted.early)
        self._reduced, self._predicted, self._images = {}, None, None

    def _complete(self, images: Tensor, logits: Tensor | None) -> Batch:
        """Return the batch as it is at the end of the call: the one of before as far as nothing of it has changed."""
        before = self._predicted
        state = len(self._reduced), _versions(images, self._valid)
        if before is None or before.images is not images or (before.layers, before.versions) != state:
            return self._make(images, logits)
        if before.logits is not None:
            if _place(logits) == before.place:
                return before.batch
            self._returns_prediction = False
        return replace(before.batch, logits=None if logits is None else _thin(logits))

    def _make(self, images: Tensor, logits: Tensor | None) -> Batch:
        # In the order of the layers' names, however the model runs them.
        ordered = {name: self._reduced[name] for name in sorted(self._reduced, key=lambda name: name != self.first)}
        moments = Moments.of(ordered, self._valid, self._caches)
        return Batch(
            self.adapter, images.detach(), self._valid, None if logits is None else _thin(logits), moments, self.bounds
        )

    def _logits(self, output: Any, size: int) -> Tensor | None:
        """Return the logits in the output; None, with one warning, if there are none in it."""
        try:
            return extract_logits(output, self.adapter.logits, size).detach()
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            if not self._warned:
                self._warned = True
                warnings.warn(f"the monitor shows nothing about predictions: {error}", stacklevel=2)
            return None


def _images_of(args: Any, kwargs: dict[str, Any]) -> Tensor | None:
    """Return the images of a call; None if it has none, as that of a process of a group may."""
    images = first_images(tree_leaves((args, {k: v for k, v in kwargs.items() if k != "valid"})))
    return images if images is not None and len(images) else None


def _thin(logits: Tensor) -> Tensor:
    """Return logits with fewer pixels where they are dense."""
    if logits.dim() > 2:
        logits = logits.flatten(2)
        logits = logits[..., :: -(-logits.shape[2] // PIXELS)]
    return logits


def _versions(*tensors: Tensor | None) -> tuple[int | None, ...]:
    """Return how often each tensor was written to; None where that is not counted."""
    return tuple(None if t is None or t.is_inference() else t._version for t in tensors)


def _place(values: Tensor | None) -> tuple[object, ...]:
    """Return what two tensors have in common only if they are the same memory, not written to in between."""
    if values is None:
        return ()
    uncounted = object() if values.is_inference() else None  # equal to nothing else
    return values.data_ptr(), values.shape, values.stride(), values.dtype, values.device, *_versions(values), uncounted


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
