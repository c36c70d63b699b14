"""Checkpoints: everything that a training run needs to continue to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import fusion
from .._files import replace_atomically


def describe_model(model: nn.Module) -> str:
    """Return what a checkpoint knows its model by."""
    return f"{fusion.class_of(model).__name__} of {sum(value.numel() for value in model.state_dict().values())} numbers"


def save_checkpoint(
    path: Path, parts: dict[str, Any], generator: torch.Generator, key: dict[str, Any], epoch: int
) -> None:
    """Write a checkpoint, completely or not at all.

    Args:
        path: the file.
        parts: the model, the optimiser, the schedule: what has a ``state_dict``.
        generator: the run's random numbers; torch's global ones are saved too.
        key: what the run is; only an equal run may continue from the file.
        epoch: the number of epochs done.
    """
    state = {name: part.state_dict() for name, part in parts.items()}
    random = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    with replace_atomically(path) as partial:
        torch.save({**state, "generator": generator.get_state(), "random": random, "key": key, "epoch": epoch}, partial)


def load_checkpoint(path: Path, parts: dict[str, Any], generator: torch.Generator, key: dict[str, Any]) -> int:
    """Load a checkpoint if it exists, and return the number of epochs that it holds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return 0
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        saved_key = state["key"]
    except Exception as error:  # a file that is not a checkpoint raises errors of many types
        raise ValueError(f"{path} is not a checkpoint of medbn train. Remove it, or give another path.") from error
    if saved_key != key:
        different = ", ".join(name for name in key if saved_key.get(name) != key[name])
        raise ValueError(f"the checkpoint {path} belongs to another {different}. Remove it to start again.")
    for name, part in parts.items():
        part.load_state_dict(state[name])
    generator.set_state(state["generator"])
    torch.set_rng_state(state["random"][0])
    torch.cuda.set_rng_state_all(state["random"][1:])
    return int(state["epoch"])
