"""Random crops of a segmentation dataset, in batches on the device."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property

import torch
from torch import Tensor

from ..data import SegmentationDataset, cut_crops, draw_crops

IN_MEMORY = 2**33
"""Datasets of fewer bytes than this are kept on the device; larger ones are read image by image."""
READERS = 16
"""The most threads that read images."""
AHEAD = 2
"""How many batches they are ahead."""

Pair = tuple[Tensor, Tensor]
"""Images and their labels, both bytes."""


class Crops:
    """Batches of random crops; a new one of every image in every epoch.

    Images are bytes until they are cropped, and are cropped on the device: a batch takes a few operations there.

    Args:
        dataset: the images.
        size: height and width of the crops.
        scale: the smallest and the largest factor by which images are scaled.
        device: where the batches are.
    """

    def __init__(
        self, dataset: SegmentationDataset, size: tuple[int, int], scale: tuple[float, float], device: torch.device
    ) -> None:
        self.dataset = dataset
        self.size = size
        self.scale = scale
        self.device = device

    def load(self) -> None:
        """Read the images of a dataset that is kept on the device; otherwise the first batch does it."""
        _ = self._images

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over one epoch in random order: images, float in [0, 1], and labels, int64. The rest is left out."""
        count = len(self.dataset)
        order = torch.randperm(count, generator=generator)
        places = draw_crops(
            count, self.dataset.size, self.size, generator, scale=self.scale, flip=self.dataset.horizontal_flip
        ).to(self.device)  # all at once: a step that copied its own would wait for the GPU
        starts = range(0, count - count % batch_size, batch_size)
        batches = self._take(order, starts, batch_size) if self._images else self._read(order, starts, batch_size)
        for start, (images, labels) in zip(starts, batches, strict=True):
            crops, crop_labels = cut_crops(images, labels, places[start : start + batch_size], self.size)
            yield (crops.float() / 255).contiguous(memory_format=torch.channels_last), crop_labels.long()

    @cached_property
    def _images(self) -> Pair | None:
        """All images and labels, on the device; None for a large dataset."""
        height, width = self.dataset.size
        count = len(self.dataset)
        if count * 4 * height * width > IN_MEMORY:
            return None
        parts = [self.dataset.read(range(first, min(first + 64, count))) for first in range(0, count, 64)]
        images = torch.cat([images for images, _ in parts]).to(self.device)
        return images, torch.cat([labels.to(torch.uint8) for _, labels in parts]).to(self.device)

    def _take(self, order: Tensor, starts: range, batch_size: int) -> Iterator[Pair]:
        """Iterate over batches of images that are on the device."""
        assert self._images is not None
        images, labels = self._images
        order = order.to(self.device)
        for start in starts:
            chosen = order[start : start + batch_size]
            yield images[chosen], labels[chosen]

    def _read(self, order: Tensor, starts: range, batch_size: int) -> Iterator[Pair]:
        """Iterate over batches of images that threads read."""
        with ThreadPoolExecutor(min(READERS, os.cpu_count() or 1), thread_name_prefix="medbn-crops") as pool:
            pending: deque[list[Future[Pair]]] = deque()
            for start in starts:
                pending.append([pool.submit(self.dataset.__getitem__, int(k)) for k in order[start:][:batch_size]])
                if len(pending) > AHEAD:
                    yield self._stack(pending.popleft())
            while pending:
                yield self._stack(pending.popleft())

    def _stack(self, pairs: list[Future[Pair]]) -> Pair:
        images, labels = zip(*(future.result() for future in pairs), strict=True)
        return torch.stack(images).to(self.device), torch.stack(labels).to(torch.uint8).to(self.device)
