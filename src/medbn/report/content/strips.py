"""Picture strips of segmentation: an image, its labels, and what each defence predicts without and under attack."""

from __future__ import annotations

from typing import Any

import torch

from ... import confusion
from ...bench import Result, Store, Strip, read_strips
from ..document import Gallery, Part, Picture
from .classes import class_legend, class_names
from .labels import attack_label, capitalise, corruption_label, estimator_label, method_label
from .panels import Panel

_DEFENCES = 8
"""Rows of a strip, at most: each has pictures, and a page has to stay small."""


def strip_parts(panel: Panel, store: Store) -> list[Part]:
    """Return one gallery for each attacked batch of the first stream that has pictures; nothing for classification."""
    if not panel.results.dense or panel.attack is None or panel.sweep:
        return []
    for result in panel.results.cells:
        if read_strips(store, result.key):
            return _stream_parts(panel, store, result.stream)
    return []


def _stream_parts(panel: Panel, store: Store, stream: tuple[Any, ...]) -> list[Part]:
    strips: dict[tuple[str, str], list[tuple[Result, list[Strip]]]] = {}
    for result in panel.results.cells:
        if result.stream == stream and (stored := read_strips(store, result.key)):
            strips.setdefault((result.cell.method, result.cell.estimator), []).append((result, stored))
    groups = [group for group in panel.groups if group in strips][:_DEFENCES]
    longest = max(len(stored) for one in strips.values() for _, stored in one)
    return [_gallery(panel, {group: strips[group] for group in groups}, batch) for batch in range(longest)]


def _gallery(panel: Panel, strips: dict[tuple[str, str], list[tuple[Result, list[Strip]]]], batch: int) -> Gallery:
    """Return the pictures of one batch: those that all defences share, then a row for each defence."""
    rows: list[tuple[str, list[Picture]]] = []
    several = len({method for method, _ in strips}) > 1
    corruption = ""
    for (method, estimator), attacked in strips.items():
        there = [(result, stored[batch]) for result, stored in attacked if batch < len(stored)]
        if not there:
            continue
        result, strip = max(there, key=lambda pair: _harm(pair[0].batches[batch]))  # the first of the most harmful
        ring = _locate_target(result, batch)
        if not rows:
            corruption = corruption_label(result.cell.corruption)
            shared = [
                Picture(strip.image, "the first image of the batch", "image", ring),
                Picture(strip.truth, "its labels", _target(panel, result, batch) or "truth", ring),
                Picture(strip.clean, "the attacker's image, as it was", "malicious image, before"),
            ]
            rows.append(("the batch", shared))
        name = f"{method_label(method)}, {estimator_label(estimator)}" if several else estimator_label(estimator)
        gradient = f", {attack_label(result.cell.attack, panel.columns)}" if len(panel.columns) > 1 else ""
        rows.append((name, [*_predictions(strip, result.batches[batch], gradient, ring), _malicious(strip, gradient)]))
    title = f"{capitalise(panel.title)}: batch {batch + 1}" if panel.title else f"Batch {batch + 1}"
    title += f" ({corruption})" if corruption and corruption != "none" else ""
    return Gallery(title, rows, _caption(panel), large=True, legend=class_legend(panel.results))


def _predictions(
    strip: Strip, metrics: dict[str, Any], gradient: str, ring: tuple[float, float] | None
) -> list[Picture]:
    before, after = _iou(metrics, "confusion_without"), _iou(metrics, "confusion")
    outcome = ""
    if "hit" in metrics:
        outcome = "; the target is hit" if metrics["hit"] else "; the target is missed"
    return [
        Picture(strip.without, "prediction without attack", f"without attack{before}", ring),
        Picture(strip.under, f"prediction under attack{gradient}", f"under attack{gradient}{after}{outcome}", ring),
    ]


def _malicious(strip: Strip, gradient: str) -> Picture:
    return Picture(strip.malicious, f"the attacker's image, crafted{gradient}", "malicious image")


def _caption(panel: Panel) -> str:
    worst = " Of several attacks, the most harmful on the batch is shown." if len(panel.columns) > 1 else ""
    ring = " The ring is around the targeted pixel." if panel.targeted else ""
    return f"The mean IoU is that of the benign images of this batch.{ring}{worst}"


def _iou(metrics: dict[str, Any], name: str) -> str:
    """Return the mean IoU of one batch, as a part of a caption."""
    matrix = metrics.get(name)
    value = float("nan") if matrix is None else confusion.mean_iou(torch.tensor(matrix))
    return "" if value != value else f": mean IoU {100 * value:.0f}\u00a0%"


def _harm(metrics: dict[str, Any]) -> float:
    """Return a number by which attacks on the same batch are compared."""
    if "hit" in metrics:
        return float(metrics["hit"])
    matrix = metrics.get("confusion")
    return float(metrics["wrong"]) if matrix is None else -confusion.mean_iou(torch.tensor(matrix))


def _target(panel: Panel, result: Result, batch: int) -> str:
    """Return a caption that names the target class of a targeted pixel, or ""."""
    target, names = result.batches[batch].get("target"), class_names(panel.results)
    return f"truth; the target class is {names[target]}" if isinstance(target, int) and 0 <= target < len(names) else ""


def _locate_target(result: Result, batch: int) -> tuple[float, float] | None:
    """Return the place of the targeted pixel as shares of the width and the height; None if it is not known."""
    pixel, size = result.batches[batch].get("pixel"), result.facts.get("size")
    for pair in (pixel, size):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(one, int) and one >= 0 for one in pair):
            return None
    assert isinstance(pixel, list)
    assert isinstance(size, list)
    if not (pixel[0] < size[0] and pixel[1] < size[1]):
        return None
    return (pixel[1] + 0.5) / size[1], (pixel[0] + 0.5) / size[0]
