"""Small folders in the layouts of segmentation datasets."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt


def draw(rng: np.random.Generator, numbers: list[int], height: int = 12, width: int = 20) -> npt.NDArray[np.uint8]:
    """Label numbers (H, W) that have each of the given ones."""
    drawn = rng.choice(numbers, (height, width)).astype(np.uint8)
    drawn.flat[: len(numbers)] = numbers
    return drawn


def save(file: Path, pixels: npt.NDArray[np.uint8]) -> None:
    """Write an image or a label file."""
    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


def photograph(rng: np.random.Generator, height: int = 12, width: int = 20) -> npt.NDArray[np.uint8]:
    """Noise (H, W, 3)."""
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


def encode_png16(values: npt.NDArray[np.uint16]) -> bytes:
    """A PNG file of 16 bits per channel, (H, W, 3 or 4), which Pillow cannot write."""
    height, width, channels = values.shape

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 16, {3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts
