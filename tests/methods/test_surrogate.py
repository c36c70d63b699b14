"""What an attacker differentiates, and what attacks are reused for."""

import pytest
import torch

from .table import METHODS, assert_same, combine, each_kind, make, state


@pytest.mark.parametrize(
    ("method", "estimator", "gradient"),
    combine(
        METHODS, ("median", "exact"), ("mean", "exact"), ("median", "smooth"), ("image_median@0.5", "straight_through")
    ),
)
def test_a_surrogate_predicts_the_same_and_changes_nothing(method, estimator, gradient, model, batches):
    tta = make(model, method, estimator)
    tta(batches[0])
    before = state(tta)
    surrogate = tta.surrogate(gradient)
    x = batches[1].clone().requires_grad_()
    for _ in range(3):
        logits = surrogate(x)
        (dx,) = torch.autograd.grad(logits.square().sum(), x)
    assert dx.abs().sum() > 0
    assert_same(state(tta), before)
    prediction = tta(batches[1])
    if method == "past":  # its surrogate normalises with averages that include the batch
        prediction = tta(batches[1])
    torch.testing.assert_close(prediction, logits.detach())
    after = surrogate(batches[1])  # the state of the moment when it was made
    torch.testing.assert_close(after, logits.detach())


@each_kind
def test_a_surrogate_of_the_source_model(method, model, batches):
    tta, fresh = make(model, method), make(model, method)
    for x in batches:
        tta(x)
    torch.testing.assert_close(tta.surrogate(of="source")(batches[0]), fresh.surrogate()(batches[0]))


def test_a_surrogate_s_gradient_reaches_every_image_through_the_statistics(model, batches):
    tta = make(model, "tebn", "mean")
    x = batches[0].clone().requires_grad_()
    (dx,) = torch.autograd.grad(tta.surrogate()(x)[0].sum(), x)
    assert (dx.flatten(1).abs().sum(dim=1) > 0).all()


def test_wrong_names_for_a_surrogate(model):
    tta = make(model, "tebn")
    with pytest.raises(ValueError, match=r"exakt.*exact, smooth, straight_through"):
        tta.surrogate("exakt")
    with pytest.raises(ValueError, match=r"then.*now, source"):
        tta.surrogate(of="then")
