import pytest
import torch

import medbn
from medbn import estimators, gradients

from .reference import ROBUST


@pytest.mark.parametrize("name", ROBUST)
def test_smooth_estimators_have_the_same_values_and_weights_that_sum_to_one(name):
    x = torch.randn(7, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    estimator = estimators.get(name)
    smooth = gradients.smooth(estimator, 0.5)
    assert smooth == gradients.get("smooth", 0.5)(estimator)
    assert (smooth.kernel, smooth.temperature) == (name, 0.5)
    for valid in (None, torch.arange(7) != 2):
        centre, variance = smooth(x, valid)
        torch.testing.assert_close([centre, variance], list(estimator(x, valid)))
        (dx,) = torch.autograd.grad(centre.sum(), x, retain_graph=True)
        torch.testing.assert_close(dx.sum(dim=(0, 2, 3)), torch.ones(3).double())
        (dx,) = torch.autograd.grad(variance.sum(), x)  # the variance does not change when all values move
        torch.testing.assert_close(dx.sum(dim=(0, 2, 3)), torch.zeros(3).double(), rtol=0.0, atol=1e-10)
        assert valid is None or not dx[2].any()


def test_the_weights_of_a_smooth_median_are_gaussian():
    x = torch.randn(5, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    centre, _ = gradients.smooth(estimators.get("mad"), 0.7)(x)
    middle = x.detach().median()
    mad = (x.detach() - middle).abs().median()
    e = torch.exp(-0.5 * ((x.detach() - middle) / (0.7 * 1.4826 * mad)).square())
    torch.testing.assert_close(torch.autograd.grad(centre.sum(), x)[0], e / e.sum())


def test_what_the_names_return():
    median = estimators.get("median")
    assert gradients.available() == ["exact", "straight_through", "smooth"]
    assert gradients.get("exact") is None
    assert gradients.get("straight_through")(median) is estimators.get("mean")
    assert gradients.smooth(estimators.get("mean")) is estimators.get("mean")
    with pytest.raises(ValueError, match=r"soft.*smooth"):
        gradients.get("soft")
    with pytest.raises(ValueError, match=r"temperature.*-1"):
        gradients.get("smooth", -1)


def test_an_attack_can_use_a_registered_gradient():
    calls = []

    @gradients.register("first_image")
    def first_image(estimator, temperature):
        calls.append((estimator.name, temperature))
        return estimators.Estimator("first", lambda x, valid: (x[0].mean((1, 2)), x[0].var((1, 2))))

    try:
        model = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Flatten(), torch.nn.Linear(48, 2)).eval()
        tta = medbn.adapt(model, "tebn", "median")
        attack = medbn.attacks.DIA(steps=1, gradient="first_image", temperature=0.3)
        attack(tta, torch.rand(4, 3, 4, 4), torch.tensor([0, 1, 0, 1]), malicious=slice(3, 4))
    finally:
        gradients.unregister("first_image")
    assert set(calls) == {("median", 0.3)}
