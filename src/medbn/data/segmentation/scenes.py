"""Scenes of real handwritten digits on textured ground, each pixel labelled: a segmentation dataset without a download.

A scene has two kinds of ground, one above the other, and up to six digits in random sizes and colours. The training
scenes are made of the training digits (``digits.py``) and the test scenes of the test digits, so that no digit is in
both. Everything is drawn from a seed and in integers, so that every machine has the same bytes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..digits import digits, double
from .dataset import SegmentationDataset, segmentation_from_tensors

HEIGHT, WIDTH, CELL = 64, 96, 32
SCENES = {"train": 600, "test": 240}
SEED = 0

CLASSES = ("grass", "water", "brick", *(str(digit) for digit in range(10)))
COLOURS = (
    *((122, 160, 60), (86, 140, 200), (150, 90, 70)),
    *((230, 25, 75), (255, 225, 25), (0, 60, 255), (245, 130, 48), (145, 30, 180)),
    *((70, 240, 240), (240, 50, 230), (250, 190, 212), (0, 110, 110), (170, 255, 195)),
)
GROUNDS = 3
"""How many of the classes are ground; those of the digits follow."""

INK = 96
"""From this intensity on, of 255, a pixel belongs to the digit."""

_GROUND_COLOURS = ((96, 140, 52), (60, 110, 170), (160, 84, 62))
_DIGIT_COLOURS = ((245, 245, 235), (250, 215, 60), (25, 20, 35), (235, 100, 190))

Integers = npt.NDArray[np.int64]


def open_scenes(folder: Path | None = None, split: str = "test") -> SegmentationDataset:
    """Open one split of the scenes; ``folder`` is not used, since the digits ship with the package."""
    split = "train" if split == "train" else "test"
    images, labels = _draw_scenes(split)
    return segmentation_from_tensors("scenes", split, CLASSES, COLOURS, images, labels, horizontal_flip=False)


@cache
def _draw_scenes(split: str) -> tuple[Tensor, Tensor]:
    source = digits(split=split)
    strokes = (double(source.read(range(len(source)))[:, 0]) // 16).numpy()
    kinds = source.labels.numpy()
    images = np.empty((SCENES[split], HEIGHT, WIDTH, 3), dtype=np.uint8)
    labels = np.empty((SCENES[split], HEIGHT, WIDTH), dtype=np.uint8)
    for index in range(SCENES[split]):
        random = np.random.default_rng([SEED, int(split == "test"), index])
        images[index], labels[index] = _draw_scene(random, strokes, kinds)
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)


def _draw_scene(random: np.random.Generator, strokes: Integers, kinds: Integers) -> tuple[Integers, Integers]:
    """Return an image (H, W, 3) and its labels (H, W).

    Args:
        random: the scene's random numbers.
        strokes: the digits, (N, 32, 32) from 0 (ground) to 255 (ink).
        kinds: which digit each of them is.
    """
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    left, right = random.integers(HEIGHT // 4, 3 * HEIGHT // 4, 2)
    below = rows * WIDTH >= left * WIDTH + (right - left) * columns
    upper, lower = random.permutation(GROUNDS)[:2]
    labels = np.where(below, lower, upper)
    image = np.where(below[:, :, None], _draw_ground(random, lower), _draw_ground(random, upper))
    for top in range(0, HEIGHT, CELL):
        for start in range(0, WIDTH, CELL):
            if random.integers(3):  # two cells of three have a digit
                cell = (slice(top, top + CELL), slice(start, start + CELL))
                chosen = random.integers(len(strokes))
                ink = _place(random, strokes[chosen])
                colour = np.array(_DIGIT_COLOURS[random.integers(len(_DIGIT_COLOURS))]) + random.integers(-10, 11, 3)
                image[cell] = (image[cell] * (255 - ink) + colour * ink) // 255
                labels[cell] = np.where(ink[:, :, 0] >= INK, GROUNDS + kinds[chosen], labels[cell])
    return image.clip(0, 255), labels


def _place(random: np.random.Generator, stroke: Integers) -> Integers:
    """Return a digit at a random size and place in its cell, (32, 32, 1)."""
    size = int(random.integers(24, CELL + 1))
    nearest = (2 * np.arange(size) + 1) * CELL // (2 * size)
    top, left = random.integers(0, CELL - size + 1, 2)
    ink = np.zeros((CELL, CELL, 1), dtype=np.int64)
    ink[top : top + size, left : left + size, 0] = stroke[np.ix_(nearest, nearest)]
    return ink


def _draw_ground(random: np.random.Generator, kind: int) -> Integers:
    """Return a whole image of one kind of ground, (H, W, 3)."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    rows, columns = rows + random.integers(16), columns + random.integers(16)
    if kind == 0:  # grass: tufts
        pattern = random.integers(-30, 31, (HEIGHT, WIDTH))
    elif kind == 1:  # water: slanting waves
        pattern = 5 * np.abs((columns + 3 * rows) % 14 - 7) - 17
    else:  # brick: dark joints, every other row shifted
        joint = (rows % 8 == 0) | ((columns + 8 * (rows // 8 % 2)) % 16 == 0)
        pattern = np.where(joint, -45, 8)
    colour = np.array(_GROUND_COLOURS[kind]) + random.integers(-15, 16, 3)
    grain = random.integers(-8, 9, (HEIGHT, WIDTH, 1))
    return pattern[:, :, None] + colour + grain
