"""What a surrogate depends on, as the adapter itself says: attacks are reused where keys are equal."""

import pytest
import torch

import medbn
from medbn.methods import Adapter, get

from .table import ADAPTING, make


class Mixed(Adapter):
    """A method whose option changes how it normalises, but not the layers' policies."""

    def __init__(self, model, *, scale=1.0, **options):
        super().__init__(model, **options)
        self.scale = scale

    def run_model(self, inputs):
        return super().run_model(inputs._replace(args=(inputs.args[0] * self.scale,)))


def key(adapter, images=12, of="now"):
    return adapter.surrogate_key(adapter.source_state if of == "source" else adapter.snapshot(), images)


def adapter_of(kind, model, **options):
    return kind(medbn.convert(model), **options).begin()


def test_an_option_of_ones_own_method_is_part_of_its_key(model):
    one, same, other = (adapter_of(Mixed, model, scale=scale) for scale in (1.0, 1.0, 2.0))
    assert key(one) == key(same) != key(other)
    assert key(one) != key(make(model, "tebn"))
    unknown = adapter_of(Mixed, model, scale=torch.nn.Identity())  # might hold anything
    assert key(unknown) != key(adapter_of(Mixed, model, scale=torch.nn.Identity()))
    assert key(adapter_of(Mixed, model, scale=torch.zeros(2))) != key(adapter_of(Mixed, model, scale=torch.ones(2)))


def test_the_memory_of_ones_own_method_is_part_of_its_key(model):
    one, other = (adapter_of(Mixed, model) for _ in range(2))
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
    assert shared == {"tebn", "tent", "eta", "eata", "sar"}
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
