"""BatchNorm layers with a choice of estimator and of policy.

The layers are torch's: same constructor arguments, same parameters and buffers, same ``state_dict`` keys, so any
checkpoint loads strictly both ways. ``running_mean`` and ``running_var`` are the *source* statistics. Only
``load_state_dict`` and real training (train() mode, policy ``batch``, ``track_running_stats``) write them; a forward
pass in eval() writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from . import kernels
from ._few_values import MINIMUM_VALUES, warn_of_few_values
from ._isolate import isolates
from ._normalise import KernelNormalised, Normalised, is_batch_norm, normalise_batch, normalise_chosen, normalise_with
from ._running_statistics import RunningStatistics
from .distributed import Group
from .estimators import Estimator
from .policies import Policy


class LayerPass(NamedTuple):
    """The input and the statistics of one layer in one forward pass."""

    layer: RobustBatchNorm
    input: Tensor
    batch_centre: Tensor | None
    """What the estimator returned for this batch; None where it was not called."""
    batch_variance: Tensor | None
    centre: Tensor
    """What the layer normalised with."""
    variance: Tensor


@dataclass(frozen=True, eq=False)
class Observer:
    """A function that a layer calls in each forward pass.

    Args:
        call: the function.
        detached: whether statistics without gradients are enough, so that the layer may use its kernel.
        always_estimate: whether to call the estimator even where the policy gives the batch no weight.
        output: a function that the layer calls with its output too, before its tail.
    """

    call: Callable[[LayerPass], None]
    detached: bool = False
    always_estimate: bool = False
    output: Callable[[LayerPass, Tensor], None] | None = None

    def see(self, seen: LayerPass, output: Tensor) -> None:
        """Call the functions."""
        self.call(seen)
        if self.output is not None:
            self.output(seen, output)


Choose = Callable[["RobustBatchNorm", Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From a layer, its input and the batch's centre and variance to the statistics to normalise with."""

Adjust = Callable[[LayerPass, Tensor], Tensor]
"""From a pass and its output to another output."""

tails: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {}
"""What BatchNorm subclasses do after normalising, by the class's module and name; see ``medbn.register_tail``."""

_MOVING_AVERAGE = ("ema_mean", "ema_var")
_SETTINGS = ("_estimator", "_policy", "_own_policy", "_nonfinite", "_group", "_converted_from", "_tail")
_TEMPORARY: dict[str, Any] = {
    "_valid": None,
    "_backward": None,
    "_choose": None,
    "_adjust": None,
    "_observers": (),
    "_overrides": (),
}


