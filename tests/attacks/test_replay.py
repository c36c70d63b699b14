"""An attacker who sends again what was misread, and images of her own."""

import pytest
import torch
from torch import nn

import medbn
from medbn.attacks import DIA, Indiscriminate, Interleaved, Replay
from medbn.attacks.objectives import Entropy

from ..methods.table import assert_same, make, state


class Brightness(nn.Module):
    """Predicts class 1 for bright images and class 0 for dark ones, whatever came before."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        bright = x.flatten(1).mean(dim=1, keepdim=True) - 0.5
        return self.scale * torch.cat([-bright, bright], dim=1)


def own(number):
    """Four images, numbered by their brightness, of which the second and the third are misread."""
    values = torch.tensor([0.9, 0.8, 0.2, 0.1]) + 0.001 * number
    return values.view(4, 1, 1, 1).expand(4, 1, 2, 2).contiguous(), torch.tensor([1, 0, 1, 0])


def random_own(number):
    g = torch.Generator().manual_seed(100 + number)
    return torch.rand(6, 3, 8, 8, generator=g), torch.randint(10, (6,), generator=g)


def long_stream(count):
    g = torch.Generator().manual_seed(8)
    return [(torch.rand(6, 3, 8, 8, generator=g), torch.randint(10, (6,), generator=g)) for _ in range(count)]


def nothing(objective=None):
    return DIA(objective or Indiscriminate(), steps=0, start="clean")


@pytest.mark.parametrize("call_size", [None, 1])
def test_images_are_sent_again_as_long_as_they_are_misread(call_size):
    tta, sent = medbn.adapt(Brightness(), "source"), []
    scenario = Replay(tta, nothing(), share=0.5, own=own, call_size=call_size)
    scenario.query = lambda images: sent.append(images[:, 0, 0, 0]) or medbn.methods.predict_logits(tta, images)
    stream = [(torch.full((4, 1, 2, 2), 0.6), torch.ones(4, dtype=torch.long)) for _ in range(4)]
    outcomes = list(scenario.run(stream))
    batches = torch.cat(sent).view(4, 4)
    first, second = own(0)[0][:, 0, 0, 0], own(1)[0][:, 0, 0, 0]
    assert torch.equal(batches[0], first)
    assert torch.equal(batches[1], torch.cat([first[1:3], second[:2]]))  # the two that were misread, and two new ones
    assert torch.equal(batches[2], torch.cat([first[1:3], second[1:2], own(2)[0][:1, 0, 0, 0]]))
    third = own(3)[0][:, 0, 0, 0]
    assert torch.equal(batches[3], torch.cat([first[1:3], second[1:2], third[:1]]))
    counts = torch.cat(sent).round(decimals=4).unique(return_counts=True)[1]
    assert sorted(counts.tolist(), reverse=True) == [4, 4, 3, 1, 1, 1, 1, 1]
    assert all(o.harm() == 0 for o in outcomes)


def test_without_attack_her_images_are_served_as_they_are(model):
    stream, tta, twin = long_stream(3), make(model, "tent"), make(model, "tent")
    for number, outcome in enumerate(Interleaved(tta, DIA(Entropy(), steps=2), share=0.5, own=random_own).run(stream)):
        twin(random_own(number)[0])
        assert torch.equal(outcome.clean, twin(stream[number][0]))
        assert not torch.equal(outcome.clean, outcome.attacked)


@pytest.mark.parametrize("objective", [Entropy(), Indiscriminate()])
def test_owned_batches_start_from_her_own_images(objective, model):
    stream, calls = long_stream(2), []
    tta = make(model, "sema", "image_median")
    scenario = Interleaved(tta, DIA(objective, steps=3, step_size=0.01, epsilon=0.02, start="clean"), own=random_own)
    scenario.share = 0.5
    scenario.query = calls.append
    list(scenario.run(stream))
    for number, call in enumerate(calls):
        change = (call - random_own(number)[0]).abs().max()
        assert 0 < change <= 0.02 + 1e-6


@pytest.mark.slow
def test_a_stopped_replay_continues_with_the_same_bits(model):
    def scenario():
        return Replay(make(model, "tent", "median", lr=0.01), nothing(), share=0.5, own=random_own)

    stream, whole, first, second = long_stream(5), scenario(), scenario(), scenario()
    expected = list(whole.run(stream))
    list(first.run(stream[:2]))
    second.load(first.state())
    for outcome, other in zip(second.run(stream[2:]), expected[2:], strict=True):
        assert torch.equal(outcome.attacked, other.attacked)
        assert torch.equal(outcome.clean, other.clean)
    assert_same(state(second.adapter), state(whole.adapter))
    assert not torch.equal(expected[-1].attacked, expected[-1].clean)
