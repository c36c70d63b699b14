"""Which statistics a layer normalises with: its own, the batch's, or a mixture.

A policy gives the batch a weight, and everything else a reference. Centres and biased variances mix alike, and the
layer normalises with the mixture. The policy alone decides, in train() and in eval().
"""

from __future__ import annotations

from dataclasses import dataclass

from ._errors import unknown_name


@dataclass(frozen=True)
class Policy:
    """The batch's weight, and what has the rest of it: ``"source"``, ``"ema"`` or, for weight 1, nothing."""

    name: str
    weight: float
    reference: str | None = None

    def __repr__(self) -> str:
        option = {"ema": f"momentum={self.weight:g}", "interpolate": f"prior={1 - self.weight:g}"}.get(self.name, "")
        return f"{self.name}({option})"


def source() -> Policy:
    """The training statistics: the un-adapted model."""
    return Policy("source", 0.0, "source")


def batch() -> Policy:
    """The statistics of the batch at hand (TeBN; TENT, EATA and SAR as well)."""
    return Policy("batch", 1.0)


def ema(momentum: float = 0.2) -> Policy:
    """A moving average that includes the batch at hand (eq. 14-15: sEMA, SoTTA), starting at the source statistics.

    ``momentum`` is the weight of the *new* batch, as in torch; the paper's α is 1 − momentum.
    """
    return Policy("ema", _fraction("momentum", momentum), "ema")


def interpolate(prior: float = 0.6) -> Policy:
    """A fixed mixture of source and batch (mDIA); ``prior`` is the weight of the *source* statistics."""
    return Policy("interpolate", 1.0 - _fraction("prior", prior), "source")


_named = {"source": source, "batch": batch, "ema": ema, "interpolate": interpolate}


def available() -> list[str]:
    """The names that ``policy=`` accepts; each stands for the policy with its defaults."""
    return sorted(_named)


def get(policy: str | Policy) -> Policy:
    """The policy of that name with its defaults; a Policy is returned as it is."""
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str) or policy not in _named:
        raise unknown_name("policy", policy, _named)
    return _named[policy]()


def _fraction(name: str, value: float) -> float:
    if not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is a weight between 0 and 1, got {value!r}.")
    return float(value)
