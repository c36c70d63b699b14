"""Time one normalisation layer against ``F.batch_norm``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..functional import robust_norm
from .measurement import Candidate, Measurement, paths
from .settings import DTYPES, LAYOUTS, Settings, Shape
from .timing import Call, compare

DIRECTIONS = ("forward", "forward+backward")


def cases(settings: Settings) -> list[dict[str, Any]]:
    """Return every shape, in both layouts and directions."""
    return [
        {"layout": layout, "direction": direction, "shape": shape, "dtype": settings.dtype}
        for layout in settings.layouts
        for direction in DIRECTIONS
        for shape in settings.shapes
    ]


def measure(settings: Settings, case: dict[str, Any]) -> list[Measurement]:
    """Time each estimator on each path; ``mean`` is BatchNorm against itself, and shows the error of measurement."""
    problem = LayerProblem.random(settings, case["shape"], case["layout"], case["direction"])
    return compare_with_batch_norm("layer", case, problem, settings.estimators, settings)


class LayerProblem(NamedTuple):
    """The inputs of a normalisation: an activation, the gradient of the output, and the affine parameters."""

    x: Tensor
    g: Tensor
    weight: Tensor
    bias: Tensor

    @classmethod
    def random(cls, settings: Settings, shape: Shape, layout: str, direction: str) -> LayerProblem:
        """Return Gaussian tensors, which outputs of convolutions resemble.

        Affine parameters are float32, as under autocast.
        """
        backward = direction != "forward"
        generator = torch.Generator(settings.device).manual_seed(0)
        x, g = (
            torch.randn(shape, generator=generator, device=settings.device, dtype=DTYPES[settings.dtype]).to(
                memory_format=LAYOUTS[layout]
            )
            for _ in range(2)
        )
        weight, bias = (torch.ones(shape[1], device=settings.device, requires_grad=backward) for _ in range(2))
        return cls(x.requires_grad_(backward), g, weight, bias)

    def in_direction(self, norm: Callable[[], Tensor]) -> Call:
        """Return a call of ``norm``, followed by its backward pass if ``x`` needs a gradient."""
        if not self.x.requires_grad:
            return norm
        return lambda: torch.autograd.grad(norm(), (self.x, self.weight, self.bias), self.g)

    def batch_norm(self) -> Tensor:
        """Return the activation normalised by BatchNorm, with which everything is compared."""
        return F.batch_norm(self.x, None, None, self.weight, self.bias, training=True)

    def robust_norm(self, estimator: str) -> Callable[[], Tensor]:
        """Return a function that normalises the activation with an estimator."""
        return lambda: robust_norm(self.x, self.weight, self.bias, estimator)


def compare_with_batch_norm(
    part: str, case: dict[str, Any], problem: LayerProblem, estimators: Sequence[str], settings: Settings
) -> list[Measurement]:
    """Time every estimator on each of its paths."""
    candidates = [
        Candidate(estimator, path, problem.in_direction(problem.robust_norm(estimator)))
        for estimator in estimators
        for path in paths(problem.x, estimator, settings.reference)
    ]
    return compare(
        part,
        case,
        problem.in_direction(problem.batch_norm),
        candidates,
        lambda path: settings.rounds_for(part, path),
        settings.device,
        graphs=settings.on_gpu,
    )
