import copy
import io
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import medbn
from medbn import estimators, policies
from medbn._few_values import warn_of_few_values
from medbn._running_statistics import gather_statistics
from medbn.functional import normalise, robust_norm, statistics

from .reference import ESTIMATORS, ROBUST

KINDS = {
    "1d": (nn.BatchNorm1d, medbn.RobustBatchNorm1d, (6, 3, 5)),
    "1d_flat": (nn.BatchNorm1d, medbn.RobustBatchNorm1d, (6, 3)),
    "2d": (nn.BatchNorm2d, medbn.RobustBatchNorm2d, (6, 3, 5, 4)),
    "3d": (nn.BatchNorm3d, medbn.RobustBatchNorm3d, (6, 3, 2, 3, 4)),
}
every_kind = pytest.mark.parametrize(("plain", "robust", "shape"), KINDS.values(), ids=KINDS)
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)
every_policy = pytest.mark.parametrize("policy", policies.available())


def filled(layer):
    """The layer with parameters and source statistics that are not the neutral ones."""
    with torch.no_grad():
        layer.weight.normal_()
        layer.bias.normal_()
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
    return layer


def state_of(layer):
    return {name: t.clone() for name, t in (*layer.named_parameters(), *layer.named_buffers())}


# --- torch's own layer, with more ------------------------------------------------------------------------------------


@every_kind
def test_a_robust_layer_is_a_torch_layer(plain, robust, shape):
    layer = robust(3, eps=1e-3, momentum=0.2)
    assert isinstance(layer, plain)
    assert layer.eps == 1e-3
    assert layer.momentum == 0.2
    assert "estimator=median, policy=batch()" in repr(layer)
    with pytest.raises(ValueError, match="D input"):
        layer(torch.randn(3))


@every_kind
def test_checkpoints_load_strictly_both_ways(plain, robust, shape):
    ours, theirs = filled(robust(3, policy="ema")), filled(plain(3))
    ours.commit(torch.randn(3), torch.rand(3))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict(), strict=True)
    ours.load_state_dict(filled(plain(3)).state_dict(), strict=True)


def test_options_of_the_constructor():
    assert medbn.RobustBatchNorm2d(3, affine=False).weight is None
    assert medbn.RobustBatchNorm2d(3, track_running_stats=False).running_mean is None
    assert medbn.RobustBatchNorm2d(3, dtype=torch.float64).weight.dtype == torch.float64
    for kind in (medbn.MedBatchNorm1d, medbn.MedBatchNorm2d, medbn.MedBatchNorm3d):
        assert kind(3).estimator is estimators.get("median")


def test_errors_about_options_list_the_valid_ones():
    with pytest.raises(ValueError, match=r"medain.*median"):
        medbn.RobustBatchNorm2d(3, estimator="medain")
    with pytest.raises(ValueError, match=r"btach.*batch, ema, interpolate, source"):
        medbn.RobustBatchNorm2d(3, policy="btach")
    with pytest.raises(ValueError, match=r"nonfinite.*drop"):
        medbn.RobustBatchNorm2d(3, nonfinite="drop")
    with pytest.raises(ValueError, match=r"momentum.*1\.5"):
        policies.ema(momentum=1.5)
    for policy in ("source", "ema", "interpolate"):
        with pytest.raises(ValueError, match=policy):
            medbn.RobustBatchNorm2d(3, track_running_stats=False, policy=policy)


@every_kind
@every_estimator
def test_without_affine_parameters_or_statistics(plain, robust, shape, estimator):
    layer = robust(3, affine=False, track_running_stats=False, estimator=estimator).eval()
    x = torch.randn(shape)
    torch.testing.assert_close(layer(x), robust_norm(x, estimator=estimator))


# --- policies --------------------------------------------------------------------------------------------------------


@every_estimator
@pytest.mark.parametrize("training", [True, False])
def test_each_policy_in_closed_form(estimator, training, device):
    x = torch.randn(6, 3, 5, 4, device=device) * 2 + 1
    centre, variance = statistics(x, estimator)

    def expect(policy, mean, var):
        layer = filled(medbn.RobustBatchNorm2d(3, estimator=estimator, policy=policy)).to(device).train(training)
        mean, var = mean(layer.running_mean), var(layer.running_var)
        expected = normalise(x, mean, var, layer.weight, layer.bias, layer.eps)
        torch.testing.assert_close(layer(x), expected)

    expect("batch", lambda s: centre, lambda s: variance)
    expect("source", lambda s: s.clone(), lambda s: s.clone())
    expect("ema", lambda s: 0.2 * centre + 0.8 * s, lambda s: 0.2 * variance + 0.8 * s)
    expect(policies.ema(0.7), lambda s: 0.7 * centre + 0.3 * s, lambda s: 0.7 * variance + 0.3 * s)
    expect("interpolate", lambda s: 0.4 * centre + 0.6 * s, lambda s: 0.4 * variance + 0.6 * s)
    expect(policies.interpolate(0.9), lambda s: 0.1 * centre + 0.9 * s, lambda s: 0.1 * variance + 0.9 * s)


def test_the_source_policy_is_torch_in_eval_to_the_bit(device):
    plain = filled(nn.BatchNorm2d(3)).to(device).eval()
    layer = medbn.RobustBatchNorm2d(3, policy="source").to(device)
    layer.load_state_dict(plain.state_dict())
    x = torch.randn(6, 3, 5, 4, device=device)
    with torch.no_grad():
        assert torch.equal(layer(x), plain(x))
    torch.testing.assert_close(layer(x), plain(x))


@pytest.mark.slow
@every_estimator
@pytest.mark.parametrize("policy", ["batch", policies.ema(0.3), policies.interpolate(0.6)], ids=str)
def test_gradients_flow_through_the_batch_part(estimator, policy):
    layer = filled(medbn.RobustBatchNorm1d(2, dtype=torch.float64, estimator=estimator, policy=policy)).eval()
    x = (torch.randperm(12).double() / 3 + 0.01 * torch.rand(12).double()).reshape(6, 2).requires_grad_()

    def pass_through(x, weight, bias):
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))

    inputs = (x, layer.weight, layer.bias)
    assert torch.autograd.gradcheck(pass_through, inputs)
    assert torch.autograd.gradgradcheck(pass_through, inputs)


def test_policies_print_as_their_calls():
    expected = ["source()", "batch()", "ema(momentum=0.2)", "interpolate(prior=0.6)"]
    assert [str(policies.get(name)) for name in policies.available()] == expected


# --- state -----------------------------------------------------------------------------------------------------------


@every_policy
@pytest.mark.parametrize("estimator", ["mean", "median", "mad"])
def test_a_forward_pass_writes_nothing(policy, estimator):
    layer = filled(medbn.RobustBatchNorm2d(3, estimator=estimator, policy=policy)).eval()
    before = state_of(layer)
    outputs = [layer(torch.ones(4, 3, 2, 2) * torch.arange(4.0).view(4, 1, 1, 1)) for _ in range(3)]
    outputs[-1].sum().backward()
    after = state_of(layer)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert layer.ema_mean is None
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("policy", ["source", "ema", "interpolate"])
def test_only_the_batch_policy_trains_the_source_statistics(policy):
    layer = filled(medbn.RobustBatchNorm2d(3, policy=policy)).train()
    before = state_of(layer)
    layer(torch.randn(4, 3, 2, 2))
    assert all(torch.equal(before[name], t) for name, t in state_of(layer).items())


@every_kind
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("nonfinite", [None, "isolate"])
def test_training_with_the_mean_is_training_with_torch(plain, robust, shape, momentum, nonfinite):
    theirs = plain(3, momentum=momentum)
    ours = robust(3, momentum=momentum, estimator="mean", nonfinite=nonfinite)
    for _ in range(3):
        x = torch.randn(shape) * 3 + 1
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
    for name, t in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], t)


@pytest.mark.parametrize("estimator", ROBUST)
def test_training_moves_the_source_statistics_towards_the_estimates(estimator):
    layer = medbn.RobustBatchNorm2d(3, estimator=estimator, momentum=0.25)
    x = torch.randn(6, 3, 5, 4) + 2
    layer(x)
    centre, variance = statistics(x, estimator)
    n = 6 * 5 * 4
    torch.testing.assert_close(layer.running_mean, 0.25 * centre)
    torch.testing.assert_close(layer.running_var, 0.75 + 0.25 * variance * n / (n - 1))
    assert layer.num_batches_tracked == 1


def test_only_commit_writes_the_moving_average():
    layer = filled(medbn.RobustBatchNorm2d(3, policy=policies.ema(0.2))).eval()
    source = layer.running_mean.clone(), layer.running_var.clone()
    expected = list(source)
    for _ in range(3):
        batch = statistics(torch.randn(6, 3, 5, 4) + 3)
        layer.commit(*batch)
        expected = [0.2 * new + 0.8 * old for new, old in zip(batch, expected, strict=True)]
        torch.testing.assert_close((layer.ema_mean, layer.ema_var), tuple(expected))
    assert torch.equal(layer.running_mean, source[0])

    x = torch.randn(6, 3, 5, 4)
    centre, variance = statistics(x)
    mixed = normalise(x, 0.2 * centre + 0.8 * expected[0], 0.2 * variance + 0.8 * expected[1], layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), mixed)
    layer.reset()
    mixed = normalise(x, 0.2 * centre + 0.8 * source[0], 0.2 * variance + 0.8 * source[1], layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), mixed)


def test_committing_statistics_that_are_not_finite_changes_nothing():
    layer = filled(medbn.RobustBatchNorm2d(3, policy="ema"))
    layer.commit(torch.randn(3), torch.rand(3))
    mean, var = layer.ema_mean.clone(), layer.ema_var.clone()
    layer.commit(torch.full((3,), torch.nan), torch.full((3,), torch.nan))
    layer.commit(torch.zeros(3), torch.full((3,), torch.inf))
    assert torch.equal(layer.ema_mean, mean)
    assert torch.equal(layer.ema_var, var)


def test_committing_many_layers_at_once_equals_one_by_one():
    options = {"weight": (0.2, 0.2, 0.7, 0.2, 0.2), "estimator": ("mean", "median", "mean", "median@0.5", "mean")}
    dtypes = (torch.float32, torch.float32, torch.float32, torch.float32, torch.float64)
    one_by_one = [
        filled(medbn.RobustBatchNorm1d(3 + i, policy=policies.ema(weight), estimator=estimator)).to(dtypes[i])
        for i, (weight, estimator) in enumerate(zip(*options.values(), strict=True))
    ]
    at_once = copy.deepcopy(one_by_one)
    for _ in range(2):
        batch = [(torch.randn(3 + i, dtype=dtype), torch.rand(3 + i, dtype=dtype)) for i, dtype in enumerate(dtypes)]
        batch[1][0][2], batch[3][1][:] = torch.nan, torch.inf
        for layer, statistic in zip(one_by_one, batch, strict=True):
            layer.commit(*statistic)
        gather_statistics(dict(zip(at_once, batch, strict=True)))()
    for layer, other in zip(at_once, one_by_one, strict=True):
        assert torch.equal(layer.ema_mean, other.ema_mean)
        assert torch.equal(layer.ema_var, other.ema_var)
        assert layer.ema_mean.dtype == layer.running_mean.dtype
    assert len({s.untyped_storage().data_ptr() for one in at_once for s in (one.ema_mean, one.ema_var)}) == 10


def test_a_commit_of_the_wrong_shape_is_refused():
    layer = medbn.RobustBatchNorm2d(3, policy="ema")
    with pytest.raises(ValueError, match=r"\(3,\).*\(2, 3\)"):
        layer.commit(torch.zeros(2, 3), torch.ones(2, 3))
    assert layer.ema_mean is None


def test_committing_without_a_moving_average_is_an_error():
    with pytest.raises(ValueError, match=r"ema.*batch"):
        medbn.RobustBatchNorm2d(3).commit(torch.zeros(3), torch.ones(3))


def test_loading_affine_parameters_alone_keeps_the_moving_average():
    layer = medbn.RobustBatchNorm2d(3, policy="ema")
    layer.commit(torch.randn(3), torch.rand(3))
    layer.load_state_dict({"weight": torch.ones(3)}, strict=False)
    assert layer.ema_mean is not None


def test_input_of_the_wrong_width_changes_nothing():
    layer = medbn.RobustBatchNorm2d(3, affine=False)
    with pytest.raises(ValueError, match=r"3 channels.*\(4, 1, 5, 5\)"):
        layer(torch.randn(4, 1, 5, 5) + 10)
    assert torch.equal(layer.running_mean, torch.zeros(3))


def test_missing_source_statistics_are_an_error():
    layer = medbn.RobustBatchNorm2d(3, policy="interpolate")
    layer.running_mean = layer.running_var = None  # as TENT's code does
    with pytest.raises(RuntimeError, match=r"interpolate.*running_mean"):
        layer(torch.randn(4, 3, 2, 2))


@pytest.mark.parametrize("policy", [policies.interpolate(1.0), policies.ema(0.0)], ids=str)
def test_a_batch_without_weight_has_no_influence(policy):
    layer = filled(medbn.RobustBatchNorm2d(3, policy=policy)).eval()
    x = torch.randn(4, 3, 2, 2)
    expected = layer(x)[:3]
    x[3] = 1e30
    assert torch.equal(layer(x)[:3], expected)


