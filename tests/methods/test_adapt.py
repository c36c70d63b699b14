"""What holds for every method, with every estimator."""

import copy
import dataclasses
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import medbn

from ..reference import ESTIMATORS, ROBUST
from .conftest import small_model
from .table import ADAPTING, LEARNING, METHODS, assert_same, make, state

every_method = pytest.mark.parametrize("method", METHODS)
every_adapting = pytest.mark.parametrize("method", ADAPTING)
every_learning = pytest.mark.parametrize("method", LEARNING)
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)


def test_the_table_has_every_method():
    assert sorted(METHODS) == medbn.methods.available()


# --- state -----------------------------------------------------------------------------------------------------------


@every_method
@every_estimator
@pytest.mark.parametrize("predict", ["before", "after"])
def test_restoring_and_repeating_gives_the_same_bits(method, estimator, predict, model, batches):
    tta = make(model, method, estimator, predict=predict)
    for x in batches[:3]:
        tta(x)
    snapshot, before = tta.snapshot(), state(tta)
    first = [tta(x) for x in batches[3:]]
    after = state(tta)
    if method in LEARNING or method in ("sema", "past"):
        assert any(
            not torch.equal(v, after[k]) for k, v in before.items() if isinstance(v, torch.Tensor) and k in after
        )
    tta.restore(snapshot)
    assert_same(state(tta), before)
    second = [tta(x) for x in batches[3:]]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert_same(state(tta), after)


@every_method
def test_reset_returns_to_the_source_model(method, model, batches):
    tta = make(model, method)
    source = state(tta)
    first = [tta(x) for x in batches]
    tta.reset()
    assert_same(state(tta), source)
    assert all(torch.equal(a, tta(x)) for a, x in zip(first, batches, strict=True))


def test_a_state_goes_through_a_file_into_a_new_process(model, batches, tmp_path):
    torch.save({"model": model.state_dict(), "batches": batches}, tmp_path / "given.pt")
    expected = {}
    for method in METHODS:
        for estimator in ESTIMATORS:
            tta = make(model, method, estimator, predict="after")
            for x in batches[:3]:
                tta(x)
            torch.save(tta.state_dict(), tmp_path / f"{method}-{estimator}.pt")
            expected[f"{method}-{estimator}"] = [tta(x) for x in batches[3:]]
    torch.save(expected, tmp_path / "expected.pt")
    script = """
        import sys, torch
        from tests.methods.conftest import small_model
        from tests.methods.table import make
        folder = sys.argv[1]
        given = torch.load(f"{folder}/given.pt", weights_only=True)
        expected = torch.load(f"{folder}/expected.pt", weights_only=True)
        model = small_model()
        model.load_state_dict(given["model"])
        for name, outputs in expected.items():
            tta = make(model, *name.split("-"), predict="after")
            tta.load_state_dict(torch.load(f"{folder}/{name}.pt", weights_only=True))
            for x, y in zip(given["batches"][3:], outputs, strict=True):
                assert torch.equal(tta(x), y), name
        print(len(expected), "the same")
    """
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(len(METHODS) * len(ESTIMATORS)), "the", "same"], done.stderr


@every_method
def test_a_file_carries_the_source_model_too(method, batches, tmp_path):
    """Loading into an architecture with other weights, as one does with torch."""
    tta = make(small_model(), method)
    for x in batches[:2]:
        tta(x)
    torch.save(tta.state_dict(), tmp_path / "state.pt")
    other = small_model()
    with torch.no_grad():
        for value in (*other.parameters(), *other.buffers()):
            if value.is_floating_point():
                value.uniform_(0.5, 1.0)
    loaded = make(other, method)
    loaded.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(loaded(batches[2]), tta(batches[2]))
    assert_same(state(loaded), state(tta))
    source = [t.surrogate(of="source")(batches[3]) for t in (loaded, tta)]
    assert torch.equal(*source)
    loaded.reset()
    tta.reset()
    assert_same(state(loaded), state(tta))
    assert torch.equal(loaded(batches[3]), tta(batches[3]))


def test_assigned_parameters_go_on_learning(batches):
    tta = make(small_model(), "tent")
    tta(batches[0])
    loaded = make(small_model(), "tent")
    loaded.load_state_dict(copy.deepcopy(tta.state_dict()), assign=True)
    assert torch.equal(loaded(batches[1]), tta(batches[1]))
    assert torch.equal(loaded.model.bn.weight, tta.model.bn.weight)
    assert loaded.model.bn.weight is loaded.learned["bn.weight"]


def test_another_method_s_state_is_refused_and_changes_nothing(model, batches):
    tent, eta, sema = (make(model, m) for m in ("tent", "eta", "sema"))
    eta(batches[0])
    before = state(tent)
    for other in (eta, sema):
        with pytest.raises(ValueError, match=r"this state is of (ETA|SEMA) with .*the adapter is Tent with 14"):
            tent.restore(other.snapshot())
        with pytest.raises(ValueError, match=r"this state is of"):
            tent.load_state_dict(other.state_dict())
    assert_same(state(tent), before)


