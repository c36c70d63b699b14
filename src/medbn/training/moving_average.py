"""A moving average of a model's weights and statistics, which often classifies better than the last step's."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def make_average(model: nn.Module, decay: float) -> AveragedModel:
    """Return an average that ``update_parameters(model)`` moves towards the model, buffers included."""
    update = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=update, use_buffers=True)


def copy_average(average: AveragedModel, model: nn.Module) -> None:
    """Give a model the averaged weights and statistics."""
    with torch.no_grad():
        model.load_state_dict(average.module.state_dict())
