"""Forward passes replayed from a CUDA graph (``graph=True``): the same bits; on a CPU, with simulated graphs."""

import copy
import gc
import pickle
import types
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import medbn
from medbn.bench import Place, deterministic
from medbn.cuda_graphs import CAPACITY, CaptureError

from ..simulated_graphs import simulate_graphs
from .conftest import Waiting, small_model
from .table import LEARNING, assert_same, make, state

SERVING = {
    "source": ("source", {}),
    "tebn": ("tebn", {}),
    "sema": ("sema", {}),
    "counted": ("sema", {"momentum": 0.26, "counted": True}),
    "mdia": ("mdia", {}),
    "past": ("past", {"two_pass_batches": 2}),
    "one pass": ("past", {"two_pass_batches": 0, "momentum": 0.26}),
}


@pytest.fixture
def captured(monkeypatch):
    return simulate_graphs(monkeypatch)


def pair(model, kind, estimator="image_median"):
    """Return two adapters of the same kind, the first with graphs."""
    method, options = SERVING[kind]
    return tuple(make(model, method, estimator, **options, graph=graph) for graph in (True, False))


@pytest.mark.parametrize(
    ("kind", "first"),
    [("source", 1), ("tebn", 1), ("sema", 1), ("counted", 4), ("mdia", 1), ("past", 3), ("one pass", 1)],
)
def test_one_graph_serves_a_stream_from_the_second_alike_call_on(kind, first, model, batches, captured):
    tta, plain = pair(model, kind, "image_median@0.5")
    for number, x in enumerate(batches):
        assert torch.equal(tta(x), plain(x))
        assert_same(state(tta), state(plain))
        assert len(captured) == (number >= first), number
    for adapter in (tta, plain):
        adapter.reset()
    for x in batches:
        assert torch.equal(tta(x), plain(x))
        assert_same(state(tta), state(plain))
    assert len(captured) == 1


def test_calls_of_other_kinds_have_graphs_of_their_own_and_padded_ones_none(model, batches, captured):
    tta, plain = pair(model, "one pass")
    kinds = [batches[0], batches[1][:5], batches[2].to(memory_format=torch.channels_last), batches[3].transpose(2, 3)]
    for x in kinds * 3:
        assert torch.equal(tta(x), plain(x))
    assert len(captured) == len(kinds) == CAPACITY
    valid = torch.arange(12) < 9
    for x in batches[:3]:
        assert torch.equal(tta(x, valid=valid), plain(x, valid=valid))
    assert_same(state(tta), state(plain))
    assert len(captured) == len(kinds)


