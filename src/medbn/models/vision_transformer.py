"""Vision transformers for small images (Dosovitskiy et al., 2021), as simplified by Beyer et al., 2022.

Sine and cosine position embeddings, so that any resolution works; the mean over patches instead of a class token.
There is no BatchNorm in them: every image is normalised by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .input_normalisation import Constants, InputNormalisation
from .registry import register
from .resnet import CIFAR_MEAN, CIFAR_STD


class TransformerBlock(nn.Module):
    """Self-attention and a two-layer perceptron, each behind a LayerNorm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's activations, ``(B, patches, width)``."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y: Tensor = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return y


class VisionTransformer(nn.Module):
    """A vision transformer of ``blocks.0``, ``blocks.1``, ..., under timm's names.

    Args:
        depth: the number of blocks.
        width: the number of features of a patch; four times a whole number of ``heads``.
        heads: of the attention.
        patch: the height and width of a patch in pixels.
        classes: as in ``ResNet``, likewise ``channels``, ``mean`` and ``std``.
    """

    def __init__(
        self,
        depth: int,
        width: int,
        heads: int,
        patch: int,
        *,
        classes: int = 10,
        channels: int = 3,
        mean: Constants = CIFAR_MEAN,
        std: Constants = CIFAR_STD,
    ) -> None:
        super().__init__()
        self.normalise = InputNormalisation(mean, std, channels)
        self.patch = patch
        self.patch_embed = nn.Conv2d(channels, width, patch, patch)
        self.blocks = nn.Sequential(*[TransformerBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images in [0, 1], of a height and a width that are multiples of a patch."""
        x = self.normalise(x)
        if x.shape[2] % self.patch or x.shape[3] % self.patch:
            size = f"{x.shape[2]}x{x.shape[3]}"
            raise ValueError(f"expected a height and a width that are multiples of {self.patch}, got {size} images.")
        grid = self.patch_embed(x)
        x = grid.flatten(2).transpose(1, 2) + embed_positions(*grid.shape[1:], like=grid)
        logits: Tensor = self.head(self.norm(self.blocks(x)).mean(dim=1))
        return logits


def embed_positions(width: int, rows: int, columns: int, *, like: Tensor) -> Tensor:
    """Return ``(rows · columns, width)`` sines and cosines of the places on a grid, a quarter of the width each."""
    quarter = width // 4
    frequencies = 10_000.0 ** -(torch.arange(quarter, device=like.device) / max(1, quarter - 1))
    y, x = torch.meshgrid(
        torch.arange(rows, device=like.device), torch.arange(columns, device=like.device), indexing="ij"
    )
    angles = [place.flatten()[:, None] * frequencies for place in (x, y)]
    return torch.cat([f(a) for a in angles for f in (torch.sin, torch.cos)], dim=1).to(like.dtype)


@register("vit-tiny")
def vit_tiny(*, classes: int = 10, channels: int = 3, mean: Constants = 0.5, std: Constants = 0.5) -> VisionTransformer:
    """Return a vision transformer of 4 blocks of 48 features, 116 thousand parameters, for 16-pixel digits."""
    return VisionTransformer(4, 48, 4, 4, classes=classes, channels=channels, mean=mean, std=std)


@register("vit-small")
def vit_small(
    *, classes: int = 10, channels: int = 3, mean: Constants = CIFAR_MEAN, std: Constants = CIFAR_STD
) -> VisionTransformer:
    """Return a vision transformer of 8 blocks of 192 features, 3.6 million parameters, for 32-pixel images."""
    return VisionTransformer(8, 192, 6, 4, classes=classes, channels=channels, mean=mean, std=std)
