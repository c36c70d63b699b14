"""One normalisation layer against ``F.batch_norm``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..functional import robust_norm
from .settings import DTYPES, LAYOUTS, Settings, Shape
from .timing import Call, Candidate, Row, compare, paths

DIRECTIONS = ("forward", "forward+backward")


def situations(settings: Settings) -> list[dict[str, Any]]:
    """Every shape, in both layouts and directions."""
    return [
        {"layout": layout, "direction": direction, "shape": shape, "dtype": settings.dtype}
        for layout in settings.layouts
        for direction in DIRECTIONS
        for shape in settings.shapes
    ]


def measure(settings: Settings, where: dict[str, Any]) -> list[Row]:
    """Each estimator on each path; ``mean`` is BatchNorm against itself, and shows what the measurement is worth."""
    problem = Problem.of(settings, where["shape"], where["layout"], where["direction"])
    return against_batch_norm("layer", where, problem, settings.estimators, settings)


class Problem(NamedTuple):
    """An activation, the gradient of its normalised form, and the affine parameters."""

    x: Tensor
    g: Tensor
    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, settings: Settings, shape: Shape, layout: str, direction: str) -> Problem:
        """Gaussian, as what convolutions give nearly is; affine parameters in float32, as under autocast."""
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

    def call(self, norm: Callable[[], Tensor]) -> Call:
        """One pass of a normalisation, and back if gradients are wanted."""
        if not self.x.requires_grad:
            return norm
        return lambda: torch.autograd.grad(norm(), (self.x, self.weight, self.bias), self.g)

    def batch_norm(self) -> Tensor:
        """What everything is compared with."""
        return F.batch_norm(self.x, None, None, self.weight, self.bias, training=True)

    def robust(self, estimator: str) -> Callable[[], Tensor]:
        """The defence."""
        return lambda: robust_norm(self.x, self.weight, self.bias, estimator)


def against_batch_norm(
    part: str, where: dict[str, Any], problem: Problem, estimators: Sequence[str], settings: Settings
) -> list[Row]:
    """Every estimator on every path that it has."""
    candidates = [
        Candidate(estimator, path, problem.call(problem.robust(estimator)))
        for estimator in estimators
        for path in paths(problem.x, estimator, settings.reference)
    ]
    return compare(
        part,
        where,
        problem.call(problem.batch_norm),
        candidates,
        lambda path: settings.turns(part, path),
        settings.device,
        graphs=settings.on_gpu,
    )
