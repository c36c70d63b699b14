"""BatchNorm with a choice of estimator and of policy.

The layers are torch's: same constructor arguments, same parameters and buffers, same ``state_dict`` keys, so any
checkpoint loads strictly both ways. ``running_mean`` and ``running_var`` hold the *source* statistics. Only
``load_state_dict`` and real training (train() mode, policy ``batch``, ``track_running_stats``) write them; a forward
pass in eval() writes nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from . import estimators, functional, kernels, policies
from .estimators import Estimator
from .policies import Policy


class Pass(NamedTuple):
    """What a layer saw and did in one forward pass; tensors are part of the autograd graph."""

    layer: RobustBatchNorm
    input: Tensor
    batch_centre: Tensor | None
    """What the estimator made of this batch; None where a batch has no weight, and nobody wants to know."""
    batch_variance: Tensor | None
    centre: Tensor
    """What the layer normalised with."""
    variance: Tensor


_EQUIPMENT = ("_estimator", "_policy", "_nonfinite", "_valid", "_backward", "_observers", "_converted_from", "_tail")
_PASSING: dict[str, Any] = {"_valid": None, "_backward": None, "_observers": ()}

tails: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {}
"""What BatchNorm subclasses do after normalising, by the class's module and name; see ``medbn.register_tail``."""


