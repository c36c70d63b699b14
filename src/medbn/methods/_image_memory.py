"""What methods share that learn from a memory of images: SoTTA, RoTTA and NOTE.

The state has the images, by their place among the arguments of a call, and for each its predicted class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._call import Inputs, Predictions
from ._check_state import check_count, check_images


class Candidates:
    """The images in memory followed by those of a batch; the new memory is a choice of their positions.

    Args:
        who: the name of the method, for errors.
        memory: the images in memory, by place; empty before the first.
        inputs: the batch.
        chosen: mask of the images of the batch that may be remembered.
    """

    def __init__(self, who: str, memory: dict[str, Tensor], inputs: Inputs, chosen: Tensor) -> None:
        new = inputs.gather_images(chosen)
        shapes = [{name: tuple(images.shape[1:]) for name, images in each.items()} for each in (memory, new)]
        if memory and shapes[0] != shapes[1]:
            raise ValueError(
                f"{who} remembers images of shape {list(shapes[0].values())}, and this batch has"
                f" {list(shapes[1].values())}; one adapter serves one kind of call, or reset() it first."
            )
        self.images = {name: torch.cat([memory[name], images]) if memory else images for name, images in new.items()}

    def at(self, positions: list[int]) -> dict[str, Tensor]:
        """Return the images at these positions, by place."""
        return {
            name: images[torch.tensor(positions, dtype=torch.int64, device=images.device)].detach()
            for name, images in self.images.items()
        }


def offer_images(
    who: str,
    memory: dict[str, Any],
    inputs: Inputs,
    predictions: Predictions,
    frequency: int,
    offer: Callable[[list[int], int, int], None],
    learn: Callable[[Inputs], bool],
) -> bool:
    """Offer the usable images of a batch to a memory one by one, and learn from it after every ``frequency`` of them.

    Args:
        who: the name of the method, for errors.
        memory: of the adapter; ``seen`` counts the images.
        inputs: the batch.
        predictions: of the batch.
        frequency: a number of images.
        offer: called with the positions of the remembered images, which it may change, the position of the new image
            and its index in the batch.
        learn: takes a step on the remembered images, and returns whether it was taken.
    """
    candidates = Candidates(who, memory["images"], inputs, predictions.images)
    offset = len(memory["classes"])
    positions, learned = list(range(offset)), False
    for place, image in enumerate(predictions.images.nonzero().flatten().tolist()):
        offer(positions, offset + place, image)
        memory["seen"] += 1
        if memory["seen"] % frequency == 0 and positions:
            learned = learn(inputs.divide(candidates.at(positions), len(positions))) or learned
    memory["images"] = candidates.at(positions)
    return learned


def predicted_classes(predictions: Predictions) -> list[int]:
    """Return each image's predicted class; of a dense output the most frequent one."""
    rows = predictions.probabilities().argmax(dim=1).view(len(predictions.images), -1)
    classes: list[int] = rows.mode(dim=1).values.tolist()
    return classes


def check_remembered(memory: dict[str, Any], capacity: int) -> None:
    """Require a class for each image of a loaded memory, and no more images than the capacity."""
    classes = memory["classes"]
    if not isinstance(classes, list) or len(classes) > capacity:
        raise ValueError(f"the memory must be a list of at most {capacity} classes and their images.")
    for label in classes:
        check_count("a class in memory", label)
    check_images("the memory", memory["images"], len(classes))
