"""Answers that are played back; on a CPU the recording runs again instead, from its static tensors alone."""

import copy
import gc
import pickle
import types
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

import medbn
from medbn import cuda_graphs
from medbn.bench import Place, deterministic
from medbn.methods import _graph
from medbn.methods._call import Inputs

from .conftest import small_model
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
def replayed(monkeypatch):
    made = []

    def record(adapter, inputs, model, pool):
        leaves, structure = tree_flatten((inputs.args, inputs.kwargs))
        static = [torch.full_like(leaf, 7) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        averages = [torch.full_like(t, 3.0) for t in model.averages()]
        call = Inputs(*tree_unflatten(static, structure), inputs.size, None)

        def replay():
            with model.holding(averages), adapter.observe_statistics() as gather:
                found.output = adapter.run_model(call)
            found.gather = gather

        graph = types.SimpleNamespace(replay=replay)
        found = _graph.Answer(graph, pool, model, static, averages, None, None)
        made.append(found)
        return found

    monkeypatch.setattr(_graph, "record", record)
    monkeypatch.setattr(cuda_graphs, "obstacle", lambda model, inputs: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: len(made))
    return made


def both(model, kind, estimator="image_median", **options):
    method, own = SERVING[kind]
    return (make(model, method, estimator, **own, graph=graph, **options) for graph in (True, False))


@pytest.mark.parametrize("estimator", ["mean", "median", "image_median@0.5"])
@pytest.mark.parametrize("kind", SERVING)
def test_one_recording_serves_a_stream(kind, estimator, model, batches, replayed):
    tta, plain = both(model, kind, estimator)
    for x in batches * 2:
        assert torch.equal(tta(x), plain(x))
        assert_same(state(tta), state(plain))
    assert len(replayed) == 1
    assert sum(isinstance(known, _graph.Answer) for known in tta._answers._known.values()) == 1
    for each in (tta, plain):
        each.reset()
    for x in batches:
        assert torch.equal(tta(x), plain(x))
        assert_same(state(tta), state(plain))
    assert len(replayed) == 1


@pytest.mark.parametrize(("kind", "first"), [("tebn", 1), ("past", 3), ("one pass", 1), ("sema", 1), ("counted", 4)])
def test_what_comes_for_the_second_time_is_recorded_once_all_is_settled(kind, first, model, batches, replayed):
    tta, _ = both(model, kind)
    for number, x in enumerate(batches):
        tta(x)
        assert len(replayed) == (number >= first), number


def test_other_kinds_of_calls_have_other_recordings(model, batches, replayed):
    tta, plain = both(model, "one pass")
    kinds = [
        batches[0],
        batches[1][:5],
        batches[2].to(memory_format=torch.channels_last),
        batches[3].transpose(2, 3),
    ]
    for _ in range(3):
        for x in kinds:
            assert torch.equal(tta(x), plain(x))
    assert len(replayed) == len(kinds) == _graph.KEPT
    assert {one.pool for one in replayed} == {0}  # they share a memory
    for size in (2, 3, 4, 6, 7, 8):
        for x in (batches[0][:size], batches[1][:size]):
            assert torch.equal(tta(x), plain(x))
    assert len(tta._answers._known) == _graph.KEPT
    valid = torch.arange(12) < 9
    for x in batches:
        assert torch.equal(tta(x, valid=valid), plain(x, valid=valid))
    assert_same(state(tta), state(plain))
    assert len(replayed) == len(kinds) + 6


CHANGES = {
    "values": lambda tta: tta.model.fc.weight.data.mul_(2),
    "loading": lambda tta: tta.model.load_state_dict({k: v + 1 for k, v in tta.model.state_dict().items()}),
}
REPLACEMENTS = {
    "parameter": lambda tta: setattr(tta.model.fc, "weight", nn.Parameter(tta.model.fc.weight.detach() * 2)),
    "data": lambda tta: setattr(tta.model.fc.weight, "data", tta.model.fc.weight.data * 2),
    "statistics": lambda tta: setattr(tta.layers["bn"], "running_mean", tta.layers["bn"].running_mean + 1),
    "module": lambda tta: setattr(tta.model, "layer1", nn.Identity()),
    "another one": lambda tta: tta.model.layer1.append(nn.ReLU6()),
    "constant": lambda tta: setattr(tta.model, "scale", 3.0),
    "eps": lambda tta: setattr(tta.layers["bn"], "eps", 1e-2),
    "estimator": lambda tta: setattr(tta.layers["bn"], "estimator", "mad"),
    "policy": lambda tta: setattr(tta.layers["bn"], "policy", "source"),
}


@pytest.mark.parametrize("kind", ["tebn", "one pass"])
@pytest.mark.parametrize("name", [*CHANGES, *REPLACEMENTS])
def test_whatever_changes_is_noticed(name, kind, model, batches, replayed):
    adapters = list(both(model, kind))
    for number, x in enumerate(batches * 2):
        if number == 5:
            for each in adapters:
                (CHANGES | REPLACEMENTS)[name](each)
        tta, plain = (each(x) for each in adapters)
        assert torch.equal(tta, plain)
    forgets = (name, kind) == ("loading", "one pass")  # other source statistics: the averages start again
    assert len(replayed) == 1 + (name in REPLACEMENTS or forgets)


def test_settings_are_compared(model, batches, replayed, monkeypatch):
    tta, plain = both(model, "tebn")
    tta(batches[0]), tta(batches[1])
    monkeypatch.setenv("MEDBN_KERNELS", "reference")
    for x in batches:
        assert torch.equal(tta(x), plain(x))
    assert len(replayed) == 2


@dataclass
class Output:
    logits: torch.Tensor
    extra: dict


class Structured(nn.Module):
    """Named arguments, and an output of several parts."""

    def __init__(self):
        super().__init__()
        self.inner = small_model()

    def forward(self, images, scale=1.0, *, shift):
        features = self.inner.features(images)
        logits = (3 if scale is True else scale) * self.inner.fc(features.mean(dim=(2, 3)))
        return Output(logits, {"features": features, "all": [logits + shift, None, "same"]})


def test_arguments_and_outputs_are_of_any_form(batches, replayed):
    tta, plain = both(Structured(), "one pass")
    kept = []
    for x in batches * 2:
        for scale in (1.0, True, 2.0):
            made, expected = (each(x, scale, shift=x.mean()) for each in (tta, plain))
            assert torch.equal(made.logits, expected.logits)
            assert torch.equal(made.extra["features"], expected.extra["features"])
            assert torch.equal(made.extra["all"][0], expected.extra["all"][0])
            assert made.extra["all"][1:] == [None, "same"]
            kept.append((made, expected.logits))
    assert len(replayed) == 3
    for made, logits in kept:  # no later call has written to it
        assert torch.equal(made.logits, logits)
    with pytest.raises(RuntimeError, match="an argument is a SimpleNamespace, which may change unseen"):
        tta(batches[0], types.SimpleNamespace(), shift=0.0)


def test_a_batch_with_nothing_finite_changes_nothing(model, batches, replayed):
    tta, plain = both(model, "one pass")
    for x in batches:
        tta(x), plain(x)
    with pytest.raises(ValueError, match="no image of this batch has a finite output"):
        tta(torch.full_like(batches[0], torch.nan))
    for x in batches:
        poisoned = x.clone()
        poisoned[3] = torch.inf
        made, expected = tta(poisoned), plain(poisoned)
        torch.testing.assert_close(made, expected, rtol=0, atol=0, equal_nan=True)
    assert_same(state(tta), state(plain))
    assert len(replayed) == 1


def test_copies_and_files_have_the_state_and_no_recording(model, batches, replayed):
    tta, plain = both(model, "one pass")
    for x in batches:
        tta(x), plain(x)
    loaded, _ = both(model, "one pass")
    loaded.load_state_dict(tta.state_dict())
    for other in (copy.deepcopy(tta), pickle.loads(pickle.dumps(tta)), loaded):
        assert not other._answers._known
        twin = copy.deepcopy(plain)
        for x in batches:
            assert torch.equal(other(x), twin(x))
    assert len(replayed) == 4  # each has its own


def test_what_cannot_be_is_an_error(model, batches, monkeypatch):
    tta, _ = both(model, "past")
    before = state(tta)
    with pytest.raises(RuntimeError, match=r"graph=True.*the images are on cpu, and CUDA graphs need a CUDA device"):
        tta(batches[0])
    monkeypatch.setenv("MEDBN_GRAPHS", "0")
    with pytest.raises(RuntimeError, match="MEDBN_GRAPHS=0 switches it off"):
        tta(batches[0])
    assert_same(state(tta), before)
    for method in LEARNING:
        with pytest.raises(ValueError, match=r"unknown option of \w+ 'graph'"):
            medbn.adapt(model, method, graph=True)


def test_what_cannot_be_recorded_is_an_error_before_anything_changes(model, batches, replayed, monkeypatch):
    def record(*a):
        raise cuda_graphs.CaptureError("it waits for the GPU: that one test.")

    monkeypatch.setattr(_graph, "record", record)
    tta, _ = both(model, "one pass")
    tta(batches[0])
    before = state(tta)
    with pytest.raises(RuntimeError, match=r"graph=True, and the answer cannot be recorded.*waits for the GPU"):
        tta(batches[1])
    assert_same(state(tta), before)


# --- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.fixture
def exact():
    with deterministic(Place(device="cuda")):
        yield


@pytest.fixture
def on_gpu(batches):
    return [x.cuda() for x in batches]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("estimator", ["mean", "median", "mad", "image_median", "image_median@0.5"])
@pytest.mark.parametrize("kind", SERVING)
def test_played_back_is_the_same_to_the_bit(kind, estimator, form, on_gpu, exact):
    model = small_model().cuda().to(memory_format=form)
    tta, plain = both(model, kind, estimator)
    odd = on_gpu[2].clone()
    odd[4] = torch.nan
    kept = []
    for x in [*on_gpu, on_gpu[1][:7], *([] if estimator == "mean" else [odd]), *on_gpu]:
        x = x.contiguous(memory_format=form)
        made, expected = tta(x), plain(x)
        torch.testing.assert_close(made, expected, rtol=0, atol=0, equal_nan=True)
        assert_same(state(tta), state(plain))
        kept.append((made, expected))
    for made, expected in kept:
        torch.testing.assert_close(made, expected, rtol=0, atol=0, equal_nan=True)
    recordings = [known for known in tta._answers._known.values() if isinstance(known, _graph.Answer)]
    assert len(recordings) == 1
    with pytest.raises(ValueError, match="finite") if kind != "source" else pytest.MonkeyPatch.context():
        tta(torch.full_like(on_gpu[0], torch.nan))
    assert_same(state(tta), state(plain))
    for change in CHANGES.values():
        change(tta), change(plain)
        for x in on_gpu[:3]:
            x = x.contiguous(memory_format=form)
            assert torch.equal(tta(x), plain(x))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("name", REPLACEMENTS)
def test_replacements_are_noticed_on_a_gpu(name, on_gpu, exact):
    adapters = list(both(small_model().cuda(), "one pass"))
    for number, x in enumerate(on_gpu * 2):
        if number == 5:
            for each in adapters:
                REPLACEMENTS[name](each)
                each.cuda()
        tta, plain = (each(x) for each in adapters)
        assert torch.equal(tta, plain)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
def test_autocast_half_precision_and_any_form_on_a_gpu(on_gpu, exact):
    for dtype in (torch.bfloat16, torch.float16):
        tta, plain = both(small_model().cuda(), "one pass")
        for number, x in enumerate(on_gpu * 2):
            with torch.autocast("cuda", dtype=dtype, enabled=number % 5 < 3):
                assert torch.equal(tta(x), plain(x))
    tta, plain = both(small_model().cuda().bfloat16(), "one pass")
    for x in on_gpu:
        assert torch.equal(tta(x.bfloat16()), plain(x.bfloat16()))
    tta, plain = both(Structured().cuda(), "one pass")
    for x in on_gpu:
        made, expected = (each(x, 2.0, shift=x.mean()) for each in (tta, plain))
        assert torch.equal(made.extra["all"][0], expected.extra["all"][0])


class Rude(nn.Module):
    """A model that waits for the GPU."""

    def __init__(self):
        super().__init__()
        self.inner = small_model()

    def forward(self, x):
        return self.inner(x) * (2.0 if bool((x > 0).any()) else 1.0)


@pytest.mark.gpu
def test_a_model_that_waits_is_refused_and_nothing_is_lost(on_gpu):
    tta, plain = both(Rude().cuda(), "one pass")
    torch.testing.assert_close(tta(on_gpu[0]), plain(on_gpu[0]))
    before = state(tta)
    with pytest.raises(RuntimeError, match="waits for the GPU"):
        tta(on_gpu[1])
    assert_same(state(tta), before)
    tta.graph = False
    torch.testing.assert_close(tta(on_gpu[1]), plain(on_gpu[1]))


@pytest.mark.gpu
def test_recordings_go_with_their_adapter(on_gpu):
    def reserved():
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    tta, _ = both(small_model(width=64).cuda(), "one pass")
    images = torch.rand(300, 3, 32, 32, device="cuda")
    tta(images)
    least = reserved()
    tta(images)
    assert reserved() > least + 2**26
    tta._answers = _graph.Answers()
    assert reserved() < least + 2**25
