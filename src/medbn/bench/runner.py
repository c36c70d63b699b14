"""Run cells: open what they need, take up where they stopped, keep every batch."""

from __future__ import annotations

import importlib
import inspect
import io
import os
import platform
import shlex
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import attacks, data, estimators, methods, models
from .._version import __version__
from ..attacks import Outcome, Targeted
from ..data import Dataset
from ..methods._call import extract_logits
from ..methods.base import Adapter
from .cell import Cell, Setting
from .poison_cache import Memo, Remembering
from .store import Store

EXAMPLES = 6
"""Malicious images of the first batch that are kept for the report."""


@dataclass(frozen=True)
class Place:
    """Where things are, and where to compute."""

    root: str | None = None
    device: str = "cpu"
    threads: int | None = None
    """Of torch, in this process; None leaves it as it is."""


@dataclass(frozen=True)
class Event:
    """Something happened to a cell.

    ``kind`` is ``begun``, ``batch``, ``done`` (all batches are) or ``busy`` (another process is at it).
    """

    kind: str
    key: str
    cell: Cell
    batch: int = 0
    batches: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)


Report = Callable[[Event], object]


# --- what a cell needs ------------------------------------------------------------------------------------------------


def weights_of(setting: Setting, root: str | Path | None) -> str | None:
    """Where the weights of a setting are: as given, or where ``medbn train`` is told to put them.

    None for a function of the user's, which brings its own unless they are given.
    """
    if setting.weights is not None or users(setting.model):
        return setting.weights
    name = f"{setting.model.replace(':', '-')}-{Path(setting.clean or setting.data).name}.safetensors"
    return str(data.find_root(root) / "models" / name)


def users(model: str) -> bool:
    """Whether a model is a function of the user's own."""
    return ":" in model and model.split(":")[0] not in models.LIBRARIES


def missing(setting: Setting, methods_: tuple[str, ...], root: str | Path | None) -> list[str]:
    """What a setting needs and is not there, each with the command that gets it."""
    problems = []
    names = [setting.data] + ([setting.clean] if "eata" in methods_ and setting.clean else [])
    for name in names:
        if "/" in name or os.sep in name:
            if not Path(name).is_dir():
                problems.append(f"the folder {name}")
        elif not data.get(name).present(root):
            problems.append(f"{name} (get it: {data.get(name).hint()})")
    if "eata" in methods_ and setting.clean is None:
        problems.append(f"clean images for EATA on {setting.data} (give a folder with --clean, or leave eata out)")
    weights = weights_of(setting, root)
    if weights not in (None, "shipped", "default") and not Path(weights).is_file():
        problems.append(f"weights {weights}, but there is no such file ({_weights_hint(setting, Path(weights))})")
    return list(dict.fromkeys(problems))


def _weights_hint(setting: Setting, path: Path) -> str:
    """How to get weights for a setting, which are to lie at that path if nobody has named it."""
    source = data.SOURCES.get(setting.data)
    clean = setting.clean or (source.clean if source and source.corrupted else setting.data)
    named = setting.weights is not None
    give = "name another file" if named else "give medbn run a file with --weights"
    if setting.model not in models.available() or clean is None:
        return give
    out = path.with_suffix(".safetensors")  # the only kind that medbn train writes
    command = shlex.join(["medbn", "train", setting.model, "--data", clean, "--out", str(out)])
    use = f", and then name {out}" if out != path else ""
    return f"make one: {command}{use}; or {give}"


@lru_cache(maxsize=3)
def _model(name: str, weights: str | None, classes: int, channels: int, device: str) -> tuple[nn.Module, str]:
    sizes = {} if weights == "default" or users(name) else {"classes": classes, "channels": channels}
    model = models.get(name, weights=weights, **sizes).to(device)
    if device.startswith("cuda") and not any(t.dim() == 5 for t in (*model.parameters(), *model.buffers())):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model, models.fingerprint(model)


def _batches(images: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Images as GPUs convolve them fastest, channels last, and as they are on a CPU."""
    for batch, labels in images:
        last = batch.is_cuda and batch.dim() == 4
        yield (batch.contiguous(memory_format=torch.channels_last) if last else batch), labels


@lru_cache(maxsize=16)  # all corruptions of a CIFAR take half a gigabyte
def _dataset(name: str, corruption: str, severity: int, frost: str | None, seed: int, root: str | None) -> Dataset:
    found = data.load(name, corruption=corruption, severity=severity, frost=frost, root=root)
    # Every corruption in an order of its own: a few batches of each are then of many images, and not of the same few.
    return found.shuffled(zlib.crc32(f"{seed} {corruption}".encode())) if seed else found


def _code(cell: Cell) -> str:
    """The text of what is the user's own: a model's module, an estimator's function."""
    parts = []
    if users(cell.setting.model):
        parts.append(_source(importlib.import_module(cell.setting.model.split(":")[0])))
    function = estimators.get(cell.estimator).function
    if not function.__module__.startswith("medbn."):
        parts.append(_source(function))
    return "\n".join(parts)


def _source(thing: Any) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):  # typed into an interpreter
        return repr(getattr(thing, "__qualname__", thing))


