"""Read one label file: an image whose pixels are the numbers of classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..image_file import open_image


def read_label_file(file: Path) -> npt.NDArray[Any]:
    """Return the numbers in a label image of one channel, whole numbers (H, W)."""
    with open_image(file) as image:
        mode, numbers = image.mode, np.asarray(image)
    if numbers.ndim != 2 or numbers.dtype.kind not in "ui":
        raise ValueError(
            f"{file} has the mode {mode}; expected an image of one channel whose values are the numbers of classes."
        )
    return numbers


def read_first_channel(file: Path) -> npt.NDArray[Any]:
    """Return the numbers in the first channel of a label image of 8 or 16 bits, whole numbers (H, W) below 256."""
    with open_image(file) as image:
        _keep_low_bytes(image)
        mode, numbers = image.mode, np.asarray(image)
    if numbers.dtype.kind not in "ui":
        raise ValueError(f"{file} has the mode {mode}; expected an image of 8 or 16 bits.")
    return numbers if numbers.ndim == 2 else numbers[:, :, 0]


def _keep_low_bytes(image: Any) -> None:
    """Make Pillow keep the low bytes of colours of 16 bits, whose high bytes it keeps otherwise.

    A PNG file stores the high byte first. Read as if the low byte came first, the bytes that are kept are the low ones.
    """
    if len(image.getbands()) > 1 and image.tile:
        codec, box, offset, mode = image.tile[0]
        if isinstance(mode, str) and mode.endswith(";16B"):
            tile = codec, box, offset, mode.replace(";16B", ";16L")
            kind = type(image.tile[0])  # a tuple in old versions of Pillow, a named tuple in new ones
            image.tile = [kind(*tile) if hasattr(kind, "_fields") else tile]