def test_an_adapter_inside_another_module_saves_and_loads(model, batches):
    outer, twin = (nn.ModuleDict({"tta": make(model, "sotta")}) for _ in range(2))
    for x in batches[:2]:
        outer["tta"](x)
    twin.load_state_dict(outer.state_dict())
    assert torch.equal(twin["tta"](batches[2]), outer["tta"](batches[2]))


@every_learning
@pytest.mark.parametrize("predict", ["before", "after"])
def test_an_error_in_mid_call_changes_nothing(method, predict, model, batches):
    tta = make(model, method, predict=predict)
    tta(batches[0])
    before = state(tta)

    def fail_later(module, args):
        remaining.pop()
        if not remaining:
            raise KeyboardInterrupt

    passes = {"tent": 1, "eta": 1, "eata": 1, "sar": 2, "sotta": 4}[method] + (predict == "after")
    for fail_at in range(1, passes + 1):
        remaining = [None] * fail_at
        handle = tta.model.register_forward_pre_hook(fail_later)
        with pytest.raises(KeyboardInterrupt):
            tta(batches[1])
        handle.remove()
        assert_same(state(tta), before)
        assert all((p._valid, p._backward, p._observers) == (None, None, ()) for p in tta.layers.values())
        assert {p.policy for p in tta.layers.values()} == {tta.policy}


@every_learning
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


@every_method
def test_methods_touch_only_what_they_own(method, model, batches):
    original = copy.deepcopy(model)
    tta = make(model, method)
    before = {name: p.clone() for name, p in tta.model.state_dict().items()}
    for x in batches * 2:
        tta(x)
    for name, value in tta.model.state_dict().items():
        if name not in tta.learned:
            assert torch.equal(value, before[name]), name
    for name, value in model.state_dict().items():  # the caller's model
        assert torch.equal(value, original.state_dict()[name]), name
    assert [type(m) for m in model.modules()] == [type(m) for m in original.modules()]
    if method in LEARNING:
        assert any(not torch.equal(p, before[name]) for name, p in tta.learned.items())


def test_a_failing_in_place_changes_nothing(model):
    model.train()
    with pytest.raises(ValueError, match="frozen='typo' names none"):
        medbn.adapt(model, "sar", frozen="typo", inplace=True)
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    assert not any(isinstance(m, medbn.RobustBatchNorm) for m in model.modules())
    source = iter([torch.randn(8, 3, 8, 8)])  # consumed once all the same
    assert medbn.adapt(model, "eata", source=source, inplace=True).model is model


def test_in_place_only_when_asked(model, batches):
    tta = medbn.adapt(model, "tent", inplace=True)
    assert tta.model is model
    before = model.bn.weight.clone()
    tta(batches[0])
    assert not torch.equal(model.bn.weight, before)


@every_method
def test_copies_adapt_on_their_own(method, model, batches):
    tta = make(model, method)
    tta(batches[0])
    twin = copy.deepcopy(tta)
    expected = [tta(x) for x in batches[1:]]
    assert all(torch.equal(twin(x), y) for x, y in zip(batches[1:], expected, strict=True))


@every_method
def test_moving_to_another_dtype_takes_everything_along(method, model, batches):
    tta = make(model, method)
    tta(batches[0])
    single = tta.snapshot()
    expected = tta(batches[1])
    tta.restore(single)
    tta.double()
    y = tta(batches[1].double())
    assert y.dtype == torch.float64
    torch.testing.assert_close(y.float(), expected, rtol=1e-3, atol=1e-3)
    tta.restore(single)  # taken before the move
    torch.testing.assert_close(tta(batches[1].double()), y, rtol=1e-3, atol=1e-3)
    tta.reset()
    assert {
        v.dtype for v in state(tta).values() if isinstance(v, torch.Tensor) and v.is_floating_point() and v.dim()
    } <= {torch.float64}
    tta(batches[1].double())


# --- predicting ------------------------------------------------------------------------------------------------------


@every_learning
def test_after_is_what_the_updated_model_predicts(method, model, batches):
    before, after = make(model, method), make(model, method, predict="after")
    x = batches[0]
    first, second = before(x), after(x)
    assert not torch.allclose(first, second)
    assert_same(state(before), state(after))  # what is returned changes nothing else
    fresh = make(model, method)
    torch.testing.assert_close(first, fresh.surrogate()(x))
    # The updated parameters with the averages of before: what `after` predicts with.
    updated = {**fresh.snapshot(), "learned": before.snapshot()["learned"]}
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


@every_method
def test_steps_and_gradients_do_not_leak(method, model, batches):
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


