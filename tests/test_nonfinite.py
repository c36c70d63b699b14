import pytest
import torch
from torch import nn

import medbn
from medbn.functional import robust_norm, statistics

from .reference import ESTIMATORS, ROBUST

every_robust = pytest.mark.parametrize("estimator", ROBUST)
BAD = [1, 4]
OTHERS = [0, 2, 3, 5, 6]


def bad_batch(value, device="cpu", dtype=torch.float32):
    """Seven images of which two have one bad value, in different channels."""
    x = torch.randn(7, 3, 4, 4, device=device, dtype=dtype)
    x[1, 0, 2, 2] = value
    x[4, 2, 0, 0] = value
    return x


@every_robust
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_statistics_are_those_of_the_others(estimator, value, device):
    x = bad_batch(value, device)
    ours, others = statistics(x, estimator), statistics(x[OTHERS], estimator)
    if estimator in ("median", "mad", "mad_scaled"):
        assert torch.equal(ours[0], others[0])
    torch.testing.assert_close(ours, others)


@every_robust
@pytest.mark.parametrize(
    ("policy", "value"), [("batch", torch.nan), ("batch", torch.inf), ("ema", -torch.inf), ("source", torch.nan)]
)
def test_outputs_and_gradients_are_those_of_the_batch_without_isolated_images(estimator, value, policy, device):
    layer = medbn.RobustBatchNorm2d(3, estimator=estimator, policy=policy).to(device).eval()
    x = bad_batch(value, device).requires_grad_()
    alone = x.detach()[OTHERS].requires_grad_()
    y, expected = layer(x), layer(alone)
    torch.testing.assert_close(y[OTHERS], expected)
    assert y[1].isnan().any()
    assert y[4].isnan().any()

    # A gradient arrives for the isolated images too, NaN as it would be after a loss: it must not spread.
    g = torch.randn_like(expected)
    g_all = torch.full_like(x, torch.nan)
    g_all[OTHERS] = g
    parameters = [layer.weight, layer.bias]
    dx, *d_parameters = torch.autograd.grad(y, [x, *parameters], g_all)
    d_alone, *d_expected = torch.autograd.grad(expected, [alone, *parameters], g)
    torch.testing.assert_close(dx[OTHERS], d_alone, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(d_parameters, d_expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(dx[BAD], torch.zeros_like(dx[BAD]))


@every_robust
def test_second_derivatives_isolate_too(estimator):
    x = bad_batch(torch.nan, dtype=torch.float64).requires_grad_()
    alone = x.detach()[OTHERS].requires_grad_()
    second = []
    for t in (x, alone):
        y = robust_norm(t, estimator=estimator)
        y = y[OTHERS] if t is x else y
        (first,) = torch.autograd.grad(y.pow(3).sum(), t, create_graph=True)
        (dd,) = torch.autograd.grad(first.square().sum(), t)
        second.append(dd[OTHERS] if t is x else dd)
    torch.testing.assert_close(*second)


@every_robust
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_isolates(estimator, dtype, device):
    x = bad_batch(torch.inf, device, dtype)
    y, expected = robust_norm(x, estimator=estimator), robust_norm(x[OTHERS], estimator=estimator)
    torch.testing.assert_close(y[OTHERS], expected)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_propagate_does_what_torch_does(estimator, device):
    x = bad_batch(torch.nan, device)
    centre, variance = statistics(x, estimator, nonfinite="propagate")
    assert centre.isnan().tolist() == variance.isnan().tolist() == [True, False, True]
    y = robust_norm(x, estimator=estimator, nonfinite="propagate")
    assert y[:, [0, 2]].isnan().all()
    assert y[:, 1].isfinite().all()


def test_propagate_respects_the_mask(device):
    x = bad_batch(torch.nan, device)
    valid = torch.ones(7, dtype=torch.bool, device=device)
    valid[1] = False
    for estimator in ESTIMATORS:
        centre, _ = statistics(x, estimator, valid=valid, nonfinite="propagate")
        assert centre.isnan().tolist() == [False, False, True]


def test_the_mean_isolates_only_on_request(device):
    x = bad_batch(torch.nan, device)
    assert robust_norm(x, estimator="mean")[:, 0].isnan().all()
    y = robust_norm(x, estimator="mean", nonfinite="isolate")
    torch.testing.assert_close(y[OTHERS], robust_norm(x[OTHERS], estimator="mean"))
    layer = medbn.RobustBatchNorm2d(3, estimator="mean", nonfinite="isolate").to(device).eval()
    torch.testing.assert_close(layer(x)[OTHERS], y[OTHERS])


@every_robust
@pytest.mark.parametrize("policy", ["batch", "ema"])
def test_a_batch_with_no_finite_image_uses_running_statistics(estimator, policy, device):
    layer = medbn.RobustBatchNorm2d(3, estimator=estimator, policy=policy).to(device).eval()
    layer.running_mean.normal_()
    running = layer.running_mean
    if policy == "ema":
        layer.commit(torch.randn(3, device=device), torch.rand(3, device=device))
        running = layer.ema_mean
    x = torch.full((2, 3, 4, 4), torch.nan, device=device, requires_grad=True)
    with medbn.observe(layer) as seen:
        y = layer(x)
        assert torch.equal(seen[0].centre, running)
    assert y.isnan().all()
    gradients = torch.autograd.grad(y.sum(), [x, layer.weight, layer.bias])
    assert all(torch.equal(g, torch.zeros_like(g)) for g in gradients)


@every_robust
def test_a_layer_without_running_statistics_returns_nan(estimator):
    layer = medbn.RobustBatchNorm2d(3, estimator=estimator, track_running_stats=False)
    assert layer(torch.full((2, 3, 4, 4), torch.nan)).isnan().all()
    assert all(s.isnan().all() for s in statistics(torch.full((2, 3), torch.inf), estimator))


@every_robust
def test_training_ignores_non_finite_images(estimator):
    layer, twin = (medbn.RobustBatchNorm2d(3, estimator=estimator) for _ in range(2))
    x = bad_batch(torch.nan)
    layer(x)
    twin(x[OTHERS])
    torch.testing.assert_close(layer.running_mean, twin.running_mean)
    torch.testing.assert_close(layer.running_var, twin.running_var)
    before = layer.running_mean.clone()
    layer(torch.full((2, 3, 4, 4), torch.nan))
    assert torch.equal(layer.running_mean, before)
    assert layer.num_batches_tracked == 1


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_padding_may_contain_anything(estimator):
    layer = medbn.RobustBatchNorm2d(3, estimator=estimator).eval()
    x = torch.randn(6, 3, 4, 4)
    expected = layer(x[:4])
    (d_expected,) = torch.autograd.grad(expected.square().sum() + expected.sum(), layer.weight)
    x[4:] = torch.nan
    with medbn.hooks.mask_images(layer, torch.arange(6) < 4):
        y = layer(x)[:4]
    torch.testing.assert_close(y, expected)
    (d_weight,) = torch.autograd.grad(y.square().sum() + y.sum(), layer.weight)
    torch.testing.assert_close(d_weight, d_expected, rtol=1e-4, atol=1e-4)


def test_a_finite_image_whose_sum_overflows_stays_one_image():
    x = torch.randn(5, 3, 64, 64)
    others = x[[0, 1, 3, 4]]
    x[2] = 3e38
    x.requires_grad_()
    centre, variance = statistics(x, "image_median")
    means, within = others.mean(dim=(2, 3)), others.var(dim=(2, 3))
    assert (means.amin(0) <= centre).all()
    assert (centre <= means.amax(0)).all()
    assert (variance < 2 * within.amax(0)).all()
    (dx,) = torch.autograd.grad(centre.sum() + variance.sum(), x)
    assert dx.isfinite().all()


@every_robust
def test_one_image_does_not_affect_the_others_in_a_whole_model(estimator, device):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()
    )
    model = medbn.convert(model, estimator).to(device).eval()
    x = torch.randn(6, 3, 8, 8, device=device)
    x[2, 0, 0, 0] = torch.nan
    others = [0, 1, 3, 4, 5]
    torch.testing.assert_close(model(x)[others], model(x[others]), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@every_robust
def test_isolation_does_not_synchronise_the_gpu(estimator):
    layer = medbn.RobustBatchNorm2d(3, estimator=estimator, policy="ema").cuda().eval()
    x = bad_batch(torch.nan, "cuda").requires_grad_()
    layer(x).sum().backward()
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        with medbn.observe(layer) as seen:
            layer(x)[5:].sum().backward()  # a slice: indexing by a list would synchronise
            layer.commit(seen[0].batch_centre, seen[0].batch_variance)
    finally:
        torch.cuda.set_sync_debug_mode("default")
