"""Gather the rows of all processes, such as their images, as a differentiable function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from .group import Group


def count_rows(rows: int, device: torch.device, group: Group) -> list[int]:
    """Return the number of rows of each process."""
    counts: list[int] = group.all_gather(torch.tensor([rows], device=device)).flatten().tolist()
    return counts


def gather_rows(x: Tensor, group: Group, counts: Sequence[int] | None = None) -> Tensor:
    """Return the rows of all processes, in the order of their ranks; differentiable any number of times.

    The gradient is that of the sum of what all processes make of the rows.

    Args:
        x: the rows of this process, none, one or many; all processes' have the same shape otherwise.
        group: the processes.
        counts: how many rows each process has; exchanged if it is not given.
    """
    counts = count_rows(len(x), x.device, group) if counts is None else counts
    return cast(Tensor, _Gather.apply(x, counts, group))  # type: ignore[no-untyped-call]


def gather_rows_of_replicated_loss(x: Tensor, group: Group, counts: Sequence[int]) -> Tensor:
    """Return the rows of all processes, for a loss that all processes compute alike from them.

    The gradient is as in ``gather_rows``. As all processes pass the same gradient, their sum needs no communication.
    """
    return cast(Tensor, _GatherReplicated.apply(x, counts, group))  # type: ignore[no-untyped-call]


def own_rows(counts: Sequence[int], group: Group) -> slice:
    """Return where the rows of this process are among those of all."""
    start = sum(counts[: group.rank])
    return slice(start, start + counts[group.rank])


def _gather(x: Tensor, counts: Sequence[int], group: Group) -> Tensor:
    as_bytes = x.dtype == torch.bool
    rows = x.to(torch.uint8) if as_bytes else x
    padded = rows.new_zeros(max(counts), *x.shape[1:])
    padded[: len(x)] = rows
    parts = group.all_gather(padded)
    gathered = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
    return gathered.bool() if as_bytes else gathered


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Sequence[int], group: Group) -> Tensor:
        ctx.counts, ctx.group = counts, group
        return _gather(x, counts, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _Scatter.apply(grads[0], ctx.counts, ctx.group), None, None  # type: ignore[no-untyped-call]


class _Scatter(Function):
    """The sum over all processes, of which each keeps its own rows: the adjoint of ``_Gather``."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, counts: Sequence[int], group: Group) -> Tensor:
        ctx.counts, ctx.group = counts, group
        return group.all_reduce(g)[own_rows(counts, group)].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _Gather.apply(grads[0], ctx.counts, ctx.group), None, None  # type: ignore[no-untyped-call]


class _GatherReplicated(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Sequence[int], group: Group) -> Tensor:
        ctx.counts, ctx.group = counts, group
        return _gather(x, counts, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0][own_rows(ctx.counts, ctx.group)] * ctx.group.size, None, None
