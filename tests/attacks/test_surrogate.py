"""The gradients that an attacker follows: of the adapter as it is, and through one step of it."""

import pytest
import torch
from torch import nn

import medbn

from ..methods.table import FROM_MEMORY, LEARNING, assert_same, make, state
from ..reference import ESTIMATORS
from ..tiers import slow
from .test_dia import MALICIOUS, quick


@pytest.mark.parametrize("method", ["sema", *slow("tebn", "mdia", "sotta")])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_exact_gradient_is_that_of_finite_differences(method, estimator, model, stream):
    tta = make(model, method, estimator).double()
    view, x = tta.surrogate(), stream[0][0].double().requires_grad_()
    (gradient,) = torch.autograd.grad(view(x)[0].sum(), x)
    g = torch.Generator().manual_seed(2)
    for _ in range(3):
        direction = torch.randn(x.shape, generator=g, dtype=torch.float64)
        h = 1e-8  # so that no median changes its element on the way
        with torch.no_grad():
            slope = (view(x + h * direction)[0].sum() - view(x - h * direction)[0].sum()) / (2 * h)
        assert (gradient * direction).sum().item() == pytest.approx(slope.item(), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("estimator", ["median", "mad", "mad_scaled", "image_median"])
def test_smooth_lies_between_exact_and_straight_through(estimator, stream):
    layer = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten())
    tta = medbn.adapt(layer, "tebn", estimator)
    x = stream[0][0][:9].clone().requires_grad_()  # odd: a median is one image

    def gradient(kind, temperature=0.5):
        logits = tta.surrogate(kind, temperature=temperature)(x)
        torch.testing.assert_close(logits, tta(x.detach()))  # values are true
        return torch.autograd.grad(logits[0].sum(), x)[0]

    torch.testing.assert_close(gradient("smooth", 1e-6), gradient("exact"), rtol=1e-3, atol=1e-3)
    soft, exact = gradient("smooth"), gradient("exact")
    assert ((soft != 0).sum() >= (exact != 0).sum()).item()
    if estimator == "median":  # whose variance is the mean's but for the centre
        torch.testing.assert_close(
            torch.autograd.grad(
                medbn.functional.statistics(x, medbn.gradients.smooth(medbn.estimators.get("median"), 1e6))[0].sum(), x
            )[0],
            torch.full_like(x, 1 / (9 * 64)),
        )


def test_every_gradient_works_for_a_registered_estimator(model, stream):
    @medbn.estimators.register("trimmed")
    def trimmed(x, valid):
        rows = x.transpose(0, 1).flatten(1).sort(dim=1).values[:, 10:-10]
        return rows.mean(1), rows.var(1)

    try:
        tta = make(model, "tebn", "trimmed")
        batches = [quick(gradient=g)(tta, *stream[0], MALICIOUS) for g in ("exact", "straight_through", "smooth")]
        assert not torch.equal(batches[0], batches[1])
        assert not torch.equal(batches[1], batches[2])
    finally:
        medbn.estimators.unregister("trimmed")


# --- unrolling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "optimizer", "estimator", "gradient"),
    [
        *(("tent", "adam", "median", g) for g in ("exact", "straight_through", "smooth")),
        *slow(*(("tent", "adam", "mean", g) for g in ("exact", "straight_through", "smooth"))),
        ("tent", "sgd", "image_median", "smooth"),
        ("sar", "momentum", "median", "smooth"),
        *slow(*((method, "momentum", "median", "smooth") for method in ("tent", "eta", "eata"))),
        ("eata", "adam", "image_median", "exact"),
        *slow(*((method, "adam", "image_median", "exact") for method in ("eta", "sar"))),
    ],
)
def test_an_unrolled_surrogate_predicts_what_the_adapter_predicts_after(
    method, estimator, optimizer, gradient, model, stream
):
    if optimizer == "momentum":

        def optimizer(p, **options):
            return torch.optim.SGD(p, momentum=0.9, dampening=0.3, **options)

    tta = make(model, method, estimator, predict="after", optimizer=optimizer, lr=0.01, weight_decay=0.5)
    for images, _ in stream[:2]:
        tta(images)
    view = tta.surrogate(gradient, unroll=1)
    before = state(tta)
    x = stream[2][0].clone().requires_grad_()
    logits = view(x)
    (gradient,) = torch.autograd.grad(logits[0].sum(), x)
    assert gradient.isfinite().all()
    assert_same(state(tta), before)
    torch.testing.assert_close(tta(stream[2][0]), logits.detach(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["tent", "eta", "eata"])
def test_an_unrolled_gradient_is_that_of_finite_differences(method, model, stream):
    tta = make(model, method, "median", optimizer="sgd", lr=0.5).double()
    tta(stream[0][0].double())
    view, x = tta.surrogate(unroll=1), stream[1][0].double().requires_grad_()
    (gradient,) = torch.autograd.grad(view(x)[0].sum(), x)
    (without,) = torch.autograd.grad(tta.surrogate()(x)[0].sum(), x)
    g = torch.Generator().manual_seed(2)
    direction, h = torch.randn(x.shape, generator=g, dtype=torch.float64), 1e-8
    with torch.no_grad():
        slope = (view(x + h * direction)[0].sum() - view(x - h * direction)[0].sum()) / (2 * h)
    unrolled = (gradient * direction).sum().item()
    if method == "tent":  # the weights of ETA are constants to its gradient, and not to its value
        assert unrolled == pytest.approx(slope.item(), rel=1e-3)
    assert abs(unrolled - slope.item()) < abs((without * direction).sum().item() - slope.item())


def test_what_cannot_be_unrolled_says_so(model, stream):
    for message, unroll, tta in (
        ("SoTTA.*memory", 1, make(model, "sotta")),
        ("NOTE.*memory", 1, make(model, "note")),
        ("RoTTA.*memory", 1, make(model, "rotta")),
        ("Adagrad", 1, make(model, "tent", optimizer=torch.optim.Adagrad)),
        ("amsgrad", 1, make(model, "tent", optimizer=lambda p, lr: torch.optim.Adam(p, lr=lr, amsgrad=True))),
        ("unroll.*2", 2, make(model, "tent")),
    ):
        with pytest.raises(ValueError, match=message):
            quick(unroll=unroll)(tta, *stream[0], MALICIOUS)
    tebn = make(model, "tebn")  # no step to unroll: the same
    assert torch.equal(quick(unroll=1)(tebn, *stream[0], MALICIOUS), quick()(tebn, *stream[0], MALICIOUS))


@pytest.mark.slow
@pytest.mark.parametrize("method", [m for m in LEARNING if m not in FROM_MEMORY])
def test_unrolled_attacks_differ_and_change_no_state(method, model, stream):
    tta = make(model, method)
    before = state(tta)
    quick(unroll=1, alignment=1.0)(tta, *stream[0], MALICIOUS)
    poisoned = quick(unroll=1, restarts=2)(tta, *stream[0], MALICIOUS)
    assert_same(state(tta), before)
    assert not torch.equal(poisoned, quick(restarts=2)(tta, *stream[0], MALICIOUS))