# --- the attacker's view ---------------------------------------------------------------------------------------------


@every_method
@every_estimator
@pytest.mark.parametrize("gradient", ["exact", "straight_through", "smooth"])
def test_a_surrogate_predicts_the_same_and_changes_nothing(method, estimator, gradient, model, batches):
    tta = make(model, method, estimator)
    tta(batches[0])
    before = state(tta)
    view = tta.surrogate(gradient)
    x = batches[1].clone().requires_grad_()
    for _ in range(3):
        logits = view(x)
        (dx,) = torch.autograd.grad(logits.square().sum(), x)
    assert dx.abs().sum() > 0
    assert_same(state(tta), before)
    answer = tta(batches[1])
    if method == "past":  # whose attacker looks ahead
        answer = tta(batches[1])
    torch.testing.assert_close(answer, logits.detach())
    after = view(batches[1])  # of that moment, whatever the adapter has done since
    torch.testing.assert_close(after, logits.detach())


@every_method
def test_a_surrogate_of_the_source_model(method, model, batches):
    tta, fresh = make(model, method), make(model, method)
    for x in batches:
        tta(x)
    torch.testing.assert_close(tta.surrogate(of="source")(batches[0]), fresh.surrogate()(batches[0]))


def test_a_surrogate_s_gradient_reaches_every_image_through_the_statistics(model, batches):
    tta = make(model, "tebn", "mean")
    x = batches[0].clone().requires_grad_()
    (dx,) = torch.autograd.grad(tta.surrogate()(x)[0].sum(), x)
    assert (dx.flatten(1).abs().sum(dim=1) > 0).all()


def test_wrong_words_for_a_surrogate(model):
    tta = make(model, "tebn")
    with pytest.raises(ValueError, match=r"unknown gradient 'exakt'.*exact, smooth, straight_through"):
        tta.surrogate("exakt")
    with pytest.raises(ValueError, match=r"unknown surrogate of 'then'.*now, source"):
        tta.surrogate(of="then")


# --- hostile and padded batches --------------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("estimator", ROBUST)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_hostile_image_leaves_the_state_of_the_batch_without_it(method, estimator, value, model, batches):
    if method == "sotta":  # which image of a full memory goes is a matter of chance, so leave it room
        hostile, clean = (make(model, method, estimator, capacity=100) for _ in range(2))
    else:
        hostile, clean = (make(model, method, estimator) for _ in range(2))
    for step, x in enumerate(batches[:3]):
        poisoned = x.clone()
        poisoned[4, step % 3, 2, 2] = value
        y = hostile(poisoned)
        others = [i for i in range(12) if i != 4]
        torch.testing.assert_close(y[others], clean(x[others]), rtol=1e-3, atol=1e-3)
    assert_same(state(hostile), state(clean), exact=False)
    assert all(p.isfinite().all() for p in hostile.parameters())


@pytest.mark.parametrize("estimator", ["mad", "mad_scaled", "image_median"])
@pytest.mark.parametrize("method", ["tent", "eta", "eata", "sar", "sotta"])
def test_a_finite_image_of_monstrous_logits_is_no_way_in(method, estimator, batches):
    """Its logits are finite, and so far apart that entropy and its gradient are not."""
    tta = make(small_model(scale=12.0), method, estimator)
    for x in batches[:3]:
        x = x.clone()
        x[3] *= 1e37
        tta(x)
    assert all(p.isfinite().all() for p in tta.parameters())
    assert tta(batches[3]).isfinite().all()


@every_learning
def test_float16_models_are_refused_and_bfloat16_works(method, model, batches):
    with pytest.raises(ValueError, match=r"float16 cannot represent.*torch.autocast"):
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


@every_adapting
def test_nothing_but_hostile_images_is_an_error_and_changes_nothing(method, model, batches):
    tta = make(model, method)
    tta(batches[0])
    before = state(tta)
    with pytest.raises(ValueError, match="no image of this batch has a finite output; nothing was adapted"):
        tta(torch.full((4, 3, 8, 8), torch.nan))
    assert_same(state(tta), before)
    tta(batches[1])


@every_method
@every_estimator
@pytest.mark.parametrize("filler", [7.0, torch.nan])
def test_padding_changes_nothing(method, estimator, filler, model, batches):
    padded, plain = make(model, method, estimator), make(model, method, estimator)
    for x in batches[:3]:
        filled = x.clone()
        filled[9:] = filler
        y = padded(filled, valid=torch.arange(12) < 9)
        torch.testing.assert_close(y[:9], plain(x[:9]), rtol=1e-3, atol=1e-3)
    assert_same(state(padded), state(plain), exact=False)


