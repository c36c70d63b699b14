"""Signals: the numbers by which a monitor describes a batch.

A signal is a function from a ``Batch`` to one number, or to one number per watched layer, as tensors without dimensions
that stay on the device: the monitor reads all of them at once. Register your own:

>>> @register("darkness", side="above", about="how dark the images are")
... def darkness(batch):
...     return 1 - batch.images.mean()
>>> unregister("darkness")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from .._errors import unknown_name
from .._registry import Registry
from .batch import Batch
from .moments import SMALL, Moments, root_mean_square

Number = Tensor | float
Function = Callable[[Batch], "Number | dict[str, Number] | None"]
FunctionType = TypeVar("FunctionType", bound=Function)

OUTLIER = 3.0
"""An image is far from the others if its features are on average more than three robust standard deviations away; of a
normal feature that distance is 0.8 on average."""
READS = ("images", "predictions", "adapter")
"""What a signal may read; each includes what stands before it."""


@dataclass(frozen=True)
class Signal:
    """A named function of a batch.

    Args:
        name: what records, exporters and ``alarms=`` call it; one per layer is ``NAME/LAYER``.
        function: returns a number, a dictionary of numbers by layer, or None where it does not apply.
        side: ``"above"`` or ``"both"``: which change an alarm looks for; None for no alarm by default.
        about: what it is, for help texts and exporters.
        follows_learning: whether it moves as a method learns, beyond the first layer. Then it raises no alarm by
            default where the method learns.
        reads: what it reads of a batch. ``"images"``: the images and what layers made of them (``moments``);
            ``"predictions"``: these and the logits; ``"adapter"``: its state after the call too. The first two can be
            computed before the call waits for a GPU. So they are computed in calls too that raise later, and twice
            where a call returns other predictions than the forward pass; their values must depend on nothing else.
    """

    name: str
    function: Function
    side: str | None
    about: str
    follows_learning: bool = False
    reads: str = "adapter"


_registry = Registry[Signal]("signal", forbidden="/")


def available() -> list[str]:
    """Return the names of all signals.

    >>> available()[:3]
    ['images', 'pressure', 'outliers']
    """
    return _registry.available()


def get(name: str) -> Signal:
    """Return the signal of that name."""
    return _registry.get(name)


def register(
    name: str,
    *,
    side: str | None = None,
    about: str,
    follows_learning: bool = False,
    reads: str = "adapter",
    replace: bool = False,
) -> Callable[[FunctionType], FunctionType]:
    """Return a decorator that registers a function of a batch as a signal.

    Args:
        name: a name without ``/``.
        side: ``"above"`` or ``"both"`` to raise an alarm at a change, None to show the signal only.
        about: one line that says what it is.
        follows_learning: as in Signal.
        reads: as in Signal. With the default, the signal is computed after the call.
        replace: replace a signal of the same name.
    """
    if reads not in READS:
        raise unknown_name("reads", reads, READS)

    def add(function: FunctionType) -> FunctionType:
        _registry.register(name, Signal(name, function, side, about, follows_learning, reads), replace=replace)
        return function

    return add


def unregister(name: str) -> None:
    """Remove a signal; monitors that already read it keep it."""
    _registry.unregister(name)


# --- the images -------------------------------------------------------------------------------------------------------


@register("images", about="images in the batch, padding excluded", reads="images")
def images(batch: Batch) -> Number:
    """Return the number of images that are not padding."""
    return float(batch.size) if batch.valid is None else batch.valid.sum()


@register(
    "pressure",
    side="above",
    about="how far the mean of a layer is from the robust centre, in source deviations",
    reads="images",
)
def pressure(batch: Batch) -> dict[str, Number]:
    """Return for each layer how far outliers pull the mean: its distance from the median over images.

    It is the root of the mean over channels of ((mean − median) / source standard deviation)².
    """
    values: dict[str, Number] = {}
    for moments in batch.moments:
        pull = moments.mean.sum(dim=0) / moments.count - moments.centre
        values |= root_mean_square(moments.split(pull / moments.scale))
    return values


@register(
    "outliers",
    side="above",
    about="share of the images that are far from the others in the first layer",
    reads="images",
)
def outliers(batch: Batch) -> Number | None:
    """Return the share of images whose statistics in the first layer are far from those of the others.

    The statistics are each channel's mean and log variance, which in the first layer are a function of the image alone.
    Their distance from the median over images is counted in robust standard deviations and averaged over channels.
    """
    if not batch.moments:
        return None
    first = batch.moments[0]
    return ((first.distances > OUTLIER) & first.usable).sum() / first.count


@register("isolated", side="above", about="share of the images without a finite prediction", reads="predictions")
def isolated(batch: Batch) -> Number | None:
    """Return the share of images whose logits are not finite."""
    return None if batch.predicted is None else batch.share(~batch.predicted)


@register("out_of_range", side="above", about="share of the images with values outside of the bounds", reads="images")
def out_of_range(batch: Batch) -> Number | None:
    """Return the share of images with a value outside of the monitor's bounds, or with NaN."""
    if batch.bounds is None or not batch.images.is_floating_point():
        return None
    values = batch.images.flatten(1)
    # torch.aminmax is several times slower on a CPU, and reads the images once on a GPU
    low, high = values.aminmax(dim=1) if values.is_cuda else (values.amin(dim=1), values.amax(dim=1))
    return batch.share(~((low >= batch.bounds[0]) & (high <= batch.bounds[1])))


