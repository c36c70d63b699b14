"""A process group, with the few collectives that statistics need."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from .. import kernels
from .._errors import one_line

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

NAMES = ("world", "local")


class GroupError(RuntimeError):
    """A process of the group did not take part: it died, hangs, or does something else."""


class Group:
    """Processes that have a part each of one batch, in the order of their ranks.

    All of them call the same layers in the same order. Copies are the same group. A pickled one is the default group of
    the process that loads it; other groups cannot be pickled.

    Args:
        process_group: a group of ``torch.distributed``; None for the default group, which need not exist yet.
    """

    def __init__(self, process_group: ProcessGroup | None = None) -> None:
        self.process_group = process_group

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.process_group is not None and self.process_group is not _default_group():
            raise TypeError("a layer of a part of the processes cannot be pickled; save the model's state_dict.")
        return Group, ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self._resolve() is other._resolve()

    def __hash__(self) -> int:
        return hash(Group)

    def __repr__(self) -> str:
        return "world" if self.process_group is None else f"group of {self.size} processes"

    def _resolve(self) -> ProcessGroup | None:
        return _default_group() if self.process_group is None else self.process_group

    @property
    def size(self) -> int:
        """The number of processes; 1 where ``torch.distributed`` is not initialised."""
        group = self._resolve()
        return 1 if group is None else dist.get_world_size(group)

    @property
    def rank(self) -> int:
        """The rank of this process in the group."""
        group = self._resolve()
        return 0 if group is None else dist.get_rank(group)

    @property
    def active(self) -> bool:
        """Whether there are other processes."""
        return self.size > 1

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all processes, of one shape, stacked in the order of their ranks."""
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        self._run("all_gather", lambda: dist.all_gather(parts, tensor, group=self._resolve()))
        return torch.stack(parts)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum of the tensors of all processes, the same bits in each."""
        total = tensor.clone(memory_format=torch.contiguous_format)
        self._run("all_reduce", lambda: dist.all_reduce(total, group=self._resolve()))
        return total

    def _run(self, name: str, collective: Callable[[], Any]) -> None:
        if kernels.traced():
            raise RuntimeError(
                "statistics over a process group cannot be compiled, exported or traced; convert with group='local'."
            )
        try:
            collective()
        except RuntimeError as error:
            raise GroupError(
                f"{name} of process {self.rank} of {self.size} failed; another process has died, does not answer or"
                f" called something else: {one_line(error)}"
            ) from error


def get(group: str | ProcessGroup | Group | None) -> Group | None:
    """Return the Group that ``group=`` means; None for each process alone.

    Args:
        group: ``"world"`` for the default group, ``"local"`` or None for each process alone, or a process group.
    """
    if group is None or isinstance(group, Group):
        return group
    if group == "local":
        return None
    if group == "world" or isinstance(group, str) or not hasattr(group, "rank"):
        if group != "world":
            given = f"{group!r}" if isinstance(group, str) else f"a {type(group).__name__}"
            raise ValueError(f"group is 'world', 'local' or a process group of torch.distributed, got {given}.")
        if _default_group() is None:
            raise ValueError(
                "group='world' needs torch.distributed: call torch.distributed.init_process_group first, or start with"
                " torchrun."
            )
        return Group()
    return Group(group)


def _default_group() -> ProcessGroup | None:
    if not dist.is_available() or not dist.is_initialized():
        return None
    group: ProcessGroup | None = dist.group.WORLD
    return group
