"""The settings of a robust layer, and what contexts may override for a while."""

from __future__ import annotations

import threading
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm

from . import distributed, estimators, policies
from ._isolate import isolates
from .distributed import Group
from .estimators import Estimator
from .policies import Policy

overrides_lock = threading.RLock()
"""Held while what contexts have set is changed: threads may use contexts of one model at the same time."""


class LayerSettings(_BatchNorm):
    """A BatchNorm with an estimator, a policy, a rule for non-finite images and a process group."""

    _policy: Policy
    _own_policy: Policy
    _group: Group | None
    _overrides: tuple[dict[str, Any], ...]

    @property
    def estimator(self) -> Estimator:
        """How a batch becomes a centre and a variance. Can be set to a name."""
        return self._estimator

    @estimator.setter
    def estimator(self, estimator: str | Estimator) -> None:
        estimator = estimators.get(estimator)
        if estimator.prior and self.running_mean is None:
            raise ValueError(
                f"estimator {estimator.name!r} needs training statistics, and this layer has none"
                " (track_running_stats=False); use one without a prior."
            )
        self._estimator = estimator

    @property
    def policy(self) -> Policy:
        """Which statistics the layer normalises with. Can be set to a name."""
        return self._policy

    @policy.setter
    def policy(self, policy: str | Policy) -> None:
        policy = policies.get(policy)
        self.check_policy(policy)
        with overrides_lock:
            self._own_policy = policy
            self._apply_overrides()

    def check_policy(self, policy: Policy) -> None:
        """Raise if the policy needs source statistics and the layer has none."""
        if policy.reference is not None and self.running_mean is None:
            raise ValueError(
                f"policy {policy} needs source statistics, and this layer has none"
                " (track_running_stats=False); use policy 'batch'."
            )

    @property
    def own_policy(self) -> Policy:
        """The policy that the layer has outside of contexts such as ``medbn.hooks.use_policy``."""
        return self._own_policy

    @property
    def nonfinite(self) -> str | None:
        """``"isolate"``, ``"propagate"``, or None for the estimator's default."""
        return self._nonfinite

    @nonfinite.setter
    def nonfinite(self, nonfinite: str | None) -> None:
        isolates(self.estimator, nonfinite)  # raises an error for a wrong name
        self._nonfinite = nonfinite

    @property
    def group(self) -> Group | None:
        """The processes of whose common batch the layer takes statistics; None for this process alone.

        Can be set to ``"world"``, ``"local"`` or a process group of ``torch.distributed``; see ``medbn.convert``.
        """
        return self._group

    @group.setter
    def group(self, group: Any) -> None:
        self._group = distributed.get(group)

    @property
    def _active_group(self) -> Group | None:
        """The processes, if there are others than this one."""
        return self._group if self._group is not None and self._group.active else None

    def _apply_overrides(self) -> None:
        """Set what contexts may override: to the value of the last context that does, else to the layer's own."""
        settings = vars(self)
        settings.update(_policy=self._own_policy, _valid=None, _backward=None, _choose=None, _adjust=None)
        for override in self._overrides:
            settings.update(override)

    def extra_repr(self) -> str:
        """Return what torch shows, the estimator and the policy."""
        text = f"{super().extra_repr()}, estimator={self.estimator.name}, policy={self.policy}"  # type: ignore[no-untyped-call]
        text += f", nonfinite={self.nonfinite}" if self.nonfinite else ""
        return text + (f", group={self.group}" if self.group else "")
