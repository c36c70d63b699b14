"""The datasets that medbn knows by name, with the addresses and checksums of their archives."""

from __future__ import annotations

from pathlib import Path

from .cifar import CIFAR10_CLASSES, cifar10, cifar100, cifar100_classes
from .cifar_c import load_cifar_c
from .dataset import Dataset
from .digits import digits
from .download import Archive
from .image_folder import load_imagenet, load_imagenet_c
from .registry import register

_TORONTO = "https://www.cs.toronto.edu/~kriz"


def _zenodo(record: int, file: str, md5: str, gigabytes: float, folder: str, inside: str | None = None) -> Archive:
    url = f"https://zenodo.org/records/{record}/files/{file}?download=1"
    return Archive(url, md5, file, int(gigabytes * 1e9), folder, inside)


register(
    "digits",
    about="1,797 handwritten digits, 16 × 16 px; ships with medbn",
    images=797,
    shape=(1, 16, 16),
    classes=10,
)(digits)

register(
    "cifar10",
    about="CIFAR-10, 32 × 32 px",
    folder="cifar-10-batches-bin",
    images=10_000,
    shape=(3, 32, 32),
    classes=10,
    archives=(
        Archive(
            f"{_TORONTO}/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            "cifar-10-binary.tar.gz",
            170_052_171,
            folder="cifar-10-batches-bin",
            inside="cifar-10-batches-bin",
        ),
    ),
)(cifar10)

register(
    "cifar100",
    about="CIFAR-100, 32 × 32 px",
    folder="cifar-100-binary",
    images=10_000,
    shape=(3, 32, 32),
    classes=100,
    archives=(
        Archive(
            f"{_TORONTO}/cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            "cifar-100-binary.tar.gz",
            168_513_733,
            folder="cifar-100-binary",
            inside="cifar-100-binary",
        ),
    ),
)(cifar100)


@register(
    "cifar10-c",
    about="CIFAR-10's test images, corrupted in 15 ways",
    folder="CIFAR-10-C",
    images=10_000,
    shape=(3, 32, 32),
    classes=10,
    archives=(
        _zenodo(
            2535967,
            "CIFAR-10-C.tar",
            "56bf5dcef84df0e2308c6dcbcbbd8499",
            2.92,
            folder="CIFAR-10-C",
            inside="CIFAR-10-C",
        ),
    ),
    corrupted=True,
    clean="cifar10",
)
def cifar10_c(folder: Path, corruption: str, severity: int) -> Dataset:
    """Open one corruption at one severity of CIFAR-10-C."""
    return load_cifar_c(folder, corruption, severity, name="cifar10-c", classes=CIFAR10_CLASSES)


@register(
    "cifar100-c",
    about="CIFAR-100's test images, corrupted in 15 ways",
    folder="CIFAR-100-C",
    images=10_000,
    shape=(3, 32, 32),
    classes=100,
    archives=(
        _zenodo(
            3555552,
            "CIFAR-100-C.tar",
            "11f0ed0f1191edbf9fa23466ae6021d3",
            2.92,
            folder="CIFAR-100-C",
            inside="CIFAR-100-C",
        ),
    ),
    corrupted=True,
    clean="cifar100",
)
def cifar100_c(folder: Path, corruption: str, severity: int) -> Dataset:
    """Open one corruption at one severity of CIFAR-100-C."""
    classes = cifar100_classes(folder.parent / "cifar-100-binary")
    return load_cifar_c(folder, corruption, severity, name="cifar100-c", classes=classes)


@register(
    "digits-c",
    about="the test digits, corrupted in 15 ways",
    folder="digits-c",
    images=797,
    shape=(3, 16, 16),
    classes=10,
    corrupted=True,
    clean="digits",
)
def digits_c(folder: Path, corruption: str, severity: int) -> Dataset:
    """Open one corruption at one severity of the test digits."""
    return load_cifar_c(folder, corruption, severity, name="digits-c")


register(
    "imagenet",
    about="ImageNet, all or some of its validation images, 224 × 224 px",
    folder="imagenet",
    images=50_000,
    shape=(3, 224, 224),
    classes=1000,
    instructions=(
        "ImageNet is available on request at https://image-net.org. Unpack the images to {path}/val/CLASS/IMAGE, and"
        " to {path}/train/CLASS/IMAGE for methods that need training images. Some images of every class will do; the"
        " names of the class folders must sort in the order of the classes of the weights."
    ),
)(load_imagenet)

register(
    "imagenet-c",
    about="ImageNet's validation images, corrupted in 15 ways, 224 × 224 px",
    folder="ImageNet-C",
    images=50_000,
    shape=(3, 224, 224),
    classes=1000,
    archives=(
        _zenodo(2235448, "noise.tar", "e80562d7f6c3f8834afb1ecf27252745", 22.6, folder="ImageNet-C/noise"),
        _zenodo(2235448, "blur.tar", "2d8e81fdd8e07fef67b9334fa635e45c", 7.1, folder="ImageNet-C/blur"),
        _zenodo(2235448, "weather.tar", "33ffea4db4d93fe4a428c40a6ce0c25d", 12.7, folder="ImageNet-C/weather"),
        _zenodo(2235448, "digital.tar", "89157860d7b10d5797849337ca2e5c03", 7.8, folder="ImageNet-C/digital"),
    ),
    corrupted=True,
    clean="imagenet",
)(load_imagenet_c)