@every_method
def test_batches_of_any_size(method, model, batches):
    tta = make(model, method)
    for size in (12, 1, 5, 12, 2):
        y = tta(batches[0][:size])
        assert y.shape == (size, 10)
        assert y.isfinite().all()
    before = state(tta)
    with pytest.raises(ValueError, match=r"empty batch.*\(0, 3, 8, 8\)"):
        tta(batches[0][:0])
    assert_same(state(tta), before)


# --- any model -------------------------------------------------------------------------------------------------------


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


@every_method
@pytest.mark.parametrize("kind", OUTPUTS)
def test_any_arguments_and_any_output(method, kind, model, batches):
    output, pick, back = OUTPUTS[kind]
    if kind == "named":
        method = "tebn" if method in LEARNING else method  # the sign matters to a loss
    options = {"source": [{"image": batches[4]}]} if method == "eata" else {}
    tta = make(Wrapped(model, output), method, logits=pick, **options)
    plain = make(model, method, **({"source": [batches[4]]} if method == "eata" else {}))
    for x in batches[:3]:
        got, expected = tta({"image": x / 2}, scale=2.0), plain(x)
        torch.testing.assert_close(back(got), expected)
        assert not back(got).requires_grad


def test_an_output_without_known_logits_says_what_to_do(model, batches):
    tta = make(Wrapped(model, lambda y: {"scores": y}), "tent")
    with pytest.raises(TypeError, match=r"mapping with \['scores'\]; say which holds the logits: logits="):
        tta({"image": batches[0]})
    tta = make(nn.Sequential(model, nn.Linear(10, 1), nn.Flatten(0)), "tent")
    with pytest.raises(TypeError, match=r"expected logits \(B, classes\).*got shape \(12,\)"):
        tta(batches[0])


def test_methods_that_learn_nothing_need_no_logits(model, batches):
    features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    for method in ("source", "tebn", "sema"):
        assert make(features, method)(batches[0]).shape == (12, 4, 6, 6)


def test_a_layer_that_is_used_twice_is_averaged_once():
    norm = nn.BatchNorm1d(3)
    tta = medbn.adapt(nn.Sequential(norm, norm), "sema", "mean", momentum=0.5)
    x = torch.randn(8, 3) + 1
    tta(x)
    torch.testing.assert_close(tta.layers["0"].ema_mean, 0.5 * x.mean(0))


def test_source_wraps_layers_without_statistics():
    layer = medbn.convert(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False)))
    x = torch.randn(8, 3)
    torch.testing.assert_close(medbn.adapt(layer, "source")(x), medbn.functional.robust_norm(x))


def test_source_wraps_a_model_without_batch_norm(batches):
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    tta = medbn.adapt(model, "source")
    assert torch.equal(tta(batches[0]), model(batches[0]))
    for method in ADAPTING:
        with pytest.raises(ValueError, match="has no BatchNorm layer"):
            make(model, method)


