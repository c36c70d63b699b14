"""ROID against its equations, on one layer whose output is the logits."""

import math

import pytest
import torch
import torch.nn.functional as F

import medbn

from .conftest import Dense, small_model
from .test_cotta import CLASSES, OneLayer, logits_of, stream


def augment(x, generator=None):
    return x.sign() * x.abs() ** 0.7


def entropy(p):
    return -sum(q * q.log() for q in p).item()


def weights_of(p, average):
    """The weight of each prediction, 0 for those that are left out."""
    diversity = [1 - F.cosine_similarity(row, average, dim=0).item() for row in p]
    certainty = [-entropy(row) for row in p]

    def scaled(values):
        return [(v - min(values)) / (max(values) - min(values)) for v in values]

    diversity, certainty = scaled(diversity), scaled(certainty)
    mean = sum(diversity) / len(diversity)
    return [math.exp(3 * d * c) if d >= mean else 0.0 for d, c in zip(diversity, certainty, strict=True)]


def corrected(p):
    """Eq. 8 and 9 of ROID's paper: the mean prediction, smoothed, multiplies each one."""
    prior = p.mean(0)
    smoothing = max(1 / len(p), 1 / CLASSES) / prior.max()
    prior = (prior + smoothing) / (1 + smoothing * CLASSES)
    return p * prior / (p * prior).sum(1, keepdim=True), prior


@pytest.mark.parametrize("consistency", [True, False])
def test_roid_by_its_equations(consistency):
    lr, alpha, momentum = 0.3, 0.9, 0.8
    options = {"ensembling": alpha, "average": momentum, "consistency": consistency, "optimizer": "sgd", "lr": lr}
    tta = medbn.adapt(OneLayer(), "roid", "mean", augment=augment, **options)
    bn = OneLayer().bn
    source = [bn.weight.detach().clone(), bn.bias.detach().clone()]
    parameters, average, left_out = source, torch.full((CLASSES,), 1 / CLASSES), 0
    for x in stream():
        parameters = [p.requires_grad_() for p in parameters]
        logits = logits_of(parameters, x)
        p = logits.softmax(1)
        weights = weights_of(p.detach(), average)
        left_in = [i for i, w in enumerate(weights) if w]
        left_out += len(x) - len(left_in)
        changed = logits_of(parameters, augment(x)[left_in]).softmax(1)
        total = 0.0
        for i, q in zip(left_in, changed, strict=True):
            row = p[i].clamp(max=0.99)
            total = total - weights[i] * sum(v * (v / (1 - v) + 1e-5).log() for v in row)
            if consistency:
                total = total - weights[i] * (p[i] * q.log() + q * p[i].log()).sum() / 2
        gradients = torch.autograd.grad(total / len(x), parameters)
        parameters = [
            (alpha * (v - lr * g) + (1 - alpha) * s).detach()
            for v, g, s in zip(parameters, gradients, source, strict=True)
        ]
        average = momentum * average + (1 - momentum) * p.detach().mean(0)
        torch.testing.assert_close(tta(x).softmax(1), corrected(p.detach())[0], rtol=1e-4, atol=1e-5)
        for name, v in zip(("bn.weight", "bn.bias"), parameters, strict=True):
            torch.testing.assert_close(tta.learned[name].detach(), v, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(tta.memory["prediction"], average, rtol=1e-4, atol=1e-6)
    assert 0 < left_out < 45


def test_what_the_prior_multiplies(model, batches):
    plain = medbn.adapt(model, "roid", prior="none")(batches[0])
    torch.testing.assert_close(plain, medbn.adapt(model, "tebn", "image_median@0.5")(batches[0]))
    p = plain.softmax(1)
    prior = p.mean(0)
    smoothing = max(1 / 12, 1 / 10) / prior.max()
    prior = (prior + smoothing) / (1 + smoothing * 10)
    torch.testing.assert_close(medbn.adapt(model, "roid", prior="logits")(batches[0]), plain * prior)
    expected = F.normalize(p * prior, p=1, dim=1)
    torch.testing.assert_close(medbn.adapt(model, "roid")(batches[0]).softmax(1), expected)


@pytest.mark.parametrize("gradient", ["exact", "straight_through"])
def test_an_unrolled_surrogate_predicts_what_the_adapter_predicts_after(gradient, model, batches):
    tta = medbn.adapt(model, "roid", "median", predict="after", optimizer="sgd", lr=0.05, ensembling=0.7)
    tta(batches[0])
    x = batches[1].clone().requires_grad_()
    logits = tta.surrogate(gradient, unroll=1)(x)
    assert torch.autograd.grad(logits[0].square().sum(), x)[0].isfinite().all()
    torch.testing.assert_close(tta(batches[1]), logits.detach(), rtol=1e-3, atol=1e-3)


def test_equal_predictions_and_dense_ones(batches):
    model = small_model()
    same = medbn.adapt(model, "roid", "mean")
    assert same(batches[0][:1].expand(6, -1, -1, -1)).isfinite().all()
    dense = medbn.adapt(Dense(model), "roid", "mean")
    assert dense(batches[0]).shape[:2] == (12, 10)
    assert len(dense.memory["prediction"]) == 10


@pytest.mark.parametrize("option", [{"ensembling": 2.0}, {"average": -1.0}, {"temperature": 0.0}, {"prior": "labels"}])
def test_what_roid_cannot_do_is_said(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        medbn.adapt(OneLayer(), "roid", **option)
