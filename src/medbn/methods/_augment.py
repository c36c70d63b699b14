"""Random changes of images in plain torch: what CoTTA, RoTTA and ROID learn to be consistent under, and DeYO's shuffle.

All randomness comes from the generator that is given, on the CPU; so the same generator changes the images alike on
every device. One set of random numbers holds for all images of a batch, as in the methods' published code; so what
becomes of an image does not depend on the others. That code draws noise for each image, and we draw it once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from .. import kernels
from ._call import Inputs

Augment = Callable[[Tensor, Generator], Tensor]
"""Returns changed images ``(B, C, H, W)`` in [0, 1], from images and the generator of all random numbers."""


@dataclass(frozen=True)
class Augmentation:
    """The augmentations of CoTTA's code, which took them from KATANA (Levi and Vilnat, 2021).

    Brightness, contrast, saturation, hue and gamma in random order; a rotation by up to 15°, a shift by up to an eighth
    of the side and a scale from 0.9 to 1.1; a blur; a horizontal flip with a chance of one half; noise.

    Args:
        padding: what is beyond the border of an image: ``"border"``, its last pixel, or ``"reflection"``.
        blur: the largest standard deviation of the 5×5 blur, in pixels; 0 for none.
        noise: the standard deviation of the noise; 0 for none.
        moves: whether pixels move. Where predictions are of pixels they must not.
    """

    padding: str = "border"
    blur: float = 0.5
    noise: float = 0.005
    moves: bool = True

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """Return the images changed, with values in [0, 1]."""
        x = _change_colours(images.clamp(0.0, 1.0), generator)
        margin = 2 if self.blur else 0
        x = _move(x, generator, self.padding, margin) if self.moves else F.pad(x, [margin] * 4, mode="replicate")
        if self.blur:
            x = _blur(x, _uniform(generator, 0.001, self.blur))
        if self.moves and _uniform(generator, 0.0, 1.0) < 0.5:
            x = x.flip(-1)
        if self.noise:
            x = x + self.noise * torch.randn(x.shape[1:], generator=generator).to(x)
        return x.clamp(0.0, 1.0)


def change_images(inputs: Inputs, change: Callable[[Tensor], Tensor], who: str) -> Inputs:
    """Return the same call with other images, the same ones of them padding.

    Args:
        inputs: a call.
        change: returns images ``(B, C, H, W)`` changed.
        who: the name of the method, for the error where a call has no such images.

    Of an image that is not finite, every pixel becomes NaN, so that layers isolate it as before.
    """
    images = {place: t for place, t in inputs.images().items() if t.dim() == 4 and t.is_floating_point()}
    if not images:
        shapes = [tuple(t.shape) for t in inputs.images().values()]
        raise ValueError(f"{who} changes images (B, C, H, W), and this call has tensors of the shapes {shapes}.")
    changed = {}
    for place, x in images.items():
        finite = x.detach().flatten(1).isfinite().all(dim=1)
        mask = kernels.view_per_image(finite, x)
        y = change(torch.where(mask, x, 0.0))
        if len(y) != len(x):
            raise ValueError(f"{who} needs as many images as there were: {len(x)}; augment= returned {len(y)}.")
        changed[place] = torch.where(kernels.view_per_image(finite, y), y.to(x.dtype), torch.nan)
    return inputs.with_images(changed, inputs.size)._replace(valid=inputs.valid)


def shuffle_patches(images: Tensor, order: Tensor) -> Tensor:
    """Return images whose patches are in another order.

    Sides that the number of patches in a row does not divide are scaled down before and up again afterwards.

    Args:
        images: ``(B, C, H, W)``.
        order: ``(B, n²)``, permutations of the n × n patches, one for each image.
    """
    batch, channels, *size = images.shape
    if not batch:  # a process without images
        return images
    patches = math.isqrt(order.shape[1])
    height, width = (max(side // patches, 1) * patches for side in size)
    fits = [height, width] == size
    x = images if fits else F.interpolate(images, (height, width), mode="bilinear", antialias=True)
    x = x.view(batch, channels, patches, height // patches, patches, width // patches)
    x = x.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (B, patches², C, H / patches, W / patches)
    x = x.gather(1, order.to(x.device).view(batch, patches**2, 1, 1, 1).expand_as(x))
    x = x.view(batch, patches, patches, *x.shape[2:]).permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, height, width)
    return x if fits else F.interpolate(x, tuple(size), mode="bilinear", antialias=True)


def draw_seed(generator: Generator) -> int:
    """Return a random seed, of which the augmentations of one batch are made."""
    return int(torch.randint(2**53, (), generator=generator))


def _uniform(generator: Generator, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))


# --- colours ----------------------------------------------------------------------------------------------------------


def _change_colours(x: Tensor, generator: Generator) -> Tensor:
    """Change brightness, contrast, saturation, hue and gamma, in a random order."""
    ranges = ((0.6, 1.4), (0.7, 1.3), (0.5, 1.5), (-0.06, 0.06), (0.7, 1.3))
    for kind in torch.randperm(5, generator=generator).tolist():
        value = _uniform(generator, *ranges[kind])
        if kind == 0:
            x = (value * x).clamp(0.0, 1.0)
        elif kind == 1:
            x = _blend(x, _grey(x).mean(dim=(1, 2, 3), keepdim=True), value)
        elif kind == 4:
            x = x.clamp(1e-8, 1.0) ** value  # 0 has no derivative for exponents below 1
        elif x.shape[1] == 3:  # images of another number of channels have no colours
            x = _blend(x, _grey(x), value) if kind == 2 else _turn_hue(x, value)
    return x


def _grey(x: Tensor) -> Tensor:
    """Return the luma (ITU-R 601) of RGB images, and the mean over the channels of others."""
    if x.shape[1] != 3:
        return x.mean(dim=1, keepdim=True)
    return (x * x.new_tensor([0.2989, 0.587, 0.114]).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)


def _blend(x: Tensor, other: Tensor, weight: float) -> Tensor:
    return (weight * x + (1.0 - weight) * other).clamp(0.0, 1.0)


def _turn_hue(x: Tensor, turn: float) -> Tensor:
    """Return RGB images with their hue shifted by a fraction of the circle."""
    high, low = x.amax(dim=1), x.amin(dim=1)
    chroma = high - low
    grey = chroma == 0
    r, g, b = ((high - c) / torch.where(grey, 1.0, chroma) for c in x.unbind(dim=1))
    red, green = high == x[:, 0], high == x[:, 1]
    hue = torch.where(red, b - g, torch.where(green, 2.0 + r - b, 4.0 + g - r)) / 6.0
    saturation = chroma / torch.where(grey, 1.0, high)
    # Each channel is high · (1 − saturation · w), where w is a piecewise linear function of the hue.
    sector = (hue + turn).unsqueeze(1) * 6.0 + x.new_tensor([5.0, 3.0, 1.0]).view(1, 3, 1, 1)
    k = sector.remainder(6.0)
    w = torch.minimum(k, 4.0 - k).clamp(0.0, 1.0)
    return (high.unsqueeze(1) * (1.0 - saturation.unsqueeze(1) * w)).clamp(0.0, 1.0)


# --- pixels -----------------------------------------------------------------------------------------------------------


def _move(x: Tensor, generator: Generator, padding: str, margin: int) -> Tensor:
    """Rotate, shift and scale images; return them with ``margin`` more pixels on each side."""
    height, width = x.shape[2:]
    angle = math.radians(_uniform(generator, -15.0, 15.0))
    down, right = (round(_uniform(generator, -side / 8, side / 8)) for side in (height, width))
    scale = _uniform(generator, 0.9, 1.1)
    # bfloat16 has no room for the places of pixels, and torch 2.4 samples no grids with it on CPUs.
    dtype = torch.promote_types(x.dtype, torch.float32)
    rows = torch.arange(-margin, height + margin, dtype=dtype, device=x.device) - (height - 1) / 2 - down
    columns = torch.arange(-margin, width + margin, dtype=dtype, device=x.device) - (width - 1) / 2 - right
    v, u = torch.meshgrid(rows, columns, indexing="ij")
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    place = torch.stack([(cos * u + sin * v) / max((width - 1) / 2, 1), (cos * v - sin * u) / max((height - 1) / 2, 1)])
    grid = place.movedim(0, -1).expand(len(x), -1, -1, -1)
    moved = F.grid_sample(x.to(dtype), grid, mode="bilinear", padding_mode=padding, align_corners=True)
    return moved.to(x.dtype)


def _blur(x: Tensor, sigma: float) -> Tensor:
    """Return images blurred by a Gaussian over 5×5 pixels, without the two outermost ones."""
    weight = torch.exp(-0.5 * (torch.arange(-2.0, 3.0, dtype=torch.float64) / sigma).square())
    line = (weight / weight.sum()).to(x)
    kernel = torch.outer(line, line).expand(x.shape[1], 1, 5, 5)
    return F.conv2d(x, kernel, groups=x.shape[1])
