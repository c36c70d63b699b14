"""Isolate images with non-finite values, and check the tensors that a user passes.

An image that has a NaN or an infinity is *isolated*: the statistics are estimated without it, its own output is NaN,
and no gradient enters or leaves it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import kernels
from ._errors import unknown_name
from .estimators import Estimator

NONFINITE = ("isolate", "propagate")


def isolates(estimator: Estimator, nonfinite: str | None) -> bool:
    """Return whether images with non-finite values are left out of the statistics."""
    if nonfinite is None:
        return estimator.robust
    if nonfinite not in NONFINITE:
        raise unknown_name("nonfinite", nonfinite, NONFINITE)
    return nonfinite == "isolate"


def isolate(x: Tensor, never: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Return ``x`` with zeros for every image that has a non-finite value, and the mask of the other images.

    The mask is None if all images are finite. Images in the mask ``never`` are left as they are.
    """
    finite = kernels.finite_images(x.detach())
    if never is not None:
        finite = finite | never
    if _is_known_all_true(finite):
        return x, None
    # Not masked_fill, which would make channels_last contiguous.
    return torch.where(kernels.view_per_image(finite, x), x, 0.0), finite


def mask_isolated(y: Tensor, finite: Tensor | None) -> Tensor:
    """Return the output with NaN for isolated images, into which no gradient flows."""
    return y if finite is None else torch.where(kernels.view_per_image(finite, y), y, torch.nan)


def _is_known_all_true(mask: Tensor) -> bool:
    """Return whether all are true; False where reading that would synchronise a GPU or break a traced program."""
    return mask.device.type == "cpu" and type(mask) is Tensor and not kernels.traced() and bool(mask.all())


# --- checks -----------------------------------------------------------------------------------------------------------


def check_input(x: Tensor) -> None:
    """Raise an error unless statistics can be taken of ``x``."""
    check_activation(x)
    if 0 in x.shape:
        raise ValueError(f"cannot take statistics of an empty batch: input has shape {tuple(x.shape)}.")


def check_activation(x: Tensor) -> None:
    """Raise an error unless ``x`` is a floating point tensor ``(B, C, *)``."""
    if not isinstance(x, Tensor):
        raise TypeError(f"expected a tensor (B, C, *), got {type(x).__name__}.")
    if x.dim() < 2:
        raise ValueError(f"expected input (B, C, *) of at least 2 dimensions, got shape {tuple(x.shape)}.")
    if not x.is_floating_point():
        raise TypeError(f"expected floating point input, got {x.dtype}; convert it first, for example with .float().")


def check_mask(valid: Tensor, images: int) -> None:
    """Raise an error unless ``valid`` is a boolean mask over that many images."""
    if not isinstance(valid, Tensor):
        raise TypeError(f"valid must be a boolean tensor with one entry per image, got a {type(valid).__name__}.")
    if valid.dtype != torch.bool or valid.shape != (images,):
        raise ValueError(
            f"valid must be a boolean mask with one entry per image, ({images},);"
            f" got {valid.dtype} of shape {tuple(valid.shape)}."
        )


def check_valid(valid: Tensor | None, x: Tensor) -> Tensor | None:
    """Return the mask after checking it, or None if it is known to be all true."""
    if valid is None:
        return None
    check_mask(valid, x.shape[0])
    return None if _is_known_all_true(valid) else valid