class RobustBatchNorm(_BatchNorm):
    """BatchNorm over input ``(B, C, *)`` of any rank, with any estimator and policy.

    Args:
        num_features: the number of channels C.
        eps, momentum, affine, track_running_stats, device, dtype: as in ``torch.nn.BatchNorm2d``.
        estimator: how a batch becomes a centre and a variance; see ``medbn.estimators``.
        policy: which statistics normalise; see ``medbn.policies``.
        nonfinite: what to do with images that have NaN or ±Inf; see ``medbn.functional.statistics``. A batch with no
            finite image is normalised with the statistics that the layer holds; a layer that holds none returns NaN.
        torch_options: what newer versions of torch add, like ``bias=False``.

    >>> layer = RobustBatchNorm2d(64, estimator="median", policy="batch").eval()
    >>> layer(torch.randn(8, 64, 4, 4)).shape
    torch.Size([8, 64, 4, 4])
    """

    # The moving average of the policy `ema`; None while it still equals the source statistics.
    ema_mean: Tensor | None
    ema_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        estimator: str | Estimator = "median",
        policy: str | Policy = "batch",
        nonfinite: str | None = None,
        **torch_options: Any,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, **torch_options)
        self._equip(estimator, policy, nonfinite)

    def _equip(self, estimator: str | Estimator, policy: str | Policy, nonfinite: str | None) -> None:
        """Add to a torch BatchNorm what makes it a robust one."""
        self.register_buffer("ema_mean", None, persistent=False)
        self.register_buffer("ema_var", None, persistent=False)
        self.estimator = estimator
        self.nonfinite = nonfinite
        self.policy = policy
        # Set for a while by the contexts of medbn.hooks; copies made meanwhile do not have them.
        self._valid: Tensor | None = None
        self._backward: Estimator | None = None
        self._observers: tuple[Callable[[Pass], None], ...] = ()
        # Set for good by medbn.convert.
        self._converted_from: type[_BatchNorm] | None = None
        self._tail: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **_PASSING}

    def _unequip(self) -> None:
        """Take away what ``_equip`` added."""
        for added in ("ema_mean", "ema_var", *_EQUIPMENT):
            delattr(self, added)

    @property
    def estimator(self) -> Estimator:
        """How a batch becomes a centre and a variance. Names are accepted."""
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
        """Which statistics normalise. Names are accepted."""
        return self._policy

    @policy.setter
    def policy(self, policy: str | Policy) -> None:
        policy = policies.get(policy)
        if policy.reference is not None and self.running_mean is None:
            raise ValueError(
                f"policy {policy} needs source statistics, and this layer has none"
                " (track_running_stats=False); use policy 'batch'."
            )
        self._policy = policy

    @property
    def nonfinite(self) -> str | None:
        """``"isolate"``, ``"propagate"``, or None for the estimator's default."""
        return self._nonfinite

    @nonfinite.setter
    def nonfinite(self, nonfinite: str | None) -> None:
        functional.isolates(self.estimator, nonfinite)
        self._nonfinite = nonfinite

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``input`` as the policy says."""
        self._check_input_dim(input)
        if input.shape[1] != self.num_features:
            raise ValueError(f"expected {self.num_features} channels, got input of shape {tuple(input.shape)}.")
        output = self._torch_forward(input) if self._torch_suffices(input) else self._robust_forward(input)
        return output if self._tail is None else tails[self._tail](self, output)

    def _torch_suffices(self, input: Tensor) -> bool:
        """Whether torch's own kernel computes exactly this pass: plain BatchNorm, or given statistics."""
        if self._observers or self._valid is not None or self._backward is not None:
            return False
        if self._share == 0.0:
            return not (torch.is_grad_enabled() and self._isolates())
        return self._share == 1.0 and functional.is_batch_norm(input, self._estimator, self._nonfinite)

    def _torch_forward(self, input: Tensor) -> Tensor:
        if self._share == 0.0:
            return F.batch_norm(input, *self._held(), self.weight, self.bias, False, 0.0, self.eps)
        if not self._tracks():
            return F.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)
        factor = float(self._tracking_factor())
        return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, True, factor, self.eps)

    def _robust_forward(self, input: Tensor) -> Tensor:
        if self._share == 0.0 and not any(getattr(observe, "weightless", False) for observe in self._observers):
            x, finite = functional.isolate(input) if self._isolates() else (input, None)
            centre, variance = self._held()
            batch = functional.Batch(x, centre, variance, finite, None)
            estimated: tuple[Tensor | None, Tensor | None] = (None, None)
        else:
            if self._valid is None and all(getattr(observe, "detached", False) for observe in self._observers):
                fast = self._fused_forward(input)
                if fast is not None:
                    return fast
            batch = functional.examine(input, self._estimator, self._valid, self._nonfinite, self._backward)
            estimated = (batch.centre, batch.variance)
            centre, variance = self._mixed(batch)
            if self._tracks():
                self._track(batch)
        for observe in self._observers:
            observe(Pass(self, input, *estimated, centre, variance))
        return batch.mark(functional.normalise(batch.x, centre, variance, self.weight, self.bias, self.eps))

    def _fused_forward(self, input: Tensor) -> Tensor | None:
        held = self._held() if self._share != 1.0 or self.running_mean is not None else None
        fast = functional.fused(
            input,
            self.weight,
            self.bias,
            self._estimator,
            self.eps,
            self._nonfinite,
            share=self._share,
            held=held,
            backward=self._backward,
        )
        if fast is None:
            return None
        batch = functional.Batch(input, fast.centre, fast.variance, fast.finite, fast.counted)
        if self._tracks():
            self._track(batch)
        for observe in self._observers:
            observe(Pass(self, input, fast.centre, fast.variance, *self._mixed(batch)))
        return fast.y

    def _isolates(self) -> bool:
        return functional.isolates(self._estimator, self._nonfinite)

    @property
    def _share(self) -> float:
        """The weight of the batch; ``_held`` has the rest."""
        return self._policy.weight * (1.0 - self._estimator.prior)

    def _held(self) -> tuple[Tensor, Tensor]:
        """What the layer normalises with beside the batch: what it remembers, and its estimator's prior."""
        prior, weight = self._estimator.prior, self._policy.weight
        known = self._remembered()
        mixes = bool(prior and weight) and self._policy.reference == "ema"
        if not mixes or self.running_mean is None or self.running_var is None:
            return known
        part = weight * prior / (1.0 - self._share)
        source = (self.running_mean, self.running_var)
        mean, var = (part * s + (1.0 - part) * k for s, k in zip(source, known, strict=True))
        return mean, var

    def _remembered(self) -> tuple[Tensor, Tensor]:
        """What the layer knows without a batch: its moving average under ``ema``, else the source statistics."""
        moving = self._policy.reference == "ema" and self.ema_mean is not None
        mean, var = (self.ema_mean, self.ema_var) if moving else (self.running_mean, self.running_var)
        if mean is None or var is None:
            raise RuntimeError(
                f"policy {self.policy} needs source statistics, and this layer's running_mean and running_var are gone;"
                " keep them, or use policy 'batch'."
            )
        return mean, var

    def _mixed(self, batch: functional.Batch) -> tuple[Tensor, Tensor]:
        held = self._held() if self._share != 1.0 or self.running_mean is not None else None
        return kernels.mix((batch.centre, batch.variance), held, self._share, batch.counted)

    def commit(self, centre: Tensor, variance: Tensor) -> None:
        """Let one batch's statistics into the moving average of the policy ``ema``. Nothing else ever does.

        Non-finite statistics, from a batch with no finite image, change nothing.
        """
        if self._policy.reference != "ema":
            raise ValueError(
                f"only the policy 'ema' has statistics to commit to; this layer's policy is {self.policy}."
            )
        if centre.shape != (self.num_features,) or variance.shape != (self.num_features,):
            raise ValueError(
                f"expected a centre and a variance per channel, ({self.num_features},) each; got {tuple(centre.shape)}"
                f" and {tuple(variance.shape)}."
            )
        gather_statistics({self: (centre, variance)})()

    def reset(self) -> None:
        """Forget the moving average: the policy ``ema`` starts again at the source statistics."""
        self.ema_mean = self.ema_var = None

    def _tracks(self) -> bool:
        tracks = self.training and self.track_running_stats and self._policy.name == "batch"
        return tracks and self.running_mean is not None

    def _tracking_factor(self, counts: bool | Tensor = True) -> float | Tensor:
        """Count a batch, if it counts, and say how much it moves the source statistics."""
        if self.num_batches_tracked is None:
            return 0.0 if self.momentum is None else self.momentum
        self.num_batches_tracked.add_(counts)
        return 1.0 / self.num_batches_tracked.clamp(min=1) if self.momentum is None else self.momentum

    def _track(self, batch: functional.Batch) -> None:
        """Real training: move the source statistics as torch does, with the unbiased variance."""
        assert self.running_mean is not None
        assert self.running_var is not None
        with torch.no_grad():
            images = batch.x.shape[0] if batch.counted is None else batch.counted
            count = torch.as_tensor(images * batch.x[0, 0].numel(), device=batch.x.device)
            factor = self._tracking_factor(count > 0)
            unbiased = batch.variance * count / (count - 1).clamp(min=1)
            for running, new in ((self.running_mean, batch.centre), (self.running_var, unbiased)):
                moved = factor * new + (1.0 - factor) * running
                running.copy_(torch.where(count == 0, running, moved))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if f"{prefix}running_mean" in state_dict:
            self.reset()  # new source statistics: the moving average starts from them

    def extra_repr(self) -> str:
        """What torch shows, then what is ours."""
        ours = f"{super().extra_repr()}, estimator={self.estimator.name}, policy={self.policy}"  # type: ignore[no-untyped-call]
        return ours + (f", nonfinite={self.nonfinite}" if self.nonfinite else "")


