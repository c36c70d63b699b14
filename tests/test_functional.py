import numpy as np
import pytest
import torch
import torch.nn.functional as F

import medbn
from medbn.functional import robust_norm, statistics

from . import reference
from .reference import ESTIMATORS

SHAPES = [(6, 3, 4, 5), (7, 3), (1, 3, 9), (5, 2, 2, 3, 2), (4, 3, 1, 1), (1, 2, 1, 1), (1, 4)]
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)


def separated(*shape, dtype=torch.float64):
    """Distinct values further apart than gradcheck's step, in random order."""
    n = int(np.prod(shape))
    return ((torch.randperm(n).to(dtype) - n / 2) / 10 + 0.01 * torch.rand(n, dtype=dtype)).reshape(shape)


# --- values ----------------------------------------------------------------------------------------------------------


@every_estimator
@pytest.mark.parametrize("shape", SHAPES)
def test_statistics_match_the_definitions_in_float64(estimator, shape, device):
    x = torch.randn(shape) * 3 + 5
    centre, variance = statistics(x.to(device), estimator)
    expected = reference.statistics(x, estimator)
    np.testing.assert_allclose(centre.cpu(), expected[0], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(variance.cpu(), expected[1], rtol=1e-5, atol=1e-6)


def hard_inputs():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(5, 3, 7, 11, generator=g)
    outliers = x.clone().reshape(-1)
    outliers[torch.randperm(outliers.numel(), generator=g)[: outliers.numel() // 100 + 1]] = 1e30
    return {
        "random": x,
        "even_count": x[:4],
        "relu": x.relu(),
        "few_values": x.mul(2).round(),
        "sorted": x.reshape(-1).sort().values.reshape(x.shape),
        "reversed": x.reshape(-1).sort(descending=True).values.reshape(x.shape),
        "constant": torch.full((4, 3, 5), -2.5),
        "denormal": x * 1e-42,
        "signed_zeros": torch.where(x > 0.5, x, torch.where(x > 0, 0.0, -0.0)),
        "negative_zeros": torch.full((4, 2, 3), -0.0),
        "one_percent_huge": outliers.reshape(x.shape),
        "one_percent_huge_negative": -outliers.reshape(x.shape),
        "two_images": x[:2],
        "one_value": x[:1, :, :1, :1],
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_lower_median_is_exact(dtype, device):
    for name, x in hard_inputs().items():
        x = x.clamp(-6e4, 6e4).to(dtype) if dtype == torch.float16 else x.to(dtype)
        centre, _ = statistics(x.to(device), "median")
        expected = [reference.lower_median(x[:, c].double()) for c in range(x.shape[1])]
        assert centre.tolist() == expected, name
        assert not torch.signbit(centre[centre == 0]).any(), name


@every_estimator
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_robust_norm_normalises_with_the_statistics(estimator, shape, device):
    x, weight, bias = torch.randn(shape), torch.randn(shape[1]), torch.randn(shape[1])
    y = robust_norm(x.to(device), weight.to(device), bias.to(device), estimator, eps=1e-3)
    centre, variance = (torch.from_numpy(s) for s in reference.statistics(x, estimator))
    channel = (1, -1) + (1,) * (x.dim() - 2)
    expected = (x.double() - centre.view(channel)) / (variance.view(channel) + 1e-3).sqrt()
    expected = expected * weight.double().view(channel) + bias.double().view(channel)
    torch.testing.assert_close(y.cpu().double(), expected, rtol=1e-5, atol=1e-5)


def test_mean_is_batch_norm(device):
    x, weight, bias = torch.randn(6, 3, 4, 5), torch.randn(3), torch.randn(3)
    x, weight, bias = (t.to(device).requires_grad_() for t in (x, weight, bias))
    ours, theirs = robust_norm(x, weight, bias, "mean"), F.batch_norm(x, None, None, weight, bias, training=True)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    g = torch.randn_like(x)
    for a, b in zip(
        torch.autograd.grad(ours, (x, weight, bias), g), torch.autograd.grad(theirs, (x, weight, bias), g), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_image_median_is_instance_norm_for_one_image_and_mad_scaled_for_one_pixel():
    x = torch.randn(1, 3, 6, 6)
    torch.testing.assert_close(robust_norm(x, estimator="image_median"), F.instance_norm(x))
    x = torch.randn(9, 3)  # an odd number: the lower median is the median
    torch.testing.assert_close(statistics(x, "image_median"), statistics(x, "mad_scaled"))


@pytest.mark.parametrize("estimator", reference.ROBUST)
def test_normalised_gaussians_are_standard_where_the_estimator_is_consistent(estimator):
    x = torch.randn(64, 2, 32, 32) * 4 - 7
    y = robust_norm(x, estimator=estimator)
    scale = 1.4826 if estimator == "mad" else 1.0  # MAD² alone under-estimates a Gaussian's variance
    torch.testing.assert_close(y.std(dim=(0, 2, 3)), torch.full((2,), scale), rtol=0.02, atol=0)


# --- a mask of images ------------------------------------------------------------------------------------------------


@every_estimator
@pytest.mark.parametrize("shape", [(5, 3, 4, 3), (5, 3)])
def test_masked_statistics_are_those_of_the_valid_images(estimator, shape, device):
    for images in ([0], [1, 3], [0, 2, 4], [0, 1, 2, 3], [0, 1, 2, 3, 4]):
        x = torch.randn(shape, device=device)
        valid = torch.zeros(5, dtype=torch.bool, device=device)
        valid[images] = True
        x[~valid] = 1e4
        masked, alone = statistics(x, estimator, valid=valid), statistics(x[valid], estimator)
        if estimator in ("median", "mad", "mad_scaled"):
            assert torch.equal(masked[0], alone[0])
        torch.testing.assert_close(masked, alone)


@every_estimator
def test_statistics_of_no_image_are_nan(estimator, device):
    none = torch.zeros(4, dtype=torch.bool, device=device)
    for s in statistics(torch.randn(4, 3, 2, device=device), estimator, valid=none):
        assert s.isnan().all()


# --- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@every_estimator
@pytest.mark.parametrize(
    ("shape", "masked"), [((4, 2, 2, 2), False), ((4, 2, 2, 2), True), ((5, 2), True), ((1, 2, 7), False)]
)
def test_first_and_second_derivatives(estimator, shape, masked):
    x = separated(*shape).requires_grad_()
    weight, bias = torch.randn(2, 2, dtype=torch.float64).requires_grad_().unbind()
    mask = torch.arange(shape[0]) != 1 if masked else None

    def norm(x, weight, bias):
        return robust_norm(x, weight, bias, estimator, valid=mask)

    assert torch.autograd.gradcheck(norm, (x, weight, bias))
    assert torch.autograd.gradgradcheck(norm, (x, weight, bias))
    assert torch.autograd.gradcheck(lambda x: statistics(x, estimator, valid=mask), (x,))


def plain_formula(x, weight, bias, estimator, eps=1e-5):
    """The definition in plain operations, for autograd to differentiate."""
    rows = x.transpose(0, 1).flatten(1)
    if estimator == "mean":
        centre = rows.mean(1)
        variance = (rows - centre[:, None]).square().mean(1)
    elif estimator == "image_median":
        planes = x.flatten(2)
        means, within = planes.mean(2), planes.var(2, correction=0)
        centre = means.quantile(0.5, dim=0)
        variance = within.quantile(0.5, dim=0) + (1.4826 * (means - centre).abs().quantile(0.5, dim=0)).square()
    else:
        centre = rows.median(1).values
        deviation = rows - centre[:, None]
        variance = deviation.square().mean(1) if estimator == "median" else deviation.abs().median(1).values.square()
        if estimator == "mad_scaled":
            variance = variance * 1.4826**2
    channel = (1, -1) + (1,) * (x.dim() - 2)
    y = (x - centre.view(channel)) / (variance.view(channel) + eps).sqrt()
    return y * weight.view(channel) + bias.view(channel)


@every_estimator
@pytest.mark.parametrize("images", [5, 6])
def test_gradients_agree_with_autograd_over_the_plain_formula(estimator, images, device):
    inputs = [separated(images, 3, 4, 4), torch.randn(3).double(), torch.randn(3).double()]
    inputs = [t.to(device).requires_grad_() for t in inputs]
    g = torch.randn(images, 3, 4, 4, dtype=torch.float64, device=device)
    ours = torch.autograd.grad(robust_norm(*inputs, estimator), inputs, g)
    plain = torch.autograd.grad(plain_formula(*inputs, estimator), inputs, g)
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_closed_form_of_the_median_layer(dtype, device):
    x = separated(6, 3, 4, 5, dtype=dtype).to(device)
    g, weight, bias, eps = torch.randn_like(x), torch.randn(3).to(x), torch.randn(3).to(x), 1e-5
    inputs = [t.clone().requires_grad_() for t in (x, weight, bias)]
    dx, d_weight, d_bias = torch.autograd.grad(robust_norm(*inputs, "median", eps), inputs, g)

    rows, d_y = (t.double().transpose(0, 1).flatten(1) for t in (x, g))
    n = rows.shape[1]
    m = rows.sort(1).values[:, (n - 1) // 2 : (n - 1) // 2 + 1]
    s = ((rows - m).square().mean(1, keepdim=True) + eps).sqrt()
    a, standard = weight.double()[:, None] / s, (rows - m) / s
    sum_g, sum_gx = d_y.sum(1, keepdim=True), (d_y * standard).sum(1, keepdim=True)
    expected = a * (d_y - standard * sum_gx / n)
    selected = (rows == m).double().argmax(1)
    extra = -a * (sum_g - sum_gx / n * standard.sum(1, keepdim=True))
    expected[torch.arange(3), selected] += extra.squeeze(1)

    tolerance = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(dx.double().transpose(0, 1).flatten(1), expected, **tolerance)
    torch.testing.assert_close(d_weight.double(), sum_gx.squeeze(1), **tolerance)
    torch.testing.assert_close(d_bias.double(), sum_g.squeeze(1), **tolerance)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("zeros", [[0.0], [-0.0, 0.0], [0.0, -0.0]])
def test_at_ties_the_first_element_in_b_h_w_order_gets_the_gradient(memory_format, zeros, device):
    x = torch.randn(4, 3, 3, 5).relu()  # more than half of the values tie at zero, once a few more are set
    x[:, :, :, :3] = torch.tensor(zeros).repeat(3)[:3]
    # So that the first zero is neither at the start of memory nor at the same place in channels_last.
    x[0, :, 0, :2] = 1.0
    x = x.to(device).to(memory_format=memory_format).requires_grad_()
    centre, _ = statistics(x, "median")
    (dx,) = torch.autograd.grad(centre.sum(), x)
    rows = x.detach().transpose(0, 1).reshape(3, -1)
    first = [row.tolist().index(0.0) for row in rows]
    expected = torch.zeros_like(rows)
    expected[torch.arange(3), first] = 1.0
    assert torch.equal(dx.transpose(0, 1).reshape(3, -1), expected)
    assert torch.equal(centre, torch.zeros_like(centre))


def test_a_masked_image_is_never_selected_for_the_gradient():
    x = torch.zeros(3, 1, 2, requires_grad=True)
    centre, _ = statistics(x, "median", valid=torch.tensor([False, True, True]))
    (dx,) = torch.autograd.grad(centre.sum(), x)
    assert dx.flatten().tolist() == [0, 0, 1, 0, 0, 0]


@every_estimator
def test_only_the_input_and_per_channel_numbers_are_saved_for_backward(estimator, device):
    x = torch.randn(8, 4, 16, 16, device=device, requires_grad=True)
    weight, bias = torch.randn(2, 4, device=device).requires_grad_().unbind()
    saved = {}

    def save(t):
        saved[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(save, lambda t: t):
        robust_norm(x, weight, bias, estimator)
    large = [size for size in saved.values() if size >= x.numel()]
    assert large == [x.untyped_storage().nbytes()]
    assert sum(saved.values()) - large[0] <= 64 * (x.shape[0] * x.shape[1])


@every_estimator
def test_torch_func_and_forward_mode(estimator):
    x, direction = separated(5, 2, 3, 3), torch.randn(5, 2, 3, 3, dtype=torch.float64)

    def norm(x):
        return robust_norm(x, estimator=estimator, nonfinite="isolate")

    _, forward = torch.func.jvp(norm, (x,), (direction,))
    _, pull = torch.func.vjp(norm, x)
    g = torch.randn_like(x)
    x_grad = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(norm(x_grad), x_grad, g)
    torch.testing.assert_close(pull(g)[0], expected)
    torch.testing.assert_close((forward * g).sum(), (expected * direction).sum())  # ⟨J v, g⟩ = ⟨v, Jᵀ g⟩


# --- dtypes, layouts, devices ----------------------------------------------------------------------------------------


@every_estimator
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(estimator, dtype, device):
    x = (torch.randn(8, 3, 5, 5) * 1000).to(dtype)  # squares overflow float16
    weight, bias = torch.randn(3), torch.randn(3)
    half, full = x.to(device).requires_grad_(), x.to(device).float().requires_grad_()
    parameters = weight.to(device), bias.to(device)
    centre, variance = statistics(half, estimator)
    assert centre.dtype == variance.dtype == torch.float32
    torch.testing.assert_close((centre, variance), statistics(full, estimator), rtol=1e-6, atol=1e-6)
    y, expected = (robust_norm(t, *parameters, estimator) for t in (half, full))
    assert y.dtype == dtype
    epsilon = torch.finfo(dtype).eps
    torch.testing.assert_close(y.float(), expected, rtol=epsilon, atol=epsilon)
    g = torch.randn_like(expected)
    (dx,), (d_expected,) = (
        torch.autograd.grad(y, half, g.to(dtype)),
        torch.autograd.grad(expected, full, g.to(dtype).float()),
    )
    assert dx.dtype == dtype
    scale = d_expected.abs().max().item()
    torch.testing.assert_close(dx.float() / scale, d_expected / scale, rtol=4 * epsilon, atol=4 * epsilon)


@every_estimator
def test_half_precision_parameters_too(estimator, device):
    x, weight, bias = torch.randn(8, 3, 5, 5), torch.randn(3), torch.randn(3)
    y = robust_norm(x.bfloat16().to(device), weight.bfloat16().to(device), bias.bfloat16().to(device), estimator)
    torch.testing.assert_close(y.float().cpu(), robust_norm(x, weight, bias, estimator), rtol=0.03, atol=0.03)


@every_estimator
def test_autocast(estimator, device):
    dtype = torch.bfloat16
    conv = torch.nn.Conv2d(3, 4, 3).to(device)
    layer = medbn.RobustBatchNorm2d(4, estimator=estimator).to(device)
    x = torch.randn(6, 3, 8, 8, device=device)
    with torch.autocast(device, dtype=dtype):
        hidden = conv(x)
        y = layer(hidden)
    assert hidden.dtype == y.dtype == dtype
    torch.testing.assert_close(y.float(), layer(hidden.float()), rtol=0.02, atol=0.02)
    y.float().square().mean().backward()
    assert layer.weight.grad.dtype == torch.float32
    assert conv.weight.grad.isfinite().all()


@every_estimator
def test_channels_last_stays_and_changes_nothing(estimator, device):
    x, g = torch.randn(2, 4, 3, 6, 6, device=device).unbind()
    last = x.to(memory_format=torch.channels_last).requires_grad_()
    x.requires_grad_()
    y, expected = robust_norm(last, estimator=estimator), robust_norm(x, estimator=estimator)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, expected)
    (dx,), (d_expected,) = torch.autograd.grad(y, last, g), torch.autograd.grad(expected, x, g)
    torch.testing.assert_close(dx, d_expected, rtol=1e-4, atol=1e-5)


@every_estimator
def test_channels_last_stays_beside_an_isolated_image(estimator, device):
    x = torch.randn(4, 3, 6, 6, device=device).to(memory_format=torch.channels_last)
    x[1, 0, 0, 0] = torch.inf
    y = robust_norm(x, estimator=estimator, nonfinite="isolate")
    assert y.is_contiguous(memory_format=torch.channels_last)


@every_estimator
def test_non_contiguous_input(estimator, device):
    whole = torch.randn(8, 6, 5, 7, device=device)
    for view in (whole[::2, 1::2], whole[..., 1:4], whole.transpose(2, 3), whole[:1].expand(4, -1, -1, -1)):
        x, copy = view.detach().requires_grad_(), view.detach().clone(memory_format=torch.contiguous_format)
        copy.requires_grad_()
        y, expected = robust_norm(x, estimator=estimator), robust_norm(copy, estimator=estimator)
        torch.testing.assert_close(y, expected)
        g = torch.randn_like(expected)
        torch.testing.assert_close(
            torch.autograd.grad(y, x, g), torch.autograd.grad(expected, copy, g), rtol=1e-4, atol=1e-4
        )


@every_estimator
def test_deterministic_algorithms(estimator, device):
    x = torch.randn(6, 3, 5, 5, device=device).relu().requires_grad_()
    expected = robust_norm(x, estimator=estimator)
    torch.use_deterministic_algorithms(True)
    try:
        y = robust_norm(x, estimator=estimator)
        gradients = [torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0] for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(y, expected)
    assert all(torch.equal(gradients[0], other) for other in gradients[1:])


@every_estimator
@pytest.mark.parametrize("share", [1.0, 0.3, 0.01])
def test_huge_values_overflow_to_infinity_at_most(estimator, share, device):
    x = torch.randn(10, 3, 4, 4, device=device)
    x = torch.where(torch.rand_like(x) < share, torch.where(torch.rand_like(x) < 0.5, 1e30, -1e30), x).requires_grad_()
    weight = torch.ones(3, device=device, requires_grad=True)
    centre, variance = statistics(x, estimator)
    assert centre.isfinite().all()
    assert not variance.isnan().any()
    assert (variance >= 0).all()
    # torch's own CUDA kernel for the mean may return NaN here; medbn's must not.
    y = robust_norm(x, weight, estimator=estimator, nonfinite="isolate")
    assert y.isfinite().all()
    if device == "cpu":
        assert robust_norm(x, weight, estimator=estimator).isfinite().all()
    if estimator in ("mean", "median"):  # where MAD is 0, a gradient is 1e30 · 1e8 and float32 has no such number
        for gradient in torch.autograd.grad(y.sum(), (x, weight)):
            assert not gradient.isnan().any()


# --- bad input -------------------------------------------------------------------------------------------------------


def test_errors_about_names_list_the_valid_ones():
    with pytest.raises(ValueError, match=r"medain.*image_median, mad, mad_scaled, mean, median"):
        statistics(torch.randn(4, 3), "medain")
    with pytest.raises(ValueError, match=r"ignore.*isolate, propagate"):
        statistics(torch.randn(4, 3), nonfinite="ignore")


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.randn(3), ValueError, r"2 dimensions.*\(3,\)"),
        (torch.randn(0, 3), ValueError, r"empty.*\(0, 3\)"),
        (torch.randn(2, 3, 0), ValueError, "empty"),
        (torch.ones(2, 3, dtype=torch.uint8), TypeError, "uint8"),
        ([[1.0]], TypeError, "tensor.*list"),
    ],
)
@pytest.mark.parametrize("estimator", ["mean", "median"])
def test_bad_input_is_an_error(x, error, message, estimator):
    for function in (statistics, robust_norm):
        with pytest.raises(error, match=message):
            function(x, estimator=estimator)


@pytest.mark.parametrize("valid", [torch.ones(3, dtype=torch.bool), torch.ones(4), torch.ones(4, 1, dtype=torch.bool)])
def test_a_bad_mask_is_an_error(valid):
    with pytest.raises(TypeError, match=r"valid.*list"):
        statistics(torch.randn(4, 3), valid=[True] * 4)
    with pytest.raises(ValueError, match=r"valid.*\(4,\)"):
        statistics(torch.randn(4, 3), valid=valid)
