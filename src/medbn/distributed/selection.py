"""The exact lower median over all processes, in a constant number of rounds.

On a CPU: samples of all processes give a bracket that almost surely contains the median. What lies inside it is sorted,
and evenly spaced order statistics of it give a second bracket that certainly contains the median and leaves a few
values to gather. Three rounds, for all values. Where the first bracket misses a channel, that channel is found
by histograms of the 8 highest bits, of the next 8, and so on: four rounds more in float32.

On a GPU: the histograms alone. They read no value on the host, and their passes over the activation are cheap there.

Values are compared as integers that are ordered like them. Ties make no difference to the size of any message.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .group import Group

SAMPLES = 256
"""Samples of each channel that a process sends for a bracket."""
DEVIATIONS = 4.0
"""Half the width of the first bracket, in standard deviations of a sample median of independent values."""


class Selection(NamedTuple):
    """The lower median of each channel."""

    values: Tensor
    owner: Tensor
    """The first process that has the value."""
    size: Tensor
    """How many values a channel has, in all processes: a scalar."""


def lower_median(rows: Tensor, used: Tensor | None, group: Group) -> Selection:
    """Return the order statistic at rank ⌊(n−1)/2⌋ of each channel; NaN where there is a NaN.

    Args:
        rows: ``(C, N)``, the values of this process, in float32 or float64.
        used: ``(N,)`` mask of the values to use; None for all.
        group: the processes.
    """
    keys = _to_keys(rows)
    if keys.is_cuda:
        selected = _select_by_histograms(keys, used, group)
    else:
        selected = _select_by_brackets(keys if used is None else keys[:, used], group)
    return selected._replace(values=_to_values(selected.values, rows.dtype))


# --- values as integers ---------------------------------------------------------------------------------------------


def _to_keys(values: Tensor) -> Tensor:
    """Return integers that are ordered like the values, with NaN last; −0 and 0 are the same."""
    integer = torch.int64 if values.dtype == torch.float64 else torch.int32
    largest = torch.iinfo(integer).max
    bits = (values + 0.0).view(integer)
    keys = torch.where(bits < 0, bits ^ largest, bits)
    return torch.where(values.isnan(), largest, keys)


def _to_values(keys: Tensor, dtype: torch.dtype) -> Tensor:
    largest = torch.iinfo(keys.dtype).max
    values = torch.where(keys < 0, keys ^ largest, keys).view(dtype)
    return torch.where(keys == largest, torch.nan, values)


# --- brackets -------------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """Where the values of a process, or of all, lie relative to a bracket: counts, per channel."""

    below: Tensor
    at_low: Tensor
    inside: Tensor
    at_high: Tensor

    def total(self) -> _Part:
        """Return the sums over the processes, which are the first dimension."""
        return _Part(*(part.sum(dim=0) for part in self))


def _select_by_brackets(keys: Tensor, group: Group) -> Selection:
    largest = torch.iinfo(keys.dtype).max
    sizes, low, high, rank = _exchange_samples(keys, group)
    count = sizes.sum()

    # What lies inside, sorted; and evenly spaced values of it.
    inside = (keys > low.unsqueeze(1)) & (keys < high.unsqueeze(1))
    ordered, widths = _compact(keys, inside)
    own = _Part(
        (keys < low.unsqueeze(1)).sum(dim=1),
        (keys == low.unsqueeze(1)).sum(dim=1),
        widths,
        ((keys == high.unsqueeze(1)) & (high > low).unsqueeze(1)).sum(dim=1),
    )
    even = torch.arange(SAMPLES) * widths.unsqueeze(1) // SAMPLES
    nan = (keys == largest).sum(dim=1)
    message = torch.cat([torch.stack([*own, nan], dim=1), ordered.gather(1, even)], dim=1)
    received = group.all_gather(message.to(keys.dtype))
    first = _Part(*received[:, :, :4].long().unbind(dim=2))
    has_nan = received[:, :, 4].sum(dim=0) > 0
    total = first.total()
    rest = rank - total.below - total.at_low

    # The second bracket, and the values inside of it.
    weights = first.inside.T.double() / SAMPLES
    error = weights.sum(dim=1)
    samples = received[:, :, 5:].transpose(0, 1)
    low2, high2 = _bracket(samples, weights, rest.double(), rest + 1 + error)
    start, stop = (torch.searchsorted(ordered, s.unsqueeze(1)).squeeze(1) for s in (low2, high2))
    after, end = (torch.searchsorted(ordered, s.unsqueeze(1), right=True).squeeze(1) for s in (low2, high2))
    last = torch.minimum(end, widths) - torch.minimum(stop, widths)
    own = _Part(start, after - start, (stop - after).clamp(min=0), torch.where(high2 > low2, last, 0))
    most = 2 * int((total.inside.max() + SAMPLES - 1) // SAMPLES) + 2 * group.size + 2
    most = max(1, min(most, int(first.inside.max())))
    place = torch.arange(most).expand(len(keys), most)
    values = ordered.gather(1, (after.unsqueeze(1) + place).clamp(max=ordered.shape[1] - 1))
    values = torch.where(place < own.inside.unsqueeze(1), values, largest)
    received = group.all_gather(torch.cat([torch.stack(own, dim=1).to(keys.dtype), values], dim=1))
    second = _Part(*received[:, :, :4].long().unbind(dim=2))
    gathered = received[:, :, 4:].transpose(0, 1)
    total2 = second.total()
    rest2 = rest - total2.below - total2.at_low

    middle = gathered.flatten(1).sort(dim=1).values
    middle = middle.gather(1, rest2.clamp(0, middle.shape[1] - 1).unsqueeze(1)).squeeze(1)
    middle = torch.where(rest2 < 0, low2, torch.where(rest2 < total2.inside, middle, high2))
    result = torch.where(rest < 0, low, torch.where(rest < total.inside, middle, high))
    missed = (rank < total.below) | (rest >= total.inside + total.at_high)
    in_middle = (rest >= 0) & (rest < total.inside)
    lost = (rest2 < -total2.at_low) | (rest2 >= total2.inside + total2.at_high)
    lost = lost | ((second.inside > most).any(dim=0) & (rest2 >= 0) & (rest2 < total2.inside))
    missed = (missed | (in_middle & lost)) & ~has_nan

    has = (gathered == result.view(-1, 1, 1)).any(dim=2)
    for edge, part in ((high2, second.at_high), (low2, second.at_low), (high, first.at_high), (low, first.at_low)):
        has = torch.where((result == edge).unsqueeze(1), part.T > 0, has)
    owner = has.to(torch.uint8).argmax(dim=1)
    if bool(missed.any()):
        channels = missed.nonzero().squeeze(1)
        found = _select_by_histograms(keys[channels], None, group)
        result, owner = result.index_copy(0, channels, found.values), owner.index_copy(0, channels, found.owner)
    return Selection(result.masked_fill(has_nan, largest), owner, count)


def _exchange_samples(keys: Tensor, group: Group) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return how many values each process has, a bracket around the median, and the median's rank."""
    channels, local = keys.shape
    samples = keys[:, _positions(local)] if local else keys.new_zeros(channels, SAMPLES)
    received = group.all_gather(torch.cat([keys.new_tensor([local]), samples.flatten()]))
    sizes = received[:, 0].long()
    rank = ((sizes.sum() - 1) // 2).clamp(min=0)
    weights = (sizes.double() / SAMPLES).expand(channels, -1)
    # A sample median of M independent values has a standard deviation of at most 1/(2√M), in quantiles.
    slack = DEVIATIONS / 2 * (sizes.double().square().sum() / SAMPLES).sqrt()
    samples = received[:, 1:].view(-1, channels, SAMPLES).transpose(0, 1)
    low, high = _bracket(samples, weights, (rank - slack).expand(channels), (rank + 1 + slack).expand(channels))
    return sizes, low, high, rank.expand(channels)


def _bracket(samples: Tensor, weights: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each channel the last sample before which the weights sum to at most ``low``, and the first up to
    which they sum to ``high``; the smallest or the largest integer where there is none.

    Args:
        samples: ``(C, R, M)``.
        weights: ``(C, R)``, of each process's samples.
        low: ``(C,)``.
        high: ``(C,)``.
    """  # noqa: D205
    limits = torch.iinfo(samples.dtype)
    ordered, order = samples.flatten(1).sort(dim=1)
    weight = weights.unsqueeze(2).expand(samples.shape).flatten(1).gather(1, order)
    upto = weight.cumsum(dim=1)
    first = ((upto - weight) <= low.unsqueeze(1)).sum(dim=1, keepdim=True) - 1
    last = (upto < high.unsqueeze(1)).sum(dim=1, keepdim=True)
    none = last == ordered.shape[1]
    lower = ordered.gather(1, first.clamp(min=0)).masked_fill(first < 0, limits.min)
    upper = ordered.gather(1, last.clamp(max=ordered.shape[1] - 1)).masked_fill(none, limits.max)
    return lower.squeeze(1), upper.squeeze(1)


def _compact(keys: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Return the marked values of each row, sorted and filled up with the largest integer, and their number."""
    widths = inside.sum(dim=1)
    width = max(1, int(widths.max()) if inside.numel() else 0)
    compact = keys.new_full((len(keys), width), torch.iinfo(keys.dtype).max)
    channels = torch.repeat_interleave(torch.arange(len(keys)), widths)
    columns = torch.arange(len(channels)) - (widths.cumsum(dim=0) - widths)[channels]
    compact[channels, columns] = keys[inside]
    return compact.sort(dim=1).values, widths


@lru_cache(maxsize=64)
def _positions(count: int) -> Tensor:
    """Return where to sample so many values: one random place in each of equal parts, always the same ones."""
    jitter = torch.rand(SAMPLES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return ((torch.arange(SAMPLES) + jitter) * (count / SAMPLES)).long().clamp(max=count - 1)


# --- histograms -----------------------------------------------------------------------------------------------------


def _select_by_histograms(keys: Tensor, used: Tensor | None, group: Group) -> Selection:
    """Return the lower median of integers, 8 bits per round, from the highest to the lowest."""
    channels, bits = len(keys), torch.iinfo(keys.dtype).bits
    offsets = torch.arange(channels, device=keys.device).unsqueeze(1) * 256
    counts = torch.ones_like(keys, dtype=torch.int32) if used is None else used.int().expand(keys.shape)
    is_nan = (keys == torch.iinfo(keys.dtype).max).int() * counts
    rank = count = prefix = digit = has_nan = torch.zeros(channels, dtype=torch.int64, device=keys.device)
    each = torch.empty(0)
    for shift in range(bits - 8, -1, -8):
        top, lowest = shift == bits - 8, shift == 0
        digits = (keys >> shift).long() & 255
        digits = digits ^ 128 if top else digits  # the sign
        counted = counts if top else counts * ((keys >> (shift + 8)) == prefix.unsqueeze(1))
        own = torch.zeros(channels * 256, dtype=torch.int32, device=keys.device)
        own = own.scatter_add(0, (digits + offsets).flatten(), counted.flatten()).view(channels, 256)
        if top:
            both = group.all_reduce(torch.cat([own, is_nan.sum(dim=1, keepdim=True, dtype=torch.int32)], dim=1))
            histogram, has_nan = both[:, :256], both[:, 256] > 0
        elif lowest:
            each = group.all_gather(own)
            histogram = each.sum(dim=0)
        else:
            histogram = group.all_reduce(own)
        upto = histogram.long().cumsum(dim=1)
        if top:
            count = upto[:, -1]
            rank = ((count - 1) // 2).clamp(min=0)
        digit = (upto <= rank.unsqueeze(1)).sum(dim=1).clamp(max=255)
        before = upto.gather(1, (digit - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        rank = rank - torch.where(digit > 0, before, 0)
        prefix = digit - 128 if top else prefix * 256 + digit
    owner = (each.gather(2, digit.view(1, -1, 1).expand(len(each), -1, 1)).squeeze(2) > 0).to(torch.uint8).argmax(dim=0)
    values = prefix.to(keys.dtype).masked_fill(has_nan, torch.iinfo(keys.dtype).max)
    return Selection(values, owner, count[0])
