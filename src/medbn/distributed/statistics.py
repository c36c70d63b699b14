"""The statistics of the batch of all processes, and their gradients.

Forward, each estimator exchanges what its docstring says. Backward, every process adds what it knows of the gradients
of centre and variance, one all_reduce of a few numbers per channel, and each differentiates its own images in closed
form. Any other estimator is exact too: the activations themselves are gathered.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from .. import kernels
from ..estimators import Estimator
from .group import Group
from .rows import count_rows, gather_rows, own_rows
from .selection import lower_median


class Global(NamedTuple):
    """The statistics of the batch of all processes, the same bits in each."""

    centre: Tensor
    variance: Tensor
    counted: Tensor
    """How many images they were estimated from."""


def statistics(x: Tensor, estimator: Estimator, valid: Tensor | None, group: Group) -> Global:
    """Return the statistics of the batch of which every process has a part.

    Args:
        x: ``(B, C, *)``, the images of this process, which may be none; finite in all that are used.
        estimator: how a batch becomes a centre and a variance. Those that no kernel computes, and smooth gradients,
            need the activations of all processes; the others exchange a few numbers per channel.
        valid: ``(B,)`` mask of the images of this process to use; None for all.
        group: the processes.
    """
    if 0 in x.shape[1:]:
        raise ValueError(f"cannot take statistics of images without values: input has shape {tuple(x.shape)}.")
    if estimator.kernel is None or estimator.temperature is not None:
        return Global(*_estimate_gathered(x, estimator, valid, group))
    centre, variance, counted = _Statistics.apply(x, valid, estimator, group)  # type: ignore[no-untyped-call]
    return Global(centre, variance, counted)


def _estimate_gathered(
    x: Tensor, estimator: Estimator, valid: Tensor | None, group: Group
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the estimator makes of the gathered activations, and the number of images; differentiable."""
    counts = count_rows(len(x), x.device, group)
    mask = torch.ones(len(x), dtype=torch.bool, device=x.device) if valid is None else valid
    everything, used = gather_rows(x, group, counts), gather_rows(mask, group, counts)
    if not len(everything):
        nothing = everything.new_full((x.shape[1],), torch.nan, dtype=kernels.working_dtype(x))
        return nothing, nothing, used.sum()
    all_used = not used.is_cuda and bool(used.all())
    return *estimator(everything, None if all_used else used), used.sum()


