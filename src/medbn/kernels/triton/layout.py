"""Where the small tensors of a layer are: places in one allocation for what backward needs, and in one for the rest.

An allocation costs the host 3 to 4 µs, and a layer has up to fifteen small tensors. So they are places in a *buffer*,
computed once for each shape, and become tensors only where somebody reads them (``WorkspaceSaved``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..saved import Saved

ALIGNMENT = 128
"""Bytes. What begins at a multiple of 16 is compiled to wider loads; torch's allocator returns multiples of 512."""
_FIELDS = frozenset(field.name for field in fields(Saved))


class Place(NamedTuple):
    """A tensor's place in a buffer."""

    buffer: str
    offset: int
    """In bytes."""
    shape: tuple[int, ...]
    dtype: torch.dtype

    def view(self, buffer: Tensor) -> Tensor:
        """Return the tensor at this place of a float32 buffer."""
        typed = buffer if self.dtype is torch.float32 else buffer.view(self.dtype)
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        return typed.as_strided(self.shape, strides, self.offset // self.dtype.itemsize)


class Layout:
    """The places of a layer's small tensors by name, and the sizes of the buffers that they are in."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.sizes: dict[str, int] = {}
        """In bytes."""

    def add(
        self,
        buffer: str,
        name: str,
        *shape: int,
        dtype: torch.dtype = torch.float32,
        rows: Sequence[str] = (),
    ) -> None:
        """Add a tensor, and names for its rows, which follow each other in memory without a gap."""
        start = self.sizes.get(buffer, 0)
        self.places[name] = Place(buffer, start, shape, dtype)
        row = math.prod(shape[1:]) * dtype.itemsize
        for number, each in enumerate(rows):
            self.places[each] = Place(buffer, start + number * row, shape[1:], dtype)
        self.sizes[buffer] = -(-(start + math.prod(shape) * dtype.itemsize) // ALIGNMENT) * ALIGNMENT

    def allocate(self, buffer: str, device: torch.device) -> Tensor | None:
        """Return an uninitialised buffer; None if nothing is in it."""
        size = self.sizes.get(buffer)
        return None if size is None else torch.empty(size // 4, dtype=torch.float32, device=device)


class WorkspaceSaved(Saved):
    """What is saved for backward, in one buffer. Its tensors are made when they are read."""

    def __init__(self, buffer: Tensor, layout: Layout) -> None:
        self.buffer, self.layout = buffer, layout

    def __getattr__(self, name: str) -> Any:
        # Only called where an attribute is missing.
        if name not in _FIELDS:
            raise AttributeError(name)
        place = self.layout.places.get(name)
        value = None if place is None else place.view(self.buffer)
        setattr(self, name, value)
        return value
