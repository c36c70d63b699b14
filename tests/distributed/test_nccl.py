"""NCCL with one process: the collectives and kernels that more would use. Needs torch and pytest alone."""

from datetime import timedelta

import pytest
import torch
from torch import distributed as dist

import medbn
from medbn.distributed import Group, statistics

from ..methods.conftest import small_model
from ..methods.table import assert_same, state
from .test_statistics import INPUTS, KERNELS, reference

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture(scope="module")
def nccl(tmp_path_factory):
    """A default group of this process alone."""
    if not dist.is_available() or not dist.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    store = tmp_path_factory.mktemp("nccl") / "store"
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group(
        "nccl",
        init_method=f"file://{store}",
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=60),
        device_id=device,
    )
    yield Group()
    dist.destroy_process_group()


@pytest.mark.parametrize("estimator", KERNELS)
@pytest.mark.parametrize("name", INPUTS)
def test_statistics_and_gradients_are_those_of_one_process(nccl, estimator, name):
    x = INPUTS[name](8).cuda()
    whole, (centre, variance) = reference(x, estimator)
    weights = [torch.randn_like(centre) for _ in range(2)]
    ((centre * weights[0]).sum() + (variance * weights[1]).sum()).backward()
    part = x.clone().requires_grad_()
    c, v, counted = statistics(part, medbn.estimators.get(estimator), None, nccl)
    ((c * weights[0]).sum() + (v * weights[1]).sum()).backward()
    assert int(counted) == 8
    if estimator in ("median", "mad", "mad_scaled"):
        assert torch.equal(c, centre)
    torch.testing.assert_close(c, centre)
    torch.testing.assert_close(v, variance)
    rounding = {"rtol": 0.02, "atol": 1e-3} if x.dtype == torch.bfloat16 else {}
    torch.testing.assert_close(part.grad, whole.grad, **rounding)


def test_the_median_of_many_values_is_exact(nccl):
    x = torch.randn(32, 5, 64, 64, device="cuda").relu()  # half of the values are equal
    c, _, _ = statistics(x, medbn.estimators.get("median"), None, nccl)
    assert torch.equal(c.cpu(), x.transpose(0, 1).flatten(1).cpu().median(dim=1).values)


@pytest.mark.parametrize("method", ["tebn", "tent", "sar", "sotta", "past", "sema"])
def test_adapters_are_those_of_one_process(nccl, method, monkeypatch):
    options = {"confidence": 0.2} if method == "sotta" else {}
    batches = [torch.randn(12, 3, 8, 8, device="cuda") + 0.5 for _ in range(3)]
    model = small_model().cuda()
    one = medbn.adapt(model, method, "median", **options)
    expected = [one(batch) for batch in batches]
    monkeypatch.setattr(Group, "active", True)  # as if there were others
    tta = medbn.adapt(model, method, "median", group="world", **options)
    for batch, whole in zip(batches, expected, strict=True):
        torch.testing.assert_close(tta(batch), whole, rtol=1e-3, atol=1e-3)
    assert tta.group is not None
    assert_same(state(one), state(tta), exact=False)
