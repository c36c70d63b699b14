"""The datasets by name: where they come from, where they lie, how they are opened."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .._errors import unknown_name
from . import cifar, corruptions, image_folder
from .cifar_c import arrays
from .dataset import Dataset, Indices, digest
from .digits import digits
from .download import Archive, Progress, fetch, unpack

TORONTO = "https://www.cs.toronto.edu/~kriz"
ZENODO = "https://zenodo.org/records"


@dataclass(frozen=True)
class Source:
    """A named dataset."""

    name: str
    about: str
    folder: str | None
    """Below the root; None for what ships with the package."""
    open: Callable[..., Dataset]
    """Called with the folder, and ``split`` or, where ``corrupted``, ``corruption`` and ``severity``."""
    archives: tuple[tuple[Archive, str, str | None], ...] = ()
    """What to fetch: the archive, the folder that it becomes, and the folder inside it that is meant."""
    corrupted: bool = False
    clean: str | None = None
    """For what ``medbn data make`` can make: the dataset to make it from."""

    def path(self, root: str | Path | None = None) -> Path:
        """Where it lies, or would."""
        return find_root(root) / (self.folder or "")

    def present(self, root: str | Path | None = None) -> bool:
        """Whether it is there, at least in part; what is missing in it shows when it is opened."""
        return self.folder is None or (self.path(root).is_dir() and any(self.path(root).iterdir()))

    def complete(self, root: str | Path | None = None) -> bool:
        """Whether all of it is there."""
        if not self.present(root):
            return False
        if self.clean:
            return all((self.path(root) / f"{name}.npy").is_file() for name in corruptions.NAMES)
        return all((find_root(root) / target).is_dir() for _, target, _ in self.archives)

    def hint(self) -> str:
        """The command that gets it."""
        ways = [f"medbn data fetch {self.name}"] if self.archives else []
        return ", or ".join(ways + ([f"medbn data make {self.name}"] if self.clean else []))


def _zenodo(record: int, file: str, md5: str, gigabytes: float) -> Archive:
    return Archive(f"{ZENODO}/{record}/files/{file}?download=1", md5, file, int(gigabytes * 1e9))


def _imagenet_c() -> tuple[tuple[Archive, str, str | None], ...]:
    sums = {
        "noise": ("e80562d7f6c3f8834afb1ecf27252745", 22.6),
        "blur": ("2d8e81fdd8e07fef67b9334fa635e45c", 7.1),
        "weather": ("33ffea4db4d93fe4a428c40a6ce0c25d", 12.7),
        "digital": ("89157860d7b10d5797849337ca2e5c03", 7.8),
    }
    return tuple((_zenodo(2235448, f"{g}.tar", md5, gb), f"ImageNet-C/{g}", None) for g, (md5, gb) in sums.items())


_CIFAR10 = Archive(
    f"{TORONTO}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-binary.tar.gz", 170_052_171
)
_CIFAR100 = Archive(
    f"{TORONTO}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary.tar.gz", 168_513_733
)
_CIFAR10_C = _zenodo(2535967, "CIFAR-10-C.tar", "56bf5dcef84df0e2308c6dcbcbbd8499", 2.92)
_CIFAR100_C = _zenodo(3555552, "CIFAR-100-C.tar", "11f0ed0f1191edbf9fa23466ae6021d3", 2.92)


def _open_cifar100_c(path: Path, corruption: str, severity: int) -> Dataset:
    classes = cifar.cifar100_classes(path.parent / "cifar-100-binary")
    return arrays(path, corruption, severity, name="cifar100-c", classes=classes)


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "digits", "1,797 handwritten digits, 16 × 16 px; ships with medbn", None, lambda path, split: digits(split)
        ),
        Source(
            "cifar10",
            "CIFAR-10, 32 × 32 px",
            "cifar-10-batches-bin",
            cifar.cifar10,
            ((_CIFAR10, "cifar-10-batches-bin", "cifar-10-batches-bin"),),
        ),
        Source(
            "cifar100",
            "CIFAR-100, 32 × 32 px",
            "cifar-100-binary",
            cifar.cifar100,
            ((_CIFAR100, "cifar-100-binary", "cifar-100-binary"),),
        ),
        Source(
            "cifar10-c",
            "CIFAR-10's test images, corrupted in 15 ways",
            "CIFAR-10-C",
            lambda path, corruption, severity: arrays(
                path, corruption, severity, name="cifar10-c", classes=cifar.CIFAR10_CLASSES
            ),
            ((_CIFAR10_C, "CIFAR-10-C", "CIFAR-10-C"),),
            corrupted=True,
            clean="cifar10",
        ),
        Source(
            "cifar100-c",
            "CIFAR-100's test images, corrupted in 15 ways",
            "CIFAR-100-C",
            _open_cifar100_c,
            ((_CIFAR100_C, "CIFAR-100-C", "CIFAR-100-C"),),
            corrupted=True,
            clean="cifar100",
        ),
        Source(
            "digits-c",
            "the test digits, corrupted in 15 ways",
            "digits-c",
            lambda path, corruption, severity: arrays(path, corruption, severity, name="digits-c"),
            corrupted=True,
            clean="digits",
        ),
        Source(
            "imagenet-c",
            "ImageNet's validation images, corrupted in 15 ways, 224 × 224 px",
            "ImageNet-C",
            image_folder.imagenet_c,
            _imagenet_c(),
            corrupted=True,
        ),
    )
}


def available() -> list[str]:
    """The names that ``load`` accepts, besides folders of the user's own.

    >>> available()
    ['digits', 'cifar10', 'cifar100', 'cifar10-c', 'cifar100-c', 'digits-c', 'imagenet-c']
    """
    return list(SOURCES)


def get(name: str) -> Source:
    """The source of that name."""
    if name not in SOURCES:
        raise unknown_name("dataset", name, SOURCES)
    return SOURCES[name]


def find_root(root: str | Path | None = None) -> Path:
    """Where datasets lie: what was given, else ``MEDBN_DATA``, else the platform's cache folder."""
    given = root if root is not None else os.environ.get("MEDBN_DATA")
    if given:
        return Path(given).expanduser()
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "medbn"


