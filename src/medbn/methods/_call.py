"""One call of an adapted model: its arguments, its output, and the logits in that output."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from .._isolate import check_mask
from ..distributed import gather_rows
from ..kernels import view_per_image
from ._part import Part

if TYPE_CHECKING:
    from .base import Adapter

LogitsOption = str | int | Callable[[Any], Tensor] | None
"""Where the logits are in a model's output: a key or attribute, an index, a function, or None to search for them."""


class Inputs(NamedTuple):
    """The arguments of one call. Tensors whose first dimension is the batch size have one entry per image.

    In a process group a call has a part of the batch: ``total``, ``gather`` and ``own`` are about all of it. What
    the state depends on is computed from all of it, in all processes alike.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    size: int
    """The batch size: how many images this process has."""
    valid: Tensor | None
    """``(size,)`` mask of the images that are not padding; None if there is no padding."""
    part: Part | None = None
    """What part of a batch this is, in a process group."""

    @classmethod
    def of(
        cls, args: tuple[Any, ...], kwargs: dict[str, Any], valid: Tensor | None = None, *, empty: bool = False
    ) -> Inputs:
        """Check the arguments of a call and determine its batch size, which may be 0 if ``empty`` says so."""
        refuse_inference_mode()
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.dim() > 0]
        if not tensors:
            raise TypeError("expected a batch: at least one tensor argument with a batch dimension.")
        size = tensors[0].shape[0]
        if size == 0 and not empty:
            raise ValueError(f"cannot adapt on an empty batch: the input has shape {tuple(tensors[0].shape)}.")
        if valid is not None:
            check_mask(valid, size)
            if not empty and not bool(valid.any()):
                raise ValueError("valid marks no image; there is nothing to predict or to adapt on.")
        args, kwargs, valid = tree_map(_copy_inference_tensor, (args, kwargs, valid))
        return cls(args, kwargs, size, None if valid is None else valid.to(tensors[0].device))

    def images(self) -> dict[str, Tensor]:
        """Return the tensors with one entry per image, by their position among the arguments."""
        leaves = enumerate(tree_leaves((self.args, self.kwargs)))
        return {str(position): leaf for position, leaf in leaves if _has_images(leaf, self.size)}

    def with_images(self, images: dict[str, Tensor], size: int) -> Inputs:
        """Return the same call with other images, none of them padding; in a group, with other ones of its own."""
        leaves, structure = tree_flatten((self.args, self.kwargs))
        leaves = [images.get(str(position), leaf) for position, leaf in enumerate(leaves)]
        args, kwargs = tree_unflatten(leaves, structure)
        return Inputs(args, kwargs, size, None, self.part)

    def divide(self, images: dict[str, Tensor], size: int) -> Inputs:
        """Return the same call with a batch of other images, which all processes have, and which they divide."""
        if self.part is None:
            return self.with_images(images, size)
        part = self.part.divide(size)
        own = {place: tensor[part.own] for place, tensor in images.items()}
        return self.with_images(own, part.counts[part.group.rank])._replace(part=part)

    def first(self, count: int) -> Inputs:
        """Return the same call with the first images of the batch, none of them padding."""
        part = None if self.part is None else self.part.first(count)
        own = min(count, self.size) if part is None else part.counts[part.group.rank]
        return self.with_images({p: t[:own] for p, t in self.images().items()}, own)._replace(part=part)

    @property
    def total(self) -> int:
        """How many images the batch has: in all processes, if there are several."""
        return self.size if self.part is None else self.part.total

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all images of the batch, from those of this process: one per image of its own."""
        return rows if self.part is None else self.part.gather(rows)

    def own(self, rows: Tensor) -> Tensor:
        """Return the rows of this process's images, from those of all images of the batch."""
        return rows if self.part is None else rows[self.part.own]

    def total_of(self, count: Tensor) -> Tensor:
        """Return the sum over the processes of a number that each has."""
        return count if self.part is None else self.part.group.all_reduce(count)

    def count_finite(self, output: Any) -> Tensor:
        """Return how many images of the batch have a finite output and are no padding."""
        return self.total_of(self.finite_images(output).sum())

    def gather_images(self, chosen: Tensor) -> dict[str, Tensor]:
        """Return the images of the batch that a mask over all of it marks."""
        own = self.own(chosen)
        images = {place: tensor.detach()[own.to(tensor.device)] for place, tensor in self.images().items()}
        if self.part is None:
            return images
        counts = [int(mask.sum()) for mask in torch.split(chosen, list(self.part.counts))]
        return {place: gather_rows(tensor, self.part.group, counts) for place, tensor in images.items()}

    def keep_only(self, usable: Tensor) -> Inputs:
        """Return the same call with zeros for the images that a mask does not mark, which count as padding.

        The mask is over all images of the batch.
        """
        if bool(usable.all()):
            return self
        usable = self.own(usable)
        images = {
            place: torch.where(view_per_image(usable.to(x.device), x), x, torch.zeros_like(x))
            for place, x in self.images().items()
        }
        return self.with_images(images, self.size)._replace(valid=usable)

    def join_usable(self, usable: Tensor, earlier: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the images of the batch that are marked, after earlier ones if those have the same shape.

        The mask is over the images of this process.
        """
        images = self.gather_images(self.gather(usable))
        if earlier.keys() == images.keys() and all(earlier[p].shape[1:] == images[p].shape[1:] for p in images):
            images = {place: torch.cat([earlier[place], new]) for place, new in images.items()}
        return images

    def finite_images(self, output: Any) -> Tensor:
        """Return a ``(size,)`` mask of the images, padding excluded, for which the model's output is finite.

        Where the output consists of several tensors, one finite tensor is enough: a mask of −inf is legitimate.
        """
        tensors = [leaf.detach() for leaf in tree_leaves(output) if _has_images(leaf, self.size)]
        masks = [leaf.reshape(self.size, math.prod(leaf.shape[1:])).isfinite().all(dim=1) for leaf in tensors]
        finite = torch.stack(masks).any(dim=0) if masks else torch.ones(self.size, dtype=torch.bool)
        return finite if self.valid is None else finite & self.valid.to(finite.device)


def refuse_inference_mode() -> None:
    """Raise under ``torch.inference_mode()``, whose tensors cannot take part in a backward pass."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "torch.inference_mode() makes tensors that can have no gradients; make and attack adapters outside of it,"
            " or use torch.no_grad() instead. Calling an adapter inside is fine."
        )


