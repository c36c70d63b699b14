"""Random crops of a segmentation dataset, in batches on the device."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property

import torch
from torch import Tensor

from ..data import SegmentationDataset, random_crop

IN_MEMORY = 2**32
"""Datasets of fewer bytes than this are kept on the device; larger ones are read image by image."""
READERS = 16
"""The most threads that read and crop images."""
AHEAD = 2
"""How many batches they are ahead."""

Pair = tuple[Tensor, Tensor]
"""An image and its labels."""


class Crops:
    """Batches of random crops; a new one of every image in every epoch.

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

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[Pair]:
        """Iterate over one epoch in random order: images, float in [0, 1], and labels, int64. The rest is left out.

        Every crop has a seed of its own, so that threads may make them in any order.
        """
        count = len(self.dataset)
        order = torch.randperm(count, generator=generator).tolist()
        seeds = torch.randint(2**62, (count,), generator=generator).tolist()
        chosen = list(zip(order, seeds, strict=True))
        parts = [chosen[first : first + batch_size] for first in range(0, count - count % batch_size, batch_size)]
        if self._read_from_memory is not None:
            yield from (self._stack([self._crop(index, seed) for index, seed in part]) for part in parts)
            return
        with ThreadPoolExecutor(min(READERS, os.cpu_count() or 1), thread_name_prefix="medbn-crops") as pool:
            pending: deque[list[Future[Pair]]] = deque()
            for part in parts:
                pending.append([pool.submit(self._crop, index, seed) for index, seed in part])
                if len(pending) > AHEAD:
                    yield self._stack([future.result() for future in pending.popleft()])
            while pending:
                yield self._stack([future.result() for future in pending.popleft()])

    @cached_property
    def _read_from_memory(self) -> Callable[[int], Pair] | None:
        """Return a function from an index to an image and its labels on the device; None for a large dataset."""
        height, width = self.dataset.size
        count = len(self.dataset)
        if count * 4 * height * width > IN_MEMORY:
            return None
        parts = [self.dataset.read(range(first, min(first + 64, count))) for first in range(0, count, 64)]
        images = torch.cat([images for images, _ in parts]).to(self.device)
        labels = torch.cat([labels.to(torch.uint8) for _, labels in parts]).to(self.device)
        return lambda index: (images[index], labels[index])

    def _crop(self, index: int, seed: int) -> Pair:
        image, labels = (self._read_from_memory or self.dataset.__getitem__)(index)
        generator = torch.Generator().manual_seed(seed)
        return random_crop(image, labels, self.size, generator, scale=self.scale, flip=self.dataset.horizontal_flip)

    def _stack(self, crops: list[Pair]) -> Pair:
        images, labels = (torch.stack(each).to(self.device) for each in zip(*crops, strict=True))
        return (images.float() / 255).contiguous(memory_format=torch.channels_last), labels.long()
