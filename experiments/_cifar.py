"""What the scripts beside this one share: the ResNet-26 that ``reproduce.py`` attacks."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from medbn import bench, models


def resnet26(root: Path | None, device: str = "cpu") -> nn.Module:
    """The model; if it or the corrupted images are not there, an error says where they belong and how to get them."""
    setting = bench.recipes.CIFAR10
    lacking = bench.missing_requirements(setting, (), root)
    if lacking:
        raise bench.MissingError(f"this needs: {'; '.join(lacking)}.")
    return models.get(setting.model, weights=bench.weights_path(setting, root), classes=10, channels=3).to(device)