CHANGES = {
    "values": (0, lambda tta: tta.model.fc.weight.data.mul_(2)),
    # Other source statistics: `past` starts again.
    "loading": (1, lambda tta: tta.model.load_state_dict({k: v + 1 for k, v in tta.model.state_dict().items()})),
    "parameter": (1, lambda tta: setattr(tta.model.fc, "weight", nn.Parameter(tta.model.fc.weight.detach() * 2))),
    "estimator": (1, lambda tta: setattr(tta.layers["bn"], "estimator", "mad")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_model_is_captured_anew(name, model, batches, captured):
    adapters = pair(model, "one pass")
    more, change = CHANGES[name]
    for number, x in enumerate(batches * 2):
        if number == 5:
            for adapter in adapters:
                change(adapter)
        tta, plain = (adapter(x) for adapter in adapters)
        assert torch.equal(tta, plain)
    assert len(captured) == 1 + more


@dataclass
class Output:
    logits: torch.Tensor
    extra: dict


class Structured(nn.Module):
    """Takes named arguments and returns several parts."""

    def __init__(self):
        super().__init__()
        self.inner = small_model()

    def forward(self, images, scale=1.0, *, shift):
        features = self.inner.features(images)
        logits = (3 if scale is True else scale) * self.inner.fc(features.mean(dim=(2, 3)))
        return Output(logits, {"features": features, "all": [logits + shift, None, "same"]})


def test_arguments_and_outputs_have_any_structure_and_outputs_are_never_overwritten(batches, captured):
    tta, plain = pair(Structured(), "one pass")
    outputs = []
    for x in batches * 2:
        for scale in (1.0, True, 2.0):
            output, expected = (adapter(x, scale, shift=x.mean()) for adapter in (tta, plain))
            assert torch.equal(output.extra["features"], expected.extra["features"])
            assert torch.equal(output.extra["all"][0], expected.extra["all"][0])
            assert output.extra["all"][1:] == [None, "same"]
            outputs.append((output.logits, expected.logits))
    assert len(captured) == 3
    for logits, expected in outputs:
        assert torch.equal(logits, expected)
    with pytest.raises(RuntimeError, match="SimpleNamespace"):
        tta(batches[0], types.SimpleNamespace(), shift=0.0)


def test_a_batch_with_nothing_finite_changes_nothing(model, batches, captured):
    tta, plain = pair(model, "one pass")
    for x in batches:
        tta(x), plain(x)
    with pytest.raises(ValueError, match="finite"):
        tta(torch.full_like(batches[0], torch.nan))
    poisoned = batches[0].clone()
    poisoned[3] = torch.inf
    torch.testing.assert_close(tta(poisoned), plain(poisoned), rtol=0, atol=0, equal_nan=True)
    assert_same(state(tta), state(plain))
    assert len(captured) == 1


def test_copies_and_files_have_the_state_and_no_graph(model, batches, captured):
    tta, plain = pair(model, "one pass")
    for x in batches:
        tta(x), plain(x)
    loaded, _ = pair(model, "one pass")
    loaded.load_state_dict(tta.state_dict())
    for number, other in enumerate((copy.deepcopy(tta), pickle.loads(pickle.dumps(tta)), loaded)):
        twin = copy.deepcopy(plain)
        for x in batches:
            assert torch.equal(other(x), twin(x))
        assert len(captured) == 2 + number


def test_where_graphs_are_impossible_the_first_call_says_so_and_changes_nothing(model, batches, monkeypatch):
    tta, _ = pair(model, "past")
    before = state(tta)
    with pytest.raises(RuntimeError, match=r"graph=True.*cpu"):
        tta(batches[0])
    monkeypatch.setenv("MEDBN_GRAPHS", "0")
    with pytest.raises(RuntimeError, match="MEDBN_GRAPHS=0"):
        tta(batches[0])
    assert_same(state(tta), before)
    for method in LEARNING:
        with pytest.raises(ValueError, match="'graph'"):
            medbn.adapt(model, method, graph=True)


def test_a_failed_capture_is_an_error_and_changes_nothing(model, batches, monkeypatch):
    def fail(function, inputs, pool):
        raise CaptureError("that one test")

    simulate_graphs(monkeypatch, fail)
    tta, _ = pair(model, "one pass")
    tta(batches[0])
    before = state(tta)
    with pytest.raises(RuntimeError, match=r"graph=True.*that one test"):
        tta(batches[1])
    assert_same(state(tta), before)


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def exact():
    with deterministic(Place(device="cuda")):
        yield


@pytest.fixture
def on_gpu(batches):
    return [x.cuda() for x in batches]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize(
    ("kind", "estimator", "form"),
    [
        *((kind, "image_median@0.5", torch.channels_last) for kind in SERVING),
        *(("sema", estimator, torch.contiguous_format) for estimator in ("mean", "median", "mad", "image_median")),
    ],
)
def test_a_replay_gives_the_same_bits(kind, estimator, form, on_gpu, exact):
    model = small_model().cuda().to(memory_format=form)
    tta, plain = pair(model, kind, estimator)
    odd = on_gpu[2].clone()
    odd[4] = torch.nan
    outputs = []
    for x in [*on_gpu, on_gpu[1][:7], *([] if estimator == "mean" else [odd]), *on_gpu]:
        x = x.contiguous(memory_format=form)
        outputs.append((tta(x), plain(x)))
        assert_same(state(tta), state(plain))
    for output, expected in outputs:
        torch.testing.assert_close(output, expected, rtol=0, atol=0, equal_nan=True)
    assert len(tta._graphs._cache) == 1
    for name, (_, change) in CHANGES.items():
        if name == "estimator" and not tta.layers:
            continue
        for adapter in (tta, plain):
            change(adapter)
        for x in on_gpu[:3]:
            x = x.contiguous(memory_format=form)
            assert torch.equal(tta(x), plain(x))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
def test_autocast_half_precision_and_any_structure_on_a_gpu(on_gpu, exact):
    tta, plain = pair(small_model().cuda(), "one pass")
    for number, x in enumerate(on_gpu * 2):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=number % 5 < 3):
            assert torch.equal(tta(x), plain(x))
    tta, plain = pair(small_model().cuda().bfloat16(), "one pass")
    for x in on_gpu:
        assert torch.equal(tta(x.bfloat16()), plain(x.bfloat16()))
    tta, plain = pair(Structured().cuda(), "one pass")
    for x in on_gpu:
        output, expected = (adapter(x, 2.0, shift=x.mean()) for adapter in (tta, plain))
        assert torch.equal(output.extra["all"][0], expected.extra["all"][0])


@pytest.mark.gpu
def test_a_model_that_waits_is_refused_and_nothing_is_lost(on_gpu):
    tta, plain = pair(Waiting().cuda(), "one pass")
    torch.testing.assert_close(tta(on_gpu[0]), plain(on_gpu[0]))
    before = state(tta)
    with pytest.raises(RuntimeError, match="waits for the GPU"):
        tta(on_gpu[1])
    assert_same(state(tta), before)
    tta.graph = False
    torch.testing.assert_close(tta(on_gpu[1]), plain(on_gpu[1]))


@pytest.mark.gpu
def test_graphs_are_freed_with_their_adapter(on_gpu):
    def reserved():
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    tta, _ = pair(small_model(width=64).cuda(), "one pass")
    images = torch.rand(300, 3, 32, 32, device="cuda")
    tta(images)
    least = reserved()
    tta(images)
    assert reserved() > least + 2**26
    del tta
    assert reserved() < least + 2**25