def gather_statistics(statistics: Mapping[RobustBatchNorm, tuple[Tensor, Tensor]]) -> Callable[..., None]:
    """What ``RobustBatchNorm.commit`` does, for many layers at once, in a few operations, and in two halves.

    The statistics are gathered now, while a GPU is still busy with what the host is about to wait for. The function
    that is returned lets them in: by a policy, if it is given one, and else by each layer's own.
    """
    alike: dict[tuple[Any, ...], list[RobustBatchNorm]] = {}
    for layer, (centre, _) in statistics.items():
        kept = layer._remembered()[0].dtype
        alike.setdefault((layer._policy, layer._estimator.prior, kept, centre.dtype, centre.device), []).append(layer)
    parts = []
    for (own, prior, kept, *_), layers in alike.items():
        with torch.no_grad():
            new = _rows([statistics[layer] for layer in layers])
            old = _rows([layer._remembered() for layer in layers]).to(new.dtype)
            usable = new.isfinite().all(dim=0)
            if prior:
                source = _rows([(layer.running_mean, layer.running_var) for layer in layers])  # type: ignore[misc]
                new = (1.0 - prior) * new + prior * source.to(new.dtype)
        parts.append((layers, own, kept, new, old, usable))

    def commit(policy: Policy | None = None) -> None:
        for layers, own, kept, new, old, usable in parts:
            weight = (policy or own).weight
            with torch.no_grad():
                made = torch.where(usable, weight * new + (1.0 - weight) * old, old).to(kept)
            sizes = [layer.num_features for layer in layers]
            # Copies, not views: a layer's average is its own. torch does not say that this returns something.
            apart: Any = torch.split_with_sizes_copy
            for layer, mean, var in zip(layers, *(apart(row, sizes) for row in made), strict=True):
                layer._buffers["ema_mean"], layer._buffers["ema_var"] = mean, var

    return commit


def _rows(statistics: list[tuple[Tensor, Tensor]]) -> Tensor:
    """All centres, and below them all variances."""
    return torch.cat([s for pair in zip(*statistics, strict=True) for s in pair]).view(2, -1)


class RobustBatchNorm1d(RobustBatchNorm, nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` with ``estimator`` and ``policy``; see RobustBatchNorm."""

    _check_input_dim = nn.BatchNorm1d._check_input_dim


class RobustBatchNorm2d(RobustBatchNorm, nn.BatchNorm2d):
    """``torch.nn.BatchNorm2d`` with ``estimator`` and ``policy``; see RobustBatchNorm."""

    _check_input_dim = nn.BatchNorm2d._check_input_dim


class RobustBatchNorm3d(RobustBatchNorm, nn.BatchNorm3d):
    """``torch.nn.BatchNorm3d`` with ``estimator`` and ``policy``; see RobustBatchNorm."""

    _check_input_dim = nn.BatchNorm3d._check_input_dim


class MedBatchNorm1d(RobustBatchNorm1d):
    """MedBN, section 5 of the paper, for ``(B, C)`` and ``(B, C, L)``: RobustBatchNorm1d with the median."""


class MedBatchNorm2d(RobustBatchNorm2d):
    """MedBN, section 5 of the paper, for ``(B, C, H, W)``: RobustBatchNorm2d with the median."""


class MedBatchNorm3d(RobustBatchNorm3d):
    """MedBN, section 5 of the paper, for ``(B, C, D, H, W)``: RobustBatchNorm3d with the median."""
