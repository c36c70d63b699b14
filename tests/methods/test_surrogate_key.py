"""What a surrogate depends on, as the adapter itself says: attacks are reused where keys are equal."""

import pytest
import torch
from torch import nn

import medbn
from medbn import policies
from medbn.methods import Adapter, get

from .table import ADAPTING, make


class Weighted(Adapter):
    """A method whose own option changes how surrogates normalise."""

    policy = policies.ema(0.0)

    def __init__(self, model, *, weight=0.5, **options):
        super().__init__(model, **options)
        self.weight = weight

    def commit_policy(self, images, memory):
        return policies.ema(self.weight)


class Own(Adapter):
    """A method with an option and a memory that might change anything."""

    def __init__(self, model, *, option=None, **options):
        super().__init__(model, **options)
        self.option = option


def key(adapter, images=12, of="now"):
    return adapter.surrogate_key(adapter.source_state if of == "source" else adapter.snapshot(), images)


def adapter_of(kind, model, **options):
    return kind(medbn.convert(model), **options).begin()


def test_an_option_that_changes_normalisation_is_part_of_the_key(model, batches):
    one, same, other = (adapter_of(Weighted, model, weight=weight) for weight in (0.5, 0.5, 0.25))
    assert torch.equal(one.surrogate()(batches[0]), same.surrogate()(batches[0]))
    assert not torch.allclose(one.surrogate()(batches[0]), other.surrogate()(batches[0]))
    assert key(one) == key(same) != key(other)


@pytest.mark.parametrize("options", [(1, 1.0), ([1], [2]), (torch.zeros(2), torch.ones(2)), (nn.ReLU(), nn.ReLU())])
def test_any_option_is_part_of_the_key(options, model):
    one, other = (adapter_of(Own, model, option=option) for option in options)
    assert key(one) != key(other)
    assert key(one) != key(make(model, "tebn"))


def test_the_memory_is_part_of_the_key(model):
    one, other = (adapter_of(Own, model) for _ in range(2))
    other.memory["shift"] = torch.ones(3)
    assert key(one) != key(other)
    assert key(one, of="source") == key(other, of="source")


def test_a_subclass_shares_nothing_unless_it_says_so(model):
    class Subclass(get("tent")):
        pass

    class Declared(get("tent")):
        surrogate_from_policies = True

    assert key(adapter_of(Subclass, model)) != key(make(model, "tent"))
    assert key(adapter_of(Declared, model)) == key(make(model, "tent"))


def test_methods_that_normalise_alike_share_a_key(model):
    shared = {method for method in ADAPTING if key(make(model, method)) == key(make(model, "tebn"))}
    assert shared == {"tebn", "tent", "eta", "eata", "sar", "cotta", "deyo"}
    assert key(make(model, "tebn", "mean")) != key(make(model, "tebn", "median"))
    assert key(make(model, "tebn", logits=0)) != key(make(model, "tebn"))


@pytest.mark.parametrize(
    ("method", "first", "second"),
    [
        ("sema", {"momentum": 0.2}, {"momentum": 0.3}),
        ("sema", {"momentum": 0.2}, {"counted": True}),
        ("mdia", {"terminal": 2}, {"terminal": 1}),
        ("mdia", {"prior": 0.6}, {"prior": 0.5}),
        ("sotta", {"statistics": "batch"}, {"statistics": "memory"}),
        ("past", {"batch_size": 12}, {"batch_size": 24}),
        ("alpha_bn", {"source_images": None}, {"source_images": 4}),
        ("alpha_bn", {"source_images": None, "prior": 0.9}, {"source_images": None, "prior": 0.8}),
        ("lame", {"neighbours": 3}, {"neighbours": 4}),
        ("note", {"width": 4.0}, {"width": 3.0}),
        ("roid", {"prior": "probabilities"}, {"prior": "logits"}),
        ("roid", {"prior": "probabilities"}, {"prior": "none"}),
        ("cotta", {"augmented_output": False}, {"augmented_output": True}),
        ("cotta", {"augmented_output": True, "seed": 1}, {"augmented_output": True, "seed": 2}),
    ],
)
def test_options_that_change_normalisation_change_the_key(method, first, second, model):
    assert key(make(model, method, **first)) != key(make(model, method, **second))


@pytest.mark.parametrize("method", ["sema", "past"])
def test_the_weight_of_the_next_batch_is_part_of_the_key(method, model, batches):
    options = {"sema": {"momentum": 0.01, "counted": True}, "past": {"momentum": 0.01}}[method]
    tta = make(model, method, **options)
    before = key(tta)
    tta(batches[0])
    assert key(tta) != before
    assert key(tta, of="source") == before
    if method == "past":
        assert key(tta, images=6) != key(tta, images=12)


def test_estimators_are_compared_by_function(model):
    medbn.estimators.register("mine", lambda x, valid: (x.mean((0, 2, 3)), x.var((0, 2, 3))))
    try:
        first = key(make(model, "tebn", "mine"))
        medbn.estimators.unregister("mine")
        medbn.estimators.register("mine", lambda x, valid: (x.mean((0, 2, 3)), x.var((0, 2, 3))))
        assert key(make(model, "tebn", "mine")) != first
    finally:
        medbn.estimators.unregister("mine")
