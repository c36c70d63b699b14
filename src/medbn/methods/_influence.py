"""What each image of a batch contributes to the gradient of the learned parameters, and bounds on it.

The affine parameters of a normalisation layer have y = γ x̂ + β, so with g = ∂loss/∂y an image's own part of the
gradient is Σ g x̂ and Σ g over its pixels. Both follow from one backward pass, for all images at once. This is the
gradient of an image's own loss where no image's prediction depends on others, as with held statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from .. import hooks, kernels
from ..layers import LayerPass, RobustBatchNorm
from ._affine import affine_layers

KINDS = ("clip", "median")
Pulls = dict[str, Tensor]
"""The gradient of each image, ``(B, ...)``, by the name of a parameter."""


@dataclass(frozen=True)
class Names:
    """The names of a layer's parameters that are learned."""

    weight: str | None
    bias: str | None


@dataclass(eq=False)
class Record:
    """One layer in one forward pass."""

    number: int
    """Of the pass."""
    names: Names
    normalise: Callable[[], Tensor]
    """Returns x̂."""
    trailing: tuple[int, ...] | None
    """The shape of the parameters if they are those of the last dimensions, as in LayerNorm; None for channels."""
    gradient: Tensor | None = None
    """g, once the backward pass has been here."""

    def pulls(self) -> Pulls:
        """Return each image's part of the gradient."""
        assert self.gradient is not None
        g, x = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (self.gradient, self.normalise()))
        shape: tuple[int, ...]
        if self.trailing is None:
            g, x = (t.flatten(2) if t.dim() > 2 else t.unsqueeze(2) for t in (g, x))
            shape, products, sums = (len(g), -1), "bcs,bcs->bc", 2
        else:
            size = torch.Size(self.trailing).numel()
            g, x = (t.reshape(len(t), -1, size) for t in (g, x))
            shape, products, sums = (len(g), *self.trailing), "bsc,bsc->bc", 1
        found: Pulls = {}
        if self.names.weight is not None:
            found[self.names.weight] = torch.einsum(products, g, x).reshape(shape)
        if self.names.bias is not None:
            found[self.names.bias] = g.sum(dim=sums).reshape(shape)
        return found


