"""Past: batches predicted with statistics of the batches before them."""

import pytest
import torch

import medbn

from .table import every_estimator, make


@pytest.mark.parametrize("poison", [1e30, torch.nan])
@pytest.mark.parametrize("two_pass_batches", [0, 5])
@every_estimator
def test_no_prediction_depends_on_another_image_of_the_batch(estimator, two_pass_batches, poison, model, batches):
    tta = make(model, "past", estimator, two_pass_batches=two_pass_batches)
    for x in batches[:2]:
        tta(x)
    before = tta.snapshot()
    expected = tta(batches[2])
    poisoned = batches[2].clone()
    poisoned[6:] = poison
    tta.restore(before)
    torch.testing.assert_close(tta(poisoned)[:6], expected[:6], rtol=0, atol=0)
    tta.restore(before)
    alone = torch.cat([tta.restore(before) or tta(x[None]) for x in batches[2]])
    torch.testing.assert_close(alone, expected)
    later = []
    for x in (batches[2], poisoned):
        tta.restore(before)
        tta(x)
        later.append(tta(batches[3]))
    assert not torch.allclose(*later)


@pytest.mark.parametrize("gradient", ["exact", "straight_through", "smooth"])
def test_the_surrogate_of_past_is_that_of_a_counted_sema(gradient, model, batches):
    past, sema = make(model, "past"), make(model, "sema", momentum=0.05, counted=True)
    for x in batches[:2]:
        past(x), sema(x)
    x = batches[2].clone().requires_grad_()
    gradient_of_past, expected = (
        torch.autograd.grad(tta.surrogate(gradient)(x)[:6].square().sum(), x)[0] for tta in (past, sema)
    )
    assert expected[6:].any()
    torch.testing.assert_close(gradient_of_past, expected)
    surrogates = [tta.surrogate(of=of) for tta in (past, sema) for of in ("now", "source")]
    before = [one(batches[3]) for one in surrogates]
    past(batches[4]), sema(batches[4])
    for one, expected in zip(surrogates, before, strict=True):  # the state of the moment when it was made
        torch.testing.assert_close(one(batches[3]), expected)
    past.reset()
    assert past.commit_policy(12, past.memory) == medbn.policies.ema(0.5)


@pytest.mark.parametrize("scenario", [medbn.attacks.instant, medbn.attacks.cumulative])
def test_only_poison_of_earlier_batches_changes_the_predictions_of_past(scenario, model, batches):
    tta = make(model, "past", momentum=0.5)
    attack = medbn.attacks.DIA(medbn.attacks.Indiscriminate(), steps=3, step_size=0.5)
    stream = [(x.sigmoid(), torch.arange(12) % 10) for x in batches[:3]]
    outcomes = list(scenario(tta, stream, attack, slice(8, 12)))
    same = [torch.equal(outcome.attacked[:8], outcome.clean[:8]) for outcome in outcomes]
    assert same == [True, True, True] if scenario is medbn.attacks.instant else [True, False, False]


@pytest.mark.parametrize("valid", [None, torch.arange(12) < 7], ids=["all", "padded"])
@pytest.mark.parametrize("estimator", ["mean", "image_median", "median@0.5"])
def test_past_has_the_averages_of_sema(valid, estimator, model, batches):
    images = 12 if valid is None else 7
    past = make(model, "past", estimator, momentum=0.26, two_pass_batches=len(batches), batch_size=images)
    sema = make(model, "sema", estimator, momentum=0.26, counted=True)
    for x in batches:
        for tta in (past, sema):
            tta(x, valid=valid)
        for name, layer in past.layers.items():
            torch.testing.assert_close(layer.ema_mean, sema.layers[name].ema_mean)
            torch.testing.assert_close(layer.ema_var, sema.layers[name].ema_var)
            assert layer.policy == medbn.policies.ema(0.0)


