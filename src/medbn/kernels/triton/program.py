"""Run the launches of a layer: by Triton or, once it has compiled them, by the CUDA driver in one call.

``MEDBN_LAUNCH`` chooses: ``triton`` or ``driver``. The same kernels run with the same arguments, so the bits are equal.
Where the driver cannot launch, Triton does, and the reason is logged once at debug level.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import triton
from torch import Tensor

from ..._errors import unknown_name
from . import driver
from .launch import BATCH_WEIGHT, EPS, Fill, Step
from .layout import Layout

VARIABLE = "MEDBN_LAUNCH"
"""The environment variable that chooses who launches; it is read once."""
LAUNCHERS = ("triton", "driver")
DEFAULT = "driver"
"""Who launches if the variable is not set."""

_log = logging.getLogger("medbn")
_logged: set[str] = set()


def _chosen() -> str:
    """Return who launches."""
    launcher = os.environ.get(VARIABLE) or DEFAULT
    if launcher not in LAUNCHERS:
        raise unknown_name(VARIABLE, launcher, LAUNCHERS)
    return launcher


_by_driver: bool | None = None  # not known before the first launch


def launches_by_driver() -> bool:
    """Return whether the driver launches, where it can."""
    global _by_driver
    if _by_driver is None:
        _by_driver = _chosen() == "driver"
    return _by_driver


@contextmanager
def use_launcher(launcher: str) -> Iterator[None]:
    """Let ``"triton"`` or ``"driver"`` launch inside a ``with`` block, to compare them."""
    global _by_driver
    if launcher not in LAUNCHERS:
        raise unknown_name("launcher", launcher, LAUNCHERS)
    before = _by_driver
    _by_driver = launcher == "driver"
    try:
        yield
    finally:
        _by_driver = before


class Program:
    """The launches of one layer's forward or backward pass, for tensors of one shape on one device.

    Args:
        steps: launches and fills, in order.
        layout: the places of small tensors.
        tensors: the names of the tensors that ``run`` takes, in order; those with a name of a buffer are buffers.
    """

    def __init__(self, steps: Sequence[Step], layout: Layout, tensors: Sequence[str]) -> None:
        self.steps, self.layout, self.tensors = tuple(steps), layout, tuple(tensors)
        self._filled = frozenset(step.name for step in self.steps if isinstance(step, Fill))
        self._bound: driver.Bound | None = None
        self._refused = False

    def run(self, index: int, tensors: Sequence[Tensor | None], eps: float, batch_weight: float) -> None:
        """Launch everything on the current stream of the tensors' device, which has this index; −1 is a CPU."""
        if index >= 0 and index != torch.cuda.current_device():
            with torch.cuda.device(index):
                self._run(index, tensors, eps, batch_weight)
        else:
            self._run(index, tensors, eps, batch_weight)

    def _run(self, index: int, tensors: Sequence[Tensor | None], eps: float, batch_weight: float) -> None:
        by_driver = (launches_by_driver() if _by_driver is None else _by_driver) and not self._refused
        if by_driver and not _hooked():
            addresses = [0 if t is None else t.data_ptr() for t in tensors]
            if self._bound is not None:
                addresses += _PADDING[len(addresses)]
                status = self._bound.launch(self._bound.address, _stream(index), eps, batch_weight, *addresses)
                if not status:
                    return
                if status > 0:
                    self._refuse(f"the driver's error {status}")
            elif not any(address & 15 for address in addresses):
                self._bind(self._launch(tensors, eps, batch_weight))
                return
        self._launch(tensors, eps, batch_weight)

    def run_separate(self, index: int, named: dict[str, Any], eps: float, batch_weight: float) -> None:
        """Let Triton launch everything on tensors that are no places of a buffer, by name."""
        with torch.cuda.device(index):
            self._launch_named({**named, EPS: eps, BATCH_WEIGHT: batch_weight})

    def _launch(self, tensors: Sequence[Tensor | None], eps: float, batch_weight: float) -> list[Any]:
        """Let Triton launch everything; return the compiled kernels."""
        given = dict(zip(self.tensors, tensors, strict=True))
        named: dict[str, Any] = {**given, EPS: eps, BATCH_WEIGHT: batch_weight}
        for name, place in self.layout.places.items():
            buffer = given.get(place.buffer)
            if buffer is not None:
                light = _TAKES_ADDRESSES and name not in self._filled
                named[name] = _Pointer(buffer.data_ptr() + place.offset, place.dtype) if light else place.view(buffer)
        return self._launch_named(named)

    def _launch_named(self, named: dict[str, Any]) -> list[Any]:
        kernels = []
        for step in self.steps:
            if isinstance(step, Fill):
                named[step.name].fill_(step.value)
            else:
                arguments = [named[a] if isinstance(a, str) else a for a in step.arguments]
                kernels.append(step.kernel[step.grid](*arguments, **step.constants))
        return kernels

    def _bind(self, kernels: Sequence[Any]) -> None:
        try:
            self._bound = driver.bind(self.steps, kernels, self.layout, self.tensors)
        except driver.UnsupportedError as error:
            self._refuse(str(error))

    def _refuse(self, why: str) -> None:
        self._refused = True
        self._bound = None
        if why not in _logged:
            _logged.add(why)
            _log.debug("Triton launches the kernels, and not the CUDA driver: %s", why)


class _Pointer:
    """A tensor, as far as Triton looks at one: its address and its type. A torch view would take 2 to 4 µs."""

    __slots__ = ("address", "dtype")

    def __init__(self, address: int, dtype: torch.dtype) -> None:
        self.address, self.dtype = address, dtype

    def data_ptr(self) -> int:
        return self.address


_PADDING = [[0] * (driver.TENSORS - n) for n in range(driver.TENSORS + 1)]
_runtime: Any = getattr(getattr(triton, "knobs", None), "runtime", None)
_TAKES_ADDRESSES = _runtime is not None and not _runtime.interpret
"""Whether Triton takes objects that are no tensors; its interpreter does not."""


def _hooked() -> bool:
    """Return whether a profiler wants to see Triton's launches."""
    if _runtime is None:
        return True  # an older Triton, whose hooks are elsewhere
    enter, leave = _runtime.launch_enter_hook, _runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def _stream(index: int) -> int:
    """Return the current stream of a device, as the driver knows it."""
    stream: int = torch._C._cuda_getCurrentRawStream(index)
    return stream