class Dense(nn.Module):
    """The small model without its pooling: ten classes per pixel."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        y = self.model.features(x)
        return 4 * self.model.fc(y.movedim(1, -1)).movedim(-1, 1)


@every_method
@every_estimator
def test_dense_outputs(method, estimator, model, batches):
    tta = make(Dense(model), method, estimator)
    for x in batches:
        y = tta(x)
        assert y.shape == (12, 10, 2, 2)
        assert y.isfinite().all()
    if method in LEARNING:
        assert any(not torch.equal(p, tta.source_state["learned"][name]) for name, p in tta.learned.items())


@every_estimator
def test_an_estimator_of_none_keeps_what_the_model_has(estimator, model):
    plain = medbn.adapt(model, "tebn")
    assert {layer.estimator.name for layer in plain.layers.values()} == {"median"}
    medbn.convert(model, estimator, include="layer2.*", nonfinite="propagate")
    kept = medbn.adapt(model, "tebn")
    assert {name: layer.estimator.name for name, layer in kept.layers.items()} == {
        "layer2.0.bn1": estimator,
        "layer2.0.bn2": estimator,
    }
    assert kept.layers["layer2.0.bn1"].nonfinite == "propagate"
    given = medbn.adapt(model, "tebn", "mad")
    assert {layer.estimator.name for layer in given.layers.values()} == {"mad"}
    assert len(given.layers) == 7
    some = medbn.adapt(model, "tebn", "mad", exclude="layer3.*")
    assert not any(name.startswith("layer3") for name in some.layers)


@every_method
def test_autocast(method, model, batches, device):
    tta = make(model.to(device), method, **({"source": [batches[4].to(device)]} if method == "eata" else {}))
    for x in batches[:3]:
        with torch.autocast(device, dtype=torch.bfloat16):
            y = tta(x.to(device))
        assert y.isfinite().all()
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in tta.parameters())


@pytest.mark.gpu
@every_method
@every_estimator
def test_cuda_agrees_with_the_cpu(method, estimator, model, batches):
    """In float64: in float32 the two may select another element, and a sample may pass another filter."""
    cpu, cuda = make(model, method, estimator).double(), make(copy.deepcopy(model), method, estimator).double().cuda()
    for x in batches[:2]:
        torch.testing.assert_close(cuda(x.double().cuda()).cpu(), cpu(x.double()), rtol=1e-6, atol=1e-6)


# --- wrong use -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_adapters_serve_under_inference_mode(method, model, batches):
    tta, plain = make(model, method), make(model, method)
    for x in batches[:2]:
        with torch.inference_mode():
            found = tta(x * 1.0)
        assert torch.equal(found, plain(x))
        assert_same(state(tta), state(plain))
    assert torch.equal(tta(batches[2]), plain(batches[2]))
    tta.surrogate()(batches[3].clone().requires_grad_()).sum().backward()


def test_adapters_are_made_and_attacked_outside_of_inference_mode(model, batches):
    tta = make(model, "tent")
    with torch.inference_mode():
        for wrong in (lambda: medbn.adapt(model, "tent"), lambda: tta.surrogate()(batches[0])):
            with pytest.raises(RuntimeError, match=r"inference_mode\(\) makes tensors that can have no gradients"):
                wrong()
        x = batches[0] * 1.0
    assert x.is_inference()
    assert torch.equal(tta(x), make(model, "tent")(batches[0]))  # such a tensor is fine


def test_a_state_of_another_defence_is_refused(model, batches):
    tta, other = make(model, "past", "image_median@0.5"), make(model, "past", "mean")
    tta(batches[0])
    before = state(other)
    for load in (lambda: other.restore(tta.snapshot()), lambda: other.load_state_dict(tta.state_dict())):
        with pytest.raises(ValueError, match=r"with image_median@0.5 in its layers, and this one has mean"):
            load()
        assert_same(state(other), before)
    with pytest.raises(ValueError, match="this is no snapshot of an adapter"):
        other.restore({})


def test_wrong_names_list_the_right_ones(model):
    with pytest.raises(ValueError, match=r"unknown method 'tnet'.*Did you mean 'tent'.*eata, eta, mdia, past, sar"):
        medbn.adapt(model, "tnet")
    with pytest.raises(ValueError, match=r"unknown option of Tent 'learning_rate'.*lr"):
        medbn.adapt(model, "tent", learning_rate=0.1)
    with pytest.raises(ValueError, match=r"unknown preset 'cifar'.*cifar10, cifar100, imagenet"):
        medbn.adapt(model, "tent", preset="cifar")
    with pytest.raises(ValueError, match=r"unknown estimator 'medain'"):
        medbn.adapt(model, "tent", "medain")
    with pytest.raises(ValueError, match=r"unknown predict 'later'.*after, before"):
        medbn.adapt(model, "tent", predict="later")
    with pytest.raises(ValueError, match=r"unknown optimizer 'adamm'.*adam, sgd"):
        medbn.adapt(model, "tent", optimizer="adamm")
    with pytest.raises(ValueError, match=r"unknown statistics 'mine'.*batch, memory"):
        medbn.adapt(model, "sotta", statistics="mine")
    with pytest.raises(ValueError, match=r"steps is the number of updates per batch, at least 1; got 0"):
        medbn.adapt(model, "tent", steps=0)
    with pytest.raises(ValueError, match=r"EATA needs batches of source images.*method='eta'"):
        medbn.adapt(model, "eata")
    with pytest.raises(TypeError, match=r"expected a torch.nn.Module, got dict"):
        medbn.adapt({}, "tent")
    with pytest.raises(TypeError, match=r"adapted by TeBN already.*tta.model"):
        medbn.adapt(nn.Sequential(medbn.adapt(model, "tebn")), "tent")
    assert not any(isinstance(m, medbn.RobustBatchNorm) for m in model.modules())


def test_a_call_without_a_batch(model):
    with pytest.raises(TypeError, match="expected a batch"):
        make(model, "tent")()
    with pytest.raises(ValueError, match=r"valid must be a boolean mask with one entry per image, \(4,\)"):
        make(model, "tent")(torch.randn(4, 3, 8, 8), valid=torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="valid marks no image"):
        make(model, "tent")(torch.randn(4, 3, 8, 8), valid=torch.zeros(4, dtype=torch.bool))


def test_a_model_with_nothing_to_learn():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False))
    with pytest.raises(ValueError, match="no affine parameters for Tent to learn"):
        medbn.adapt(model, "tent")


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "preset", "expected"),
    [
        ("tent", "cifar10", {"optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0, "steps": 1, "predict": "before"}),
        ("eta", "cifar10", {"margin": 0.4, "redundancy": 0.4}),
        ("eta", "cifar100", {"margin": 0.4, "redundancy": 0.4}),
        ("eta", "imagenet", {"margin": 0.4, "redundancy": 0.05}),
        ("eata", "cifar10", {"fisher_weight": 1.0, "fisher_samples": 2000, "redundancy": 0.4}),
        ("eata", "imagenet", {"fisher_weight": 2000.0, "redundancy": 0.05}),
        ("sar", "cifar10", {"margin": 0.4, "rho": 0.05, "recovery": 0.2, "average": 0.9}),
        ("sotta", "cifar10", {"capacity": 64, "confidence": 0.99, "momentum": 0.2, "statistics": "batch"}),
        ("sotta", "cifar100", {"confidence": 0.66}),
        ("sotta", "imagenet", {"confidence": 0.33}),
        ("sema", "cifar10", {"momentum": 0.2}),
        ("mdia", "cifar10", {"prior": 0.6, "terminal": 8}),
    ],
)
def test_published_defaults(method, preset, expected):
    options = medbn.methods.options(method, preset)
    assert {name: options[name] for name in expected} == expected


def test_presets_and_given_options(model):
    assert medbn.adapt(model, "sotta", preset="imagenet").confidence == 0.33
    assert medbn.adapt(model, "sotta", preset="imagenet", confidence=0.5).confidence == 0.5
    assert medbn.adapt(model, "SoTTA").confidence == 0.99
    sgd = medbn.adapt(model, "tent", optimizer=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9), lr=0.5)
    assert isinstance(sgd.optimizer, torch.optim.SGD)
    assert sgd.optimizer.param_groups[0]["lr"] == 0.5


def test_the_four_lines_of_the_design_on_a_plain_torch_model():
    model = small_model()
    images = torch.randn(6, 3, 8, 8)
    model = medbn.convert(model, estimator="median")
    tta = medbn.adapt(model, method="tent", estimator="median")
    assert tta(images).shape == (6, 10)
    assert type(medbn.revert(model).bn) is nn.BatchNorm2d


@pytest.mark.parametrize("estimator", ["mean@0.7", "median@0.7", "image_median@0.7"])
@pytest.mark.parametrize("method", ["tebn", "tent", "mdia", "sema", "sotta"])
def test_a_prior_mixes_training_statistics_into_every_layer(method, estimator, model, batches):
    """Before the method's own mixture, whatever that is."""
    tta = medbn.adapt(model, method, estimator, **({"terminal": 2} if method == "mdia" else {}))
    for layer in tta.layers.values():
        if layer.policy.reference == "ema":
            layer.ema_mean, layer.ema_var = layer.running_mean + 0.3, layer.running_var * 2
    with torch.no_grad(), medbn.observe(tta.model) as seen:
        tta.model(batches[0])
        looked_at = [o for o in seen if o.batch_centre is not None]  # mDIA's last layers look at nothing
        assert len(looked_at) > len(tta.layers) // 2
        for o in looked_at:
            weight = o.layer.policy.weight
            for mixed, batch, source, held in zip(
                (o.centre, o.variance),
                (o.batch_centre, o.batch_variance),
                (o.layer.running_mean, o.layer.running_var),
                layer_held(o.layer),
                strict=True,
            ):
                torch.testing.assert_close(mixed, weight * (0.3 * batch + 0.7 * source) + (1 - weight) * held)
    assert tta(batches[0]).shape == (12, 10)