class _Share:
    """The images of this process: planes ``(B, C, S)`` in working precision, and which of them are used."""

    def __init__(self, x: Tensor, valid: Tensor | None) -> None:
        self.planes = x.detach().reshape(x.shape[0], x.shape[1], math.prod(x.shape[2:]))
        self.planes = self.planes.to(kernels.working_dtype(x))
        self.valid = valid
        self.size = self.planes.shape[2]

    def images(self) -> Tensor:
        """Return how many images are used."""
        count = torch.tensor(len(self.planes), device=self.planes.device) if self.valid is None else self.valid.sum()
        return count.double()

    def mask(self, planes: Tensor) -> Tensor:
        """Return the planes with zeros for images that are not used."""
        return planes if self.valid is None else torch.where(self.valid.view(-1, 1, 1), planes, 0.0)

    def deviations(self, centre: Tensor) -> Tensor:
        """Return x − centre, 0 in images that are not used."""
        return self.mask(self.planes - centre.to(self.planes.dtype).unsqueeze(1))

    def rows(self, planes: Tensor) -> Tensor:
        """Return planes as ``(C, N)``, in (image, position) order."""
        return planes.transpose(0, 1).reshape(planes.shape[1], -1)

    def used(self) -> Tensor | None:
        """Return the mask of the values of a row that are used; None for all."""
        return None if self.valid is None else self.valid.unsqueeze(1).expand(-1, self.size).reshape(-1)

    def first(self, rows: Tensor, values: Tensor, is_owner: Tensor) -> Tensor:
        """Return the position of the first of each row's values; −1 where another process has it."""
        if not rows.shape[1]:
            return torch.full_like(values, -1, dtype=torch.int64)
        equal = rows == values.unsqueeze(1)
        used = self.used()
        equal = equal if used is None else equal & used
        index = equal.to(torch.uint8).argmax(dim=1)
        return torch.where(is_owner & equal.any(dim=1), index, -1)

    def add(self, planes: Tensor, index: Tensor, amount: Tensor) -> None:
        """Add to one element of each channel, in place; −1 stands for none."""
        if len(planes):
            here, channels = index.clamp(min=0), torch.arange(len(index), device=index.device)
            place = (here // self.size, channels, here % self.size)
            planes[place] = planes[place] + torch.where(index >= 0, amount, 0.0).to(planes.dtype)


class _Statistics(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, valid: Tensor | None, estimator: Estimator, group: Group
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.estimator, ctx.group = estimator, group
        kernel = estimator.kernel
        assert kernel is not None
        share = _Share(x, valid)
        estimate = {"mean": _mean, "median": _median, "image_median": _image_median}.get(kernel, _mad)
        centre, variance, counted, saved = estimate(share, estimator, group)
        dtype = share.planes.dtype
        centre, variance, counted = centre.to(dtype), variance.to(dtype), counted.long()
        ctx.save_for_backward(x, valid, centre, counted, *saved)
        ctx.mark_non_differentiable(counted)
        return centre, variance, counted

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, valid, centre, counted, *saved = ctx.saved_tensors
        d_centre, d_variance, _ = grads
        if torch.is_grad_enabled():  # create_graph=True: differentiate what autograd can follow
            with torch.enable_grad():
                values = _estimate_gathered(x, ctx.estimator, valid, ctx.group)[:2]
                (d_x,) = torch.autograd.grad(values, x, (d_centre, d_variance), create_graph=True)
            return d_x, None, None, None
        share = _Share(x, valid)
        if ctx.estimator.kernel == "image_median":
            return _differentiate_image_median(x, ctx.group, d_centre, d_variance, saved), None, None, None
        count = counted.clamp(min=1) * share.size
        differentiate = _differentiate_mad if ctx.estimator.kernel in kernels.MAD_FACTORS else _differentiate_mean
        planes = differentiate(share, ctx, d_centre, d_variance, centre, count, saved)
        return planes.to(x.dtype).reshape(x.shape), None, None, None


Estimate = tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]
"""Centre, variance, the number of images, and what backward needs."""


def _mean(share: _Share, estimator: Estimator, group: Group) -> Estimate:
    """One round: means, squared deviations and numbers of images of each process."""
    images, channels = share.images(), share.planes.shape[1]
    mean = share.mask(share.planes).sum(dim=(0, 2)) / (images.clamp(min=1) * share.size)
    squares = share.deviations(mean).square().sum(dim=(0, 2))
    received = group.all_gather(torch.cat([images.view(1), mean.double(), squares.double()]))
    counts, means, squares = received[:, :1], received[:, 1 : channels + 1], received[:, channels + 1 :]
    images = counts.sum()
    values = images.clamp(min=1) * share.size
    centre = (counts * means).sum(dim=0) * share.size / values
    between = torch.where(counts > 0, counts * share.size * (means - centre).square(), 0.0)
    return centre, (squares + between).sum(dim=0) / values, images, ()


def _median(share: _Share, estimator: Estimator, group: Group) -> Estimate:
    """The rounds of ``lower_median``, and one for the deviations from it."""
    rows = share.rows(share.planes)
    selected = lower_median(rows, share.used(), group)
    deviations = share.deviations(selected.values)
    sums = torch.cat([s.sum(dim=(0, 2)).double() for s in (deviations.square(), deviations)])
    squares, total = group.all_gather(sums).sum(dim=0).view(2, -1)
    index = share.first(rows, selected.values, selected.owner == group.rank)
    return selected.values, squares / selected.size.clamp(min=1), selected.size // share.size, (total, index)


def _mad(share: _Share, estimator: Estimator, group: Group) -> Estimate:
    """The rounds of ``lower_median``, twice."""
    assert estimator.kernel is not None
    rows = share.rows(share.planes)
    middle = lower_median(rows, share.used(), group)
    deviations = (rows - middle.values.unsqueeze(1)).abs()
    mad = lower_median(deviations, share.used(), group)
    index = share.first(rows, middle.values, middle.owner == group.rank)
    far = share.first(deviations, mad.values, mad.owner == group.rank)
    variance = mad.values.square()
    if kernels.MAD_FACTORS[estimator.kernel] != 1.0:
        variance = kernels.MAD_FACTORS[estimator.kernel] * variance
    return middle.values, variance, middle.size // share.size, (mad.values, index, far)


def _image_median(share: _Share, estimator: Estimator, group: Group) -> Estimate:
    """Two rounds: the number of images of each process, and each image's own mean and variance."""
    counts = count_rows(len(share.planes), share.planes.device, group)
    means, within = kernels.image_moments(share.planes)
    valid = torch.ones(len(means), dtype=torch.bool, device=means.device) if share.valid is None else share.valid
    message = torch.cat([means, within, valid.to(means).unsqueeze(1)], dim=1)
    received = gather_rows(message, group, counts)
    used = received[:, -1] > 0
    sizes = torch.tensor(counts)
    if not len(received):
        nothing = means.new_full((means.shape[1],), torch.nan)
        return nothing, nothing, used.sum(), (received, sizes)
    centre, variance = _medians_of_moments(received[:, :-1], used)
    return centre, variance, used.sum(), (received, sizes)


def _medians_of_moments(moments: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """Return the statistics of ``image_median`` from each image's mean and variance."""
    means, within = moments.chunk(2, dim=1)
    return kernels.medians_of_moments(means, within, lambda values: kernels.middle_over_images(values, used))


# --- gradients --------------------------------------------------------------------------------------------------------


def _differentiate_mean(
    share: _Share, ctx: Any, d_centre: Tensor, d_variance: Tensor, centre: Tensor, count: Tensor, saved: list[Tensor]
) -> Tensor:
    """Return the gradient of mean or median, and of the mean squared deviation from it."""
    d_centre, d_variance = ctx.group.all_reduce(torch.stack([d_centre, d_variance]))
    planes = _slope(share, centre, 2.0 * d_variance / count)
    if ctx.estimator.kernel == "mean":
        return planes + share.mask((d_centre / count).view(1, -1, 1).expand_as(planes))
    total, index = saved
    share.add(planes, index, d_centre - 2.0 * d_variance * (total / count).to(d_variance.dtype))
    return planes


def _differentiate_mad(
    share: _Share, ctx: Any, d_centre: Tensor, d_variance: Tensor, centre: Tensor, count: Tensor, saved: list[Tensor]
) -> Tensor:
    """Return the gradient of median and squared MAD: of the one or two elements that they are."""
    mad, index, far = saved
    planes = torch.zeros_like(share.planes)
    sign = torch.zeros_like(centre)
    if len(planes):
        rows = share.rows(share.planes)
        value = rows.gather(1, far.clamp(min=0).unsqueeze(1)).squeeze(1)
        sign = torch.where(far >= 0, (value - centre).sign(), 0.0)
    d_centre, d_variance, sides = ctx.group.all_reduce(torch.stack([d_centre, d_variance, sign]))
    d_mad = 2.0 * kernels.MAD_FACTORS[ctx.estimator.kernel] * mad * d_variance
    share.add(planes, index, d_centre - d_mad * sides)
    share.add(planes, far, d_mad * sides)
    return planes


def _differentiate_image_median(
    x: Tensor, group: Group, d_centre: Tensor, d_variance: Tensor, saved: list[Tensor]
) -> Tensor:
    """Return the gradient of medians over images: of the one or two images that each of them is."""
    received, sizes = saved
    summed = group.all_reduce(torch.stack([d_centre, d_variance]))
    if not len(x):
        return torch.zeros_like(x)
    counts = sizes.tolist()
    with torch.enable_grad():
        moments = received[:, :-1].detach().requires_grad_()
        values = _medians_of_moments(moments, received[:, -1] > 0)
        (d_moments,) = torch.autograd.grad(values, moments, tuple(summed))
        leaf = x.detach().requires_grad_()
        own = kernels.image_moments(leaf)
        (d_x,) = torch.autograd.grad(own, leaf, d_moments[own_rows(counts, group)].chunk(2, dim=1))
    return d_x


def _slope(share: _Share, centre: Tensor, slope: Tensor) -> Tensor:
    """Return slope · (x − centre), and 0 where the slope is 0: deviations of huge values may be infinite."""
    slope = slope.to(share.planes.dtype).view(1, -1, 1)
    return torch.where(slope == 0, 0.0, slope * share.deviations(centre))
