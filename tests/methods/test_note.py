"""NOTE against its equations, on one layer whose mean over pixels is the logits."""

import math

import pytest
import torch
from torch import nn

import medbn
from medbn.functional import statistics

from .conftest import Dense, small_model
from .test_references import Logits, logits_of

CLASSES, WIDTH, MOMENTUM, LR = 5, 1.5, 0.3, 0.5


class OneLayer(nn.Module):
    """One BatchNorm over images of four pixels; an image's logits are its maxima."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(CLASSES)
        with torch.no_grad():
            self.bn.weight.copy_(torch.tensor([2.0, 1.5, 1.0, 2.5, 3.0]))
            self.bn.bias.copy_(torch.tensor([0.5, -0.2, 0.1, 0.3, 0.0]))

    def forward(self, x):
        return self.bn(x).flatten(2).amax(2)


def stream(count=6, images=8):
    g = torch.Generator().manual_seed(3)
    own = [torch.randn(images, CLASSES, 1, 1, generator=g) for _ in range(count)]
    return [shift + shift.abs() * torch.randn(images, CLASSES, 2, 2, generator=g) for shift in own]


def shrink(value, width):
    return math.copysign(max(abs(value) - width, 0.0), value)


def instance_aware(x, mean, variance):
    """IABN channel by channel of each image."""
    rows = []
    for image in x:
        channels = []
        for c, plane in enumerate(image.flatten(1)):
            mu, var = mean[c].item(), variance[c].item()
            own_mu, own_var = plane.mean().item(), plane.var().item()
            mu += shrink(own_mu - mu, WIDTH * math.sqrt((var + 1e-5) / 4))
            var += shrink(own_var - var, WIDTH * (variance[c].item() + 1e-5) * math.sqrt(2 / 3))
            channels.append((plane - mu) / math.sqrt(max(var, 0.0) + 1e-5))
        rows.append(torch.stack(channels))
    return torch.stack(rows)


@pytest.mark.parametrize("estimator", ["mean", "median", "image_median"])
def test_note_by_its_equations(estimator):
    options = {"width": WIDTH, "momentum": MOMENTUM, "capacity": 100, "frequency": 4, "optimizer": "sgd", "lr": LR}
    tta = medbn.adapt(OneLayer(), "note", estimator, **options)
    bn = OneLayer().bn
    mean, var = bn.running_mean.clone(), bn.running_var.clone()
    gamma, beta = bn.weight.detach().clone(), bn.bias.detach().clone()
    memory = []
    for x in stream():

        def predict(normal, gamma, beta):
            return (normal * gamma.view(1, -1, 1) + beta.view(1, -1, 1)).amax(2)

        expected = predict(instance_aware(x, mean, var), gamma, beta)
        for k, image in enumerate(x):
            memory.append(image)
            if k % 4 == 3:
                stored = torch.stack(memory)
                centre, variance = statistics(stored, estimator)
                gamma, beta = gamma.requires_grad_(), beta.requires_grad_()
                p = predict(instance_aware(stored, centre, variance), gamma, beta).softmax(1)
                d_gamma, d_beta = torch.autograd.grad(-(p * p.log()).sum(1).mean(), (gamma, beta))
                gamma, beta = (gamma - LR * d_gamma).detach(), (beta - LR * d_beta).detach()
                mean = (1 - MOMENTUM) * mean + MOMENTUM * centre
                var = (1 - MOMENTUM) * var + MOMENTUM * variance
        torch.testing.assert_close(tta(x), expected.detach(), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(tta.learned["bn.weight"].detach(), gamma, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(tta.learned["bn.bias"].detach(), beta, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close([tta.layers["bn"].ema_mean, tta.layers["bn"].ema_var], [mean, var])
    plain = medbn.adapt(OneLayer(), "note", estimator, **{**options, "width": math.inf})
    assert not torch.allclose(plain(stream()[0]), medbn.adapt(OneLayer(), "note", estimator, **options)(stream()[0]))


def test_gradients_pass_through_the_correction(model, batches):
    """In the memory, an image's moments and those of the layer change what it is normalised to."""
    tta = medbn.adapt(model.double(), "note", "mean", width=1.0)
    x = batches[0].double()
    view = tta.surrogate()
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(view(leaf).square().sum(), leaf)
    with torch.no_grad():
        slope = (view(x + 1e-7 * direction).square().sum() - view(x - 1e-7 * direction).square().sum()) / 2e-7
    assert (gradient * direction).sum().item() == pytest.approx(slope.item(), rel=1e-4)


def test_without_unusual_images_it_is_the_source_model(model, batches):
    wide = medbn.adapt(model, "note", width=1e6, frequency=100)
    torch.testing.assert_close(wide(batches[0]), medbn.adapt(model, "source")(batches[0]))
    vectors = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    x = torch.randn(9, 4)
    torch.testing.assert_close(medbn.adapt(vectors, "note")(x), medbn.adapt(vectors, "source")(x))


@pytest.mark.filterwarnings("ignore:a batch has fewer than three values")
def test_the_reservoir_step_by_step():
    tta = medbn.adapt(Logits(), "note", capacity=4, frequency=1000)
    table = [
        (logits_of(0, 0, 0), {0: 3}),  # room
        (logits_of(0), {0: 4}),  # full now
        (logits_of(1), {0: 3, 1: 1}),  # the largest class is replaced
        (logits_of(2), {0: 2, 1: 1, 2: 1}),
        (logits_of(0), {0: 2, 1: 1, 2: 1}),  # of the largest class itself: one for one, or not at all
        (logits_of(1), {0: 1, 1: 2, 2: 1}),
    ]
    for images, expected in table:
        tta(images)
        classes = tta.memory["classes"]
        assert {c: classes.count(c) for c in set(classes)} == expected
        assert tta.memory["images"]["0"].argmax(1).tolist() == classes
    assert tta.memory["predicted"] == [5, 2, 1]


@pytest.mark.filterwarnings("ignore:a batch has fewer than three values")
def test_a_class_is_sampled_uniformly_over_time():
    """Of 40 images of one class, each is among the 4 remembered with a probability of a tenth."""
    early = 0
    for seed in range(60):
        tta = medbn.adapt(Logits(), "note", capacity=4, frequency=1000, seed=seed)
        tta(logits_of(*[0] * 40) + 0.001 * torch.arange(40.0).unsqueeze(1))
        early += int((tta.memory["images"]["0"][:, 1] < 0.0195).sum())
    assert abs(early / 240 - 0.5) < 0.12  # of the first half; three standard deviations are 0.1


def test_dense_outputs(batches):
    dense = medbn.adapt(Dense(small_model()), "note", "median", frequency=6)
    assert dense(batches[0]).isfinite().all()
    assert len(dense.memory["classes"]) == 12
    assert any(not torch.equal(p, dense.source_state["learned"][name]) for name, p in dense.learned.items())


@pytest.mark.parametrize("option", [{"capacity": 0}, {"frequency": 0}, {"width": -1.0}, {"momentum": 2.0}])
def test_what_note_cannot_do_is_said(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        medbn.adapt(OneLayer(), "note", **option)


def test_a_damaged_memory_is_refused():
    tta = medbn.adapt(OneLayer(), "note", "mean")
    tta(stream(1)[0])
    for entry, value in (("predicted", [1]), ("predicted", [-1] * 5), ("classes", [0]), ("seen", -1)):
        snapshot = tta.snapshot()
        snapshot["memory"][entry] = value
        with pytest.raises(ValueError, match=r"class|image"):
            tta.restore(snapshot)
