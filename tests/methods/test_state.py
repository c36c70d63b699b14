"""Snapshots, files and errors: all that adapts is one state."""

import copy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from .conftest import small_model
from .table import (
    LEARNING,
    METHODS,
    assert_same,
    combine,
    each_kind,
    make,
    state,
)


@pytest.mark.parametrize(
    ("method", "estimator", "predict"),
    combine(METHODS, ("median", "after"), ("mean", "before"), ("image_median", "before")),
)
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


@each_kind
def test_reset_returns_to_the_source_model(method, model, batches):
    tta = make(model, method)
    source = state(tta)
    first = [tta(x) for x in batches]
    tta.reset()
    assert_same(state(tta), source)
    assert all(torch.equal(a, tta(x)) for a, x in zip(first, batches, strict=True))


@pytest.mark.slow
def test_a_state_goes_through_a_file_into_a_new_process(model, batches, tmp_path):
    torch.save({"model": model.state_dict(), "batches": batches}, tmp_path / "inputs.pt")
    expected = {}
    for method in METHODS:
        tta = make(model, method, predict="after")
        for x in batches[:3]:
            tta(x)
        torch.save(tta.state_dict(), tmp_path / f"{method}.pt")
        expected[method] = [tta(x) for x in batches[3:]]
    torch.save(expected, tmp_path / "expected.pt")
    script = """
        import sys, torch
        from tests.methods.conftest import small_model
        from tests.methods.table import make
        folder = sys.argv[1]
        inputs = torch.load(f"{folder}/inputs.pt", weights_only=True)
        expected = torch.load(f"{folder}/expected.pt", weights_only=True)
        model = small_model()
        model.load_state_dict(inputs["model"])
        for method, outputs in expected.items():
            tta = make(model, method, predict="after")
            tta.load_state_dict(torch.load(f"{folder}/{method}.pt", weights_only=True))
            for x, y in zip(inputs["batches"][3:], outputs, strict=True):
                assert torch.equal(tta(x), y), method
        print(len(expected), "the same")
    """
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(len(METHODS)), "the", "same"], done.stderr


@each_kind
def test_a_file_carries_the_source_model_too(method, batches, tmp_path):
    """A model with other weights loads the source model too."""
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


def test_the_state_of_another_method_is_refused_and_changes_nothing(model, batches):
    tent, eta, sema = (make(model, m) for m in ("tent", "eta", "sema"))
    eta(batches[0])
    before = state(tent)
    for other in (eta, sema):
        with pytest.raises(ValueError, match=r"(ETA|SEMA).*Tent"):
            tent.restore(other.snapshot())
        with pytest.raises(ValueError, match="Tent"):
            tent.load_state_dict(other.state_dict())
    assert_same(state(tent), before)


def test_the_state_of_another_estimator_is_refused(model, batches):
    tta, other = make(model, "past", "image_median@0.5"), make(model, "past", "mean")
    tta(batches[0])
    before = state(other)
    for load in (lambda: other.restore(tta.snapshot()), lambda: other.load_state_dict(tta.state_dict())):
        with pytest.raises(ValueError, match=r"image_median@0\.5.*mean"):
            load()
        assert_same(state(other), before)
    with pytest.raises(ValueError, match="snapshot"):
        other.restore({})


def test_an_adapter_inside_another_module_saves_and_loads(model, batches):
    outer, twin = (nn.ModuleDict({"tta": make(model, "sotta")}) for _ in range(2))
    for x in batches[:2]:
        outer["tta"](x)
    twin.load_state_dict(outer.state_dict())
    assert torch.equal(twin["tta"](batches[2]), outer["tta"](batches[2]))


@pytest.mark.parametrize(("method", "predict"), combine(LEARNING, "after", "before"))
def test_a_call_that_raises_changes_nothing(method, predict, model, batches):
    tta = make(model, method, predict=predict)
    tta(batches[0])
    before = state(tta)

    def fail_later(module, args):
        remaining.pop()
        if not remaining:
            raise KeyboardInterrupt

    twin, calls = copy.deepcopy(tta), []
    twin.model.register_forward_pre_hook(lambda *_: calls.append(1))
    twin(batches[1])
    passes = len(calls)
    assert passes > (predict == "after")
    for fail_at in range(1, passes + 1):
        remaining = [None] * fail_at
        handle = tta.model.register_forward_pre_hook(fail_later)
        with pytest.raises(KeyboardInterrupt):
            tta(batches[1])
        handle.remove()
        assert_same(state(tta), before)
        assert all((p._valid, p._backward, p._observers) == (None, None, ()) for p in tta.layers.values())
        assert {p.policy for p in tta.layers.values()} == {tta.policy}


@each_kind
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


@pytest.mark.parametrize("part", ["now", "source"])
@pytest.mark.parametrize(
    ("entry", "change"),
    [
        ("averages", lambda pairs: {name: (mean, -var - 1) for name, (mean, var) in pairs.items()}),
        ("averages", lambda pairs: {name: (mean * torch.nan, var) for name, (mean, var) in pairs.items()}),
        ("averages", lambda pairs: {name: (mean[:1], var) for name, (mean, var) in pairs.items()}),
        ("averages", lambda pairs: {}),
        ("memory", lambda memory: {**memory, "images": -1e9}),
        ("memory", lambda memory: {**memory, "unknown": 1}),
        ("random", lambda random: random[:5]),
    ],
)
def test_a_state_that_no_adapter_can_have_saved_is_refused_and_changes_nothing(part, entry, change):
    images = torch.rand(12, 3, 8, 8)
    tta = make(small_model(), "past")
    tta(images)
    loaded = copy.deepcopy(tta.state_dict())
    extra = next(key for key in loaded if key.endswith("_extra_state"))
    loaded[extra][part][entry] = change(loaded[extra][part][entry])
    tta(images)
    before = state(tta)
    with pytest.raises(ValueError, match=r"."):
        tta.load_state_dict(loaded)
    assert_same(before, state(tta))


def test_options_of_the_optimiser_are_not_taken_from_a_file():
    tta = make(small_model(), "tent", lr=0.01)
    tta(torch.rand(12, 3, 8, 8))
    loaded = copy.deepcopy(tta.state_dict())
    extra = next(key for key in loaded if key.endswith("_extra_state"))
    loaded[extra]["now"]["optimizer"]["param_groups"][0]["lr"] = 1e9
    tta.load_state_dict(loaded)
    assert tta.optimizer.param_groups[0]["lr"] == 0.01


@pytest.mark.filterwarnings("ignore::UserWarning")  # about the range of the images
def test_a_snapshot_is_restored_after_images_that_moved_the_average_far():
    tta = make(small_model(), "sema", "mean")
    tta(torch.rand(12, 3, 8, 8) * 1e12)
    before = state(tta)
    tta.restore(tta.snapshot())
    assert_same(before, state(tta))
