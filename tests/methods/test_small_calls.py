"""Calls of few images: predicted and not adapted on, or collected and adapted on together."""

import pytest
import torch

import medbn

from .table import KEEPS_NOTHING, METHODS, assert_same, each_kind, each_kind_that_adapts, make, state


@each_kind
def test_a_small_call_is_predicted_as_always_and_changes_nothing(method, model, batches):
    tta, other = make(model, method, min_images=6, **SMALL.get(method, {})), make(model, method, min_images=1)
    tta(batches[0])
    other.restore(without_collected(tta.snapshot(), other))
    before = state(tta)
    few = batches[1][:5]
    broken = batches[1].clone()
    broken[5:] = torch.nan
    assert torch.equal(tta(few), other(few))
    tta(broken), tta(batches[1], valid=torch.arange(12) < 5)
    assert_same(state(tta), before)
    tta(batches[1][:6])
    if method not in KEEPS_NOTHING:
        now = state(tta)
        assert any(isinstance(v, torch.Tensor) and not torch.equal(v, now[k]) for k, v in before.items() if k in now)


SMALL = {"past": {"collect": False}}


def without_collected(snapshot, other):
    """The snapshot for an adapter with or without an entry for collected images."""
    memory = {name: value for name, value in snapshot["memory"].items() if name in other.memory}
    return {**snapshot, "memory": other.memory | memory}


@each_kind_that_adapts
@pytest.mark.parametrize("predict", ["before", "after"])
def test_collected_images_are_adapted_on_together(method, predict, model, batches):
    options = {"min_images": 8, "predict": predict, "collect": True}
    together, apart = (make(model, method, "image_median", **options) for _ in range(2))
    x = batches[0]
    broken = x.clone()
    broken[2:] = torch.nan
    start = state(apart)
    outputs = [apart(broken)[:2], apart(x, valid=torch.arange(12) == 2)[2:3], apart(x[3:7])]
    assert all(y.isfinite().all() for y in outputs)
    now = state(apart)
    assert len(now.pop(".memory.collected.0")) == 7
    assert_same(now, start)
    middle = apart.snapshot()
    for _ in range(2):
        apart.restore(middle)
        apart(x[7:8])
        together.reset()
        together(x[:8])
        assert apart.memory["collected"] == together.memory["collected"] == {}
        assert_same(state(apart), state(together), exact=False)


@pytest.mark.parametrize("method", ["tent", "sotta", "sema"])
def test_collected_images_go_through_a_file_and_a_failed_call_keeps_them(method, model, batches, tmp_path):
    pytest.importorskip("safetensors")
    tta, other = (make(model, method, min_images=8, collect=True) for _ in range(2))
    tta(batches[0][:7])
    tta.save(tmp_path / "state.safetensors")
    other.load(tmp_path / "state.safetensors")
    assert medbn.methods.state_info(tmp_path / "state.safetensors").images == 7
    before = state(other)
    passes = [2]

    def fail(*_):
        passes[0] -= 1
        if not passes[0]:
            raise KeyboardInterrupt

    handle = other.model.register_forward_pre_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        other(batches[1][:1])
    handle.remove()
    assert_same(state(other), before)
    assert torch.equal(other(batches[1][:1]), tta(batches[1][:1]))
    assert_same(state(other), state(tta))
    few = make(model, method, min_images=4, collect=True)
    with pytest.raises(ValueError, match="fewer than 4"):
        few.load(tmp_path / "state.safetensors")


def test_collected_images_that_together_have_no_finite_output_are_dropped(model, batches):
    tta = make(model, "tent", "mean", min_images=4, collect=True)
    before = state(tta)
    assert tta(batches[0][:3]).isfinite().all()
    with torch.no_grad():
        tta.memory["collected"]["0"][0] = torch.nan
    assert tta(batches[0][3:5]).isfinite().all()
    assert_same(state(tta), before)


def test_a_monitor_sees_small_calls(model, batches):
    tta = make(model, "tent", min_images=8, collect=True)
    with medbn.Monitor(tta, reference=4, bounds=None) as monitor:
        for x in batches:
            tta(x[:5])
    assert [record.signals["images"] for record in monitor.records] == [5.0] * len(batches)


def test_wrong_numbers_of_images(model):
    for method in METHODS:
        for wrong in (0, -1):
            with pytest.raises(ValueError, match=f"min_images.*{wrong}"):
                make(model, method, min_images=wrong)
