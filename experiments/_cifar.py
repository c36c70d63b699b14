"""Load the ResNet-26 for CIFAR-10 that several experiments attack."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from medbn import bench, models


def resnet26(root: Path | None, device: str = "cpu") -> nn.Module:
    """Return the model; if it or the corrupted images are missing, raise an error that says how to get them."""
    setting = bench.recipes.CIFAR10
    missing = bench.missing_requirements(setting, (), root)
    if missing:
        raise bench.MissingError(f"this needs: {'; '.join(missing)}.")
    return models.get(setting.model, weights=bench.weights_path(setting, root), classes=10, channels=3).to(device)
