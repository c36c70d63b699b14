import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn

import medbn
from medbn.functional import normalise, statistics

from .reference import ESTIMATORS, ROBUST


def network(estimator="median", policy="batch"):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), nn.Flatten()
    )
    for module in model:
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return medbn.convert(model, estimator, policy).eval()


def attributes(model):
    return [
        (layer._valid, layer._backward, layer._observers)
        for layer in model.modules()
        if isinstance(layer, medbn.RobustBatchNorm)
    ]


# --- observe ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["mean", "median", "mad"])
@pytest.mark.parametrize("policy", ["batch", "ema", "source"])
def test_observe_yields_the_input_and_the_statistics_of_every_layer(estimator, policy):
    model, x = network(estimator, policy), torch.randn(6, 3, 8, 8)
    expected = model(x)
    with medbn.observe(model) as observations:
        torch.testing.assert_close(model(x), expected)
        assert [o.name for o in observations] == ["1", "4"]
        torch.testing.assert_close(observations[0].input, model[0](x))
        for o in observations:
            assert o.layer is model.get_submodule(o.name)
            if policy == "source":
                assert o.batch_centre is None
                assert torch.equal(o.centre, o.layer.running_mean)
            else:
                torch.testing.assert_close((o.batch_centre, o.batch_variance), statistics(o.input, estimator))
                weight = o.layer.policy.weight
                torch.testing.assert_close(o.centre, weight * o.batch_centre + (1 - weight) * o.layer.running_mean)
        last = observations[-1]
        y = normalise(last.input, last.centre, last.variance, last.layer.weight, last.layer.bias)
        torch.testing.assert_close(y.flatten(1), expected)


@pytest.mark.parametrize("policy", ["source", medbn.policies.ema(0.0)])
@pytest.mark.parametrize("detached", [True, False])
@pytest.mark.parametrize("estimator", ["mean", "median", "mad"])
def test_always_estimate_includes_a_batch_without_weight(estimator, detached, policy):
    model, x = network(estimator, policy), torch.randn(6, 3, 8, 8)
    expected = model(x)
    with medbn.observe(model, always_estimate=True, detached=detached) as observations:
        torch.testing.assert_close(model(x), expected)
        for o in observations:
            torch.testing.assert_close((o.batch_centre, o.batch_variance), statistics(o.input, estimator))
            assert torch.equal(o.centre, o.layer.running_mean)


def test_observed_statistics_are_differentiable():
    model, x = network(), torch.randn(6, 3, 8, 8, requires_grad=True)
    with medbn.observe(model) as observations:
        model(x)
        (dx,) = torch.autograd.grad(observations[1].centre.sum() + observations[1].variance.sum(), x)
    centre, variance = statistics(model[:4](x))
    (expected,) = torch.autograd.grad(centre.sum() + variance.sum(), x)
    torch.testing.assert_close(dx, expected)
    assert dx.abs().sum() > 0


def test_every_pass_is_observed_and_contexts_nest():
    model, x = network(), torch.randn(4, 3, 8, 8)
    with medbn.observe(model) as outer:
        model(x)
        with medbn.observe(model, inputs=False) as inner:
            model(x)
            assert [o.name for o in inner] == ["1", "4"]
            assert all(o.input is None for o in inner)
        model(x)
        assert [o.name for o in outer] == ["1", "4"] * 3


def test_a_layer_used_twice_is_observed_twice():
    norm = nn.BatchNorm1d(3)
    model = medbn.convert(nn.Sequential(norm, nn.Linear(3, 3), norm))
    with medbn.observe(model) as observations:
        model(torch.randn(5, 3))
        assert [o.name for o in observations] == ["0", "0"]


def test_nothing_is_kept_after_exit():
    model, x = network(), torch.randn(4, 3, 8, 8)
    before = attributes(model)
    with medbn.observe(model) as observations:
        model(x)
        references = [weakref.ref(t) for o in observations for t in (o.input, o.centre, o.variance)]
    gc.collect()
    assert observations == []
    assert all(reference() is None for reference in references)
    assert attributes(model) == before


def test_copies_made_inside_a_context_are_not_affected():
    model, x = network(), torch.randn(4, 3, 8, 8)
    expected = model(x)
    with medbn.observe(model) as observations, medbn.backward_through(model, "mean"):
        twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        for twin in twins:
            assert torch.equal(twin(x), expected)
        assert observations == []
    assert attributes(twins[0]) == attributes(twins[1]) == [(None, None, ())] * 2


def test_contexts_may_end_in_any_order():
    model, x = network(), torch.randn(4, 3, 8, 8)
    first, second = medbn.observe(model), medbn.observe(model)
    first.__enter__()
    observations = second.__enter__()
    first.__exit__(None, None, None)
    model(x)
    assert len(observations) == 2
    second.__exit__(None, None, None)
    assert attributes(model) == [(None, None, ())] * 2


