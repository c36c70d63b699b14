"""Find changes of the images that a minority of malicious images can neither feign nor cause.

Every image has *features* that depend on it alone, of three kinds: the mean and the log variance of each channel of the
input of the first normalisation layer, and what part of that variance is left where neighbours are averaged. A change
is declared where the remembered median of a feature is far out among the images of a batch, in more than ``SHARE`` of
the features of any kind. docs/threat-model.md proves how rarely malicious images cause that.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import kernels

SHARE = 0.05
"""A change is declared where more than this share of the features of a kind has changed."""
KINDS = 3
"""How many kinds of features there are: the chance of a false alarm is divided among them."""
TINY = 1e-12
"""The least variance that is told from 0."""
STEPS = 16
"""Ranks are tabulated for batches of which 0, 1, … sixteenths are finite and not padding."""


def image_features(x: Tensor) -> Tensor:
    """Return the features of each image, ``(B, kinds · C)``, from the input ``(B, C, *)`` of the first layer.

    The third kind tells smooth images from sharp ones of the same variance: blur, blocks of pixels, and JPEG.
    """
    mean, variance = kernels.image_moments(x)
    if x.dim() == 2:
        return mean
    _, smooth = kernels.image_moments(_average_neighbours(x))
    # A constant channel has a variance of rounding errors, which differ between batch sizes.
    log, log_smooth = (v.clamp(min=TINY).log() for v in (variance, smooth))
    return torch.cat([mean, log, log_smooth - log], dim=1)


def _average_neighbours(x: Tensor) -> Tensor:
    """Return the means of two neighbours in every spatial dimension that has them."""
    pool: Any = {3: F.avg_pool1d, 4: F.avg_pool2d, 5: F.avg_pool3d}[x.dim()]
    return cast(Tensor, pool(x, tuple(min(size, 2) for size in x.shape[2:])))


def lowest_rank(images: int, remembered: int, malicious: float, chance: float) -> int:
    """Return how many images of a batch must lie on either side of a remembered median; 0 if no number is certain.

    Fewer than this number lie below it with a probability of at most ``chance``, for all malicious images of the
    batch and of the remembered ones, if the benign images are independent draws of one distribution. The remembered
    median is at least the benign image of rank N/2 − m among N − m, whose quantile has a beta distribution. So the
    number of benign images below it in a batch of n has a beta-binomial distribution.

    Args:
        images: how many images the batch has.
        remembered: how many images the median is of.
        malicious: the largest share of malicious images that is tolerated.
        chance: of a false alarm, for one feature and one side.
    """
    benign = images - math.ceil(malicious * images)
    others = remembered - math.ceil(malicious * remembered)
    first = math.ceil(remembered / 2) - (remembered - others)
    if benign < 1 or first < 1:
        return 0
    below = torch.arange(benign + 1, dtype=torch.float64)
    a, b = first, others - first + 1
    # The logarithm of C(benign, k) B(k + a, benign − k + b) / B(a, b).
    terms = (
        math.lgamma(benign + 1) - (below + 1).lgamma() - (benign - below + 1).lgamma()
        + (below + a).lgamma() + (benign - below + b).lgamma() - math.lgamma(benign + a + b)
        - math.lgamma(a) - math.lgamma(b) + math.lgamma(a + b)
    )  # fmt: skip
    certain: Tensor = terms.exp().cumsum(0) <= chance
    return int(certain.sum())


@lru_cache(maxsize=1024)
def rank_table(images: int, remembered: int, malicious: float, chance: float) -> tuple[float, ...]:
    """Return ``lowest_rank`` over the number of images, for 0, 1, … sixteenths of ``images``."""
    sizes = [images * step // STEPS for step in range(STEPS + 1)]
    return tuple(lowest_rank(n, remembered, malicious, chance) / max(n, 1) for n in sizes)


def round_age(remembered: int, images: int) -> int:
    """Return a number of remembered images rounded down, so that few tables are needed: by an eighth at most."""
    if remembered < 8 * images or remembered < 16:
        return remembered
    step = 1 << (remembered.bit_length() - 4)
    return remembered - remembered % step


def changed_share(
    features: Tensor, remembered: Tensor, usable: Tensor, table: Tensor, kinds: int = 1
) -> tuple[Tensor, Tensor]:
    """Return the share of changed features for each memory, ``(K,)``, and whether enough images were there to say.

    It is the largest of the kinds' shares.

    Args:
        features: ``(B, F)``, of the images.
        remembered: ``(K, F)`` medians.
        usable: ``(B,)`` mask of the images that are finite and not padding.
        table: ``(K, STEPS + 1)``, from ``rank_table``.
        kinds: of how many kinds the features are, as many of each.
    """
    images = usable.sum()
    # Rounded down: with fewer images the share of them that must lie on either side is smaller.
    row = (images * STEPS // max(len(usable), 1)).view(1)
    least = (table.index_select(1, row).squeeze(1) * images + 1e-3).floor()  # a product may be just below a number
    # Arithmetic differs between batch sizes by rounding errors; a constant feature must not change by those.
    slack = 1e-4 * remembered.abs() + 1e-6
    one, some = features.unsqueeze(0), usable.view(1, -1, 1)
    below = ((one <= (remembered + slack).unsqueeze(1)) & some).sum(dim=1)
    above = ((one >= (remembered - slack).unsqueeze(1)) & some).sum(dim=1)
    changed = torch.minimum(below, above) < least.unsqueeze(1)
    return changed.view(len(changed), kinds, -1).to(torch.float32).mean(dim=2).amax(dim=1), least > 0