def load(
    name: str | Path,
    split: str = "test",
    *,
    corruption: str | None = None,
    severity: int = 5,
    seed: int = 0,
    frost: str | Path | None = None,
    root: str | Path | None = None,
    **options: Any,
) -> Dataset:
    """Open a dataset by name, or by its path (any name with a slash): a folder of class folders, or of ``.npy`` files.

    ``corruption`` and ``severity`` choose a part of the corrupted ones ("cifar10-c"). With a clean one ("digits",
    "cifar10", a folder) they corrupt its images as they are read, with the same bits as ``medbn data make`` writes.

    >>> load("digits", corruption="fog", severity=3, frost="synthetic").name
    'digits/fog/3'
    """
    if split not in ("train", "test"):
        raise unknown_name("split", split, ("train", "test"))
    if isinstance(name, Path) or os.sep in name or "/" in name or name in (".", ".."):
        if (Path(name) / "labels.npy").is_file():
            if split != "test":
                raise ValueError(f"{name} has only a test split.")
            return arrays(name, corruption or "", severity, **options)
        dataset = image_folder.folder(name, split=split, **options)
    else:
        source = get(name)
        if not source.present(root):
            raise FileNotFoundError(f"{name} is not in {find_root(root)}: {source.hint()}.")
        if source.corrupted:
            if split != "test":
                raise ValueError(f"{name} has only a test split.")
            if corruption is None:
                raise ValueError(f"{name} needs a corruption: {', '.join(corruptions.NAMES)}.")
            return source.open(source.path(root), corruption=corruption, severity=severity, **options)
        dataset = source.open(source.path(root), split=split, **options)
    if corruption is None:
        return dataset
    return corrupted(dataset, corruption, severity, seed=seed, frost=frost)


def corrupted(
    dataset: Dataset, corruption: str, severity: int, *, seed: int = 0, frost: str | Path | None = None
) -> Dataset:
    """The dataset with its images corrupted as they are read."""
    corruptions.check(corruption, severity, frost)

    def read(some: Indices) -> Tensor:
        images = dataset.read(some)
        if not len(some):
            return images
        if isinstance(some, range) and some.step == 1:
            return corruptions.corrupt(images, corruption, severity, seed=seed, first=some.start, frost=frost)
        return _one_by_one(images, [int(number) for number in some])

    def _one_by_one(images: Tensor, numbers: Sequence[int]) -> Tensor:
        result = images.clone()
        for place, number in enumerate(numbers):
            part = slice(place, place + 1)
            result[part] = corruptions.corrupt(images[part], corruption, severity, seed=seed, first=number, frost=frost)
        return result

    def identify() -> str:
        texture = corruptions.frost_fingerprint(frost) if corruption == "frost" else ""
        return digest(dataset.fingerprint, corruption, f"{severity} {seed} {corruptions.VERSION}", texture)

    return Dataset(
        f"{dataset.name}/{corruption}/{severity}",
        dataset.split,
        dataset.classes,
        dataset.labels,
        dataset.shape,
        read,
        identify,
        dataset.mirrors,
    )


def obtain(
    name: str,
    root: str | Path | None = None,
    *,
    keep: bool = False,
    progress: Callable[[Archive], Progress] | None = None,
) -> Path:
    """Fetch a dataset: download, verify, unpack. What is there already is left as it is.

    ``keep`` keeps the archives; ``progress`` makes a progress callback for each of them.
    """
    source = get(name)
    if not source.archives:
        if not source.present(root):
            raise FileNotFoundError(f"{name} is made, not fetched: {source.hint()}.")
        return source.path(root)
    if source.clean and source.present(root) and not source.complete(root):
        raise FileExistsError(
            f"{source.path(root)} holds a part of {name} already: finish it with medbn data make {name}, or remove it."
        )
    place = find_root(root)
    place.mkdir(parents=True, exist_ok=True)
    for archive, target, inside in source.archives:
        if (place / target).is_dir():
            continue
        file = fetch(archive, place, progress=progress(archive) if progress else None)
        (place / target).parent.mkdir(parents=True, exist_ok=True)
        unpack(file, place / target, inside=inside)
        if not keep:
            file.unlink()
    return source.path(root)
