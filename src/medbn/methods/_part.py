"""The part of a batch that one process of a group has, and what the processes agree on before a call."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from .._tensor_files import hash_tensors
from ..distributed import Group, GroupError, gather_rows_of_replicated_loss

if TYPE_CHECKING:
    from ._call import Inputs
    from .base import Adapter

T = TypeVar("T")

REFUSED = -1
"""What a process sends as the number of its images if it refuses them."""


class Part(NamedTuple):
    """Which images of a batch this process has."""

    group: Group
    counts: tuple[int, ...]
    """How many images each process has."""

    @property
    def total(self) -> int:
        """How many images the batch has."""
        return sum(self.counts)

    @property
    def own(self) -> slice:
        """Where the images of this process are in the batch."""
        start = sum(self.counts[: self.group.rank])
        return slice(start, start + self.counts[self.group.rank])

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, for a loss that all of them compute alike from them."""
        return gather_rows_of_replicated_loss(rows, self.group, self.counts)

    def divide(self, images: int) -> Part:
        """Return the parts of another batch, as equal as possible."""
        size = self.group.size
        return Part(self.group, tuple(images * (r + 1) // size - images * r // size for r in range(size)))

    def first(self, images: int) -> Part:
        """Return the parts of the first images of this batch."""
        left, counts = images, []
        for count in self.counts:
            counts.append(min(count, max(left, 0)))
            left -= count
        return Part(self.group, tuple(counts))


def find_group(layers: dict[str, Any], given: Group | None) -> Group | None:
    """Return the group of an adapter's layers, which all have the same; of a model without such layers the given one.

    None if there are no other processes.
    """
    groups = {layer.group for layer in layers.values()}
    if len(groups) > 1:
        raise ValueError(
            "the layers of an adapted model are of one process group, and these are of several; give one with group=."
        )
    group: Group | None = groups.pop() if groups else given
    return group if group is not None and group.active else None


def check_same_adapter(adapter: Adapter, group: Group) -> None:
    """Raise a GroupError if the processes have different weights, methods, estimators or options."""
    plain = bool | int | float | str | None
    options = {name: value for name, value in adapter.given_options.items() if isinstance(value, plain)}
    settings = zlib.crc32(repr((type(adapter), sorted(options.items()), adapter.estimator_names())).encode())
    weights = _Checksum()
    hash_tensors(weights, adapter.model.state_dict().items())
    received = group.all_gather(torch.tensor([settings, weights.value], device=_device(adapter.model)))
    for what, own in zip(("methods, estimators or options", "weights of the model"), received.unbind(1), strict=True):
        if bool((own != own[0]).any()):
            raise GroupError(f"the processes have different {what}; medbn.adapt needs the same ones in all of them.")


def one_each(values: Iterable[T], group: Group, device: torch.device) -> Iterator[T]:
    """Yield the values of this process, as long as all processes have one; raise a GroupError if only some have."""
    iterator = iter(values)
    while True:
        value = list(islice(iterator, 1))
        have = group.all_gather(torch.tensor([len(value)], device=device)).flatten().tolist()
        if not all(have):
            if any(have):
                raise GroupError(
                    "the processes have different numbers of source batches; give each process a part of every batch."
                )
            return
        yield value[0]


def agree(adapter: Adapter, group: Group, read: Callable[[], Inputs]) -> Inputs:
    """Return the checked call of this process with what it is a part of; raise if the processes do not fit together.

    Args:
        adapter: in the same state in all processes.
        group: the processes.
        read: checks the part of this process, or raises.
    """
    inputs, refusal = None, None
    try:
        inputs = read()
    except Exception as error:  # the others must not wait for this process
        refusal = error
    mine = [REFUSED, 0, 0] if inputs is None else [inputs.size, _describe_images(inputs), int(inputs.valid is not None)]
    mine += [adapter.state_changes, int(adapter.paused)]
    received = group.all_gather(torch.tensor(mine, device=_device(adapter.model)))
    counts, kinds, padded, changes, paused = received.T.tolist()
    if refusal is not None:
        raise refusal
    assert inputs is not None
    if REFUSED in counts:
        raise GroupError(f"process {counts.index(REFUSED)} refused its part of the batch; no state has changed.")
    if len(set(changes)) > 1 or len(set(paused)) > 1:
        raise GroupError(
            f"the processes are in different states: they have changed {changes} times, and paused is {paused}. Load or"
            " restore the same state in all of them."
        )
    if len(set(kinds)) > 1:
        raise ValueError("the processes have images of different shapes or types; those of one batch are alike.")
    if not sum(counts):
        raise ValueError("cannot adapt on an empty batch: no process has an image.")
    inputs = inputs._replace(part=Part(group, tuple(counts)))
    if any(padded) and inputs.valid is None:
        device = next(iter(inputs.images().values())).device
        return inputs._replace(valid=torch.ones(inputs.size, dtype=torch.bool, device=device))
    return inputs


def average_gradients(gradients: list[Tensor], group: Group) -> list[Tensor]:
    """Return the gradients of a loss that all processes computed alike, each through its own images: one all_reduce."""
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    parts = torch.split(group.all_reduce(flat) / group.size, [gradient.numel() for gradient in gradients])
    return [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)]


def _describe_images(inputs: Inputs) -> int:
    """Return a number that is the same for images of one shape and type."""
    kinds = [(place, tuple(images.shape[1:]), str(images.dtype)) for place, images in inputs.images().items()]
    return zlib.crc32(repr(kinds).encode())


def _device(model: nn.Module) -> torch.device:
    """Return where a model is: where the collectives of its group take tensors from."""
    tensor = next(iter((*model.parameters(), *model.buffers())), None)
    return torch.device("cpu") if tensor is None else tensor.device


class _Checksum:
    """A checksum of what it is updated with."""

    value = 0

    def update(self, data: Any, /) -> None:
        self.value = zlib.crc32(data, self.value)
