"""DeYO against its equations, on a layer behind a convolution that sees where patches are."""

import math

import pytest
import torch
from torch import nn

import medbn
from medbn.methods._augment import shuffle_patches

from .conftest import Dense, small_model

CLASSES = 5


class Small(nn.Module):
    """A linear map of the pixels, a BatchNorm, and its output as the logits."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.map = nn.Linear(16, CLASSES)
        self.bn = nn.BatchNorm1d(CLASSES)
        nn.init.uniform_(self.bn.weight, 1.0, 3.0)

    def forward(self, x):
        return self.bn(self.map(x.flatten(1)))


def stream(count=5):
    g = torch.Generator().manual_seed(3)
    return [torch.randn(12, 1, 4, 4, generator=g) for _ in range(count)]


def normal(x):
    return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()


def test_deyo_by_its_equations():
    lr, options = 0.5, {"margin": 0.7, "weight_margin": 0.3, "plpd": 0.3, "patches": 2}
    tta = medbn.adapt(Small(), "deyo", "mean", optimizer="sgd", lr=lr, frozen=[], **options)
    model, log = Small(), math.log(CLASSES)
    gamma, beta = model.bn.weight.detach().clone(), model.bn.bias.detach().clone()
    passed = []
    for x in stream():
        order = torch.rand(12, 4, generator=torch.Generator().manual_seed(tta.memory["seed"])).argsort(dim=1)
        gamma, beta = gamma.requires_grad_(), beta.requires_grad_()
        logits = gamma * normal(model.map(x.flatten(1)).detach()) + beta
        p = logits.softmax(1)
        entropy = -(p * p.log()).sum(1)
        certain = entropy.detach() < 0.7 * log
        shuffled = shuffle_patches(x, order)[certain].flatten(1)
        q = (gamma * normal(model.map(shuffled)) + beta).softmax(1).detach()
        terms, rows = [], certain.nonzero().flatten().tolist()
        for row, other in zip(rows, q, strict=True):
            label = int(p[row].argmax())
            difference = (p[row, label] - other[label]).item()
            if difference > 0.3:
                weight = 1 / math.exp(entropy[row].item() - 0.3 * log) + 1 / math.exp(-difference)
                terms.append(weight * entropy[row])
        passed.append((len(rows), len(terms)))
        d_gamma, d_beta = torch.autograd.grad(sum(terms) / len(terms), (gamma, beta))
        gamma, beta = (gamma - lr * d_gamma).detach(), (beta - lr * d_beta).detach()
        torch.testing.assert_close(tta(x), logits.detach(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(tta.learned["bn.weight"].detach(), gamma, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(tta.learned["bn.bias"].detach(), beta, rtol=1e-4, atol=1e-5)
    certain, selected = (sum(counts) for counts in zip(*passed, strict=True))
    assert 0 < selected < certain < 60  # both filters had something to do


def test_other_patches_move_in_the_next_batch_also_where_nothing_was_learned():
    tta = medbn.adapt(Small(), "deyo", frozen=[], margin=1e-9)
    seeds = [tta.memory["seed"]]
    for x in stream(3):
        tta(x)
        seeds.append(tta.memory["seed"])
    assert len(set(seeds)) == 4
    assert tta.optimizer.state_dict()["state"] == {}


def test_what_deyo_cannot_do_is_said(batches):
    with pytest.raises(ValueError, match="dense"):
        medbn.adapt(Dense(small_model()), "deyo", margin=1.0)(batches[0])
    vectors = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(ValueError, match=r"DeYO.*\(B, C, H, W\).*\(8, 4\)"):
        medbn.adapt(vectors, "deyo", margin=1.0, frozen=[])(torch.randn(8, 4))
    with pytest.raises(ValueError, match="patches"):
        medbn.adapt(vectors, "deyo", patches=1)