def layer_held(layer):
    moving = layer.policy.reference == "ema"
    return (layer.ema_mean, layer.ema_var) if moving else (layer.running_mean, layer.running_var)


def test_a_moving_average_takes_the_mixture_in(model, batches):
    tta = medbn.adapt(model, "sema", "median@0.5")
    with torch.no_grad(), medbn.observe(tta.model) as seen:
        tta.model(batches[0])
        expected = {
            o.name: 0.2 * (0.5 * o.batch_centre + 0.5 * o.layer.running_mean) + 0.8 * o.layer.running_mean for o in seen
        }
    tta(batches[0])
    for name, centre in expected.items():
        torch.testing.assert_close(tta.layers[name].ema_mean, centre)


@pytest.mark.parametrize("estimator", ["median@1", "mean@1"])
def test_a_prior_of_one_is_the_source_model(estimator, model, batches):
    tta = medbn.adapt(model, "tebn", estimator)
    torch.testing.assert_close(tta(batches[0]), medbn.adapt(model, "source")(batches[0]))


def test_a_counted_average_weighs_batches_alike(model, batches):
    tta = medbn.adapt(model, "sema", "median", momentum=0.26, counted=True)
    layer = next(iter(tta.layers.values()))
    source, seen = layer.running_mean.clone(), []
    for batch, weight in zip((*batches, *batches)[:4], (1 / 2, 1 / 3, 0.26, 0.26), strict=True):
        assert layer.policy.weight == pytest.approx(weight)
        with torch.no_grad(), medbn.observe(tta.model) as found:
            tta.model(batch)
            seen.append(found[0].batch_centre.clone())
        tta(batch)
        if len(seen) < 3:
            torch.testing.assert_close(layer.ema_mean, (source + sum(seen)) / (len(seen) + 1))
    tta.reset()
    assert layer.policy.weight == 0.5
    torch.testing.assert_close(layer.ema_mean, source)


