"""On real images: scikit-learn's digits in poor light, a small ResNet trained on clean ones."""

import warnings

import pytest
import torch

import medbn

from .table import ADAPTING


def error(digits, method, estimator, batch=64, **options):
    if method == "eata":
        options["source"] = digits.source.split(100)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the model has 7 robust layers")  # mDIA's third
        tta = medbn.adapt(digits.model, method, estimator, predict="after", **options)
    stream = zip(digits.corrupted.split(batch), digits.labels.split(batch), strict=True)
    wrong = [tta(x).argmax(1) != y for x, y in stream]
    return 100 * torch.cat(wrong).float().mean().item()


@pytest.fixture(scope="module")
def source_error(digits):
    return error(digits, "source", None)


def test_the_source_model_is_good_on_clean_images(digits):
    with torch.no_grad():
        assert (digits.model(digits.clean).argmax(1) != digits.labels).float().mean() < 0.1


@pytest.mark.parametrize("method", ADAPTING)
@pytest.mark.parametrize("estimator", ["mean", "median", "image_median"])
def test_every_method_lowers_the_error_of_the_source_model(method, estimator, digits, source_error):
    assert source_error > 75
    assert error(digits, method, estimator) < source_error - 25


@pytest.mark.parametrize("method", ADAPTING)
@pytest.mark.parametrize("estimator", ["median", "image_median"])
def test_robustness_costs_little_without_an_attack(method, estimator, digits):
    assert error(digits, method, estimator) < error(digits, method, "mean") + 6
