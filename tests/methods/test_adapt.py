"""What all methods have in common: how they are made, what they change, and where they run."""

import copy

import pytest
import torch
from torch import nn

import medbn

from .conftest import small_model
from .table import (
    ADAPTING,
    LEARNING,
    METHODS,
    assert_same,
    each_kind,
    each_kind_that_learns,
    every_method,
    make,
    state,
)


def test_the_table_has_every_method():
    assert sorted(METHODS) == medbn.methods.available()


@every_method
def test_methods_change_only_what_they_learn(method, model, batches):
    original = copy.deepcopy(model)
    tta = make(model, method)
    before = {name: p.clone() for name, p in tta.model.state_dict().items()}
    for x in batches:
        tta(x)
    for name, value in tta.model.state_dict().items():
        if name not in tta.learned:
            assert torch.equal(value, before[name]), name
    for name, value in model.state_dict().items():  # the caller's model
        assert torch.equal(value, original.state_dict()[name]), name
    assert [type(m) for m in model.modules()] == [type(m) for m in original.modules()]
    if method in LEARNING:
        assert any(not torch.equal(p, before[name]) for name, p in tta.learned.items())


def test_in_place_adaptation_adapts_the_model_itself(model, batches):
    tta = medbn.adapt(model, "tent", inplace=True)
    assert tta.model is model
    before = model.bn.weight.clone()
    tta(batches[0])
    assert not torch.equal(model.bn.weight, before)


def test_in_place_adaptation_that_fails_changes_nothing(model):
    model.train()
    with pytest.raises(ValueError, match="typo"):
        medbn.adapt(model, "sar", frozen="typo", inplace=True)
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    assert not any(isinstance(m, medbn.RobustBatchNorm) for m in model.modules())
    source = iter([torch.randn(8, 3, 8, 8)])  # an iterator, which can be consumed only once
    assert medbn.adapt(model, "eata", source=source, inplace=True).model is model


@each_kind
def test_copies_adapt_on_their_own(method, model, batches):
    tta = make(model, method)
    tta(batches[0])
    twin = copy.deepcopy(tta)
    expected = [tta(x) for x in batches[1:]]
    assert all(torch.equal(twin(x), y) for x, y in zip(batches[1:], expected, strict=True))


def test_an_estimator_of_none_keeps_those_of_the_model(model):
    plain = medbn.adapt(model, "tebn")
    assert {layer.estimator.name for layer in plain.layers.values()} == {"image_median@0.5"}
    medbn.convert(model, "image_median", include="layer2.*", nonfinite="propagate")
    partly = medbn.adapt(model, "tebn")
    assert {name: layer.estimator.name for name, layer in partly.layers.items()} == {
        "layer2.0.bn1": "image_median",
        "layer2.0.bn2": "image_median",
    }
    assert partly.layers["layer2.0.bn1"].nonfinite == "propagate"
    chosen = medbn.adapt(model, "tebn", "mad")
    assert {layer.estimator.name for layer in chosen.layers.values()} == {"mad"}
    assert len(chosen.layers) == 7
    some = medbn.adapt(model, "tebn", "mad", exclude="layer3.*")
    assert not any(name.startswith("layer3") for name in some.layers)


def test_the_default_is_what_the_results_support(model, batches):
    default, recommended = medbn.adapt(model), medbn.adapt(model, "past", "image_median@0.5")
    for x in batches:
        assert torch.equal(default(x), recommended(x))
    state, expected = default.state_dict(), recommended.state_dict()
    assert str(state.keys()) == str(expected.keys())


def test_convert_adapt_and_revert_a_plain_torch_model():
    model = small_model()
    images = torch.randn(6, 3, 8, 8)
    model = medbn.convert(model, estimator="median")
    tta = medbn.adapt(model, method="tent", estimator="median")
    assert tta(images).shape == (6, 10)
    assert type(medbn.revert(model).bn) is nn.BatchNorm2d


def test_source_wraps_layers_without_statistics():
    layer = medbn.convert(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False)))
    x = torch.randn(8, 3)
    torch.testing.assert_close(medbn.adapt(layer, "source")(x), medbn.functional.robust_norm(x))


def test_source_wraps_a_model_without_batch_norm(batches):
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    tta = medbn.adapt(model, "source")
    assert torch.equal(tta(batches[0]), model(batches[0]))
    for method in ADAPTING:
        with pytest.raises(ValueError, match="BatchNorm"):
            make(model, method)


@each_kind
def test_adapters_serve_under_inference_mode(method, model, batches):
    tta, plain = make(model, method), make(model, method)
    for x in batches[:2]:
        with torch.inference_mode():
            y = tta(x * 1.0)
        assert torch.equal(y, plain(x))
        assert_same(state(tta), state(plain))
    assert torch.equal(tta(batches[2]), plain(batches[2]))
    tta.surrogate()(batches[3].clone().requires_grad_()).sum().backward()


def test_adapters_are_made_and_attacked_outside_of_inference_mode(model, batches):
    tta = make(model, "tent")
    with torch.inference_mode():
        for wrong in (lambda: medbn.adapt(model, "tent"), lambda: tta.surrogate()(batches[0])):
            with pytest.raises(RuntimeError, match="inference_mode"):
                wrong()
        x = batches[0] * 1.0
    assert x.is_inference()
    assert torch.equal(tta(x), make(model, "tent")(batches[0]))  # such a tensor is fine


@each_kind_that_learns
def test_activation_checkpointing_changes_nothing(method, model, batches):
    class Checkpointed(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.model, x, use_reentrant=False)

    options = {"statistics": "memory"} if method == "sotta" else {}
    plain, saving = make(model, method, **options), make(Checkpointed(model), method, **options)
    valid = torch.arange(12) < 9
    for x in batches[:3]:
        torch.testing.assert_close(saving(x, valid=valid)[:9], plain(x, valid=valid)[:9], rtol=1e-4, atol=1e-4)


@each_kind
def test_autocast(method, model, batches, device):
    tta = make(model.to(device), method, **({"source": [batches[4].to(device)]} if method == "eata" else {}))
    for x in batches[:3]:
        with torch.autocast(device, dtype=torch.bfloat16):
            y = tta(x.to(device))
        assert y.isfinite().all()
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in tta.parameters())


@each_kind_that_learns
def test_float16_models_are_refused_and_bfloat16_works(method, model, batches):
    with pytest.raises(ValueError, match=r"float16.*autocast"):
        make(model.half(), method, **({"source": [batches[4].half()]} if method == "eata" else {}))
    tta = make(model.bfloat16(), method, **({"source": [batches[4].bfloat16()]} if method == "eata" else {}))
    for x in batches[:3]:
        assert tta(x.bfloat16()).isfinite().all()
    assert all(p.isfinite().all() for p in tta.parameters())
    snapshot, before = tta.snapshot(), state(tta)
    first = tta(batches[3].bfloat16())
    tta.restore(snapshot)
    assert_same(state(tta), before)
    assert torch.equal(tta(batches[3].bfloat16()), first)


@pytest.mark.gpu
@every_method
@pytest.mark.parametrize("estimator", ["mean", "image_median@0.5"])
def test_cuda_agrees_with_the_cpu(method, estimator, model, batches):
    """In float64: in float32 a median may select another element, and a sample may pass a filter on one device only."""
    cpu, cuda = make(model, method, estimator).double(), make(copy.deepcopy(model), method, estimator).double().cuda()
    for x in batches[:2]:
        torch.testing.assert_close(cuda(x.double().cuda()).cpu(), cpu(x.double()), rtol=1e-6, atol=1e-6)
