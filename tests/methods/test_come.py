"""COME: the entropy of an opinion, and the methods that minimise it."""

import math

import pytest
import torch

import medbn
from medbn.methods import Predictions
from medbn.methods._entropy import opinion_entropy

from .table import make
from .test_references import CLASSES, OneLayer, normal, stream

HOSTS = ["tent", "eta", "eata", "sar", "deyo"]


def opinion(row):
    """The masses of belief and of uncertainty, by their definition, in float64."""
    evidence = row.double().exp()
    return torch.cat([evidence, torch.tensor([float(len(row))])]) / (evidence.sum() + len(row))


def test_the_entropy_of_an_opinion():
    logits = torch.randn(7, 4) * torch.tensor([0.1, 1.0, 3.0, 10.0, 30.0, 0.0, 100.0]).unsqueeze(1)
    entropy = opinion_entropy(Predictions.of(logits))
    for row, value in zip(logits[:-1], entropy, strict=False):
        masses = opinion(row)
        assert value.item() == pytest.approx(-(masses * masses.log()).sum().item(), rel=1e-4, abs=1e-6)
    assert entropy[-1].isfinite()  # where exp overflows
    assert (entropy <= math.log(5) + 1e-6).all()


def test_the_length_of_the_logits_has_no_gradient():
    logits = torch.randn(5, 4, requires_grad=True)
    predictions = Predictions.of(logits)
    (gradient,) = torch.autograd.grad(opinion_entropy(predictions).sum(), logits)
    torch.testing.assert_close((gradient * logits).sum(1), torch.zeros(5), rtol=0, atol=1e-6)
    fixed = logits.detach().norm(dim=1, keepdim=True)
    free = logits.detach().requires_grad_()
    terms = [opinion(row).float() for row in fixed * free / free.norm(dim=1, keepdim=True)]
    (expected,) = torch.autograd.grad(-sum((m * m.log()).sum() for m in terms), free)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
    huge = torch.tensor([[1e37, -1e37, 0.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(opinion_entropy(Predictions.of(huge)).sum(), huge)
    assert gradient.isfinite().all()
    assert gradient[2].abs().sum() > 0


def test_tent_minimises_it():
    lr = 0.5
    tta = medbn.adapt(OneLayer(), "tent", "mean", loss="come", optimizer="sgd", lr=lr)
    gamma, beta = (p.detach().clone() for p in (OneLayer().bn.weight, OneLayer().bn.bias))
    for x in stream():
        gamma, beta = gamma.requires_grad_(), beta.requires_grad_()
        total = 0.0
        for row in gamma * normal(x) + beta:
            row = row * (row.norm().item() / row.norm())
            masses = torch.cat([row.exp(), torch.tensor([float(CLASSES)])]) / (row.exp().sum() + CLASSES)
            total = total - (masses * masses.log()).sum()
        d_gamma, d_beta = torch.autograd.grad(total / len(x), (gamma, beta))
        gamma, beta = (gamma - lr * d_gamma).detach(), (beta - lr * d_beta).detach()
        tta(x)
        torch.testing.assert_close(tta.learned["bn.weight"].detach(), gamma, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(tta.learned["bn.bias"].detach(), beta, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", HOSTS)
def test_every_host_learns_otherwise_and_its_attacks_too(method, model, batches):
    plain, come = make(model, method), make(model, method, loss="come")
    views = [tta.surrogate(unroll=1)(batches[0]) for tta in (plain, come)]
    assert not torch.allclose(*views)
    for tta in (plain, come):
        tta(batches[0])
    assert any(not torch.equal(p, come.learned[name]) for name, p in plain.learned.items())
    assert torch.allclose(views[1], come.surrogate()(batches[0]), rtol=1e-3, atol=1e-3)


def test_filters_take_it_too(model):
    logits = torch.tensor([[6.0, 0.0, 0.0], [4.0, 0.0, 0.0]])
    entropy = [opinion_entropy(Predictions.of(logits))[i].item() / math.log(3) for i in range(2)]
    margin = sum(entropy) / 2
    assert (Predictions.of(logits).entropy() < margin * math.log(3)).tolist() == [True, True]
    for method in ("eta", "sar", "deyo"):
        tta = make(model, method, loss="come", margin=margin)
        assert tta.filters(Predictions.of(logits), tta.memory)["entropy"].tolist() == [True, False]
    with pytest.raises(ValueError, match=r"comme.*come, entropy"):
        make(model, "tent", loss="comme")