@register(
    "source_distance",
    side="both",
    about="distance of a layer's centre from the source's, in source deviations",
    follows_learning=True,
    reads="images",
)
def source_distance(batch: Batch) -> dict[str, Number]:
    """Return for each layer how far the median over images is from the source mean, over channels as ``pressure``."""
    values: dict[str, Number] = {}
    for moments in batch.moments:
        if moments.source is not None:
            moved = (moments.centre - moments.source.mean) / moments.scale
            values |= root_mean_square(moments.split(moved))
        else:
            values |= _distances_from_source(moments, moments.split(moments.centre))
    return values


# --- the predictions --------------------------------------------------------------------------------------------------


@register(
    "entropy",
    side="both",
    about="mean entropy of the predictions, in nats",
    follows_learning=True,
    reads="predictions",
)
def entropy(batch: Batch) -> Number | None:
    """Return the mean entropy of the usable predictions."""
    means = batch.prediction_means
    return None if means is None else means.entropy


@register("confidence", about="mean probability of the predicted class", reads="predictions")
def confidence(batch: Batch) -> Number | None:
    """Return the mean over usable predictions of the largest probability."""
    means = batch.prediction_means
    return None if means is None else means.confidence


@register("classes", about="entropy of how often each class is predicted, in nats", reads="predictions")
def classes(batch: Batch) -> Number | None:
    """Return the entropy of the mean prediction, which is low where one class dominates."""
    means = batch.prediction_means
    if means is None:
        return None
    terms: Tensor = torch.special.entr(means.probabilities)
    return terms.sum()


# --- the adapter ------------------------------------------------------------------------------------------------------


@register("parameter_drift", about="distance of the learned parameters from the source's, relative to their norm")
def parameter_drift(batch: Batch) -> Number | None:
    """Return ‖θ − θ₀‖ / ‖θ₀‖ over all learned parameters."""
    learned, source = batch.adapter.learned, batch.adapter.source_state.get("learned", {})
    if not learned:
        return None
    now: list[Tensor] = list(learned.values())
    before = [source[name] for name in learned]
    moved = torch._foreach_sub(now, before)
    norms = torch.stack([norm.to(now[0].device) for norm in torch._foreach_norm([*moved, *before])])
    distance, norm = torch.linalg.vector_norm(norms.view(2, -1), dim=1)
    relative: Tensor = distance / norm.clamp(min=SMALL)
    return relative


@register("average_drift", about="distance of a layer's moving average from the source mean, in source deviations")
def average_drift(batch: Batch) -> dict[str, Number]:
    """Return for each layer with a moving average how far it is from the source mean, over channels as ``pressure``."""
    values: dict[str, Number] = {}
    for moments in batch.moments:
        averages = {name: layer.ema_mean for name, layer in moments.layers.items() if layer.ema_mean is not None}
        values |= _distances_from_source(moments, averages)
    return values


@register("declared_changes", about="changes of the images that the method has declared so far")
def declared_changes(batch: Batch) -> Number | None:
    """Return how many changes a method with a change detector, such as ``past``, has counted in its memory."""
    memory = batch.adapter.memory
    if "declared" not in memory:
        return None
    changes: Number = memory["declared"] + memory.get("returned", 0)
    return changes


@register("resets", about="how often the adapter has returned to the source model")
def resets(batch: Batch) -> Number:
    """Return how often ``reset`` was called, by the method itself or by its user."""
    return float(batch.adapter.resets)


def _distances_from_source(moments: Moments, centres: dict[str, Tensor]) -> dict[str, Number]:
    """Return how far the centres of layers are from the source means, in source deviations, where there are such."""
    means = {name: layer.running_mean for name, layer in moments.layers.items() if name in centres}
    known = {name: mean for name, mean in means.items() if mean is not None}
    if not known:
        return {}
    scales = moments.split(moments.scale)
    moved = torch._foreach_sub([centres[name] for name in known], list(known.values()))
    scaled = torch._foreach_div(moved, [scales[name] for name in known])
    return {**root_mean_square(dict(zip(known, scaled, strict=True)))}