def _has_images(leaf: Any, size: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == size


def _copy_inference_tensor(value: Any) -> Any:
    """Return an ordinary copy of a tensor made under inference_mode, and anything else as it is."""
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


def predict_logits(adapter: Adapter, images: Tensor) -> Tensor:
    """Return the logits with which an adapter predicts a batch, without gradients. The adapter adapts, as always."""
    with torch.no_grad():
        return extract_logits(adapter(images), adapter.logits, len(images))


def extract_logits(output: Any, option: LogitsOption, size: int | None = None) -> Tensor:
    """Return the logits in a model's output.

    Args:
        output: what the model returned.
        option: where the logits are; see ``Adapter``.
        size: the batch size, if it is to be checked.
    """
    logits = _select_logits(output, option)
    if not isinstance(logits, Tensor) or logits.dim() < 2:
        what = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise TypeError(
            f"expected logits (B, classes) or (B, classes, ...), got {what}; say where they are with logits=."
        )
    if size is not None and logits.shape[0] != size:
        raise ValueError(f"the model returned logits for {logits.shape[0]} images, and was given {size}.")
    return logits


def _select_logits(output: Any, option: LogitsOption) -> Any:
    if callable(option):
        return option(output)
    if option is not None:
        if isinstance(option, str) and not isinstance(output, Mapping):
            return getattr(output, option)
        return output[option]
    if isinstance(output, Mapping):
        for name in ("out", "logits"):
            if name in output:
                return output[name]
        raise TypeError(
            f"the model returns a mapping with {sorted(map(str, output))}; say which holds the logits: logits=."
        )
    for name in ("out", "logits"):
        if hasattr(output, name):
            return getattr(output, name)
    return output[0] if isinstance(output, tuple | list) and output else output


class Predictions(NamedTuple):
    """Logits as rows, one per image, or one per pixel where the output is dense. Losses and filters work on these."""

    logits: Tensor
    """``(rows, classes)`` in float32 or wider; zero in unusable rows."""
    usable: Tensor
    """``(rows,)`` mask of the rows of usable images."""
    images: Tensor
    """``(B,)`` mask of the usable images: not padding, with finite logits that have a finite log-softmax."""

    @classmethod
    def of(cls, logits: Tensor, valid: Tensor | None = None) -> Predictions:
        """Lay out logits ``(B, classes, *)`` as rows."""
        planes = logits.flatten(2) if logits.dim() > 2 else logits.unsqueeze(2)
        wide = planes.dtype if planes.dtype == torch.float64 else torch.float32
        # Finite logits too may be so far apart that the entropy is NaN.
        images = F.log_softmax(planes.detach().to(wide), dim=1).isfinite().flatten(1).all(dim=1)
        if valid is not None:
            images = images & valid.to(images.device)
        # The logits of an unusable image become zeros, which pass no gradient on.
        planes = torch.where(images.view(-1, 1, 1), planes, 0.0)
        rows = planes.transpose(1, 2).reshape(-1, planes.shape[1]).to(wide)
        return cls(rows, images.repeat_interleave(planes.shape[2], output_size=rows.shape[0]), images)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.logits.shape[1]

    def entropy(self) -> Tensor:
        """Return each row's Shannon entropy, in nats."""
        return -(F.softmax(self.logits, dim=1) * F.log_softmax(self.logits, dim=1)).sum(dim=1)

    @property
    def dense(self) -> bool:
        """Whether there is more than one prediction per image."""
        return len(self.usable) > len(self.images)

    def probabilities(self) -> Tensor:
        """Return each row's softmax, without gradients."""
        return F.softmax(self.logits.detach(), dim=1)

    def as_logits(self, rows: Tensor, logits: Tensor) -> Tensor:
        """Return rows in the layout of the logits they are of; unusable images keep theirs."""
        planes = rows.view(len(logits), -1, rows.shape[1]).transpose(1, 2).reshape(logits.shape).to(logits.dtype)
        usable = self.images.view(-1, *[1] * (logits.dim() - 1))
        return torch.where(usable, planes, logits)


def mean_over(values: Tensor, rows: Tensor) -> Tensor:
    """Return the mean of the values that the mask ``rows`` marks; 0 if it marks none."""
    return torch.where(rows, values, 0.0).sum() / rows.sum().clamp(min=1)


def replace_tensor(output: Any, old: Tensor, new: Tensor) -> Any:
    """Return a model's output, of any structure, with one of its tensors replaced by another."""
    found = []

    def replace(tensor: Tensor) -> Tensor:
        found.append(tensor is old)
        return new if tensor is old else tensor

    replaced = map_tensors(output, replace)
    if not any(found):
        raise ValueError(
            "the logits are to be replaced in the model's output, and logits= computes them; say where they are there."
        )
    return replaced


def detach_output(value: Any) -> Any:
    """Return a model's output, of any structure, with every tensor detached."""
    return map_tensors(value, Tensor.detach)


def clone_output(value: Any) -> Any:
    """Return a model's output, of any structure, with every tensor cloned."""
    return map_tensors(value, Tensor.clone)


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to the tensors of a value, within dataclasses and mappings that torch's pytree does not know."""
    if isinstance(value, Tensor):
        return change(value)

    def map_leaves(part: Any) -> Any:
        return tree_map(lambda leaf: map_tensors(leaf, change), part)

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: map_leaves(getattr(value, f.name)) for f in dataclasses.fields(value)}
        value = copy.copy(value)
        for name, part in fields.items():
            object.__setattr__(value, name, part)
    elif isinstance(value, MutableMapping):
        parts = {key: map_leaves(part) for key, part in value.items()}
        value = copy.copy(value)
        value.update(parts)
    return value