@lru_cache(maxsize=2)
def _clean(name: str, root: str | None) -> Dataset:
    return data.load(name, "train", root=root)


@dataclass(frozen=True)
class Prepared:
    """A cell with all that it needs, and the key under which it is kept."""

    cell: Cell
    key: str
    dataset: Dataset
    model: nn.Module
    weights: str
    """The model's fingerprint."""
    clean: Dataset | None
    batches: int


def prepare(cell: Cell, place: Place, batches: int | None) -> Prepared:
    """Open what a cell needs."""
    setting = cell.setting
    stream = _dataset(setting.data, cell.corruption, setting.severity, setting.frost, cell.seed, place.root)
    weights = weights_of(setting, place.root)
    model, fingerprint = _model(setting.model, weights, len(stream.classes), stream.shape[0], place.device)
    clean = _clean(setting.clean, place.root) if cell.method == "eata" and setting.clean else None
    whole = len(stream) // setting.batch_size
    if whole == 0:
        raise ValueError(f"{stream.name} has {len(stream)} images, fewer than one batch of {setting.batch_size}.")
    key = cell.key(stream.fingerprint, fingerprint, clean.fingerprint if clean else "", _code(cell))
    return Prepared(cell, key, stream, model, fingerprint, clean, min(batches or whole, whole))


# --- one cell ---------------------------------------------------------------------------------------------------------


def execute(
    cell: Cell, store: Store, place: Place, batches: int | None = None, report: Report = lambda event: None
) -> None:
    """Run one cell to its end, from where the store has it; every finished batch is kept at once."""
    ready = prepare(cell, place, batches)
    done, _ = store.progress(ready.key)

    def tell(kind: str, batch: int, metrics: dict[str, Any] | None = None) -> None:
        report(Event(kind, ready.key, cell, batch, ready.batches, metrics or {}))

    if done >= ready.batches:
        tell("done", ready.batches)
        return
    if not store.claim(ready.key, cell.describe(), facts(place)):
        tell("busy", done)
        return
    try:
        done, state = store.progress(ready.key)  # what another process has kept since
        if done and not state:
            raise ValueError(f"{store.path} is sealed: {cell.label} cannot be continued. Use another store.")
        tell("begun", done)
        stream = _Stream(ready, place.device)
        where = facts(place)["device"]
        if state is not None:
            stream.load(state)
        source = ready.dataset.batches(
            cell.setting.batch_size, device=place.device, first=done, limit=ready.batches - done, drop_last=True
        )
        for number, (images, labels) in enumerate(_batches(source), start=done):
            began = time.perf_counter()
            metrics, pictures = stream.step(images, labels, number)
            metrics["device"] = where
            store.commit(ready.key, number, metrics, stream.state(), pictures, time.perf_counter() - began)
            tell("batch", number + 1, metrics)
        tell("done", ready.batches)
    finally:
        store.release(ready.key)


_memo = Memo()