class ImageGradients:
    """Takes note of the passes of a model, and returns each image's part of a gradient. Copies of it are empty."""

    def __init__(self, model: nn.Module, learned: Mapping[str, nn.Parameter]) -> None:
        names = {id(parameter): name for name, parameter in learned.items()}  # layers may share a parameter
        self.layers: dict[nn.Module, Names] = {}
        for layer in affine_layers(model).values():
            own = Names(*(names.get(id(getattr(layer, kind, None))) for kind in ("weight", "bias")))
            if own.weight is not None or own.bias is not None:
                self.layers[layer] = own
        self._records: list[Record] = []
        self._passes = 0
        self._inside = False

    def __deepcopy__(self, memo: dict[int, Any]) -> ImageGradients:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.layers = {memo.get(id(layer), layer): names for layer, names in self.layers.items()}
        copied._records, copied._passes, copied._inside = [], 0, False
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {"layers": self.layers, "_records": [], "_passes": 0, "_inside": False}

    def clear(self) -> None:
        """Forget all passes."""
        self._records = []

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        """Take note of one forward pass, inside the context."""
        self._passes += 1
        others = [layer for layer in self.layers if not isinstance(layer, RobustBatchNorm)]
        with ExitStack() as stack:
            if any(isinstance(layer, RobustBatchNorm) for layer in self.layers):
                stack.enter_context(hooks.observe_outputs(model, self._see_robust))
            for layer in others:
                stack.callback(layer.register_forward_hook(self._see_other).remove)
            yield

    def add(self, layer: nn.Module, normalise: Callable[[], Tensor], output: Tensor) -> None:
        """Take note of a layer's output, which is γ x̂ + β."""
        if layer in self.layers and output.requires_grad:
            self._add(Record(self._passes, self.layers[layer], normalise, None), output)

    def _see_robust(self, seen: LayerPass, output: Tensor) -> None:
        if seen.layer._adjust is None:  # who changes the output adds it
            self.add(seen.layer, lambda: _standardise(seen), output)

    def _see_other(self, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self._inside or not isinstance(output, Tensor) or not output.requires_grad:
            return
        x, shape = inputs[0], tuple(dict(_own(layer))["weight"].shape)
        channels = isinstance(layer, nn.GroupNorm | _InstanceNorm) or tuple(x.shape[-len(shape) :]) != shape
        if channels and tuple(x.shape[1:2]) != shape:
            raise ValueError(f"influence= does not know how {type(layer).__name__} applies weights of shape {shape}.")

        def normalise() -> Tensor:
            self._inside = True
            try:
                plain = {n: torch.ones_like(p) if n == "weight" else torch.zeros_like(p) for n, p in _own(layer)}
                result: Tensor = torch.func.functional_call(layer, plain, (x,))
                return result
            finally:
                self._inside = False

        self._add(Record(self._passes, self.layers[layer], normalise, None if channels else shape), output)

    def _add(self, record: Record, output: Tensor) -> None:
        def keep(gradient: Tensor) -> None:
            record.gradient = gradient

        output.register_hook(keep)  # type: ignore[no-untyped-call]  # of this value, also where the model changes it in place afterwards
        self._records.append(record)

    def of(self, loss: Tensor, parameters: Sequence[Tensor], *, create_graph: bool = False) -> list[Pulls]:
        """Return each image's part of the gradient of a loss, for each of the passes that the loss depends on.

        Args:
            loss: it depends on what the model has returned in passes that were watched.
            parameters: the learned parameters in these passes.
            create_graph: whether the result is to be differentiated.
        """
        for record in self._records:
            record.gradient = None
        torch.autograd.grad(loss, parameters, allow_unused=True, create_graph=create_graph, retain_graph=create_graph)
        used = [record for record in self._records if record.gradient is not None]
        self._records = [record for record in self._records if record.gradient is None]
        passes: dict[int, Pulls] = {}
        with torch.set_grad_enabled(create_graph):
            for record in used:
                found = passes.setdefault(record.number, {})
                for name, pull in record.pulls().items():
                    found[name] = found[name] + pull if name in found else pull
        return list(passes.values())


def combine(pulls: Pulls, kind: str, limit: float) -> Pulls:
    """Return the gradient with bounded parts.

    ``pulls`` are parts of the gradient of an average over the batch: B times an image's is the gradient of its own
    loss, which is scaled down to a norm of ``limit`` where it is longer. Of an image whose part is not finite there is
    nothing left. ``"clip"`` returns the sum of the parts; ``"median"`` the median of each coordinate over the images
    that have a part, times their number.

    >>> parts = {"w": torch.tensor([[3.0, 4.0], [0.1, 0.0], [float("nan"), 1.0], [0.0, 0.0]])}
    >>> combine(parts, "clip", 4.0)["w"], combine(parts, "median", 4.0)["w"]
    (tensor([0.7000, 0.8000]), tensor([0.7000, 0.8000]))
    """
    rows = {name: pull.flatten(1) for name, pull in pulls.items()}
    squares = torch.stack([row.square().sum(dim=1) for row in rows.values()]).sum(dim=0)
    finite = squares.isfinite()
    norms = torch.where(finite, squares, 1.0).clamp(min=torch.finfo(squares.dtype).tiny).sqrt()
    scale = torch.where(finite, (limit / len(squares) / norms).clamp(max=1.0), 0.0)
    result = {}
    counted = finite & (squares > 0)
    for name, row in rows.items():
        scaled = scale.unsqueeze(1) * torch.where(finite.unsqueeze(1), row, 0.0)
        combined = scaled.sum(dim=0) if kind == "clip" else _median(scaled, counted) * counted.sum()
        result[name] = combined.view(pulls[name].shape[1:])
    return result


def _median(rows: Tensor, counted: Tensor) -> Tensor:
    """Return the median over the rows that are marked, of two middle ones their mean; 0 if none is."""
    count = int(counted.sum())
    if not count:
        return rows.sum(dim=0) * 0.0
    ordered = torch.where(counted.unsqueeze(1), rows, torch.inf).sort(dim=0).values
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def _standardise(seen: LayerPass) -> Tensor:
    """Return x̂ of a robust layer."""
    x = seen.input.to(kernels.working_dtype(seen.input))
    shape = (1, -1, *[1] * (x.dim() - 2))
    return (x - seen.centre.view(shape)) * (seen.variance + seen.layer.eps).rsqrt().view(shape)


def _own(layer: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name in ("weight", "bias") if isinstance(p := getattr(layer, name, None), nn.Parameter)]