def test_a_counted_average_continues_from_a_snapshot(model, batches):
    tta, other = (medbn.adapt(model, "sema", "median", momentum=0.05, counted=True) for _ in range(2))
    tta(batches[0])
    before = tta.snapshot()
    expected = tta(batches[1])
    tta.restore(before)
    assert torch.equal(tta(batches[1]), expected)
    other.restore(before)
    assert torch.equal(other(batches[1]), expected)
    other.load_state_dict(tta.state_dict())
    assert torch.equal(other(batches[0]), tta(batches[0]))


# --- Past -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [100.0, 1e30, torch.nan, torch.inf])
@pytest.mark.parametrize("two_pass_batches", [0, 5])
@every_estimator
def test_past_lets_no_image_see_another_of_its_batch(estimator, two_pass_batches, poison, model, batches):
    tta = make(model, "past", estimator, two_pass_batches=two_pass_batches)
    for x in batches[:2]:
        tta(x)
    before = tta.snapshot()
    expected = tta(batches[2])
    poisoned = batches[2].clone()
    poisoned[6:] = poison
    tta.restore(before)
    torch.testing.assert_close(tta(poisoned)[:6], expected[:6], rtol=0, atol=0)
    tta.restore(before)
    alone = torch.cat([tta.restore(before) or tta(x[None]) for x in batches[2]])
    torch.testing.assert_close(alone, expected)
    assert not torch.allclose(tta(batches[3]), expected)  # and yet it adapts


@pytest.mark.parametrize("gradient", ["exact", "straight_through", "smooth"])
def test_an_attacker_of_past_sees_what_she_can_still_change(gradient, model, batches):
    past, sema = make(model, "past"), make(model, "sema", momentum=0.05, counted=True)
    for x in batches[:2]:
        past(x), sema(x)
    x = batches[2].clone().requires_grad_()
    found, expected = (torch.autograd.grad(tta.surrogate(gradient)(x)[:6].square().sum(), x)[0] for tta in (past, sema))
    assert expected[6:].any()
    torch.testing.assert_close(found, expected)
    view = [tta.surrogate(of=of) for tta in (past, sema) for of in ("now", "source")]
    before = [one(batches[3]) for one in view]
    past(batches[4]), sema(batches[4])
    for one, expected in zip(view, before, strict=True):  # of that moment, whatever the adapter has done since
        torch.testing.assert_close(one(batches[3]), expected)
    past.reset()
    assert past.commit_policy(12, past.memory) == medbn.policies.ema(0.5)


@pytest.mark.parametrize("scenario", [medbn.attacks.instant, medbn.attacks.cumulative])
def test_only_poison_that_stays_changes_the_answers_of_past(scenario, model, batches):
    tta = make(model, "past", momentum=0.5)
    attack = medbn.attacks.DIA(medbn.attacks.Indiscriminate(), steps=3, step_size=0.5)
    stream = [(x.sigmoid(), torch.arange(12) % 10) for x in batches[:3]]
    outcomes = list(scenario(tta, stream, attack, slice(8, 12)))
    same = [torch.equal(outcome.attacked[:8], outcome.clean[:8]) for outcome in outcomes]
    assert same == [True, True, True] if scenario is medbn.attacks.instant else [True, False, False]


@pytest.mark.parametrize("valid", [None, torch.arange(12) < 7], ids=["all", "padded"])
@pytest.mark.parametrize("estimator", ["mean", "image_median", "median@0.5"])
def test_past_remembers_what_sema_does(valid, estimator, model, batches):
    images = 12 if valid is None else 7
    past = make(model, "past", estimator, momentum=0.26, two_pass_batches=len(batches), batch_size=images)
    sema = make(model, "sema", estimator, momentum=0.26, counted=True)
    for x in batches:
        for tta in (past, sema):
            tta(x, valid=valid)
        for name, layer in past.layers.items():
            torch.testing.assert_close(layer.ema_mean, sema.layers[name].ema_mean)
            torch.testing.assert_close(layer.ema_var, sema.layers[name].ema_var)
            assert layer.policy == medbn.policies.ema(0.0)  # which is what serves


@pytest.mark.parametrize(("two_pass_batches", "expected"), [(0, [1, 1, 1, 1]), (2, [2, 2, 1, 1]), (9, [2, 2, 2, 2])])
def test_past_takes_a_second_look_at_the_first_batches(two_pass_batches, expected, model, batches):
    tta = make(model, "past", two_pass_batches=two_pass_batches)
    passes = [0]
    tta.model.register_forward_hook(lambda *_: passes.append(passes.pop() + 1))
    for _ in range(2):
        taken = []
        for x in batches[:4]:
            passes[:] = [0]
            tta(x)
            taken += passes
        assert taken == expected
        tta.reset()


