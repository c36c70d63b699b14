"""A batch that was served and is not judged yet: its numbers may still be on their way from a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Numbers = dict[str, Tensor | float]


class Reading:
    """Numbers that are computed by now or soon, and are read later, so that the host need not wait for a GPU.

    The values are those of the moment when the reading is made: tensors that change later change nothing.

    Args:
        numbers: by name; tensors have one element.
        earlier: numbers of the same batch that were on their way before; those given now replace them.
        names: which of all these to read, in this order; by default those given now.
    """

    def __init__(self, numbers: Numbers, earlier: Reading | None = None, names: Iterable[str] | None = None) -> None:
        self._earlier = earlier
        self._order = list(numbers if names is None else names)
        self._values = {name: math.nan if isinstance(value, Tensor) else value for name, value in numbers.items()}
        groups: dict[tuple[torch.dtype, torch.device], dict[str, Tensor]] = {}
        for name, value in numbers.items():
            if isinstance(value, Tensor):
                groups.setdefault((value.dtype, value.device), {})[name] = value
        self._names = [name for group in groups.values() for name in group]
        # One tensor per type, which needs no conversion.
        parts = [torch.stack([t.reshape(()) if t.dim() else t for t in group.values()]) for group in groups.values()]
        self.on_host: bool = all(part.device.type == "cpu" for part in parts) and (earlier is None or earlier.on_host)
        """Whether the numbers are there without waiting."""
        self._parts = [_send(part) for part in parts]
        self._events = [_record_event(device) for device in {part.device for part in parts if part.is_cuda}]

    def read(self) -> dict[str, float]:
        """Return the numbers; waits until they are there."""
        for event in self._events:
            event.synchronize()
        read = (value for part in self._parts for value in part.tolist())
        earlier = {} if self._earlier is None else self._earlier.read()
        values = {**earlier, **self._values, **dict(zip(self._names, read, strict=True))}
        return {name: float(values[name]) for name in self._order}


@dataclass
class Served:
    """A batch that was served and is not judged yet."""

    number: int
    """Counted from 1."""
    time: float
    paused: bool
    """Whether nothing adapted."""
    reading: Reading
    changes: int
    """How often the state of the adapter had changed then."""
    resets: int
    snapshot: dict[str, Any] | None = None
    """The state after the batch, if it is to be kept where the batch is good."""
    replaced: bool = False
    """Whether something else than a call has changed the state since then, as ``reset`` does."""


def _send(values: Tensor) -> Tensor:
    """Return what will have the values on the host, for a GPU once it has come so far."""
    if not values.is_cuda:
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)


def _record_event(device: torch.device) -> Any:
    """Return an event that comes after everything that a GPU was told to do until now."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
