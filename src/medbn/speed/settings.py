"""What is measured, by default and on request."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

Shape = tuple[int, ...]

SMALL: tuple[Shape, ...] = ((200, 64, 32, 32), (200, 128, 16, 16), (200, 256, 8, 8), (200, 512, 4, 4))
"""The activations of ResNet-26 on 32 pixels."""
LARGE: tuple[tuple[int, int, int], ...] = (
    (64, 112, 112), (64, 56, 56), (256, 56, 56), (512, 28, 28), (1024, 14, 14), (2048, 7, 7),
)  # fmt: skip
"""Those of ResNet-50 on 224 pixels, without the batch."""
LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
REFERENCE = 3
"""The reference path takes this much fewer turns: it is several times slower, and compared with nothing finely."""


@dataclass(frozen=True)
class Settings:
    """What to measure, and where."""

    device: str
    shapes: tuple[Shape, ...]
    estimators: tuple[str, ...] = ("mean", "median", "image_median")
    dtype: str = "float32"
    layouts: tuple[str, ...] = ("nchw", "channels_last")
    model: str = "resnet26"
    model_layouts: tuple[str, ...] = ("nchw",)
    """In which the whole model is measured."""
    reference: bool = True
    """Whether the reference path is measured beside the fast one."""
    rounds: int | None = None
    """Turns of every candidate, each with two ratios; None leaves it to the part."""
    usual: tuple[tuple[str, int], ...] = (("layer", 5), ("step", 2), ("attack", 1), ("scaling", 1))
    batch: int = 200
    attack_batch: int = 200
    attack_steps: int = 100
    values: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
    """Per channel, in the scaling table."""
    channels: tuple[int, ...] = (16, 64, 256, 1024, 2048)
    elements: int = 160_000_000
    """The largest activation of the scaling table."""
    every_size: bool = False
    """Whether the scaling table has all pairs, and not only those with the fewest channels or 10,000 values."""

    @classmethod
    def usual_for(cls, device: str, quick: bool = False) -> Settings:
        """What is measured if nothing is said: minutes, or with ``quick`` seconds."""
        if torch.device(device).type == "cuda":
            large = tuple((200, *shape) for shape in LARGE)
            usual = (("layer", 10), ("step", 10), ("attack", 2), ("scaling", 5))
            both = ("nchw", "channels_last")
            # x, g, y, dx, what the reference path needs, and all of it once more in each captured graph.
            elements = min(2**29, torch.cuda.get_device_properties(device).total_memory // (4 * 64))
            found = cls(device, SMALL + large, usual=usual, model_layouts=both, every_size=True, elements=elements)
            if quick:
                found = replace(found, shapes=SMALL, rounds=2, attack_steps=10, elements=min(2**26, elements))
            return found
        found = cls(device, SMALL + tuple((16, *s) for s in LARGE), batch=100, attack_batch=40, attack_steps=2)
        if quick:
            found = replace(found, shapes=tuple((50, *s[1:]) for s in SMALL), rounds=1, elements=2_000_000)
            found = replace(found, batch=10, attack_batch=10, attack_steps=1)
        return found

    def named_shapes(self, name: str) -> tuple[Shape, ...]:
        """``small``, ``all`` of the device's, or one that is written out."""
        if name == "all":
            return self.shapes
        return tuple(s for s in self.shapes if s[1:] in {s[1:] for s in SMALL}) if name == "small" else (shape(name),)

    def turns(self, part: str, path: str) -> int:
        """How many rounds a candidate on this path has."""
        rounds = self.rounds or dict(self.usual)[part]
        return max(1, rounds // REFERENCE) if path == "reference" else rounds

    @property
    def on_gpu(self) -> bool:
        """Whether there are CUDA graphs to replay."""
        return torch.device(self.device).type == "cuda"

    @property
    def robust(self) -> tuple[str, ...]:
        """The estimators that are not BatchNorm's own."""
        return tuple(name for name in self.estimators if name != "mean")


def shape(text: str) -> Shape:
    """Read ``BxCxHxW``.

    >>> shape("16x64x56x56")
    (16, 64, 56, 56)
    """
    parts = text.lower().replace("×", "x").split("x")
    if len(parts) != 4 or not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(f"a shape is BxCxHxW, like 16x64x56x56, or 'small' or 'all'; got {text!r}.")
    found = tuple(map(int, parts))
    if found[0] * found[2] * found[3] < 2:
        raise ValueError(f"BatchNorm needs more than one value per channel; {text!r} has one.")
    return found