def test_new_source_statistics_restart_the_moving_average():
    layer = filled(medbn.RobustBatchNorm2d(3, policy="ema"))
    layer.commit(torch.randn(3), torch.rand(3))
    layer.load_state_dict(filled(nn.BatchNorm2d(3)).state_dict())
    assert layer.ema_mean is None


# --- copies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "policy"), [("median", "ema"), ("image_median@0.5", "batch"), ("mean", "source")]
)
def test_copies_and_pickles_behave_the_same(estimator, policy):
    layer = filled(medbn.RobustBatchNorm2d(3, estimator=estimator, policy=policy, nonfinite="isolate")).eval()
    if policy == "ema":
        layer.commit(torch.randn(3), torch.rand(3))
    x = torch.randn(5, 3, 4, 4)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(file, weights_only=False)):
        assert torch.equal(twin(x), layer(x))
        assert twin.estimator == layer.estimator
        assert twin.policy == layer.policy
        assert twin.weight is not layer.weight


def test_the_moving_average_follows_the_layer_to_another_dtype():
    layer = filled(medbn.RobustBatchNorm2d(3, policy="ema"))
    layer.commit(torch.randn(3), torch.rand(3))
    layer.double()
    assert layer.ema_mean.dtype == torch.float64
    assert layer(torch.randn(4, 3, 2, 2, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("estimator", ["mean", "median", "mad"])
@pytest.mark.parametrize("policy", ["batch", "source"])
def test_an_in_place_operation_may_follow(estimator, policy, device):
    """Many models have ``ReLU(inplace=True)`` after a normalisation."""
    layer = filled(medbn.RobustBatchNorm2d(3, estimator=estimator, policy=policy)).eval().to(device)
    x = torch.randn(6, 3, 5, 4, device=device)
    results = []
    for inplace in (False, True):
        leaf = x.clone().requires_grad_()
        y = nn.ReLU(inplace=inplace)(layer(leaf))
        results.append((y.detach(), *torch.autograd.grad(y.square().sum(), (leaf, layer.weight, layer.bias))))
    torch.testing.assert_close(*results)


# --- few values per channel -------------------------------------------------------------------------------------------

FEW = ["mean", "median", "image_median", "mad", "mad_scaled"]


def small_layer(estimator, policy, kind=medbn.RobustBatchNorm1d):
    layer = kind(3, estimator=estimator, policy=policy).eval()
    layer.running_mean.copy_(torch.tensor([0.5, -1.0, 2.0]))
    layer.running_var.copy_(torch.tensor([0.5, 2.0, 3.0]))
    return layer


def by_running_statistics(layer, x):
    return F.batch_norm(x, layer.running_mean, layer.running_var, eps=layer.eps)


@pytest.mark.parametrize("policy", ["batch", "ema", "interpolate"])
@pytest.mark.parametrize("estimator", FEW)
def test_one_or_two_values_per_channel_are_normalised_with_the_running_statistics(estimator, policy, recwarn):
    warn_of_few_values.cache_clear()
    layer = small_layer(estimator, policy)
    warnings.simplefilter("always")
    for x in (torch.randn(1, 3), torch.randn(2, 3), torch.randn(1, 3, 1), torch.randn(1, 3, 2), torch.randn(2, 3, 1)):
        with medbn.observe(layer) as observations:
            torch.testing.assert_close(layer(x), by_running_statistics(layer, x))
            assert observations[0].batch_centre is None  # so it is committed to no average
    warn_of_few_values.cache_clear()
    assert len([w for w in recwarn if "three values per channel" in str(w.message)]) == 1


@pytest.mark.parametrize("policy", ["batch", "ema"])
@pytest.mark.parametrize("estimator", FEW)
@pytest.mark.parametrize("left_out", ["masked", "not finite"])
@pytest.mark.parametrize(("left", "positions"), [(1, 1), (2, 1), (1, 2)])
def test_so_are_those_that_a_mask_or_nan_leaves(left, positions, left_out, estimator, policy):
    layer = small_layer(estimator, policy)
    layer.nonfinite = "isolate"
    x = torch.randn(4, 3, positions)
    if left_out == "not finite":
        x[left:] = torch.nan
    valid = torch.arange(4) < left if left_out == "masked" else None
    expected = by_running_statistics(layer, x[:left])
    with medbn.hooks.mask_images(layer, valid), medbn.observe(layer, detached=True) as observations:
        torch.testing.assert_close(layer(x)[:left], expected)
        assert observations[0].batch_centre.isnan().all()
        torch.testing.assert_close(observations[0].centre, layer.running_mean)


# By estimator: the centre and the variance of the values 2, 3 and 7.
THREE = {
    "mean": (4.0, (4 + 1 + 9) / 3),
    "median": (3.0, (1 + 0 + 16) / 3),
    "mad": (3.0, 1.0),
    "mad_scaled": (3.0, 1.4826**2),
    "image_median": (3.0, 1.4826**2),
}


@pytest.mark.parametrize("left_out", [None, "masked", "not finite"])
@pytest.mark.parametrize("estimator", FEW)
def test_three_values_have_statistics_of_their_own(estimator, left_out):
    layer = small_layer(estimator, "batch")
    layer.nonfinite = "isolate"
    values = torch.tensor([[2.0], [3.0], [7.0]]) * torch.tensor([1.0, 2.0, -1.0])
    x, valid = values, None
    if left_out:
        x = torch.cat([values, torch.full((2, 3), torch.nan if left_out == "not finite" else 9.0)])
        valid = torch.arange(5) < 3 if left_out == "masked" else None
    centre, variance = THREE[estimator]
    deviation = torch.tensor([[2.0], [3.0], [7.0]]) - centre
    expected = torch.cat([deviation * f / (f * f * variance + layer.eps) ** 0.5 for f in (1.0, 2.0, -1.0)], 1)
    with medbn.hooks.mask_images(layer, valid):
        torch.testing.assert_close(layer(x)[:3], expected)


@pytest.mark.parametrize("policy", ["batch", "ema", "interpolate"])
@pytest.mark.parametrize("left_out", [None, "masked", "not finite"])
@pytest.mark.parametrize("estimator", FEW)
def test_eps_never_scales_three_values(estimator, left_out, policy):
    """The first channel is constant, two values of the second are equal, and the third varies."""
    layer = small_layer(estimator, policy)
    layer.nonfinite = "isolate"
    values = torch.tensor([[2.0, 1.0, -1.0], [2.0, 1.0, 0.5], [2.0, 5.0, 3.0]])
    x, valid = values, None
    if left_out:
        x = torch.cat([values, torch.full((1, 3), torch.nan if left_out == "not finite" else 9.0)])
        valid = torch.arange(4) < 3 if left_out == "masked" else None
    leaf = x.clone().requires_grad_()
    with medbn.hooks.mask_images(layer, valid), medbn.observe(layer, detached=True) as observations:
        y = layer(leaf)[:3]
        seen = observations[0]
    from_source = by_running_statistics(layer, values)
    torch.testing.assert_close(y[:, 0], from_source[:, 0])
    if estimator not in ("mean", "median"):
        torch.testing.assert_close(y[:, 1], from_source[:, 1])
    assert y.abs().max() < 10  # 1/√eps is 316
    (gradient,) = torch.autograd.grad(y.square().sum(), leaf)
    assert gradient.isfinite().all()
    assert seen.batch_variance[0].isnan()  # committed to no average
    again = (values - seen.centre) / (seen.variance + layer.eps).sqrt()
    torch.testing.assert_close(y, again)  # what is observed is what was used


@pytest.mark.parametrize("estimator", ROBUST)
def test_few_values_raise_without_running_statistics_and_in_training(estimator):
    for x in (torch.randn(1, 3, 1, 1), torch.randn(2, 3, 1, 1)):
        with pytest.raises(ValueError, match=r"3 values per channel.*1, 1\)"):
            medbn.RobustBatchNorm2d(3, estimator=estimator, track_running_stats=False).eval()(x)
        with pytest.raises(ValueError, match="training"):
            medbn.RobustBatchNorm2d(3, estimator=estimator).train()(x)


def test_with_a_mean_two_values_are_enough_in_training_as_in_torch():
    ours, theirs = medbn.RobustBatchNorm2d(3, estimator="mean").train(), nn.BatchNorm2d(3).train()
    x = torch.randn(2, 3, 1, 1)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    with pytest.raises(ValueError, match="training"):
        ours(x[:1])


@pytest.mark.parametrize("estimator", FEW)
def test_training_with_three_values_keeps_the_running_statistics_finite(estimator):
    layer = medbn.RobustBatchNorm1d(3, estimator=estimator).train()
    assert layer(torch.tensor([[2.0, 1.0, -1.0], [2.0, 1.0, 0.5], [2.0, 5.0, 3.0]])).isfinite().all()
    assert layer.running_mean.isfinite().all()
    assert layer.running_var.isfinite().all()
