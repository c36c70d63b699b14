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
from medbn.methods import _graph as forward

from ..simulated_graphs import SimulatedGraph, simulate_graphs
from ..tiers import slow
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
        if method in REPLAYED:
            options = {"source": [batches[0]]} if method == "eata" else {}
            with pytest.raises(RuntimeError, match=r"graph=True.*MEDBN_GRAPHS=0"):
                make(model, method, graph=True, **options)(batches[0])
            with pytest.raises(ValueError, match=r"graph=True.*influence"):
                medbn.adapt(model, method, graph=True, influence="clip", **options)
        elif method != "lame":
            with pytest.raises(ValueError, match=r"graph=True.*eata, eta, sar, sotta, tent;"):
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


# --- methods that learn -----------------------------------------------------------------------------------------------

REPLAYED = ("tent", "eta", "eata", "sar", "sotta")
STEPS = {"one": {}, "two, after": {"steps": 2, "predict": "after"}, "SGD": {"optimizer": "momentum", "lr": 0.05}}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("method", ["tent", *slow(*REPLAYED[1:])])
def test_methods_that_learn_replay_both_passes(method, steps, model, batches, captured):
    options = STEPS[steps]
    if method == "sar":
        options = {name: value for name, value in options.items() if name != "steps"}
    tta, plain = (make(model, method, "median", **options, graph=graph) for graph in (True, False))
    for x in batches * 2:
        assert torch.equal(tta(x), plain(x))
        assert_same(state(tta), state(plain))
    kinds = 2 if method == "eata" else 1  # EATA learns from source images of another number too
    assert len(captured) == 2 * kinds
    for adapter in (tta, plain):
        adapter.reset()
    for x in batches:
        assert torch.equal(tta(x), plain(x))
    assert_same(state(tta), state(plain))


@pytest.mark.parametrize("statistics", ["both", *slow("batch", "memory")])
@pytest.mark.parametrize("estimator", ["image_median@0.5", *slow("mean")])
def test_sotta_replays_the_passes_over_its_memory(statistics, estimator, model, batches, captured):
    options = {"statistics": statistics, "confidence": 0.2, "capacity": 24}
    tta, plain = (make(model, "sotta", estimator, **options, graph=graph) for graph in (True, False))
    # Of two passes of a step, "memory" observes the first. Each kind is captured when it comes for the second time.
    graphs = {"both": [0, 2, 2], "batch": [0, 2, 2], "memory": [0, 0, 4]}[statistics]
    full = 0
    for x in batches * 2:
        assert torch.equal(tta(x), plain(x))
        assert_same(state(tta), state(plain))
        full += len(plain.memory["classes"]) == 24
        assert len(captured) == graphs[min(full, 2)]
    assert full < 2 * len(batches)  # it was filled by several calls
    snapshot = tta.snapshot()
    expected = tta(batches[0])
    tta.restore(snapshot)
    assert torch.equal(tta(batches[0]), expected)
    valid = torch.arange(len(batches[0])) < 9
    plain.restore(tta.snapshot())
    for _ in range(3):
        assert torch.equal(tta(batches[1], valid=valid), plain(batches[1], valid=valid))
        assert torch.equal(tta(batches[2]), plain(batches[2]))
    assert_same(state(tta), state(plain))
    assert len(captured) == graphs[2]


def test_learning_with_graphs_takes_padding_structure_and_copies(batches, captured):
    torch.manual_seed(0)
    model = Structured()
    tta, plain = (medbn.adapt(model, "tent", "median", graph=graph) for graph in (True, False))
    valid = torch.arange(len(batches[0])) < 9
    for x in batches:
        for options in ({}, {"valid": valid}):
            output, expected = (adapter(x, shift=0.5, **options) for adapter in (tta, plain))
            assert torch.equal(output.logits, expected.logits)
            assert torch.equal(output.extra["features"], expected.extra["features"])
            assert not output.logits.requires_grad
    assert_same(state(tta), state(plain))
    assert len(captured) == 2
    for other in (copy.deepcopy(tta), pickle.loads(pickle.dumps(tta))):
        twin = copy.deepcopy(plain)
        for x in batches:
            assert torch.equal(other(x, shift=0.0).logits, twin(x, shift=0.0).logits)


