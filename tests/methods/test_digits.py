"""Real images: scikit-learn's digits with low contrast, and a small ResNet trained on clean ones."""

import warnings

import pytest
import torch

import medbn

from .table import ADAPTING

pytestmark = pytest.mark.slow


def error(digits, method, estimator, batch=64, **options):
    if method == "eata":
        options["source"] = digits.source.split(100)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the model has 7 robust layers")  # mDIA freezes a third of them
        tta = medbn.adapt(digits.model, method, estimator, predict="after", **options)
    stream = zip(digits.corrupted.split(batch), digits.labels.split(batch), strict=True)
    wrong = [tta(x).argmax(1) != y for x, y in stream]
    return 100 * torch.cat(wrong).float().mean().item()


def test_the_source_model_is_good_on_clean_images_only(digits):
    with torch.no_grad():
        assert (digits.model(digits.clean).argmax(1) != digits.labels).float().mean() < 0.1
    assert error(digits, "source", None) > 75


@pytest.mark.parametrize("method", ADAPTING)
def test_every_method_lowers_the_error_and_robustness_costs_little(method, digits):
    errors = {estimator: error(digits, method, estimator) for estimator in ("mean", "median", "image_median")}
    assert max(errors.values()) < 50
    assert max(errors.values()) < errors["mean"] + 6