class RobustBatchNorm(RunningStatistics):
    """BatchNorm over input ``(B, C, *)`` of any rank, with any estimator and policy.

    Args:
        num_features: the number of channels C.
        eps, momentum, affine, track_running_stats, device, dtype: as in ``torch.nn.BatchNorm2d``.
        estimator: how a batch becomes a centre and a variance; see ``medbn.estimators``.
        policy: which statistics the layer normalises with; see ``medbn.policies``.
        nonfinite: what to do with images that have NaN or ±Inf; see ``medbn.functional.statistics``. A batch with no
            finite image is normalised with the running statistics; a layer that has none returns NaN.
        torch_options: what newer versions of torch add, like ``bias=False``.

    Fewer than three values per channel, as of one image before a BatchNorm1d or behind a global average, are no
    estimate: one is normalised to a constant, and the median absolute deviation of two is 0. Such a batch is normalised
    with the running statistics, with one warning, and enters no average. A layer without running statistics raises, and
    so does training; with ``mean`` both do what torch does. Of three values, channels whose variance is below ``eps``
    are normalised with the running statistics too, because ``eps`` alone would decide their scale; so is a MAD where
    two of three values are equal. Where a mask or non-finite images leave few values, the choice is made on the device.

    >>> layer = RobustBatchNorm2d(64, estimator="median", policy="batch").eval()
    >>> layer(torch.randn(8, 64, 4, 4)).shape
    torch.Size([8, 64, 4, 4])
    """

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
        self._add_robust_attributes(estimator, policy, nonfinite)

    def _add_robust_attributes(self, estimator: str | Estimator, policy: str | Policy, nonfinite: str | None) -> None:
        """Add what a robust layer has and a torch BatchNorm has not."""
        for name in _MOVING_AVERAGE:
            self.register_buffer(name, None, persistent=False)
        self.estimator = estimator
        self.nonfinite = nonfinite
        self._group: Group | None = None
        # Set by the contexts of medbn.hooks, for as long as they last; copies made meanwhile do not have them.
        self._valid: Tensor | None = None
        self._backward: Estimator | None = None
        self._choose: Choose | None = None
        self._adjust: Adjust | None = None
        self._observers: tuple[Observer, ...] = ()
        self._overrides: tuple[dict[str, Any], ...] = ()
        self.policy = policy
        # Set by medbn.convert.
        self._converted_from: type[_BatchNorm] | None = None
        self._tail: str | None = None

    def _remove_robust_attributes(self) -> None:
        """Remove what ``_add_robust_attributes`` added."""
        for name in (*_MOVING_AVERAGE, *_SETTINGS, *_TEMPORARY):
            delattr(self, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **_TEMPORARY, "_policy": self._own_policy}

    # --- the forward pass ---------------------------------------------------------------------------------------------

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``input`` with the statistics that the policy chooses."""
        self._check_input_dim(input)
        if input.shape[1] != self.num_features:
            raise ValueError(f"expected {self.num_features} channels, got input of shape {tuple(input.shape)}.")
        if self._choose is not None and not self._has_few_values(input):
            output = self._chosen_forward(input, self._choose)
        elif self._is_torch_batch_norm(input):
            output = self._torch_forward(input)
        elif self._adjust is not None:
            passes: list[LayerPass] = []
            output = self._robust_forward(input, (*self._observers, Observer(passes.append)))
            output = self._adjust(passes[0], output)
        else:
            output = self._robust_forward(input, self._observers)
        return output if self._tail is None else tails[self._tail](self, output)

    def _is_torch_batch_norm(self, input: Tensor) -> bool:
        """Return whether torch's own BatchNorm computes this forward pass: with its statistics, or with given ones."""
        if self._observers or self._adjust or self._valid is not None or self._backward is not None:
            return False
        if self._active_group is not None and not len(input):
            return False
        if self._batch_weight == 0.0:
            return not (torch.is_grad_enabled() and isolates(self._estimator, self._nonfinite))
        if self._active_group is not None:
            return False
        few = input.numel() <= MINIMUM_VALUES * self.num_features and not self._has_own_statistics
        return self._batch_weight == 1.0 and not few and is_batch_norm(input, self._estimator, self._nonfinite)

    def _has_few_values(self, input: Tensor) -> bool:
        """Return whether a batch has too few values per channel to estimate statistics from.

        A part of a batch may have few; what all processes have is counted with the statistics.
        """
        return 0 < input.numel() < MINIMUM_VALUES * self.num_features and self._active_group is None

    def _torch_forward(self, input: Tensor) -> Tensor:
        weight, bias, eps = self.weight, self.bias, self.eps
        if self._batch_weight == 0.0:
            return F.batch_norm(input, *self._running_statistics(), weight, bias, False, 0.0, eps)
        if not self._tracks():
            return F.batch_norm(input, None, None, weight, bias, True, 0.0, eps)
        momentum = float(self._count_batch())
        return F.batch_norm(input, self.running_mean, self.running_var, weight, bias, True, momentum, eps)

    def _robust_forward(self, input: Tensor, observers: tuple[Observer, ...]) -> Tensor:
        batch_weight = self._batch_weight
        # With batch weight 1, running statistics are used for a batch with no finite image.
        running = self._running_statistics() if batch_weight != 1.0 or self.running_mean is not None else None
        few = self._has_few_values(input)
        if few:
            self._check_few_values(input, batch_weight)
        unweighted = batch_weight == 0.0 and not any(o.always_estimate for o in observers)
        if running is not None and (unweighted or (few and not self._has_own_statistics)):
            y = normalise_with(input, running, self.weight, self.bias, self._estimator, self.eps, self._nonfinite)
            for observer in observers:
                observer.see(LayerPass(self, input, None, None, *running), y)
            return y
        result = normalise_batch(
            input,
            self.weight,
            self.bias,
            self._estimator,
            self.eps,
            self._nonfinite,
            valid=self._valid,
            running=running,
            batch_weight=batch_weight,
            backward=self._backward,
            detached=all(o.detached for o in observers),
            group=self._active_group,
        )
        if self._tracks():
            self._track(input, result)
        if observers:
            self._show(input, result, running, batch_weight, observers)
        return result.y

    def _show(
        self,
        input: Tensor,
        result: Normalised | KernelNormalised,
        running: tuple[Tensor, Tensor] | None,
        batch_weight: float,
        observers: tuple[Observer, ...],
    ) -> None:
        """Show a pass to the observers."""
        batch = (result.batch_centre, result.batch_variance)
        used = result.used or kernels.mix(batch, running, batch_weight, result.counted)
        for observer in observers:
            observer.see(LayerPass(self, input, *batch, *used), result.y)

    def _check_few_values(self, input: Tensor, batch_weight: float) -> None:
        """Warn, or raise, where a batch has too few values per channel to be normalised with its own statistics."""
        if not self._has_own_statistics:
            if batch_weight and not torch.compiler.is_compiling():
                warn_of_few_values()
        elif self._estimator.kernel != "mean" or input.numel() == self.num_features:  # torch refuses one value
            where = "in training" if self._tracks() else "in a layer without training statistics"
            raise ValueError(
                f"expected at least {MINIMUM_VALUES} values per channel {where}, got input of shape"
                f" {tuple(input.shape)}: pass more images at a time."
            )

    def _chosen_forward(self, input: Tensor, choose: Choose) -> Tensor:
        """Normalise with what a function makes of the batch's statistics, instead of by the policy."""
        result = normalise_chosen(
            input,
            self.weight,
            self.bias,
            self._estimator,
            self.eps,
            self._nonfinite,
            lambda centre, variance: choose(self, input, centre, variance),
            valid=self._valid,
            backward=self._backward,
            group=self._active_group,
        )
        assert result.used is not None
        for observer in self._observers:
            observer.see(LayerPass(self, input, result.batch_centre, result.batch_variance, *result.used), result.y)
        return result.y


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
