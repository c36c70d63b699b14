"""Statistics over gloo processes, against one process that has the whole batch."""

import pytest
import torch

from medbn import distributed, estimators, gradients

pytestmark = pytest.mark.slow  # the first test starts processes

KERNELS = ("mean", "median", "mad", "mad_scaled", "image_median")
SHARES = {2: (5, 3), 3: (4, 0, 3), 4: (1, 6, 2, 2)}
"""How many images each process has."""


def images(batch, channels=3, shape=(4, 5), dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, channels, *shape, generator=generator, dtype=torch.float64).to(dtype)


INPUTS = {
    "normal": lambda b: images(b),
    "two dimensions": lambda b: images(b, shape=()),
    "double": lambda b: images(b, dtype=torch.float64),
    "bfloat16": lambda b: images(b, dtype=torch.bfloat16),
    "ties": lambda b: images(b).round(),
    "mostly zero": lambda b: (images(b) - 1).relu(),
    "constant": lambda b: torch.full((b, 3, 4, 5), -0.0),
    "sorted over processes": lambda b: images(b).flatten().sort().values.view(b, 3, 4, 5),
    "huge": lambda b: images(b) * torch.logspace(-30, 18, b).view(-1, 1, 1, 1),
}


def own(group, batch, shares):
    rank = torch.distributed.get_rank(group)
    start = sum(shares[:rank])
    return batch[start : start + shares[rank]]


def share_statistics(group, x, estimator, shares, valid=None, weights=None):
    """Statistics of a part and, with weights for both, the gradient of their weighted sum over all processes."""
    part = own(group, x, shares).clone().requires_grad_()
    mask = None if valid is None else own(group, valid, shares)
    result = distributed.statistics(part, estimators.get(estimator), mask, distributed.Group(group))
    gradient = None
    if weights is not None:
        # Each process has its own weights; together they are the given ones.
        scale = (torch.distributed.get_rank(group) + 1) / sum(range(1, len(shares) + 1))
        sum((scale * w * s).sum() for w, s in zip(weights, result[:2], strict=True)).backward()
        gradient = part.grad
    return [s.detach() for s in result], gradient


def reference(x, estimator, valid=None):
    """The same by the definition, without kernels."""
    x = x.clone().requires_grad_()
    return x, estimators.get(estimator)(x, valid)


@pytest.mark.parametrize("count", SHARES)
@pytest.mark.parametrize("name", INPUTS)
def test_statistics_are_those_of_the_whole_batch(pool, count, name):
    shares = SHARES[count]
    x = INPUTS[name](sum(shares))
    for estimator in KERNELS:
        weights = [torch.randn(3, dtype=torch.promote_types(x.dtype, torch.float32)) for _ in range(2)]
        whole, (centre, variance) = reference(x, estimator)
        ((centre * weights[0]).sum() + (variance * weights[1]).sum()).backward()
        answers = pool.run(share_statistics, count, x, estimator, shares, None, weights)
        for (c, v, counted), _ in answers:
            assert int(counted) == sum(shares)
            torch.testing.assert_close(c, answers[0][0][0], rtol=0, atol=0)
            torch.testing.assert_close(v, answers[0][0][1], rtol=0, atol=0)
        (c, v, _), _ = answers[0]
        if estimator in ("median", "mad", "mad_scaled"):
            torch.testing.assert_close(c, centre.detach(), rtol=0, atol=0)  # a selected value, to the bit
        if estimator == "mad":
            torch.testing.assert_close(v, variance.detach(), rtol=0, atol=0)
        torch.testing.assert_close(c, centre.detach())
        torch.testing.assert_close(v, variance.detach())
        rounding = {"rtol": 0.02, "atol": 1e-3} if x.dtype == torch.bfloat16 else {}
        torch.testing.assert_close(torch.cat([g for _, g in answers]), whole.grad, **rounding)


@pytest.mark.parametrize("estimator", KERNELS)
def test_masked_images_do_not_count(pool, estimator):
    x, valid = images(9), torch.tensor([1, 0, 1, 1, 0, 0, 1, 0, 1], dtype=torch.bool)
    weights = [torch.randn(3), torch.randn(3)]
    whole, (centre, variance) = reference(x, estimator, valid)
    ((centre * weights[0]).sum() + (variance * weights[1]).sum()).backward()
    shares = (4, 2, 3)  # the second process has none that counts
    answers = pool.run(share_statistics, 3, x, estimator, shares, valid, weights)
    for (c, v, counted), _ in answers:
        assert int(counted) == 5
        torch.testing.assert_close(c, centre.detach())
        torch.testing.assert_close(v, variance.detach())
    torch.testing.assert_close(torch.cat([g for _, g in answers]), whole.grad)


def second_derivative(group, x, estimator, shares, weights):
    part = own(group, x, shares).clone().requires_grad_()
    centre, variance, _ = distributed.statistics(part, estimators.get(estimator), None, distributed.Group(group))
    scale = (torch.distributed.get_rank(group) + 1) / sum(range(1, len(shares) + 1))
    value = scale * ((centre**2 * weights[0]).sum() + (variance**2 * weights[1]).sum())
    (first,) = torch.autograd.grad(value, part, create_graph=True)
    first.square().sum().backward()
    return first.detach(), part.grad


@pytest.mark.parametrize("estimator", KERNELS)
def test_second_derivatives_are_those_of_the_whole_batch(pool, estimator):
    x, weights = images(8, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    whole, (centre, variance) = reference(x, estimator)
    value = (centre**2 * weights[0]).sum() + (variance**2 * weights[1]).sum()
    (first,) = torch.autograd.grad(value, whole, create_graph=True)
    first.square().sum().backward()
    answers = pool.run(second_derivative, 3, x, estimator, (3, 0, 5), weights)
    torch.testing.assert_close(torch.cat([a[0] for a in answers]), first.detach())
    torch.testing.assert_close(torch.cat([a[1] for a in answers]), whole.grad)


def own_estimator(group, x, shares, smooth):
    function = lambda x, valid: (x.flatten(2).amax(2).mean(0), x.flatten(2).var(2).amax(0))  # noqa: E731
    estimator = gradients.smooth(estimators.get("median")) if smooth else estimators.Estimator("own", function)
    part = own(group, x, shares).clone().requires_grad_()
    result = distributed.statistics(part, estimator, None, distributed.Group(group))
    (result.centre.sum() + result.variance.sum()).div(len(shares)).backward()
    return result.centre.detach(), result.variance.detach(), part.grad


@pytest.mark.parametrize("smooth", [False, True])
def test_other_estimators_get_the_activations_of_all_processes(pool, smooth):
    x = images(7)
    whole = x.clone().requires_grad_()
    if smooth:
        centre, variance = gradients.smooth(estimators.get("median"))(whole)
    else:
        centre, variance = whole.flatten(2).amax(2).mean(0), whole.flatten(2).var(2).amax(0)
    (centre.sum() + variance.sum()).backward()
    answers = pool.run(own_estimator, 2, x, (5, 2), smooth)
    for c, v, _ in answers:
        torch.testing.assert_close(c, centre.detach())
        torch.testing.assert_close(v, variance.detach())
    torch.testing.assert_close(torch.cat([a[2] for a in answers]), whole.grad)
