"""One call of an adapted model: any arguments in, any output back, and the logits and images in between."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from .._normalise import check_mask

Logits = str | int | Callable[[Any], Tensor] | None


class Inputs(NamedTuple):
    """The arguments of one call. A tensor in them whose first dimension is the batch's has one entry per image."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    size: int
    """How many images there are."""
    valid: Tensor | None
    """``(size,)`` mask of the images that are not padding; None when all are real."""

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any], valid: Tensor | None = None) -> Inputs:
        """Check the arguments of a call, and find its batch size."""
        refuse_inference_mode()
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.dim() > 0]
        if not tensors:
            raise TypeError("expected a batch: at least one tensor argument with a batch dimension.")
        size = tensors[0].shape[0]
        if size == 0:
            raise ValueError(f"cannot adapt on an empty batch: the input has shape {tuple(tensors[0].shape)}.")
        if valid is not None:
            check_mask(valid, size)
            if not bool(valid.any()):
                raise ValueError("valid marks no image; there is nothing to predict or to adapt on.")
        args, kwargs, valid = tree_map(_ordinary, (args, kwargs, valid))
        return cls(args, kwargs, size, None if valid is None else valid.to(tensors[0].device))

    def images(self) -> dict[str, Tensor]:
        """The tensors with one entry per image, by their place among the arguments."""
        leaves = enumerate(tree_leaves((self.args, self.kwargs)))
        return {str(place): leaf for place, leaf in leaves if _has_images(leaf, self.size)}

    def with_images(self, images: dict[str, Tensor], size: int) -> Inputs:
        """The same call with other images, none of them padding."""
        leaves, structure = tree_flatten((self.args, self.kwargs))
        leaves = [images.get(str(place), leaf) for place, leaf in enumerate(leaves)]
        args, kwargs = tree_unflatten(leaves, structure)
        return Inputs(args, kwargs, size, None)

    def finite_in(self, output: Any) -> Tensor:
        """``(size,)`` mask of the real images for which the model returned something finite."""
        found = [leaf.detach() for leaf in tree_leaves(output) if _has_images(leaf, self.size)]
        masks = [leaf.reshape(self.size, -1).isfinite().all(dim=1) for leaf in found]
        finite = torch.stack(masks).any(dim=0) if masks else torch.ones(self.size, dtype=torch.bool)
        return finite if self.valid is None else finite & self.valid.to(finite.device)


def refuse_inference_mode() -> None:
    """What is made under it can have no gradients, which adapters and their attackers need."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "torch.inference_mode() makes tensors that can have no gradients; make and attack adapters outside of it,"
            " or use torch.no_grad() instead. Calling an adapter inside is fine."
        )


def _has_images(leaf: Any, size: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == size


def _ordinary(value: Any) -> Any:
    """Tensors made under inference_mode cannot take part in a backward pass; their copies can."""
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


def extract_logits(output: Any, pick: Logits, size: int | None = None) -> Tensor:
    """Find the logits in what a model returns; ``pick`` is a key, an index or a function where guessing will not do."""
    logits = _picked(output, pick)
    if not isinstance(logits, Tensor) or logits.dim() < 2:
        what = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise TypeError(
            f"expected logits (B, classes) or (B, classes, ...), got {what}; say where they are with logits=."
        )
    if size is not None and logits.shape[0] != size:
        raise ValueError(f"the model returned logits for {logits.shape[0]} images, and was given {size}.")
    return logits


def _picked(output: Any, pick: Logits) -> Any:
    if callable(pick):
        return pick(output)
    if pick is not None:
        if isinstance(pick, str) and not isinstance(output, Mapping):
            return getattr(output, pick)
        return output[pick]
    if isinstance(output, Mapping):
        known = [name for name in ("out", "logits") if name in output]
        if not known:
            raise TypeError(
                f"the model returns a mapping with {sorted(map(str, output))}; say which holds the logits: logits=."
            )
        return output[known[0]]
    for name in ("out", "logits"):
        if hasattr(output, name):
            return getattr(output, name)
    return output[0] if isinstance(output, tuple | list) and output else output


class Predictions(NamedTuple):
    """Logits as rows, one per image, or per pixel where the output is dense; what a loss or a filter looks at."""

    logits: Tensor
    """``(rows, classes)`` in float32 or wider; zero where not usable."""
    usable: Tensor
    """``(rows,)`` mask: of an image that is not padding, whose logits are finite and have a softmax."""
    images: Tensor
    """``(B,)`` mask of those images."""

    @classmethod
    def of(cls, logits: Tensor, valid: Tensor | None = None) -> Predictions:
        """Lay out logits ``(B, classes, *)``."""
        planes = logits.flatten(2) if logits.dim() > 2 else logits.unsqueeze(2)
        wide = planes.dtype if planes.dtype == torch.float64 else torch.float32
        # Finite logits too may be so far apart that the entropy is NaN.
        images = F.log_softmax(planes.detach().to(wide), dim=1).isfinite().flatten(1).all(dim=1)
        if valid is not None:
            images = images & valid.to(images.device)
        # A hostile image's logits become zeros, which pass no gradient on.
        planes = torch.where(images.view(-1, 1, 1), planes, 0.0)
        rows = planes.transpose(1, 2).reshape(-1, planes.shape[1]).to(wide)
        return cls(rows, images.repeat_interleave(planes.shape[2], output_size=rows.shape[0]), images)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.logits.shape[1]

    def entropy(self) -> Tensor:
        """Each row's Shannon entropy, in nats."""
        return -(F.softmax(self.logits, dim=1) * F.log_softmax(self.logits, dim=1)).sum(dim=1)

    def probabilities(self) -> Tensor:
        """Each row's softmax, as a constant."""
        return F.softmax(self.logits.detach(), dim=1)


def mean_over(values: Tensor, rows: Tensor) -> Tensor:
    """The mean of the values that ``rows`` marks; 0 if it marks none."""
    return torch.where(rows, values, 0.0).sum() / rows.sum().clamp(min=1)


def detached(value: Any) -> Any:
    """A model's output without its graph, whatever it is made of."""
    return _rebuilt(value, Tensor.detach)


def copied(value: Any) -> Any:
    """A model's output that nobody else writes to, whatever it is made of."""
    return _rebuilt(value, Tensor.clone)


def _rebuilt(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)

    def within(part: Any) -> Any:
        return tree_map(lambda leaf: _rebuilt(leaf, change), part)

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: within(getattr(value, f.name)) for f in dataclasses.fields(value)}
        value = copy.copy(value)
        for name, part in fields.items():
            object.__setattr__(value, name, part)
    elif isinstance(value, MutableMapping):
        parts = {key: within(part) for key, part in value.items()}
        value = copy.copy(value)
        value.update(parts)
    return value
