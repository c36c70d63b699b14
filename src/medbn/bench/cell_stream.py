"""Run one cell: serve its stream batch by batch, and store every batch with the state after it."""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from .. import attacks, methods
from .._errors import one_line
from ..data import SegmentationDataset
from ..methods import Adapter, predict_logits
from .cell import Cell
from .events import Event, OnEvent, ignore
from .loading import LoadedCell, load_cell
from .metrics import attacked_metrics, unattacked_metrics, warm_up_metrics
from .owned import OwnedStream
from .pictures import STRIPS, example_pictures, strip_pictures
from .place import Place, machine_facts
from .poison_cache import CachedAttack, PoisonCache
from .store import Store

_poison_cache = PoisonCache()
"""Shared by the cells that this process runs one after the other."""


def run_cell(cell: Cell, store: Store, place: Place, batches: int | None = None, on_event: OnEvent = ignore) -> None:
    """Run one cell to its end, from the last batch that the store has; every finished batch is stored at once.

    A cell that another process works on is left alone, with an event that says so.
    """
    with closing(run_batches(cell, store, place, batches)) as events:
        for event in events:
            on_event(event)


def run_batches(cell: Cell, store: Store, place: Place, batches: int | None = None) -> Generator[Event, None, None]:
    """Do what ``run_cell`` does, and yield every event; what is stored by then stays when the caller stops."""
    loaded = load_cell(cell, place, batches)
    done, _ = store.progress(loaded.key)

    def event(kind: str, batch: int, metrics: dict[str, Any] | None = None) -> Event:
        return Event(kind, loaded.key, cell, batch, loaded.batches, metrics or {})

    if done >= loaded.batches:
        yield event("finished", loaded.batches)
        return
    facts = {**machine_facts(place), **_dataset_facts(loaded)}
    if not store.claim(loaded.key, cell.to_dict(), facts):
        yield event("busy", done)
        return
    try:
        done, state = store.progress(loaded.key)  # another process may have stored more since
        if done and not state:
            raise ValueError(f"{store.path} is sealed: {cell.label} cannot be continued. Use another store.")
        yield event("started", done)
        stream = CellStream(loaded, place.device)
        if state is not None:
            _continue(stream, state, store)
        source = stream.batches(done, loaded.batches - done)
        for number, (images, labels) in enumerate(in_memory_format(source), start=done):
            began = time.perf_counter()
            metrics, pictures = stream.step(images, labels, number)
            metrics["device"] = facts["device"]
            first = len(pictures) * (number - cell.warm_up)
            seconds = time.perf_counter() - began
            store.commit(loaded.key, number, metrics, stream.state(), pictures, seconds, first_example=first)
            yield event("batch", number + 1, metrics)
        yield event("finished", loaded.batches)
    finally:
        store.release(loaded.key)


def _dataset_facts(loaded: LoadedCell) -> dict[str, Any]:
    """Return what a report needs to know of a segmentation dataset, which may not be there when it is made."""
    dataset = loaded.dataset
    if not isinstance(dataset, SegmentationDataset):
        return {}
    colours = [[*each] for each in dataset.colours]
    return {"classes": [*dataset.classes], "colours": colours, "scored": [*loaded.scored], "size": [*dataset.size]}


def _continue(stream: CellStream, state: bytes, store: Store) -> None:
    """Load a stored state; a StoreError if it cannot be read, which stores without checksums show only here."""
    try:
        stream.load_state(state)
    except Exception as error:  # a damaged file raises errors of many types
        reason = f"{type(error).__name__}: {one_line(error, 100)}"
        raise store.damaged(f"the state of {stream.cell.label} cannot be read ({reason})") from error


