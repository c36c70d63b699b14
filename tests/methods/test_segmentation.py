"""Every method on segmentation models, in batches of three, and an attack through each kind of gradient."""

from __future__ import annotations

import warnings

import pytest
import torch

import medbn
from medbn import attacks, estimators, methods, models

from ..tiers import slow
from .table import DENSE, one_of_each_kind

CLASSES = 4


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    return models.get("unet-small", classes=CLASSES)


@pytest.fixture(scope="module")
def deeplab():
    torch.manual_seed(0)
    return models.get("deeplabv3plus-resnet50", classes=CLASSES)


def make(model, method, estimator="median", **options):
    if methods.get(method).needs_source_images:
        options["source"] = [torch.rand(3, 3, 16, 24)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the small model has few layers for mDIA
        return medbn.adapt(model, method, estimator, **options)


@pytest.mark.parametrize("method", one_of_each_kind(DENSE))
def test_every_method_predicts_and_adapts_per_pixel(method, small):
    tta = make(small, method)
    for _ in range(2):
        logits = tta(torch.rand(3, 3, 16, 24))
        assert logits.shape == (3, CLASSES, 16, 24)
        assert logits.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tebn", "sar", "sotta", "mdia", "past"])
def test_every_kind_of_method_runs_on_deeplabv3plus(method, deeplab):
    logits = make(deeplab, method)(torch.rand(3, 3, 16, 24))
    assert logits.shape == (3, CLASSES, 16, 24)
    assert logits.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("estimator", estimators.available())
def test_few_images_before_the_image_average_of_aspp(estimator, deeplab):
    tta = make(deeplab, "tebn", estimator)
    for images in (1, 2, 3):
        check_image_average(tta, images)


def check_image_average(tta, images):
    """One and two values per channel are normalised with the training statistics, three with their own."""
    layer = tta.layers["aspp.pooling.1"]
    with warnings.catch_warnings(), medbn.observe(layer) as observations:
        warnings.simplefilter("ignore")
        logits = tta(torch.rand(images, 3, 32, 32))
        (seen,) = observations
    assert logits.isfinite().all()
    assert seen.input.shape == (images, 256, 1, 1)
    from_source = torch.equal(seen.centre, layer.running_mean)
    assert from_source == (images < 3)
    assert (1 / (seen.variance + layer.eps).sqrt()).max() < 0.75 * layer.eps**-0.5
    if images == 3:
        enough = seen.batch_variance.isfinite()  # in the others, eps would decide the scale
        assert enough.any()
        assert (seen.batch_variance[enough] >= layer.eps).all()
        assert torch.equal(seen.centre[~enough], layer.running_mean[~enough])


@pytest.mark.parametrize("gradient", ["exact", "straight_through", "smooth"])
@pytest.mark.parametrize("estimator", ["image_median", *slow("mean", "median")])
def test_an_attack_on_one_pixel_lowers_its_margin(gradient, estimator, small):
    """One malicious image of three raises the target's logit of a pixel of another image."""
    tta = make(small, "tebn", estimator)
    x, labels = torch.rand(3, 3, 16, 24), torch.zeros(3, 16, 24, dtype=torch.int64)
    surrogate = tta.surrogate(gradient=gradient)
    leaf = x.clone().requires_grad_()
    logits = surrogate(leaf)[0, :, 5, 7]
    (slope,) = torch.autograd.grad(logits[1] - logits.logsumexp(0), leaf)
    assert slope.isfinite().all()
    assert slope[2].abs().sum() > 0  # the other image reaches the pixel through the statistics
    objective = attacks.objectives.get("targeted_pixel")(index=0, pixel=(5, 7), target_class=1)
    attack = attacks.DIA(objective, steps=3, step_size=0.05, gradient=gradient, start="clean")
    poisoned = attack(tta, x, labels, malicious=slice(2, 3))
    assert torch.equal(poisoned[:2], x[:2])
    before, after = (tta.surrogate()(images)[0, :, 5, 7].log_softmax(0)[1] for images in (x, poisoned))
    assert after > before
