"""Contexts that look into robust layers, or change how they behave for a while, so that nobody patches a layer.

Each takes a model, acts on all its robust layers, changes no parameter and no statistic, and leaves nothing behind.
They act on the model and not on the thread: threads that use different contexts need a copy of the model each. Under
activation checkpointing a layer's forward pass runs again during the backward pass, which then belongs inside as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from . import estimators, policies
from .estimators import Estimator
from .layers import LayerPass, Observer, RobustBatchNorm
from .policies import Policy


@dataclass(frozen=True, eq=False)
class Observation:
    """One layer in one forward pass. Tensors are part of the autograd graph."""

    name: str
    """The layer's name in the model."""
    layer: RobustBatchNorm
    input: Tensor | None
    """What went in; None with ``observe(..., inputs=False)``."""
    centre: Tensor
    """What the layer normalised with, after its policy."""
    variance: Tensor
    batch_centre: Tensor | None
    """What the estimator made of this batch; None without weight, unless captured with ``always_estimate=True``."""
    batch_variance: Tensor | None


@contextmanager
def observe(
    model: nn.Module, *, inputs: bool = True, detached: bool = False, always_estimate: bool = False
) -> Iterator[list[Observation]]:
    """Collect what every robust layer saw and used, in the order of execution.

    The list grows with each forward pass and is emptied on exit, so that no activation outlives the context: take what
    you need inside it.

    Args:
        model: a model with robust layers.
        inputs: False to keep the statistics alone.
        detached: True for statistics without gradients, which lets layers use their kernels.
        always_estimate: True to estimate a batch's statistics even where it has no weight, as under policy ``source``.

    >>> import torch, medbn
    >>> model = medbn.convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    >>> with medbn.observe(model) as seen:
    ...     _ = model(torch.randn(4, 3, 8, 8))
    ...     print(seen[0].name, tuple(seen[0].input.shape), tuple(seen[0].centre.shape))
    1 (4, 8, 6, 6) (8,)
    """
    observations: list[Observation] = []

    def observer(name: str) -> Observer:
        def call(p: LayerPass) -> None:
            statistics = (p.centre, p.variance, p.batch_centre, p.batch_variance)
            if detached:
                statistics = tuple(None if s is None else s.detach() for s in statistics)  # type: ignore[assignment]
            observations.append(Observation(name, p.layer, p.input if inputs else None, *statistics))

        return Observer(call, detached, always_estimate)

    installed = [(layer, observer(name)) for name, layer in robust_layers(model).items()]
    for layer, added in installed:
        layer._observers = (*layer._observers, added)
    try:
        yield observations
    finally:
        for layer, added in installed:
            layer._observers = tuple(other for other in layer._observers if other is not added)
        observations.clear()


@contextmanager
def backward_through(model: nn.Module, estimator: str | Estimator | Callable[[Estimator], Estimator]) -> Iterator[None]:
    """Keep every forward value, to the bit, and take the gradient of the statistics from another estimator.

    With ``"mean"`` this is the straight-through gradient that an attacker uses against a median, whose own gradient
    reaches one element per channel. It acts where gradients are recorded: run the forward pass inside. A function gives
    each layer a stand-in for its own estimator.
    """
    if isinstance(estimator, str | Estimator):
        found = estimators.get(estimator)
        stand_in: Callable[[Estimator], Estimator] = lambda own: found  # noqa: E731
    else:
        stand_in = estimator
    with _set(robust_layers(model), _backward=lambda layer: stand_in(layer.estimator)):
        yield


@contextmanager
def use_policy(model: nn.Module, policy: str | Policy) -> Iterator[None]:
    """Let every layer follow another policy."""
    stand_in = policies.get(policy)
    with _set(robust_layers(model), policy=lambda layer: stand_in):
        yield


@contextmanager
def mask_images(model: nn.Module, valid: Tensor | None) -> Iterator[None]:
    """Let only the images that ``valid``, a ``(B,)`` mask, marks take part in the statistics: for padded batches."""
    with _set(robust_layers(model), _valid=lambda layer: valid):
        yield


def robust_layers(model: nn.Module) -> dict[str, RobustBatchNorm]:
    """The model's robust layers by name, each once."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, RobustBatchNorm)}
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no robust BatchNorm layer; make its layers robust first: medbn.convert(model)."
        )
    return layers


@contextmanager
def _set(layers: dict[str, RobustBatchNorm], **settings: Any) -> Iterator[None]:
    """Set attributes of all layers, computed from each, and put the old values back."""
    before = [(layer, name, getattr(layer, name)) for layer in layers.values() for name in settings]
    try:
        for layer in layers.values():
            for name, value in settings.items():
                setattr(layer, name, value(layer))
        yield
    finally:
        for layer, name, value in before:
            setattr(layer, name, value)
