"""Moving averages and priors: which statistics are mixed, and with which weights."""

import pytest
import torch
from torch import nn

import medbn


@pytest.mark.parametrize("estimator", ["mean@0.7", "median@0.7", "image_median@0.7"])
@pytest.mark.parametrize("method", ["tebn", "tent", "mdia", "sema", "sotta"])
def test_a_prior_mixes_training_statistics_into_every_layer(method, estimator, model, batches):
    """The estimator mixes first, the policy after it."""
    tta = medbn.adapt(model, method, estimator, **({"terminal": 2} if method == "mdia" else {}))
    for layer in tta.layers.values():
        if layer.policy.reference == "ema":
            layer.ema_mean, layer.ema_var = layer.running_mean + 0.3, layer.running_var * 2
    with torch.no_grad(), medbn.observe(tta.model) as observations:
        tta.model(batches[0])
        estimated = [o for o in observations if o.batch_centre is not None]  # mDIA's last layers estimate nothing
        assert len(estimated) > len(tta.layers) // 2
        for o in estimated:
            weight = o.layer.policy.weight
            for mixed, batch, source, running in zip(
                (o.centre, o.variance),
                (o.batch_centre, o.batch_variance),
                (o.layer.running_mean, o.layer.running_var),
                running_statistics(o.layer),
                strict=True,
            ):
                torch.testing.assert_close(mixed, weight * (0.3 * batch + 0.7 * source) + (1 - weight) * running)
    assert tta(batches[0]).shape == (12, 10)


def running_statistics(layer):
    moving = layer.policy.reference == "ema"
    return (layer.ema_mean, layer.ema_var) if moving else (layer.running_mean, layer.running_var)


def test_a_moving_average_commits_the_mixture(model, batches):
    tta = medbn.adapt(model, "sema", "median@0.5")
    with torch.no_grad(), medbn.observe(tta.model) as observations:
        tta.model(batches[0])
        expected = {
            o.name: 0.2 * (0.5 * o.batch_centre + 0.5 * o.layer.running_mean) + 0.8 * o.layer.running_mean
            for o in observations
        }
    tta(batches[0])
    for name, centre in expected.items():
        torch.testing.assert_close(tta.layers[name].ema_mean, centre)


@pytest.mark.parametrize("estimator", ["median@1", "mean@1"])
def test_a_prior_of_one_is_the_source_model(estimator, model, batches):
    tta = medbn.adapt(model, "tebn", estimator)
    torch.testing.assert_close(tta(batches[0]), medbn.adapt(model, "source")(batches[0]))


def test_a_layer_that_runs_twice_is_committed_once():
    norm = nn.BatchNorm1d(3)
    tta = medbn.adapt(nn.Sequential(norm, norm), "sema", "mean", momentum=0.5)
    x = torch.randn(8, 3) + 1
    tta(x)
    torch.testing.assert_close(tta.layers["0"].ema_mean, 0.5 * x.mean(0))


def test_a_counted_average_gives_all_batches_the_same_weight(model, batches):
    tta = medbn.adapt(model, "sema", "median", momentum=0.26, counted=True)
    layer = next(iter(tta.layers.values()))
    source, centres = layer.running_mean.clone(), []
    for batch, weight in zip((*batches, *batches)[:4], (1 / 2, 1 / 3, 0.26, 0.26), strict=True):
        assert layer.policy.weight == pytest.approx(weight)
        with torch.no_grad(), medbn.observe(tta.model) as passes:
            tta.model(batch)
            centres.append(passes[0].batch_centre.clone())
        tta(batch)
        if len(centres) < 3:
            torch.testing.assert_close(layer.ema_mean, (source + sum(centres)) / (len(centres) + 1))
    tta.reset()
    assert layer.policy.weight == 0.5
    torch.testing.assert_close(layer.ema_mean, source)


def test_a_counted_average_continues_from_a_snapshot(model, batches):
    tta, other = (medbn.adapt(model, "sema", "median", momentum=0.05, counted=True) for _ in range(2))
    tta(batches[0])
    before = tta.snapshot()
    expected = tta(batches[1])
    tta.restore(before)
    assert torch.equal(tta(batches[1]), expected)
    other.restore(before)
    assert torch.equal(other(batches[1]), expected)
    other.load_state_dict(tta.state_dict())
    assert torch.equal(other(batches[0]), tta(batches[0]))
