"""Multivariate medians, to which theorem 2 of the paper (appendix G) applies.

The paper's layers use the median of each channel. These two extend it to points in space, where the same bound holds:
fewer than half malicious points can move them by a bounded amount only.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

LARGEST_SYSTEM = 1_000
"""Coordinates up to which Newton's steps are tried: each solves a system of that size."""


def coordinate_wise_median(points: Tensor) -> Tensor:
    """Return the lower median of every coordinate of ``points`` (n, d): a minimiser of Σ‖z − xᵢ‖₁.

    >>> coordinate_wise_median(torch.tensor([[0.0, 0.0], [1.0, 5.0], [2.0, 1.0]]))
    tensor([1., 1.])
    """
    return _check(points).median(dim=0).values + 0.0


def geometric_median(points: Tensor, *, tolerance: float = 1e-10, max_steps: int = 10_000) -> Tensor:
    """Return the minimiser of f(z) = Σ‖z − xᵢ‖₂ over ``points`` (n, d).

    This is Weiszfeld's iteration in the form of Vardi and Zhang (2000), which converges from any start because it can
    leave a data point. Near a data point its steps become tiny; Newton's step is taken wherever it halves ‖∇f‖ and does
    not increase f. A data point xₖ is the minimiser exactly if the unit vectors from it to all others add up to no
    more than the number of points at xₖ; the data point nearest to the iterate is tested, and returned exactly.
    Elsewhere the iteration ends when ‖∇f(z)‖ ≤ ``tolerance`` · n, which bounds the error: f(z) − f* ≤ ‖∇f(z)‖ · ‖z −
    z*‖. Unit vectors have no scale, so this also holds for points at 1e30. A warning is given if ``max_steps`` are
    reached before.

    >>> geometric_median(torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 4.0]]))
    tensor([2., 2.])
    """
    x = _check(points).detach().double()
    z = shift = x.median(dim=0).values  # close to the result: as the origin it keeps digits
    scale = (x - shift).abs().max().clamp(min=torch.finfo(x.dtype).tiny)  # squares of 1e160 would overflow
    x, z = (x - shift) / scale, z - shift
    tested, slope = -1, torch.inf  # the data point tested last, and ‖∇f(z)‖
    for _ in range(max_steps):
        distances = (x - z).norm(dim=1)
        nearest = int(distances.argmin())
        if nearest != tested:
            pull, weight, _ = _forces(x, x[nearest])
            if pull.norm() <= weight * (1 + 1e-12):
                z = x[nearest]
                break
            tested = nearest
        pull, weight, stiffness = _forces(x, z)
        slope = max(0.0, float(pull.norm()) - weight)
        if slope <= tolerance * len(x):
            break
        following = _newton_step(x, z, pull, slope) if weight == 0 and len(z) <= LARGEST_SYSTEM else None
        if following is None:
            pull, weight, stiffness = _leave_cluster(x, z) or (pull, weight, stiffness)
            following = z + (1 - weight / pull.norm()) * pull / stiffness
        if torch.equal(following, z):  # the step is smaller than rounding
            break
        z = following
    else:
        warnings.warn(
            f"geometric_median stopped after {max_steps} steps at a slope of {slope:.3g} for {len(x)} points.",
            RuntimeWarning,
            stacklevel=2,
        )
    return (z * scale + shift).to(points.dtype)


def _newton_step(x: Tensor, z: Tensor, pull: Tensor, slope: float) -> Tensor | None:
    """Return the point of Newton's step from z, where it halves ‖∇f‖ and does not increase f; otherwise None."""
    offsets = x - z
    distances = offsets.norm(dim=1, keepdim=True)
    units = offsets / distances
    identity = torch.eye(len(z), dtype=z.dtype, device=z.device)
    curvature = (1 / distances).sum() * identity - (units / distances).T @ units
    step, failed = torch.linalg.solve_ex(curvature, pull)
    if failed or not bool(step.isfinite().all()):  # all points are on one line
        return None
    after, weight, _ = _forces(x, z + step)
    longer = (x - z - step).norm(dim=1).sum() > distances.sum() * (1 + 1e-12)
    return None if longer or float(after.norm()) - weight > slope / 2 else z + step


def _leave_cluster(x: Tensor, z: Tensor) -> tuple[Tensor, float, Tensor] | None:
    """Return the forces on a tight cluster of points around z, if they move z out of it; otherwise None.

    Within a cluster that is tiny compared to its distance to all other points, steps are as small as the cluster.
    Treated as one point, it is left in one step.
    """
    distances = (x - z).norm(dim=1).sort().values
    gaps = (distances[1:] > 1e8 * distances[:-1]).nonzero().flatten().tolist()
    for gap in reversed(gaps):
        forces = _forces(x, z, float(distances[gap]))
        if forces[0].norm() > forces[1] * (1 + 1e-12):
            return forces
    return None


def _forces(x: Tensor, z: Tensor, near: float = 0.0) -> tuple[Tensor, float, Tensor]:
    """Return the sum of unit vectors from z to all points elsewhere, the number of points at z, and Σ 1/distance.

    A point is at z if it is no further than ``near``.
    """
    offsets = x - z
    distances = offsets.norm(dim=1, keepdim=True)
    elsewhere = distances > near
    inverse = torch.where(elsewhere, 1 / distances, 0.0)
    return (offsets * inverse).sum(dim=0), float((~elsewhere).sum()), inverse.sum()


def _check(points: Tensor) -> Tensor:
    if points.dim() != 2 or 0 in points.shape:
        raise ValueError(f"expected points of shape (n, d), at least one, got {tuple(points.shape)}.")
    if not points.is_floating_point():
        raise TypeError(f"expected floating point coordinates, got {points.dtype}.")
    if not bool(points.isfinite().all()):
        raise ValueError("points have NaN or infinite coordinates; leave those points out first.")
    return points