def test_a_gradient_of_an_overwritten_pass_is_an_error(model, batches, captured):
    tta = medbn.adapt(model, "tent", "median", graph=True)
    for x in batches[:3]:
        tta(x)
    inputs = tta.read_call((batches[0],), {})
    with torch.enable_grad():
        first, second = tta.run_model(inputs), tta.run_model(inputs)
        torch.autograd.grad(second.sum(), list(tta.learned.values()), allow_unused=True)
        with pytest.raises(RuntimeError, match="overwritten"):
            torch.autograd.grad(first.sum(), list(tta.learned.values()), allow_unused=True)


# --- graph=None -------------------------------------------------------------------------------------------------------


class Clock:
    """Stands for the GPU's clock: a plain pass takes a second."""

    def __init__(self, replay):
        self.times = [1.0, replay]

    def __call__(self, run):
        self.times.reverse()
        return run(), self.times[1]


@pytest.fixture
def automatic(monkeypatch, captured, caplog):
    """Simulate a GPU, where a replay is ten times as fast."""
    monkeypatch.setattr(forward, "on_gpu", lambda inputs: True)
    monkeypatch.setattr(forward, "timed", Clock(0.1))
    caplog.set_level("DEBUG", logger="medbn")
    return captured


def serve(model, batches, kind="one pass"):
    """Check that an adapter with graph=None serves as one without graphs does; return it."""
    method, options = SERVING[kind]
    tta, plain = (make(model, method, "image_median@0.5", **options, graph=graph) for graph in (None, False))
    outputs = [(tta(x), plain(x)) for x in batches]
    for output, expected in outputs:
        assert torch.equal(output, expected)
    assert_same(state(tta), state(plain))
    return tta


@pytest.mark.parametrize("kind", SERVING)
def test_by_default_a_graph_is_used_where_it_pays(kind, model, batches, automatic, caplog):
    assert medbn.methods.options(SERVING[kind][0])["graph"] is None
    serve(model, batches * 2, kind)
    assert len(automatic) == 1
    assert caplog.text.count("captured a forward pass as a CUDA graph: 100.00 ms, 1000.00 without") == 1


def test_on_a_cpu_nothing_is_tried(model, batches, captured, caplog):
    caplog.set_level("DEBUG", logger="medbn")
    serve(model, batches)
    assert not captured
    assert not caplog.messages


def test_a_graph_that_does_not_pay_is_not_used(model, batches, automatic, monkeypatch, caplog):
    monkeypatch.setattr(forward, "timed", Clock(0.95))
    serve(model, batches * 4)
    assert len(automatic) == 1
    assert caplog.text.count("does not pay") == 1


class Random(nn.Module):
    """Draws random numbers."""

    def __init__(self):
        super().__init__()
        self.inner = small_model()

    def forward(self, images):
        return self.inner(images) * torch.rand(())


class Counting(nn.Module):
    """Keeps something from call to call, in one of several ways."""

    def __init__(self, how):
        super().__init__()
        self.inner, self.how, self.calls, self.kept = small_model(), how, 0, []

    def forward(self, images):
        if self.how == "a list":
            self.kept.append(len(images))
        elif self.how == "a number":
            self.calls += 1
        return self.inner(images) * (len(self.kept) + self.calls)


@pytest.mark.parametrize("kind", ["random", "a list", "a number"])
def test_a_model_that_is_no_function_of_its_images_runs_without_a_graph(kind, batches, automatic, caplog):
    torch.manual_seed(0)
    model = Random() if kind == "random" else Counting(kind)
    tta, plain = (medbn.adapt(model, "tebn", "median", graph=graph) for graph in (None, False))
    results = []
    for adapter in (tta, plain):
        torch.manual_seed(1)
        results.append([adapter(x) for x in batches * 4])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert ("gives other bits" in caplog.text) == (kind == "random")
    assert len(automatic) == (kind == "random")


