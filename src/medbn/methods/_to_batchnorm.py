"""to_batchnorm: a plain torch model that predicts as an adapter does now, for runtimes without medbn."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from .. import hooks
from ..convert import revert
from ..layers import RobustBatchNorm
from .base import Adapter

NEEDS_IMAGES = (
    "normalises with statistics of the batch, and a plain BatchNorm with fixed ones: give the batch that they are to be"
    " taken from, images=."
)


def to_batchnorm(adapter: nn.Module, images: Any = None) -> nn.Module:
    """Return a plain torch model with the adapted parameters, and with the statistics in ordinary BatchNorm layers.

    It predicts as the adapter would if it adapted no more, but with fixed statistics. Methods that predict with a
    moving average (``past``, ``rotta``, ``sema``, ``sotta``) or with the training statistics have them already. The
    others take theirs from the batch at hand: give one, and the model predicts this batch as the adapter does, to
    rounding. The adapter stays as it is, and shares nothing with the model, which is in eval() and requires no
    gradients.

    Args:
        adapter: what ``medbn.adapt`` returned, or a model whose layers ``medbn.convert`` has made robust.
        images: a batch to take statistics from, as large and as typical as possible, or a tuple of arguments for the
            model. A moving average that includes each batch includes this one then. None for a method that needs none.

    >>> import medbn
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> plain = to_batchnorm(medbn.adapt(model, "tent", "median"), images=torch.rand(16, 3, 8, 8))
    >>> type(plain[1]).__name__
    'BatchNorm2d'
    """
    if not isinstance(adapter, nn.Module):
        raise TypeError(f"expected what medbn.adapt returned, got {type(adapter).__name__}.")
    if isinstance(adapter, Adapter):
        if adapter.changes_output():
            raise ValueError(
                f"{adapter.label} changes what the model returns, by what a plain model has not; export another method."
            )
        return adapter.run_alone(_export, adapter.model, adapter, images)
    return _export(adapter, None, images)


def _export(model: nn.Module, adapter: Adapter | None, images: Any) -> nn.Module:
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, RobustBatchNorm)}
    if not layers and adapter is None:
        raise ValueError(f"{type(model).__name__} has no robust layer; it is a plain model already.")
    if images is None:
        statistics = {name: _held(name, layer) for name, layer in layers.items()}
    else:
        statistics = _observed(model, layers, adapter, images if isinstance(images, tuple) else (images,))
    plain = copy.deepcopy(model)
    for name, (centre, variance) in statistics.items():
        layer = plain.get_submodule(name)
        for kind, value in (("running_mean", centre), ("running_var", variance)):
            like = getattr(layer, kind)
            layer.register_buffer(kind, value.detach().to(value if like is None else like.dtype, copy=True))
        if layer._buffers.get("num_batches_tracked") is None:
            count = torch.tensor(0, dtype=torch.long, device=centre.device)
            layer.register_buffer("num_batches_tracked", count)
        layer.track_running_stats = True  # type: ignore[assignment]
    revert(plain)
    for module in plain.modules():  # what a monitor leaves in copies
        for hooks_of in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks_of.items() if type(hook).__module__.startswith("medbn.")]:
                del hooks_of[key]
    return plain.requires_grad_(False).eval()


def _held(name: str, layer: RobustBatchNorm) -> tuple[Tensor, Tensor]:
    """Return what a layer normalises with beside the batch; raise a ValueError if that is nothing."""
    policy = layer.own_policy
    if policy.reference is None or (policy.reference == "source" and policy.weight > 0):
        raise ValueError(f"the layer {name!r} ({policy}) {NEEDS_IMAGES}")
    return layer._reference_statistics()


def _observed(
    model: nn.Module, layers: dict[str, RobustBatchNorm], adapter: Adapter | None, images: tuple[Any, ...]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return what each layer normalises a batch with; nothing adapts."""
    if not layers:
        return {}
    found: dict[str, tuple[Tensor, Tensor]] = {}
    training = model.training
    with torch.no_grad(), hooks.observe(model, inputs=False, detached=True) as observations:
        if adapter is None:
            model.eval()(*images)
            model.train(training)
        else:
            adapter.run_model(adapter.read_call(images, {}))
        for seen in observations:
            if seen.name in found and not torch.equal(found[seen.name][0], seen.centre):
                raise ValueError(
                    f"the layer {seen.name!r} runs several times in a pass, with other statistics each time, which one"
                    " BatchNorm cannot have."
                )
            found[seen.name] = seen.centre, seen.variance
    for name, (centre, variance) in found.items():
        if not bool(centre.isfinite().all() & variance.isfinite().all()):
            raise ValueError(f"the statistics of the layer {name!r} are not finite: are the images?")
    missing = [name for name in layers if name not in found]
    for name in missing:  # not a part of this pass
        found[name] = layers[name]._reference_statistics()
    return found
