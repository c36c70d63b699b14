"""Datasets by name: what is known about each of them before it is opened."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .._errors import unknown_name
from .._registry import Registry
from . import corruptions
from .dataset import Dataset
from .download import Archive
from .segmentation import SegmentationDataset

Opener = TypeVar("Opener", bound=Callable[..., Dataset | SegmentationDataset])

TASKS = ("classification", "segmentation")


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a named dataset: how to open it, where to get it, how large it is."""

    name: str
    open: Callable[..., Any]
    """Called with the dataset's folder and ``split``; where ``corrupted``, with ``corruption`` and ``severity``."""
    task: str = "classification"
    """What its labels are for: "classification" (``load`` opens it) or "segmentation" (``load_segmentation``)."""
    about: str = ""
    """A short description for ``medbn data list``."""
    folder: str | None = None
    """Where its files are, below the data folder; None for a dataset that needs no files there."""
    images: int | None = None
    """The number of test images, of each corruption and severity where ``corrupted``; None if not known."""
    shape: tuple[int, int, int] | None = None
    """Channels, height and width of an image; None if not known before it is opened."""
    classes: int | None = None
    """The number of classes; None if not known before it is opened."""
    archives: tuple[Archive, ...] = ()
    """What ``fetch`` downloads."""
    corrupted: bool = False
    """Whether it consists of corrupted images, one part per corruption and severity."""
    clean: str | None = None
    """The dataset whose images ``medbn data generate`` corrupts to make this one."""

    instructions: str = ""
    """How to get what must be requested from its owners: the address, and what to unpack into ``{path}``."""

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise unknown_name("task", self.task, TASKS)

    def path(self, root: str | Path | None = None) -> Path:
        """Return the dataset's folder, whether it exists or not."""
        return find_root(root) / (self.folder or "")

    def is_present(self, root: str | Path | None = None) -> bool:
        """Return whether at least a part of the dataset is there."""
        return self.folder is None or (self.path(root).is_dir() and any(self.path(root).iterdir()))

    def is_complete(self, root: str | Path | None = None) -> bool:
        """Return whether the whole dataset is there."""
        if not self.is_present(root):
            return False
        if self.clean and (self.is_generated(root) or not self.archives):
            return all((self.path(root) / f"{name}.npy").is_file() for name in corruptions.NAMES)
        return all((find_root(root) / archive.folder).is_dir() for archive in self.archives)

    def is_generated(self, root: str | Path | None = None) -> bool:
        """Return whether its files are arrays, as ``medbn data generate`` writes them; CIFAR's are published so too."""
        return self.clean is not None and any(self.path(root).glob("*.npy"))

    def how_to_get(self) -> str:
        """Return the commands that get the dataset, for error messages."""
        commands = [f"medbn data fetch {self.name}"] if self.archives else []
        if self.instructions:
            commands.append(f"`medbn data info {self.name}` says how")
        return ", or ".join(commands + ([f"medbn data generate {self.name}"] if self.clean else []))

    def how_to_request(self, root: str | Path | None = None) -> str:
        """Return the ``instructions`` with the dataset's folder filled in."""
        return self.instructions.format(path=self.path(root))


_registry = Registry[DatasetInfo]("dataset", forbidden="/\\")

available = _registry.available
get = _registry.get
unregister = _registry.unregister


def register(name: str, *, replace: bool = False, **facts: Any) -> Callable[[Opener], Opener]:
    """Make ``load(name)`` (``load_segmentation(name)``) call the decorated function, which opens a dataset.

    Args:
        name: the dataset's name from now on.
        replace: take the place of an earlier dataset of that name.
        facts: the fields of ``DatasetInfo``, all optional. A recipe's time estimate reads ``images`` and ``shape``.

    >>> import torch
    >>> from medbn import data
    >>> @data.register("noise", images=100, shape=(3, 32, 32), classes=10)
    ... def open_noise(folder, split):
    ...     images = torch.randint(0, 256, (100, 3, 32, 32), dtype=torch.uint8)
    ...     return data.from_tensors("noise", split, [str(k) for k in range(10)], images, torch.arange(100) % 10)
    >>> data.load("noise").shape
    (3, 32, 32)
    >>> data.unregister("noise")
    """

    def add(function: Opener) -> Opener:
        _registry.register(name, DatasetInfo(name, function, **facts), replace=replace)
        return function

    return add


def find_root(root: str | Path | None = None) -> Path:
    """Return the data folder: ``root`` if given, else ``MEDBN_DATA``, else ``medbn`` in the user's cache folder."""
    folder = root if root is not None else os.environ.get("MEDBN_DATA")
    return Path(folder).expanduser() if folder else cache_folder()


def cache_folder() -> Path:
    """Return ``medbn`` in the user's cache folder."""
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "medbn"