@pytest.mark.parametrize("valid", [None, torch.arange(12) < 7], ids=["all", "padded"])
@pytest.mark.parametrize("estimator", ["mean", "median", "image_median", "mad", "image_median@0.5"])
def test_past_sees_in_one_pass_what_its_answer_is_made_of(estimator, valid, model, batches):
    images = 12 if valid is None else 7
    tta = make(model, "past", estimator, momentum=0.26, two_pass_batches=1, batch_size=images)
    name = estimator.split("@")[0]
    prior = 0.5 if "@" in estimator else 0.0
    tta(batches[0], valid=valid)
    for i, x in enumerate(batches[1:4], start=1):
        known = {n: (layer.ema_mean.clone(), layer.ema_var.clone()) for n, layer in tta.layers.items()}
        with medbn.observe(tta.model) as seen:
            tta(x, valid=valid)
            assert [o.name for o in seen] == list(known)
            weight = max(0.26, 1 / (i + 2))
            for o in seen:
                layer = tta.layers[o.name]
                torch.testing.assert_close((o.centre, o.variance), known[o.name])
                found = medbn.functional.statistics(o.input, name, valid=valid)
                source = (layer.running_mean, layer.running_var)
                for new, old, s, made in zip(
                    found, known[o.name], source, (layer.ema_mean, layer.ema_var), strict=True
                ):
                    expected = weight * ((1 - prior) * new + prior * s) + (1 - weight) * old
                    torch.testing.assert_close(made, expected)


@pytest.mark.parametrize("cuts", [[12, 12], [24], [6, 12, 6], [1] * 24, [3, 20, 1]])
def test_images_weigh_alike_in_past_however_calls_are_cut(cuts, model):
    tta = make(model, "past", momentum=0.0)
    left, memory = 1.0, {"images": 0}
    for images in cuts:
        left *= 1 - tta.commit_policy(images, memory).weight
        memory["images"] += images
    assert left == pytest.approx(12 / (12 + 24))
    late = {"images": 10_000}
    tta.momentum = 0.05
    assert tta.commit_policy(12, late).weight == pytest.approx(0.05)
    assert tta.commit_policy(3, late).weight == pytest.approx(0.05 / 4)
    assert tta.commit_policy(24, late).weight == pytest.approx(0.1)
    assert tta.commit_policy(12_000, late).weight == pytest.approx(1000 / 1001)  # never all
    assert tta.commit_policy(12_000, {"images": 0}).weight == pytest.approx(1000 / 1001)


@pytest.mark.parametrize("two_pass_batches", [0, 100])
def test_few_images_weigh_little_in_past(two_pass_batches, model, batches):
    alone, nan, padded = (make(model, "past", "image_median", two_pass_batches=two_pass_batches) for _ in range(3))
    for x in batches[:3]:
        alone(x), nan(x), padded(x)
    weight = alone.commit_policy(1, alone.memory).weight
    assert weight == pytest.approx(max(0.05 / 12, 1 / 49))
    before = alone.layers["bn"].ema_mean.clone()
    broken = batches[3].clone()
    broken[1:] = torch.nan
    alone(batches[3][:1]), nan(broken), padded(batches[3], valid=torch.arange(12) == 0)
    for tta in (nan, padded):  # what is not finite, and padding, does not count
        assert tta.memory == alone.memory == {"batches": 4, "images": 37}
        for name, layer in tta.layers.items():
            torch.testing.assert_close(layer.ema_mean, alone.layers[name].ema_mean)
            torch.testing.assert_close(layer.ema_var, alone.layers[name].ema_var)
    image = alone.model.conv(batches[3][:1]).mean(dim=(0, 2, 3))
    torch.testing.assert_close(alone.layers["bn"].ema_mean, weight * image + (1 - weight) * before)


def test_past_refuses_wrong_options(model):
    with pytest.raises(ValueError, match="batch_size is a number of images, at least 1; got 0"):
        make(model, "past", batch_size=0)
    with pytest.raises(ValueError, match="two_pass_batches is a number of batches, at least 0; got True"):
        make(model, "past", two_pass_batches=True)
    with pytest.raises(ValueError, match="two_pass_batches is a number of batches, at least 0; got -1"):
        make(model, "past", two_pass_batches=-1)
    with pytest.raises(ValueError, match="momentum is a weight between 0 and 1, got 2"):
        make(model, "past", momentum=2)


def test_past_starts_at_the_source_model(model, batches):
    torch.testing.assert_close(make(model, "past")(batches[0]), make(model, "source")(batches[0]))
