"""One call: any arguments, any output, any batch size, and what is returned."""

import dataclasses

import pytest
import torch
from torch import nn

from .conftest import Dense
from .table import (
    AVERAGES_OF_MEMORY,
    DENSE,
    LEARNING,
    assert_same,
    combine,
    each_kind,
    every_learning,
    every_method,
    make,
    one_of_each_kind,
    state,
)


@every_learning
def test_after_is_what_the_updated_model_predicts(method, model, batches):
    # SoTTA's default commits statistics of its memory before it predicts; test_references.py has that.
    options = {"statistics": "batch"} if method == "sotta" else {}
    before, after = make(model, method, **options), make(model, method, predict="after", **options)
    x = batches[0]
    first, second = before(x), after(x)
    assert not torch.allclose(first, second)
    assert_same(state(before), state(after))
    fresh = make(model, method, **options)
    torch.testing.assert_close(first, fresh.surrogate()(x))
    # `after` predicts with the updated parameters and the averages before the batch, or those after learning.
    entries = ("learned", "averages") if method in AVERAGES_OF_MEMORY else ("learned",)
    updated = {**fresh.snapshot(), **{name: before.snapshot()[name] for name in entries}}
    fresh.restore(updated)
    torch.testing.assert_close(second, fresh.surrogate()(x))


@pytest.mark.parametrize("method", ["source", "tebn", "sema", "mdia", "past"])
def test_before_and_after_agree_where_nothing_is_learned(method, model, batches):
    before, after = make(model, method), make(model, method, predict="after")
    assert all(torch.equal(before(x), after(x)) for x in batches)


def test_dropout_is_off_and_stays_off(model, batches):
    tta = make(model, "tebn").train()
    assert not tta.model.training
    assert torch.equal(tta(batches[0]), tta(batches[0]))


@each_kind
def test_no_gradient_is_left_and_none_is_needed(method, model, batches):
    tta = make(model, method)
    with torch.no_grad():
        y = tta(batches[0])
    assert not y.requires_grad
    assert all(p.grad is None for p in tta.parameters())
    expected = make(model, method)
    assert torch.equal(expected(batches[0]), y)  # inside no_grad or not
    assert_same(state(tta), state(expected))


def test_more_steps_per_batch(model, batches):
    two, one = make(model, "tent", steps=2, optimizer="sgd", lr=0.1), make(model, "tent", optimizer="sgd", lr=0.1)
    two(batches[0])
    one(batches[0])
    one(batches[0])
    assert_same(
        {k: v for k, v in state(two).items() if "learned" in k}, {k: v for k, v in state(one).items() if "learned" in k}
    )


@every_method
def test_batches_of_any_size(method, model, batches):
    tta = make(model, method)
    for size in (12, 1, 5, 12, 2):
        y = tta(batches[0][:size])
        assert y.shape == (size, 10)
        assert y.isfinite().all()
    before = state(tta)
    with pytest.raises(ValueError, match=r"empty.*\(0, 3, 8, 8\)"):
        tta(batches[0][:0])
    assert_same(state(tta), before)


def test_a_call_without_a_batch(model):
    with pytest.raises(TypeError, match="batch"):
        make(model, "tent")()
    with pytest.raises(ValueError, match="valid"):
        make(model, "tent")(torch.randn(4, 3, 8, 8), valid=torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="valid"):
        make(model, "tent")(torch.randn(4, 3, 8, 8), valid=torch.zeros(4, dtype=torch.bool))


class Wrapped(nn.Module):
    def __init__(self, model, output):
        super().__init__()
        self.model, self.output = model, output

    def forward(self, data, scale=1.0):
        return self.output(self.model(data["image"] * scale))


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None


OUTPUTS = {
    "out": (lambda y: {"out": y, "aux": y + 1}, None, lambda o: o["out"]),
    "logits": (lambda y: {"features": y.mean(), "logits": y}, None, lambda o: o["logits"]),
    "tuple": (lambda y: (y, y.sum()), None, lambda o: o[0]),
    "named": (lambda y: {"a": y, "b": -y}, "b", lambda o: -o["b"]),
    "index": (lambda y: (y.sum(), y), 1, lambda o: o[1]),
    "function": (lambda y: {"deep": [y]}, lambda o: o["deep"][0], lambda o: o["deep"][0]),
    "dataclass": (lambda y: Output(y, None), None, lambda o: o.logits),
    "infinite mask": (lambda y: {"logits": y, "mask": y - torch.inf}, None, lambda o: o["logits"]),
}


@pytest.mark.parametrize(("method", "kind"), combine(["tebn", "tent", "eata", "sotta"], *OUTPUTS))
def test_any_arguments_and_any_output(method, kind, model, batches):
    output, option, select = OUTPUTS[kind]
    if kind == "named":
        method = "tebn" if method in LEARNING else method  # the sign matters to a loss
    options = {"source": [{"image": batches[4]}]} if method == "eata" else {}
    tta = make(Wrapped(model, output), method, logits=option, **options)
    plain = make(model, method, **({"source": [batches[4]]} if method == "eata" else {}))
    for x in batches[:3]:
        got, expected = tta({"image": x / 2}, scale=2.0), plain(x)
        torch.testing.assert_close(select(got), expected)
        assert not select(got).requires_grad


def test_an_output_without_known_logits_says_what_to_do(model, batches):
    tta = make(Wrapped(model, lambda y: {"scores": y}), "tent")
    with pytest.raises(TypeError, match=r"scores.*logits="):
        tta({"image": batches[0]})
    tta = make(nn.Sequential(model, nn.Linear(10, 1), nn.Flatten(0)), "tent")
    with pytest.raises(TypeError, match=r"\(12,\).*logits="):
        tta(batches[0])


def test_methods_that_learn_nothing_need_no_logits(model, batches):
    features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    for method in ("source", "tebn", "sema"):
        assert make(features, method)(batches[0]).shape == (12, 4, 6, 6)


@pytest.mark.parametrize("method", one_of_each_kind(DENSE))
def test_dense_outputs(method, model, batches):
    tta = make(Dense(model), method)
    for x in batches:
        y = tta(x)
        assert y.shape == (12, 10, 2, 2)
        assert y.isfinite().all()
    if method in LEARNING:
        assert any(not torch.equal(p, tta.source_state["learned"][name]) for name, p in tta.learned.items())
