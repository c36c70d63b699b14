"""The segmentation datasets that medbn knows by name, and how to get those that it may not pass on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .registry import get, register
from .segmentation import (
    SegmentationDataset,
    camvid,
    cityscapes,
    load_generated_segmentation,
    scenes,
    synthia,
)


def _register(name: str, opener: Callable[..., SegmentationDataset], **facts: Any) -> None:
    register(name, task="segmentation", **facts)(opener)


_register(
    "scenes",
    scenes.open_scenes,
    about="digits on textured ground, 96 × 64 px; ships with medbn",
    images=scenes.SCENES["test"],
    shape=(3, scenes.HEIGHT, scenes.WIDTH),
    classes=len(scenes.CLASSES),
)
_register(
    "cityscapes",
    cityscapes.open_cityscapes,
    about="Cityscapes: streets, 2048 × 1024 px",
    folder="cityscapes",
    images=500,
    shape=(3, 1024, 2048),
    classes=19,
    instructions=cityscapes.HOW_TO_GET,
)
_register(
    "synthia",
    synthia.open_synthia,
    about="SYNTHIA-RAND-CITYSCAPES: rendered streets, 1280 × 760 px",
    folder="RAND_CITYSCAPES",
    images=2761,
    shape=(3, 760, 1280),
    classes=19,
    instructions=synthia.HOW_TO_GET,
)
for _name, _opener, _images, _about in (
    ("camvid", camvid.open_camvid, 233, "CamVid: streets, 960 × 720 px"),
    ("camvid-day", camvid.open_camvid_day, 171, "CamVid's frames by day"),
    ("camvid-dusk", camvid.open_camvid_dusk, 124, "CamVid's frames at dusk"),
):
    _register(
        _name,
        _opener,
        about=_about,
        folder="CamVid",
        images=_images,
        shape=(3, 720, 960),
        classes=11,
        instructions=camvid.HOW_TO_GET,
    )

for _name in ("scenes", "cityscapes", "camvid"):
    _clean = get(_name)
    _register(
        f"{_name}-c",
        partial(load_generated_segmentation, name=f"{_name}-c"),
        about=f"the test images of {_name}, corrupted in 15 ways",
        folder=f"{_name}-c",
        images=_clean.images,
        shape=_clean.shape,
        classes=_clean.classes,
        corrupted=True,
        clean=_name,
    )
