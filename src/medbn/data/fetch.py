"""Download, verify and extract the archives of a named dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .download import Archive, Progress, download
from .extract import extract
from .registry import find_root, get


def fetch(
    name: str,
    root: str | Path | None = None,
    *,
    keep: bool = False,
    progress: Callable[[Archive], Progress] | None = None,
) -> Path:
    """Download, verify and extract a dataset, and return its folder. What is already there is not downloaded again.

    Args:
        name: one of ``available()``.
        root: the data folder, see ``find_root``.
        keep: do not delete the archives after they are extracted.
        progress: called with each archive; returns the ``progress`` argument of its download.
    """
    info = get(name)
    if not info.archives:
        if info.instructions and not info.is_present(root):
            raise FileNotFoundError(f"{name} must be requested from its owners: `medbn data info {name}` says how.")
        if not info.is_present(root):
            raise FileNotFoundError(f"{name} cannot be downloaded; generate it: {info.how_to_get()}.")
        return info.path(root)
    if info.is_generated(root) and not info.is_complete(root):
        raise FileExistsError(
            f"{info.path(root)} already holds a part of {name}: complete it with medbn data generate {name}, or"
            " remove it."
        )
    base = find_root(root)
    base.mkdir(parents=True, exist_ok=True)
    for archive in info.archives:
        target = base / archive.folder
        if target.is_dir():
            continue
        file = download(archive, base, progress=progress(archive) if progress else None)
        target.parent.mkdir(parents=True, exist_ok=True)
        extract(file, target, inside=archive.inside)
        if not keep:
            file.unlink()
    return info.path(root)