def test_an_obstacle_is_no_error(model, batches, automatic, monkeypatch, caplog):
    monkeypatch.setattr(forward, "find_obstacle", lambda model, tensors: "there is one.")
    serve(model, batches)
    assert not automatic
    assert caplog.text.count("there is one") == 1


def test_where_memory_runs_out_graphs_are_freed_and_the_call_succeeds(model, batches, automatic, monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def fail(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    tta, plain = (medbn.adapt(model, "tebn", "median", graph=graph) for graph in (None, False))
    for x in batches[:3]:
        tta(x)
    assert len(tta._graphs._cache) == 1
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedGraph, "replay", fail)
        assert torch.equal(tta(batches[3]), plain(batches[3]))
    assert len(tta._graphs._cache) == 0
    assert caplog.text.count("memory ran out") == 1
    for x in batches[:3]:
        assert torch.equal(tta(x), plain(x))
    assert len(automatic) == 1
    tta = medbn.adapt(model, "tebn", "median")
    for x in batches[:3]:
        tta(x)
    run, left = tta.run_model, [1]
    tta._graphs._cache._entries.popitem()
    assert len(tta._graphs._cache) == 0
    monkeypatch.setattr(tta, "run_model", lambda inputs: fail() if left and left.pop() else run(inputs))
    with pytest.raises(torch.cuda.OutOfMemoryError):  # no graph had any memory
        tta(batches[0])


def test_any_failure_of_a_capture_is_served_all_the_same(model, batches, automatic, monkeypatch, caplog):
    def fail(function, inputs, pool):
        raise KeyError("that one test")

    monkeypatch.setattr(forward, "capture", fail)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    serve(model, batches * 6)
    assert caplog.text.count("that one test") == 1

    def run_out(function, inputs, pool):
        raise CaptureError("out") from torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(forward, "capture", run_out)
    serve(model, batches)
    assert "memory ran out" in caplog.text


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


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("kind", SERVING)
def test_by_default_the_bits_are_the_same(kind, on_gpu, exact, monkeypatch):
    monkeypatch.setattr(forward, "WORTHWHILE", 1e9)  # so that it does not depend on the machine
    method, options = SERVING[kind]
    model = small_model().cuda()
    tta, plain = (make(model, method, "image_median@0.5", **options, graph=graph) for graph in (None, False))
    for x in [*on_gpu, on_gpu[1][:7], *on_gpu]:
        assert torch.equal(tta(x), plain(x))
        assert_same(state(tta), state(plain))
    assert len(tta._graphs._cache) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("model", [Random, Waiting, lambda: Counting("a list")], ids=["random", "waits", "keeps"])
def test_by_default_what_cannot_be_captured_is_served_all_the_same(model, on_gpu):
    torch.manual_seed(0)
    made = model().cuda()
    results = []
    for graph in (None, False):
        adapter = medbn.adapt(made, "tebn", "median", graph=graph)
        torch.manual_seed(1)
        results.append([adapter(x) for x in on_gpu * 4])
    for output, expected in zip(*results, strict=True):
        torch.testing.assert_close(output, expected)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("estimator", ["mean", "median", "image_median"])
@pytest.mark.parametrize("method", REPLAYED)
def test_replayed_steps_learn_the_same_bits(method, estimator, form, on_gpu, exact):
    model = small_model().cuda().to(memory_format=form)
    images = [x.contiguous(memory_format=form) for x in on_gpu]
    options = {"source": images[:1]} if method == "eata" else {}
    tta, plain = (make(model, method, estimator, graph=graph, **options) for graph in (True, False))
    for x in [*images, images[1][:7].contiguous(memory_format=form), *images]:
        assert torch.equal(tta(x), plain(x))
        assert_same(state(tta), state(plain))
    assert len(tta._step_graphs._cache) >= 1