@pytest.mark.parametrize(("two_pass_batches", "expected"), [(0, [1, 1, 1, 1]), (2, [2, 2, 1, 1]), (9, [2, 2, 2, 2])])
def test_the_first_batches_have_a_second_pass(two_pass_batches, expected, model, batches):
    tta = make(model, "past", two_pass_batches=two_pass_batches)
    passes = [0]
    tta.model.register_forward_hook(lambda *_: passes.append(passes.pop() + 1))
    for _ in range(2):
        taken = []
        for x in batches[:4]:
            passes[:] = [0]
            tta(x)
            taken += passes
        assert taken == expected
        tta.reset()


@pytest.mark.parametrize("valid", [None, torch.arange(12) < 7], ids=["all", "padded"])
@pytest.mark.parametrize("estimator", ["mean", "median", "image_median", "mad", "image_median@0.5"])
def test_one_pass_commits_the_statistics_of_the_pass_that_predicts(estimator, valid, model, batches):
    images = 12 if valid is None else 7
    tta = make(model, "past", estimator, momentum=0.26, two_pass_batches=1, batch_size=images)
    name = estimator.split("@")[0]
    prior = 0.5 if "@" in estimator else 0.0
    tta(batches[0], valid=valid)
    for i, x in enumerate(batches[1:4], start=1):
        averages = {n: (layer.ema_mean.clone(), layer.ema_var.clone()) for n, layer in tta.layers.items()}
        with medbn.observe(tta.model) as observations:
            tta(x, valid=valid)
            assert [o.name for o in observations] == list(averages)
            weight = max(0.26, 1 / (i + 2))
            for o in observations:
                layer = tta.layers[o.name]
                torch.testing.assert_close((o.centre, o.variance), averages[o.name])
                estimated = medbn.functional.statistics(o.input, name, valid=valid)
                source = (layer.running_mean, layer.running_var)
                for new, old, s, committed in zip(
                    estimated, averages[o.name], source, (layer.ema_mean, layer.ema_var), strict=True
                ):
                    expected = weight * ((1 - prior) * new + prior * s) + (1 - weight) * old
                    torch.testing.assert_close(committed, expected)


@pytest.mark.parametrize("cuts", [[12, 12], [6, 12, 6], [1] * 24, [3, 9, 11, 1]])
def test_every_image_has_the_same_weight_however_calls_are_cut(cuts, model):
    tta = make(model, "past", momentum=0.0)
    left, memory = 1.0, {"images": 0}
    for images in cuts:
        left *= 1 - tta.commit_policy(images, memory).weight
        memory["images"] += images
    assert left == pytest.approx(12 / (12 + 24))
    late = {"images": 10_000}
    tta.momentum = 0.05
    assert tta.commit_policy(12, late).weight == pytest.approx(0.05)
    assert tta.commit_policy(3, late).weight == pytest.approx(0.05 / 4)
    for images in (24, 12_000):  # one call weighs at most what batch_size images weigh
        assert tta.commit_policy(images, late) == tta.commit_policy(12, late)
        assert tta.commit_policy(images, {"images": 0}).weight == pytest.approx(0.5)


@pytest.mark.parametrize("two_pass_batches", [0, 100])
def test_a_batch_weighs_as_much_as_it_has_usable_images(two_pass_batches, model, batches):
    options = {"two_pass_batches": two_pass_batches, "min_images": 1}
    alone, nan, padded = (make(model, "past", "image_median", **options) for _ in range(3))
    for x in batches[:3]:
        alone(x), nan(x), padded(x)
    weight = alone.commit_policy(1, alone.memory).weight
    assert weight == pytest.approx(max(0.05 / 12, 1 / 49))
    before = alone.layers["bn"].ema_mean.clone()
    broken = batches[3].clone()
    broken[1:] = torch.nan
    alone(batches[3][:1]), nan(broken), padded(batches[3], valid=torch.arange(12) == 0)
    for tta in (nan, padded):  # non-finite images and padding do not count
        assert tta.memory == alone.memory == {"batches": 4, "images": 37, "collected": {}}
        for name, layer in tta.layers.items():
            torch.testing.assert_close(layer.ema_mean, alone.layers[name].ema_mean)
            torch.testing.assert_close(layer.ema_var, alone.layers[name].ema_var)
    image = alone.model.conv(batches[3][:1]).mean(dim=(0, 2, 3))
    torch.testing.assert_close(alone.layers["bn"].ema_mean, weight * image + (1 - weight) * before)


