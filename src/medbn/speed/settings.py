"""What is measured: shapes, estimators, sizes and rounds, by default and on request."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

Shape = tuple[int, ...]

SMALL: tuple[Shape, ...] = ((200, 64, 32, 32), (200, 128, 16, 16), (200, 256, 8, 8), (200, 512, 4, 4))
"""The activations of ResNet-26 on images of 32 pixels."""
LARGE: tuple[tuple[int, int, int], ...] = (
    (64, 112, 112), (64, 56, 56), (256, 56, 56), (512, 28, 28), (1024, 14, 14), (2048, 7, 7),
)  # fmt: skip
"""The activations of ResNet-50 on images of 224 pixels, without the batch dimension."""
LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
REFERENCE_DIVISOR = 3
"""The reference path has a third of the rounds: it is several times slower, and rough ratios suffice for it."""


@dataclass(frozen=True)
class Settings:
    """What to measure, and on which device."""

    device: str
    shapes: tuple[Shape, ...]
    estimators: tuple[str, ...] = ("mean", "median", "image_median")
    dtype: str = "float32"
    layouts: tuple[str, ...] = ("nchw", "channels_last")
    """The memory formats of single layers."""
    model: str = "resnet26"
    model_layouts: tuple[str, ...] = ("nchw",)
    """The memory formats of the whole model."""
    models: tuple[str, ...] = ()
    """The models of the part ``model``: any name that ``medbn.models.get`` takes."""
    pixels: int = 32
    """The size of the images of the part ``model``."""
    reference: bool = True
    """Measure the reference path beside the fast one."""
    rounds: int | None = None
    """Rounds of every candidate, with two ratios each; None stands for the part's default."""
    default_rounds: tuple[tuple[str, int], ...] = (
        ("layer", 5),
        ("step", 2),
        ("attack", 1),
        ("scaling", 1),
        ("model", 2),
    )
    batch: int = 200
    attack_batch: int = 200
    attack_steps: int = 100
    values: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
    """Values per channel in the scaling table."""
    channels: tuple[int, ...] = (16, 64, 256, 1024, 2048)
    """Channels in the scaling table."""
    elements: int = 160_000_000
    """The largest activation of the scaling table."""
    all_sizes: bool = False
    """Measure all pairs in the scaling table, not only those with the fewest channels or 10,000 values."""

    @classmethod
    def defaults(cls, device: str, quick: bool = False) -> Settings:
        """Return what is measured by default on a device, which takes minutes, or with ``quick`` seconds."""
        if torch.device(device).type == "cuda":
            large = tuple((200, *shape) for shape in LARGE)
            rounds = (("layer", 10), ("step", 10), ("attack", 2), ("scaling", 5), ("model", 10))
            layouts = ("nchw", "channels_last")
            # Memory for x, g, y, dx and the temporaries of the reference path, and all of it again in each graph.
            elements = min(2**29, torch.cuda.get_device_properties(device).total_memory // (4 * 64))
            settings = cls(
                device,
                SMALL + large,
                default_rounds=rounds,
                model_layouts=layouts,
                all_sizes=True,
                elements=elements,
            )
            if quick:
                settings = replace(settings, shapes=SMALL, rounds=2, attack_steps=10, elements=min(2**26, elements))
            return settings
        settings = cls(device, SMALL + tuple((16, *s) for s in LARGE), batch=100, attack_batch=40, attack_steps=2)
        if quick:
            shapes = tuple((50, *shape[1:]) for shape in SMALL)
            settings = replace(settings, shapes=shapes, rounds=1, elements=2_000_000)
            settings = replace(settings, batch=10, attack_batch=10, attack_steps=1)
        return settings

    def named_shapes(self, name: str) -> tuple[Shape, ...]:
        """Return the shapes of a name: ``"small"``, ``"all"``, or one shape that is written out."""
        if name == "all":
            return self.shapes
        if name == "small":
            return tuple(s for s in self.shapes if s[1:] in {s[1:] for s in SMALL})
        return (parse_shape(name),)

    def rounds_for(self, part: str, path: str) -> int:
        """Return how many rounds a candidate on this path has."""
        rounds = self.rounds or dict(self.default_rounds)[part]
        return max(1, rounds // REFERENCE_DIVISOR) if path == "reference" else rounds

    @property
    def on_gpu(self) -> bool:
        """Whether the device has CUDA graphs."""
        return torch.device(self.device).type == "cuda"

    @property
    def robust(self) -> tuple[str, ...]:
        """The estimators other than ``mean``, which is BatchNorm."""
        return tuple(name for name in self.estimators if name != "mean")


def parse_shape(text: str) -> Shape:
    """Return the shape that is written as ``BxCxHxW``.

    >>> parse_shape("16x64x56x56")
    (16, 64, 56, 56)
    """
    parts = text.lower().replace("×", "x").split("x")
    if len(parts) != 4 or not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(f"a shape is BxCxHxW, like 16x64x56x56, or 'small' or 'all'; got {text!r}.")
    shape = tuple(map(int, parts))
    if shape[0] * shape[2] * shape[3] < 2:
        raise ValueError(f"BatchNorm needs more than one value per channel; {text!r} has one.")
    return shape
