"""Policies: whether a layer normalises with its own statistics, the batch's, or a mixture.

A policy gives the batch a weight; the statistics that it names as reference have the rest. Centres and biased variances
are mixed alike, and the layer normalises with the mixture. The policy alone decides, in train() and in eval().
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ._registry import Registry


@dataclass(frozen=True)
class Policy:
    """The weight of the batch, and which statistics have the rest.

    Args:
        name: the name that ``policy=`` accepts.
        weight: the weight of the batch's statistics.
        reference: what has the rest: ``"source"``, ``"ema"`` or, where the batch's weight is 1, None.
    """

    name: str
    weight: float
    reference: str | None = None

    def __repr__(self) -> str:
        option = {"ema": f"momentum={self.weight:g}", "interpolate": f"prior={1 - self.weight:g}"}.get(self.name, "")
        return f"{self.name}({option})"


_registry = Registry[Callable[[], Policy]]("policy")
available = _registry.available
register = _registry.register
unregister = _registry.unregister


def get(policy: str | Policy) -> Policy:
    """Return the policy of that name, with its default weight; a Policy is returned as it is."""
    return policy if isinstance(policy, Policy) else _registry.get(policy)()


@register("source")
def source() -> Policy:
    """Return the policy that uses the training statistics, as the un-adapted model does."""
    return Policy("source", 0.0, "source")


@register("batch")
def batch() -> Policy:
    """Return the policy that uses the statistics of the current batch (TeBN; also TENT, EATA and SAR)."""
    return Policy("batch", 1.0)


@register("ema")
def ema(momentum: float = 0.2) -> Policy:
    """Return the policy that uses a moving average which includes the current batch (eq. 14-15: sEMA, SoTTA).

    The average starts at the source statistics. ``momentum`` is the weight of the *new* batch, as in torch; the paper's
    α is 1 − momentum.
    """
    return Policy("ema", _check_weight("momentum", momentum), "ema")


@register("interpolate")
def interpolate(prior: float = 0.6) -> Policy:
    """Return the policy that uses a fixed mixture of source and batch (mDIA).

    ``prior`` is the weight of the *source* statistics.
    """
    return Policy("interpolate", 1.0 - _check_weight("prior", prior), "source")


def _check_weight(name: str, value: float) -> float:
    if not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is a weight between 0 and 1, got {value!r}.")
    return float(value)