@pytest.mark.parametrize("two_pass_batches", [0, 100])
def test_one_call_weighs_at_most_as_much_as_a_batch(two_pass_batches, model, batches):
    large, batch = (make(model, "past", "image_median", two_pass_batches=two_pass_batches) for _ in range(2))
    large(batches[0].repeat(10, 1, 1, 1)), batch(batches[0])
    assert large.memory == batch.memory == {"batches": 1, "images": 12, "collected": {}}
    for name, layer in large.layers.items():
        torch.testing.assert_close(layer.ema_mean, batch.layers[name].ema_mean)
        torch.testing.assert_close(layer.ema_var, batch.layers[name].ema_var)


@pytest.mark.parametrize("two_pass_batches", [0, 100])
def test_calls_of_few_images_are_collected_and_committed_together(two_pass_batches, model, batches):
    """Also those of which few are usable; the state includes them."""
    options = {"two_pass_batches": two_pass_batches, "min_images": 8}
    together, apart = (make(model, "past", "image_median", **options) for _ in range(2))
    x = batches[0]
    broken = x.clone()
    broken[2:] = torch.nan
    start = apart.layers["bn"].ema_mean.clone()
    apart(broken), apart(x, valid=torch.arange(12) == 2), apart(x[3:7])
    assert len(apart.memory["collected"]["0"]) == 7
    assert torch.equal(apart.layers["bn"].ema_mean, start)
    before = apart.snapshot()
    for _ in range(2):
        apart.restore(before)
        expected = together(x[:8])[7:]
        torch.testing.assert_close(apart(x[7:8]), expected)
        assert apart.memory == together.memory == {"batches": 1, "images": 8, "collected": {}}
        for name, layer in apart.layers.items():
            torch.testing.assert_close(layer.ema_mean, together.layers[name].ema_mean)
            torch.testing.assert_close(layer.ema_var, together.layers[name].ema_var)
        together.reset()


def test_images_of_another_size_replace_those_collected(model, batches):
    tta = make(model, "past", min_images=8)
    tta(batches[0][:5])
    tta(batches[0][:2, :, :6, :6])
    assert tta.memory["collected"]["0"].shape == (2, 3, 6, 6)


@pytest.mark.parametrize("two_pass_batches", [0, 100])
def test_batches_that_a_mean_cannot_commit_are_reported_once(two_pass_batches, model, batches, recwarn):
    tta = make(model, "past", "mean", two_pass_batches=two_pass_batches, min_images=4)
    robust = make(model, "past", "median", two_pass_batches=two_pass_batches, min_images=4)
    before = tta.layers["bn"].ema_mean.clone()
    for x in batches[:3]:
        x = x.clone()
        x[0] = torch.nan
        tta(x), robust(x), tta(batches[0][:6], valid=torch.arange(6) > 0)
    assert len([w for w in recwarn if "nonfinite='isolate'" in str(w.message)]) == 1
    tta.reset()
    tta(x)
    assert torch.equal(tta.layers["bn"].ema_mean, before)


def test_past_refuses_wrong_options(model):
    with pytest.raises(ValueError, match=r"batch_size.*0"):
        make(model, "past", batch_size=0)
    with pytest.raises(ValueError, match=r"min_images.*0"):
        make(model, "past", min_images=0)
    with pytest.raises(TypeError, match=r"two_pass_batches.*True"):
        make(model, "past", two_pass_batches=True)
    with pytest.raises(ValueError, match=r"two_pass_batches.*-1"):
        make(model, "past", two_pass_batches=-1)
    with pytest.raises(ValueError, match=r"momentum.*2"):
        make(model, "past", momentum=2)


def test_past_starts_at_the_source_model(model, batches):
    torch.testing.assert_close(make(model, "past")(batches[0]), make(model, "source")(batches[0]))
