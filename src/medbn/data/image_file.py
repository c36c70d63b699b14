"""Read one image file, which may come from a stranger."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .._errors import one_line

if TYPE_CHECKING:
    from PIL import Image

MOST_PIXELS = 2**26
"""Larger images are refused: a file of some kilobytes can declare any number of pixels."""

# Only these, because Pillow starts other programs for some formats, and takes the format from a file's content. WEBP
# comes last, because Pillow can be built without it.
_FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "GIF", "WEBP")

_LONGEST_RATIO = 8
_LONGEST_DEFAULT_SIDE = 2**12


@contextmanager
def open_image(file: str | Path) -> Iterator[Image.Image]:
    """Open an image file; a file that cannot be read is a ValueError that names it."""
    from PIL import Image

    try:
        with Image.open(file, formats=_FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"it has {image.width} × {image.height} pixels, more than {MOST_PIXELS}")
            yield image
    except Exception as error:  # damaged files raise errors of many types
        raise ValueError(f"{file} is not a readable image: {one_line(error)}.") from None


def read_rgb(file: str | Path) -> Image.Image:
    """Return an image file as RGB."""
    with open_image(file) as image:
        return image.convert("RGB")


def image_size(file: str | Path) -> tuple[int, int]:
    """Return the height and width of an image file."""
    with open_image(file) as image:
        return image.height, image.width


def default_size(file: Path) -> tuple[int, int]:
    """Return the height and width of a dataset's first image, to which all are scaled where no size is given."""
    height, width = image_size(file)
    if max(height, width) > _LONGEST_DEFAULT_SIDE:
        raise ValueError(f"{file} has {width} × {height} pixels; give size= to scale images of that size.")
    return height, width


def read_image(file: str | Path, height: int, width: int) -> np.ndarray:
    """Return an image file as (height, width, 3) bytes, scaled and cropped as ``load_image_folder`` describes."""
    from PIL import Image

    image = read_rgb(file)
    if image.size != (width, height):
        image = _crop_long_side(image, height, width)
        scale = 8 / 7 * max(height / image.height, width / image.width)
        scaled_width, scaled_height = max(width, round(image.width * scale)), max(height, round(image.height * scale))
        image = image.resize((scaled_width, scaled_height), Image.Resampling.BILINEAR)
        left, top = (scaled_width - width) // 2, (scaled_height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    return np.asarray(image)


def _crop_long_side(image: Image.Image, height: int, width: int) -> Image.Image:
    """Return the middle of an image that is very long for what it is scaled to, because it would become huge."""
    columns = min(image.width, math.ceil(_LONGEST_RATIO * image.height * width / height))
    rows = min(image.height, math.ceil(_LONGEST_RATIO * image.width * height / width))
    left, top = (image.width - columns) // 2, (image.height - rows) // 2
    return image.crop((left, top, left + columns, top + rows)) if (columns, rows) != image.size else image