def adapter_of(ready: Prepared, device: str, source_batches: int | None = None) -> Adapter:
    """A cell's adapter; EATA looks at so many batches of clean images, or at all that it asks for."""
    cell = ready.cell
    options = dict(cell.options)
    if ready.clean is not None:
        samples = int(options.get("fisher_samples", methods.options("eata", cell.setting.preset)["fisher_samples"]))
        needed = source_batches or -(-samples // cell.setting.batch_size)
        options["source"] = _batches(ready.clean.batches(cell.setting.batch_size, device=device, limit=needed))
    estimator = None if cell.method == "source" else cell.estimator
    return methods.adapt(
        ready.model,
        cell.method,
        estimator,
        preset=cell.setting.preset,
        predict=cell.predict,
        seed=cell.seed,
        **options,
    )


class _Stream:
    """A cell's adapter under its scenario, batch by batch."""

    def __init__(self, ready: Prepared, device: str) -> None:
        cell = ready.cell
        self.cell, self.device = cell, device
        self.adapter = adapter_of(ready, device)
        self.scenario = None
        if cell.attack is not None:
            self.attack = Remembering(cell.attack.make(cell.seed), _memo, ready.weights)
            kind = attacks.scenarios.get(cell.scenario)
            last = slice(cell.setting.batch_size - cell.setting.malicious, cell.setting.batch_size)
            self.scenario = kind(self.adapter, self.attack, last)

    def step(self, images: Tensor, labels: Tensor, number: int) -> tuple[dict[str, Any], Any]:
        """One batch: its numbers, and some of its images before and after."""
        began = time.perf_counter()
        first = number == self.cell.warm_up
        if self.scenario is None:
            with torch.no_grad():
                logits = extract_logits(self.adapter(images), self.adapter.logits, len(images))
            wrong = int((logits.argmax(1) != labels).sum())  # which waits for a GPU
            took = time.perf_counter() - began
            already = int(Targeted().harm(logits, labels, torch.ones_like(labels, dtype=torch.bool)))
            return {"images": len(labels), "wrong": wrong, "already": already, "adapt_s": took}, None
        if number < self.cell.warm_up:
            wrong = int((self.scenario.serve(images).argmax(1) != labels).sum())
            return {"images": len(labels), "wrong_clean": wrong, "adapt_s": time.perf_counter() - began}, None
        self.attack.first = first
        outcome = self.scenario.step(images, labels)
        metrics = measured(outcome)
        metrics["attack_s"] = 0.0 if self.attack.shared else self.attack.seconds
        metrics["adapt_s"] = time.perf_counter() - began - self.attack.seconds
        metrics["shared"] = self.attack.shared
        return metrics, _pictures(images, outcome) if first else None

    def state(self) -> bytes:
        """What the next batch depends on."""
        state = self.scenario.state() if self.scenario else {"adapter": self.adapter.snapshot()}
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    def load(self, stored: bytes) -> None:
        """Continue from there."""
        state = torch.load(io.BytesIO(stored), map_location="cpu", weights_only=True)
        if self.scenario:
            self.scenario.load(state)
        else:
            self.adapter.restore(state["adapter"])


def measured(outcome: Outcome) -> dict[str, Any]:
    """An attacked batch in numbers; malicious images count in ``wrong_clean`` alone, where they are still clean."""
    benign, labels = outcome.benign, outcome.labels
    attacked, clean = (logits.argmax(dim=1) != labels for logits in (outcome.attacked, outcome.clean))
    loss = outcome.objective.value(outcome.attacked, labels, benign).item()
    metrics: dict[str, Any] = {
        "images": len(labels),
        "benign": int(benign.sum()),
        "wrong": int(attacked[benign].sum()),
        "wrong_without": int(clean[benign].sum()),
        "wrong_clean": int(clean.sum()),
        "loss": loss,
    }
    if outcome.objective.targeted:
        metrics["hit"] = int(outcome.harm())
        metrics["already"] = int(outcome.harm_without())
    return metrics


def _pictures(images: Tensor, outcome: Outcome) -> list[tuple[bytes, bytes]]:
    places = (~outcome.benign).nonzero().flatten()[:EXAMPLES]
    return [(png(images[place]), png(outcome.poisoned[place])) for place in places.tolist()]


def png(image: Tensor) -> bytes:
    """An image (C, H, W) in [0, 1] as a PNG file."""
    from PIL import Image

    array = (image.detach().clamp(0, 1) * 255).round().to(torch.uint8).cpu().permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array).save(file, "PNG")
    return file.getvalue()


# --- where it runs ----------------------------------------------------------------------------------------------------


def facts(place: Place) -> dict[str, Any]:
    """The machine and the versions that the numbers come from."""
    device = torch.cuda.get_device_name(place.device) if place.device.startswith("cuda") else _processor()
    return {
        "device": device,
        "threads": torch.get_num_threads(),
        "medbn": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "CPU"
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{named[0]} ({os.cpu_count()} cores)" if named else "CPU"


@contextmanager
def deterministic(place: Place) -> Iterator[None]:
    """The settings under which the same cell gives the same bits on the same machine; put back afterwards.

    An operation of a model that has no deterministic form warns, and its numbers may then vary in the last bits. cuDNN
    does not try out its algorithms (benchmark), although it would choose among deterministic ones: which of them is
    fastest varies from run to run, and with it the bits of a stream that is continued. New memory is not filled with
    NaN, as torch does by default in this mode at the price of one more write of every activation: nothing reads it.
    """
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.get_num_threads(),
    )
    memory: Any = torch.utils.deterministic
    fills = memory.fill_uninitialized_memory
    memory.fill_uninitialized_memory = False
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    if place.threads:
        torch.set_num_threads(place.threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before[2:4]
        torch.set_num_threads(before[4])
        memory.fill_uninitialized_memory = fills
