"""Load what a cell needs: its images, its model, its clean images; then its key is known."""

from __future__ import annotations

import importlib
import inspect
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from .. import attacks, data, estimators, gradients, methods, models
from ..confusion import IGNORE
from ..data import Dataset, SegmentationDataset
from .cell import CONTINUAL, UNCORRUPTED, Cell
from .owned import count_benign
from .place import Place
from .requirements import foreign_setting, is_user_model, takes_size, weights_path


@dataclass(frozen=True)
class LoadedCell:
    """A cell with everything that it needs, and its key in the store."""

    cell: Cell
    key: str
    dataset: Dataset | SegmentationDataset
    model: nn.Module
    fingerprint: str
    """Of the model's weights."""
    clean: Dataset | SegmentationDataset | None
    """Clean training images, for a method that needs them."""
    batches: int
    """How many batches are run."""
    scored: tuple[int, ...] = ()
    """The classes that occur in the labels of a segmentation dataset; none for classification."""
    foreign: nn.Module | None = None
    """The attacker's own model, if she has one."""


def load_cell(cell: Cell, place: Place, batches: int | None) -> LoadedCell:
    """Load a cell, of which ``batches`` are run; None for all of its stream."""
    setting = cell.setting
    stream = load_stream(
        setting.data,
        cell.corruption,
        setting.severity,
        setting.frost,
        cell.seed,
        place.root,
        setting.size,
        setting.per_corruption,
        setting.by_label,
    )
    weights = weights_path(setting, place.root)
    model, fingerprint = load_model(setting.model, weights, len(stream.classes), stream.shape[0], place.device)
    needs_clean = methods.get(cell.method).needs_source_images and setting.clean is not None
    clean = _load_clean(setting.clean, place.root, _training_size(weights)) if needs_clean else None
    whole = len(stream) // setting.batch_size
    if whole == 0:
        raise ValueError(f"{stream.name} has {len(stream)} images, fewer than one batch of {setting.batch_size}.")
    foreign, foreign_fingerprint = None, ""
    if cell.attack is not None and cell.attack.model is not None:
        theirs = weights_path(foreign_setting(setting, cell.attack.model), place.root)
        classes, channels = len(stream.classes), stream.shape[0]
        foreign, foreign_fingerprint = load_model(cell.attack.model, theirs, classes, channels, place.device)
    clean_fingerprint = clean.fingerprint if clean else ""
    key = cell.key(stream.fingerprint, fingerprint, clean_fingerprint, user_code(cell), foreign_fingerprint)
    if cell.owned:
        whole = count_benign(whole, cell.owned)
    scored: tuple[int, ...] = ()
    if isinstance(stream, SegmentationDataset):
        # A named dataset says which classes it has. A folder may have a few of those of the table that it uses.
        scored = stream.scored if setting.data in data.available() else find_scored(stream)
    count = min(batches or whole, whole)
    return LoadedCell(cell, key, stream, model, fingerprint, clean, count, scored, foreign)


@lru_cache(maxsize=3)
def load_model(name: str, weights: str | None, classes: int, channels: int, device: str) -> tuple[nn.Module, str]:
    """Return a model on its device, and the fingerprint of its weights."""
    sizes = {} if weights == "default" else {"classes": classes, "channels": channels}
    model = models.get(name, weights=weights, **sizes).to(device)
    if device.startswith("cuda") and not any(t.dim() == 5 for t in (*model.parameters(), *model.buffers())):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model, models.fingerprint(model)


@lru_cache(maxsize=17)  # all corruptions of a CIFAR take half a gigabyte, and one stream has all of them
def load_stream(
    name: str,
    corruption: str,
    severity: int,
    frost: str | None,
    seed: int,
    root: str | None,
    size: tuple[int, int] | None = None,
    per_corruption: int | None = None,
    by_label: bool = False,
) -> Dataset | SegmentationDataset:
    """Return the images of a stream: in the order of their files for seed 0, else shuffled.

    Every corruption is shuffled in an order of its own, so that the first few batches of each contain other images.
    Sorted by label, those of one label keep their order.
    """
    if corruption == CONTINUAL:
        rest = (severity, frost, seed, root, size, per_corruption, by_label)
        parts = [load_stream(name, each, *rest) for each in data.corruptions.NAMES]
        if not all(isinstance(part, Dataset) for part in parts):
            raise ValueError(f"{name} is for segmentation; a continual stream is of images with one class each.")
        return data.chain(f"{name}/{CONTINUAL}/{severity}", parts)  # type: ignore[arg-type]
    load = _loader(name)
    chosen = None if corruption == UNCORRUPTED else corruption
    options = {} if size is None else {"size": size}
    images = load(name, corruption=chosen, severity=severity, frost=frost, root=root, **options)
    images = images.shuffle(zlib.crc32(f"{seed} {corruption}".encode())) if seed else images
    if per_corruption is not None:
        images = images.subset(range(min(per_corruption, len(images))))
    if not by_label:
        return images
    if not isinstance(images, Dataset):
        raise ValueError(f"{name} is for segmentation; a stream is sorted by label where images have one class each.")
    return images.subset(images.labels.argsort(stable=True))


@lru_cache(maxsize=16)
def find_scored(dataset: SegmentationDataset) -> tuple[int, ...]:
    """Return the classes that occur in the labels, all of which are read once."""
    pixels = torch.zeros(IGNORE + 1, dtype=torch.int64)
    for start in range(0, len(dataset), 16):
        labels = dataset.read_labels(range(start, min(start + 16, len(dataset))))
        pixels += torch.bincount(labels.flatten().long(), minlength=IGNORE + 1)
    return tuple(pixels[:IGNORE].nonzero().flatten().tolist()) or dataset.scored


@lru_cache(maxsize=2)
def _load_clean(name: str, root: str | None, size: tuple[int, int] | None) -> Dataset | SegmentationDataset:
    options = {"size": size} if size is not None and takes_size(name) else {}
    return _loader(name)(name, "train", root=root, **options)


def _training_size(weights: str | None) -> tuple[int, int] | None:
    """Return the height and width that a segmentation model was trained at, as its file of weights says."""
    if weights is None or not weights.endswith(".safetensors"):
        return None
    height, _, width = models.metadata(weights).get("size", "").partition("x")
    return (int(height), int(width)) if height.isdigit() and width.isdigit() else None


def _loader(name: str) -> Callable[..., Dataset | SegmentationDataset]:
    return data.load_segmentation if data.task_of(name) == "segmentation" else data.load


def user_code(cell: Cell) -> str:
    """Return the source of the user's own code that the cell runs: everything that other packages have registered."""
    parts: list[Any] = []
    if is_user_model(cell.setting.model):
        parts.append(importlib.import_module(cell.setting.model.split(":")[0]))
    parts.append(models.get_function(cell.setting.model))
    parts += [data.corruptions.get(name).apply for name in cell.corruptions]
    parts.append(estimators.get(cell.estimator).function)
    parts.append(methods.get(cell.method))
    if cell.attack is not None:
        parts += [attacks.objectives.get(cell.attack.objective), attacks.scenarios.get(cell.scenario)]
        parts.append(gradients.get_function(cell.attack.gradient))
    modules = [getattr(part, "__module__", None) or "" for part in parts]  # None where code was run by exec()
    own = [part for part, module in zip(parts, modules, strict=True) if part and not module.startswith("medbn.")]
    return "\n".join(map(_source, own))


def _source(code: Any) -> str:
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):  # typed into an interpreter
        return repr(getattr(code, "__qualname__", code))
