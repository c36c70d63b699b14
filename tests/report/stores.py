"""Stores made up for the tests, as runs of recipes would leave them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from medbn.bench import Cell, Recipe, Store
from medbn.bench.store_format import checksum
from medbn.report import Document

FACTS = {"device": "a machine", "medbn": "0", "torch": "2", "python": "3", "threads": 1}
ERRORS = {"mean": 60, "median": 30, "image_median": 20, "mad": 40, "mad_scaled": 50, "image_median@0.7": 15}
"""Errors under attack in per cent, by estimator."""

T = TypeVar("T")


def fill(
    path: Path, recipe: Recipe, *, batches: int = 2, shift: int = 0, prefix: str = "a", again: bool = False
) -> None:
    """Write a run of a recipe into a store.

    The error without attack is 10 %, that under attack is ``ERRORS``, with one more wrong prediction in the second
    batch. A targeted attack succeeds on the first batch; on BatchNorm also on the second, and on TENT one time less.

    Args:
        path: of the store, which may have runs already.
        recipe: what to run.
        batches: of each stream.
        shift: wrong predictions to add to each batch.
        prefix: of the keys of the cells; another prefix is like newer data or weights.
        again: the cells are in the store already.
    """
    with Store(path) as store:
        store.connection.execute("PRAGMA synchronous = OFF")  # a store of a test need not survive a power cut
        keys = []
        for number, cell in enumerate(recipe.cells()):
            key = f"{prefix}-{recipe.name}-{number:04}"
            keys.append(key)
            if again:
                continue
            store.claim(key, cell.to_dict(), FACTS)
            benign = cell.setting.batch_size - cell.setting.malicious
            for batch in range(batches):
                wrong = ERRORS[cell.estimator] * benign // 100 + batch + shift
                metrics = {"images": cell.setting.batch_size, "wrong": wrong, "adapt_s": 0.5, "device": "a machine"}
                if cell.attack is not None:
                    metrics |= {"benign": benign, "wrong_without": benign // 10, "wrong_clean": 12, "loss": 1.0}
                    metrics |= {"attack_s": 2.0, "shared": False}
                    if cell.attack.objective == "targeted":
                        successes = 1 + (cell.estimator == "mean") - (cell.method == "tent")
                        metrics |= {"hit": int(batch < successes), "already": 0}
                store.commit(key, batch, metrics, b"", [(b"\x89PNG clean", b"\x89PNG bad")] if batch == 0 else None)
            store.release(key)
        store.begin_run(json.loads(json.dumps(asdict(recipe))), f"medbn run {recipe.name}", FACTS, keys)


def keep_batches(store: Store, estimator: str, number: int, gradient: str | None = None) -> None:
    """Delete all but the first batches of an estimator, or of the cells that one kind of gradient attacks."""
    for stored in store.cells():
        if stored.cell["estimator"] == estimator and gradient in (None, stored.cell["attack"]["gradient"]):
            store.connection.execute("DELETE FROM batches WHERE key = ? AND number >= ?", (stored.key, number))


def set_wrong(store: Store, key: str, expression: str, batch: int | None = None) -> None:
    """Set the wrong predictions under attack of a cell, in all of its batches or in one."""
    store.connection.create_function("checksum", -1, checksum)
    metrics = f"json_set(metrics, '$.wrong', {expression})"
    store.connection.execute(
        f"UPDATE batches SET metrics = {metrics}, checksum = checksum(key, number, {metrics})"
        " WHERE key = ? AND (? IS NULL OR number = ?)",
        (key, batch, batch),
    )


def parts(document: Document, kind: type[T]) -> list[T]:
    """Return all parts of one kind, in order."""
    return list(_parts(document, kind))


def _parts(document: Document, kind: type[T]) -> Iterator[T]:
    for section in document.sections:
        yield from (part for part in section.parts if isinstance(part, kind))


RIGHT = {"mean": 20, "median": 50, "image_median": 80}
"""IoU of both classes under attack in per cent, by estimator; 90 without attack."""
SEGMENTATION_FACTS = FACTS | {
    "classes": ["road", "sky", "car"],
    "colours": [[128, 64, 128], [70, 130, 180], [0, 0, 142]],
    "scored": [0, 1, 2],
    "size": [4, 8],
}


def fill_segmentation(path: Path, recipe: Recipe, *, batches: int = 6, facts: dict[str, object] | None = None) -> None:
    """Write a run of a recipe for segmentation into a store, with pictures of two batches.

    Two of three classes have labels, and wrong pixels are predicted as the third, so that the IoU of both is the share
    of pixels that are right: ``RIGHT``, and one point more in each later batch. Straight-through gradients cost ten
    points, and a targeted pixel is hit in the first batch; on BatchNorm in every batch.
    """
    with Store(path) as store:
        store.connection.execute("PRAGMA synchronous = OFF")
        keys = []
        for number, cell in enumerate(recipe.cells()):
            keys.append(f"s-{recipe.name}-{number:04}")
            store.claim(keys[-1], cell.to_dict(), SEGMENTATION_FACTS if facts is None else facts)
            for batch in range(batches):
                metrics, pictures = _segmented_batch(cell, batch)
                store.commit(keys[-1], batch, metrics, b"", pictures, first_example=3 * batch)
            store.release(keys[-1])
        store.begin_run(json.loads(json.dumps(asdict(recipe))), f"medbn run {recipe.name}", FACTS, keys)


def _segmented_batch(cell: Cell, batch: int) -> tuple[dict[str, object], list[tuple[bytes, bytes]]]:
    metrics: dict[str, object] = {"images": 3, "adapt_s": 0.5, "device": "a machine"}
    if cell.attack is None:
        return metrics | _matrix("", 90), []
    stronger = cell.attack.gradient == "straight_through"
    metrics |= _matrix("", RIGHT[cell.estimator] + batch - 10 * stronger)
    metrics |= _matrix("_without", 90)
    metrics |= {"benign": 2, "attack_s": 2.0, "shared": False, "loss": 1.0}
    if cell.attack.objective == "targeted_pixel":
        hit = cell.estimator == "mean" or (batch == 0 and stronger)
        metrics |= {"hit": int(hit), "already": 0, "pixel": [1, 6], "target": 2}
    names = ("image", "truth", "without", "under", "clean", "malicious")
    files = [f"\x89PNG {name} {cell.estimator} {cell.attack.gradient} {batch}".encode("latin-1") for name in names]
    return metrics, [(files[0], files[1]), (files[2], files[3]), (files[4], files[5])] if batch < 2 else []


def _matrix(suffix: str, right: int) -> dict[str, object]:
    """Return the numbers of a prediction in which ``right`` of 100 pixels of each class are right."""
    rows = [[right, 0, 100 - right], [0, right, 100 - right], [0, 0, 0]]
    return {f"wrong{suffix}": 200 - 2 * right, f"confusion{suffix}": rows, "pixels": 200}
