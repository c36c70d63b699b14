"""What methods minimise the entropy of: predictions, or opinions, which have a mass for uncertainty (COME)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import unknown_name
from ._call import Predictions
from .learner import Learner


def opinion_entropy(predictions: Predictions) -> Tensor:
    """Return each row's entropy of the opinion, in nats: COME (Zhang et al., ICLR 2025).

    An opinion has a mass of belief for each of K classes and one of uncertainty, bₖ = exp(fₖ) / S and u = K / S with
    S = Σ exp(fⱼ) + K, for logits f. Its entropy is −Σ bₖ ln bₖ − u ln u. So that learning keeps the uncertainty that
    the model has, the gradient leaves the length of f as it is: f is ‖f‖ · f / ‖f‖, with the first factor a constant.

    COME's code writes 1000 for K, the classes of ImageNet, and adds 1e-7 to each mass.
    """
    logits = predictions.logits
    scale = logits.detach().abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(logits.dtype).tiny)
    length = (logits / scale).norm(dim=1, keepdim=True).clamp(min=torch.finfo(logits.dtype).tiny)
    logits = logits * (length.detach() / length)
    log_k = torch.full_like(logits[:, :1], math.log(predictions.classes))
    log_mass = torch.cat([logits, log_k], dim=1).log_softmax(dim=1)
    return -(log_mass.exp() * log_mass).sum(dim=1)


LOSSES: dict[str, Callable[[Predictions], Tensor]] = {"entropy": Predictions.entropy, "come": opinion_entropy}


class EntropyLearner(Learner):
    """A Learner that minimises an entropy of its predictions, by which it may choose and weigh samples too.

    Args:
        model: the model to adapt.
        loss: ``"entropy"``, of the predicted probabilities, or ``"come"``, of the opinion, which keeps the model from
            getting overconfident (COME, Zhang et al., ICLR 2025). As in COME's code, it takes the place of the entropy
            in filters and weights too, whose margins stay those of the method.
        options: those of Learner.
    """

    def __init__(self, model: nn.Module, *, loss: str = "entropy", **options: Any) -> None:
        super().__init__(model, **options)
        if loss not in LOSSES:
            raise unknown_name("loss", loss, LOSSES)
        self.entropy_of = LOSSES[loss]