def test_an_error_inside_leaves_nothing_behind():
    model = network()
    before = attributes(model)
    with pytest.raises(RuntimeError), medbn.observe(model), medbn.backward_through(model, "mean"):
        model(torch.randn(4, 7, 8, 8))
    assert attributes(model) == before


def test_a_model_without_robust_layers_is_an_error():
    plain = nn.Sequential(nn.BatchNorm2d(3))
    with (
        pytest.raises(ValueError, match=r"Sequential.*medbn.convert"),
        medbn.observe(plain),
    ):
        pass


# --- backward_through ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ROBUST)
@pytest.mark.parametrize("policy", ["batch", "ema"])
def test_true_values_forward_another_gradient_backward(estimator, policy):
    model, x = network(estimator, policy), torch.randn(6, 3, 8, 8, requires_grad=True)
    expected = model(x)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with medbn.backward_through(model, "mean"):
        y = model(x)
    assert torch.equal(y, expected)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    g = torch.randn_like(y)
    (through_mean,), (exact,) = torch.autograd.grad(y, x, g), torch.autograd.grad(expected, x, g)
    assert not torch.allclose(through_mean, exact)


@pytest.mark.parametrize("estimator", ROBUST)
@pytest.mark.parametrize("backward", ESTIMATORS)
def test_the_gradient_is_the_backward_estimator_s(estimator, backward):
    """Its definition: the statistics' values are constants, their Jacobian is that of the backward estimator."""
    layer = medbn.RobustBatchNorm2d(3, estimator=estimator).eval()
    x, g = torch.randn(6, 3, 4, 4, requires_grad=True), torch.randn(6, 3, 4, 4)
    with medbn.backward_through(layer, backward):
        (dx,) = torch.autograd.grad(layer(x), x, g)

    centre, variance = (s.detach().requires_grad_() for s in statistics(x, estimator))
    fixed = x.detach().requires_grad_()
    y = normalise(fixed, centre, variance, layer.weight, layer.bias)
    direct, d_centre, d_variance = torch.autograd.grad(y, (fixed, centre, variance), g)
    (through,) = torch.autograd.grad(statistics(x, backward), x, (d_centre, d_variance))
    torch.testing.assert_close(dx, direct + through, rtol=1e-4, atol=1e-5)


def test_images_stay_isolated_with_another_gradient():
    layer = medbn.RobustBatchNorm2d(3).eval()
    x = torch.randn(5, 3, 4, 4)
    x[2] = torch.nan
    x.requires_grad_()
    with medbn.backward_through(layer, "mean"):
        y = layer(x)
    (dx,) = torch.autograd.grad(y[[0, 1, 3, 4]].square().sum(), x)
    assert dx.isfinite().all()
    assert torch.equal(dx[2], torch.zeros_like(dx[2]))


def test_values_stay_true_where_the_backward_estimator_overflows():
    layer = medbn.RobustBatchNorm2d(3, estimator="image_median").eval()
    x = torch.randn(5, 3, 4, 4)
    x[2] = 1e30
    x.requires_grad_()
    expected = layer(x)
    with medbn.backward_through(layer, "mean"):  # whose variance is infinite here
        y = layer(x)
    assert torch.equal(y, expected)
    assert torch.autograd.grad(y[:2].sum(), x)[0].isfinite().all()


def test_a_wrong_backward_estimator_lists_the_valid_ones():
    with (
        pytest.raises(ValueError, match=r"maen.*mean"),
        medbn.backward_through(network(), "maen"),
    ):
        pass


# --- use_policy ------------------------------------------------------------------------------------------------------


def test_use_policy_restores_the_policy():
    model, x = network("median", "ema"), torch.randn(6, 3, 8, 8)
    model[1].commit(torch.randn(4), torch.rand(4))
    before = model(x)
    with medbn.hooks.use_policy(model, medbn.policies.ema(0.0)), torch.no_grad():  # the moving average alone
        expected = normalise(model[0](x), model[1].ema_mean, model[1].ema_var, model[1].weight, model[1].bias)
        torch.testing.assert_close(model[:2](x), expected)
        assert torch.equal(model(x)[:2], model(x[:2]))
    assert torch.equal(model(x), before)


# --- mask_images -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_masked_images_are_left_out_of_the_statistics(estimator):
    model, x = network(estimator), torch.randn(8, 3, 8, 8)
    expected = model(x[:5])
    x[5:] = 100.0
    with medbn.hooks.mask_images(model, torch.arange(8) < 5):
        y = model(x)
    torch.testing.assert_close(y[:5], expected, rtol=1e-4, atol=1e-4)