class CellStream:
    """The adapter of a cell under the cell's scenario, batch by batch."""

    def __init__(self, loaded: LoadedCell, device: str) -> None:
        cell = loaded.cell
        self.cell = cell
        self.adapter = make_adapter(loaded, device)
        self.scenario = None
        self.device = device
        self.owned: OwnedStream | None = None
        self.dataset, self.scored = loaded.dataset, loaded.scored
        if cell.attack is not None:
            attack = cell.attack.build(cell.seed, loaded.scored or None, loaded.foreign)
            self.attack = CachedAttack(attack, _poison_cache, loaded.fingerprint)
            malicious = slice(cell.setting.batch_size - cell.setting.malicious, cell.setting.batch_size)
            options: dict[str, Any] = {}
            if cell.owned:
                self.owned = OwnedStream(loaded.dataset, cell.setting.batch_size, cell.owned, device)
                options = {"share": cell.owned, "own": self._own}
            self.scenario = attacks.scenarios.get(cell.scenario)(self.adapter, self.attack, malicious, **options)

    def batches(self, first: int, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Return batches of the stream, in order; where some are the attacker's, the others."""
        if self.owned is not None:
            return self.owned.benign(first, limit)
        size = self.cell.setting.batch_size
        return self.dataset.batches(size, device=self.device, first=first, limit=limit, drop_last=True)

    def _own(self, number: int) -> tuple[Tensor, Tensor]:
        assert self.owned is not None
        return next(in_memory_format([self.owned.own(number)]))

    def step(self, images: Tensor, labels: Tensor, number: int) -> tuple[dict[str, Any], list[tuple[bytes, bytes]]]:
        """Serve batch ``number``; return its metrics, and pictures of the first attacked batches."""
        began = time.perf_counter()
        if self.scenario is None:
            logits = predict_logits(self.adapter, images)
            metrics = unattacked_metrics(logits, labels, self.scored or None, self.cell.seed)  # waits for a GPU
            return {**metrics, "adapt_s": time.perf_counter() - began}, []
        if number < self.cell.warm_up:
            metrics = warm_up_metrics(self.scenario.serve(images), labels)
            return {**metrics, "adapt_s": time.perf_counter() - began}, []
        first = number == self.cell.warm_up
        self.attack.first = first
        outcome = self.scenario.step(images, labels)
        metrics = attacked_metrics(outcome)
        metrics["attack_s"] = 0.0 if self.attack.shared else self.attack.seconds
        metrics["adapt_s"] = time.perf_counter() - began - self.attack.seconds
        metrics["shared"] = self.attack.shared
        return metrics, self._pictures(images, outcome, number - self.cell.warm_up)

    def _pictures(self, images: Tensor, outcome: attacks.Outcome, number: int) -> list[tuple[bytes, bytes]]:
        """Return the pictures of one attacked batch; only the first ones have any."""
        if isinstance(self.dataset, SegmentationDataset):
            return strip_pictures(images, outcome, self.dataset.colours) if number < STRIPS else []
        return example_pictures(images, outcome) if number == 0 else []

    def state(self) -> bytes:
        """Return everything that the next batch depends on."""
        state = self.scenario.state() if self.scenario else {"adapter": self.adapter.snapshot()}
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    def load_state(self, stored: bytes) -> None:
        """Continue from what ``state`` returned."""
        state = torch.load(io.BytesIO(stored), map_location="cpu", weights_only=True)
        if self.scenario:
            self.scenario.load(state)
        else:
            self.adapter.restore(state["adapter"])


def make_adapter(loaded: LoadedCell, device: str, source_batches: int | None = None) -> Adapter:
    """Return the adapter of a cell.

    ``source_batches`` limits the clean batches of a method that needs them; None for as many as its option
    ``fisher_samples`` asks for, or all of them if it has no such option.
    """
    cell = loaded.cell
    options = dict(cell.options)
    if loaded.clean is not None:
        samples = {**methods.options(cell.method, cell.setting.preset), **options}.get("fisher_samples")
        needed = None if samples is None else -(-int(samples) // cell.setting.batch_size)
        clean = loaded.clean.batches(cell.setting.batch_size, device=device, limit=source_batches or needed)
        options["source"] = in_memory_format(clean)
    # A model without BatchNorm has one row, that of "mean": its own layers. Other estimators are refused for it.
    plain = cell.estimator == "mean" and not methods.has_batch_norm(loaded.model)
    with warnings.catch_warnings():
        if plain:
            warnings.filterwarnings("ignore", message=".* has no BatchNorm")
        adapter = methods.adapt(
            loaded.model,
            cell.method,
            None if plain or not methods.get(cell.method).adapts else cell.estimator,
            preset=cell.setting.preset,
            predict=cell.predict,
            seed=cell.seed,
            fuse=cell.fuse,
            **options,
        )
    adapter.graph = False  # stored numbers come from plain passes
    return adapter


def in_memory_format(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches in channels_last on a GPU, where convolutions are fastest so, and unchanged on a CPU."""
    for images, labels in batches:
        channels_last = images.is_cuda and images.dim() == 4
        yield (images.contiguous(memory_format=torch.channels_last) if channels_last else images), labels
