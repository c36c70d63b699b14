"""CoTTA against its equations, on one layer whose output is the logits."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import medbn

from .conftest import Dense, small_model

CLASSES = 5


class OneLayer(nn.Module):
    """One BatchNorm over images of one pixel, whose output is the logits."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(CLASSES)
        with torch.no_grad():
            self.bn.weight.copy_(torch.tensor([2.0, 1.5, 1.0, 2.5, 3.0]))
            self.bn.bias.copy_(torch.tensor([0.5, -0.2, 0.1, 0.3, 0.0]))

    def forward(self, x):
        return self.bn(x).flatten(1)


def stream(count=5):
    g = torch.Generator().manual_seed(3)
    return [torch.randn(9, CLASSES, 1, 1, generator=g) ** (3 if k % 2 else 1) for k in range(count)]


def logits_of(parameters, x):
    x = x.flatten(1)
    return parameters[0] * (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt() + parameters[1]


def alternating():
    """Two augmentations in turn, which change what a batch is normalised to."""
    powers = itertools.cycle((0.7, 1.6))
    return lambda x, generator: x.sign() * x.abs() ** next(powers)


@pytest.mark.parametrize(
    ("average_of", "symmetric", "augmented_output"),
    [("probabilities", False, False), ("logits", True, True), ("probabilities", False, True)],
)
def test_cotta_by_its_equations(average_of, symmetric, augmented_output):
    alpha, lr, threshold = 0.8, 0.5, 0.65
    tta = medbn.adapt(
        OneLayer(),
        "cotta",
        "mean",
        average=alpha,
        augmentations=2,
        threshold=threshold,
        restored=0.0,
        average_of=average_of,
        symmetric=symmetric,
        augmented_output=augmented_output,
        augment=alternating(),
        optimizer="sgd",
        lr=lr,
    )
    bn = OneLayer().bn
    source = [bn.weight.detach().clone(), bn.bias.detach().clone()]
    student, teacher = [p.clone().requires_grad_() for p in source], source
    augment, augmented = alternating(), []
    for x in stream():
        confidence = logits_of(source, x).softmax(1).amax(1).mean()
        augmented.append(bool(confidence < threshold))
        plain = logits_of(teacher, x)
        if augmented[-1]:
            views = [logits_of(teacher, augment(x, None)) for _ in range(2)]
            mean = sum(views) / 2 if average_of == "logits" else (sum(v.softmax(1) for v in views) / 2).log()
        else:
            mean = plain
        own = logits_of(student, x)
        loss = -sum((mean.softmax(1)[i] * own.log_softmax(1)[i]).sum() for i in range(9)) / 9
        if symmetric:
            loss = loss / 2 - sum((own.softmax(1)[i] * mean.log_softmax(1)[i]).sum() for i in range(9)) / 18
        gradients = torch.autograd.grad(loss, student)
        student = [(p - lr * g).detach().requires_grad_() for p, g in zip(student, gradients, strict=True)]
        after = [alpha * t + (1 - alpha) * s.detach() for t, s in zip(teacher, student, strict=True)]
        torch.testing.assert_close(tta(x), mean if augmented_output else plain, rtol=1e-4, atol=1e-5)
        for name, t, s in zip(("bn.weight", "bn.bias"), after, student, strict=True):
            torch.testing.assert_close(tta.learned[name].detach(), t, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(tta.memory["student"][name], s.detach(), rtol=1e-4, atol=1e-5)
        teacher = after
    assert {True, False} == set(augmented)


def test_parameters_return_to_the_source_with_the_given_probability(model, batches):
    returned = {}
    for restored in (0.0, 0.3, 1.0):
        tta = medbn.adapt(model, "cotta", augmentations=1, restored=restored)
        source = tta.snapshot()["memory"]["student"]
        tta(batches[0])
        same = torch.cat([(v == source[name]).flatten() for name, v in tta.memory["student"].items()])
        returned[restored] = same.float().mean().item()
    still = returned[0.0]  # dead weights, which no step moves
    assert still < 0.2
    assert returned[1.0] == 1.0
    assert abs(returned[0.3] - still - 0.3 * (1 - still)) < 0.05


def test_the_augmentations_of_the_output_are_those_that_the_attacker_sees(model, batches):
    tta = medbn.adapt(model, "cotta", augmentations=2, augmented_output=True)
    tta(batches[0])
    x = batches[1].clone().requires_grad_()
    seen = tta.surrogate()(x)
    assert torch.autograd.grad(seen[0].square().sum(), x)[0].abs().sum() > 0
    torch.testing.assert_close(seen.softmax(1), tta(batches[1]).softmax(1), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(tta.surrogate()(batches[1]).softmax(1), seen.softmax(1), atol=1e-4)  # new random numbers


def test_pixels_of_dense_outputs_stay_where_they_are(batches):
    """The averaged prediction of an image with one bright half has a border there; a flip would wipe it out."""
    images = torch.zeros(6, 3, 16, 16)
    images[..., 8:] = 0.9
    model = Dense(small_model())
    tta = medbn.adapt(model, "cotta", "mean", augmentations=8, threshold=1.0, augmented_output=True)
    plain = medbn.adapt(model, "cotta", "mean", threshold=0.0)(images)
    averaged = tta(images)
    same = F.cosine_similarity(plain.softmax(1).flatten(1), averaged.softmax(1).flatten(1)).mean()
    flipped = F.cosine_similarity(plain.flip(-1).softmax(1).flatten(1), averaged.softmax(1).flatten(1)).mean()
    assert same > flipped


def test_what_cotta_cannot_do_is_said(batches):
    vectors = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(ValueError, match=r"CoTTA.*\(B, C, H, W\).*\(8, 4\)"):
        medbn.adapt(vectors, "cotta")(torch.randn(8, 4))
    for option in ({"augmentations": 0}, {"average": 2.0}, {"restored": -1.0}, {"average_of": "images"}):
        with pytest.raises(ValueError, match=next(iter(option))):
            medbn.adapt(vectors, "cotta", **option)
    with pytest.raises(ValueError, match=r"augment=.*3"):
        medbn.adapt(small_model(), "cotta", augment=lambda x, g: x[:3])(batches[0])
