"""Contexts that observe the robust layers of a model, or change how they behave until the context ends.

Each acts on all robust layers of a model and changes no parameter and no statistic. They act on the model, not on the
thread: threads that use different contexts need a copy of the model each. However contexts overlap, a layer is as
configured once all have ended. Under activation checkpointing a layer's forward pass runs again during the backward
pass, which must then be inside the context too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from . import estimators, policies
from ._contexts import add_observers, add_overrides, remove_observers, remove_overrides
from .estimators import Estimator
from .layers import Adjust, Choose, LayerPass, Observer, RobustBatchNorm
from .policies import Policy


@dataclass(frozen=True, eq=False)
class Observation:
    """The input and the statistics of one layer in one forward pass; tensors are part of the autograd graph."""

    name: str
    """The layer's name in the model."""
    layer: RobustBatchNorm
    input: Tensor | None
    """The layer's input; None with ``observe(..., inputs=False)``."""
    centre: Tensor
    """What the layer normalised with, after its policy."""
    variance: Tensor
    batch_centre: Tensor | None
    """What the estimator returned for this batch; None where the policy gives the batch no weight, unless observed with
    ``always_estimate=True``."""
    batch_variance: Tensor | None


@contextmanager
def observe(
    model: nn.Module, *, inputs: bool = True, detached: bool = False, always_estimate: bool = False
) -> Iterator[list[Observation]]:
    """Collect the inputs and the statistics of every robust layer, in the order of execution.

    The list grows with each forward pass and is emptied on exit, so that no activation outlives the context: take what
    you need inside it.

    Args:
        model: a model with robust layers.
        inputs: False to keep the statistics alone.
        detached: True for statistics without gradients, which lets layers use their kernels.
        always_estimate: True to estimate a batch's statistics even where it has no weight, as under policy ``source``.

    >>> import torch, medbn
    >>> model = medbn.convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    >>> with medbn.observe(model) as observations:
    ...     _ = model(torch.randn(4, 3, 8, 8))
    ...     print(observations[0].name, tuple(observations[0].input.shape), tuple(observations[0].centre.shape))
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

    observers = {layer: observer(name) for name, layer in robust_layers(model).items()}
    try:
        add_observers(observers)
        yield observations
    finally:
        remove_observers(observers)
        observations.clear()


@contextmanager
def observe_outputs(model: nn.Module, call: Callable[[LayerPass, Tensor], None]) -> Iterator[None]:
    """Call a function in each forward pass of every robust layer, with the pass and the output before any activation.

    Statistics are without gradients, so that layers may use their kernels.
    """
    observer = Observer(lambda seen: None, detached=True, output=call)
    observers = dict.fromkeys(robust_layers(model).values(), observer)
    try:
        add_observers(observers)
        yield
    finally:
        remove_observers(observers)


@contextmanager
def backward_through(model: nn.Module, estimator: str | Estimator | Callable[[Estimator], Estimator]) -> Iterator[None]:
    """Keep every forward value, to the bit, and take the gradient of the statistics from another estimator.

    With ``"mean"`` this is the straight-through gradient that an attacker uses against a median, whose own gradient
    reaches one element per channel. Run the forward pass inside.

    Args:
        model: a model with robust layers.
        estimator: the backward estimator, or a function from each layer's own estimator to its backward estimator,
            such as ``medbn.gradients.get`` returns.
    """

    def choose(own: Estimator) -> Estimator:
        return estimators.get(estimator) if isinstance(estimator, str | Estimator) else estimator(own)

    with _override({layer: {"_backward": choose(layer.estimator)} for layer in robust_layers(model).values()}):
        yield


@contextmanager
def use_policy(model: nn.Module, policy: str | Policy) -> Iterator[None]:
    """Make every layer use another policy."""
    policy = policies.get(policy)
    layers = robust_layers(model).values()
    for layer in layers:
        layer.check_policy(policy)
    with _override({layer: {"_policy": policy} for layer in layers}):
        yield


@contextmanager
def choose_statistics(model: nn.Module, choose: Choose) -> Iterator[None]:
    """Let a function choose the statistics of every layer, instead of its policy.

    Args:
        model: a model with robust layers.
        choose: called by each layer with itself, its input, and the batch's centre and variance; returns the centre and
            the variance to normalise with.
    """
    with _override({layer: {"_choose": choose} for layer in robust_layers(model).values()}):
        yield


@contextmanager
def adjust_outputs(model: nn.Module, adjust: Adjust) -> Iterator[None]:
    """Let a function change the output of every layer.

    Args:
        model: a model with robust layers.
        adjust: called by each layer with its pass, whose statistics have gradients, and its output; returns another.
    """
    with _override({layer: {"_adjust": adjust} for layer in robust_layers(model).values()}):
        yield


@contextmanager
def mask_images(model: nn.Module, valid: Tensor | None) -> Iterator[None]:
    """Estimate statistics only from the images that ``valid`` marks, a ``(B,)`` mask, as padded batches need."""
    with _override({layer: {"_valid": valid} for layer in robust_layers(model).values()}):
        yield


def robust_layers(model: nn.Module) -> dict[str, RobustBatchNorm]:
    """Return the model's robust layers by name, each once."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, RobustBatchNorm)}
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no robust BatchNorm layer; make its layers robust first: medbn.convert(model)."
        )
    return layers


@contextmanager
def _override(overrides: dict[RobustBatchNorm, dict[str, Any]]) -> Iterator[None]:
    """Override settings of layers. Other contexts may begin and end meanwhile, in any order."""
    try:
        add_overrides(overrides)
        yield
    finally:
        remove_overrides(overrides)
