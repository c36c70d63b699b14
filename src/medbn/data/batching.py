"""Iterate over a dataset batch by batch, and check lists of indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

Indices = Sequence[int] | range
Batch = TypeVar("Batch")


def batch_ranges(
    length: int, size: int, *, dtype: torch.dtype, first: int, limit: int | None, drop_last: bool
) -> list[range]:
    """Return the indices of each batch; raise an error for arguments that make no batches.

    Args:
        length: the number of images.
        size: images per batch.
        dtype: of the images: torch.uint8, or a floating dtype.
        first: the index of the batch to start with.
        limit: the largest number of batches; None for all.
        drop_last: leave out the last batch if it is smaller than ``size``.
    """
    if size < 1:
        raise ValueError(f"a batch has at least one image, got size={size}.")
    if first < 0 or (limit is not None and limit < 0):
        raise ValueError(f"first and limit must not be negative, got first={first}, limit={limit}.")
    if dtype != torch.uint8 and not dtype.is_floating_point:
        raise ValueError(f"dtype must be torch.uint8 or floating, got {dtype}.")
    count = length // size if drop_last else -(-length // size)
    last = count if limit is None else min(count, first + limit)
    return [range(size * k, min(size * (k + 1), length)) for k in range(first, last)]


def read_ahead(read: Callable[[range], Batch], ranges: Sequence[range]) -> Iterator[Batch]:
    """Yield what ``read`` returns for each range; a thread reads the next while the caller works on this one."""
    with ThreadPoolExecutor(1, thread_name_prefix="medbn-data") as reader:
        pending = reader.submit(read, ranges[0]) if ranges else None
        for position in range(len(ranges)):
            assert pending is not None
            batch = pending.result()
            pending = reader.submit(read, ranges[position + 1]) if position + 1 < len(ranges) else None
            yield batch


def to_dtype(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Return images of bytes as they are, or as floating values in [0, 1]."""
    return images if dtype == torch.uint8 else images.to(dtype) / 255


def check_subset(indices: Sequence[int] | Tensor, name: str, length: int) -> Tensor:
    """Return the indices of a subset as an int64 tensor; raise an error unless each of them is an image's."""
    chosen = torch.as_tensor(indices)
    integral = not len(chosen) or not (chosen.is_floating_point() or chosen.dtype == torch.bool)
    if chosen.dim() != 1 or not integral or (len(chosen) and not 0 <= chosen.min() <= chosen.max() < length):
        raise ValueError(f"a subset of {name!r} takes a list of indices from 0 to {length - 1}.")
    return chosen.long()


def index_tensor(indices: Indices) -> Tensor:
    """Return indices as an int64 tensor."""
    return torch.as_tensor(list(indices), dtype=torch.int64)
