"""Attack steps replayed from a CUDA graph: the same bits as eager steps; on a CPU, with simulated graphs."""

import copy
import gc
import warnings
from dataclasses import dataclass, replace

import pytest
import torch

import medbn
from medbn.attacks import DIA, Indiscriminate, IndiscriminateSegmentation, Targeted, _graph
from medbn.bench import Attack, Place, deterministic
from medbn.cuda_graphs import CaptureError, Graph

from ..methods.conftest import Waiting, small_model
from ..methods.table import assert_same, make, state
from ..simulated_graphs import simulate_graphs
from ..tiers import slow
from .conftest import Linear

MALICIOUS = slice(7, 10)


def quick(**options):
    return DIA(**{"steps": 10, "step_size": 8 / 255, **options})


@pytest.fixture
def captured(monkeypatch):
    return simulate_graphs(monkeypatch)


# --- whether to capture ----------------------------------------------------------------------------------------------


def test_on_a_cpu_steps_are_eager_without_a_warning(model, stream, monkeypatch):
    tta = make(model, "tebn")
    monkeypatch.setattr(_graph, "capture", lambda *a: pytest.fail("nothing can be captured here"))
    expected = quick(graph=False)(tta, *stream[0], MALICIOUS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(quick()(tta, *stream[0], MALICIOUS), expected)


class Loose(Targeted):
    """Neither a dataclass of its own nor frozen."""

    __dataclass_params__ = None


def test_graph_true_is_an_error_where_graphs_are_impossible(model, stream, monkeypatch):
    tta, attack = make(model, "tent"), quick(graph=True)
    for reason, variant in (
        ("cpu", attack),
        ("unroll", replace(attack, unroll=1)),
        ("Loose", replace(attack, objective=Loose())),
    ):
        with pytest.raises(RuntimeError, match=f"graph=True.*{reason}"):
            variant(tta, *stream[0], MALICIOUS)
    monkeypatch.setenv("MEDBN_GRAPHS", "0")
    with pytest.raises(RuntimeError, match="MEDBN_GRAPHS=0"):
        attack(tta, *stream[0], MALICIOUS)


def test_short_attacks_are_captured_on_request_only(model, stream, captured):
    tta = make(model, "tebn")
    quick(steps=9)(tta, *stream[0], MALICIOUS)
    quick(steps=0, graph=True)(tta, *stream[0], MALICIOUS)
    assert not captured
    quick(steps=9, graph=True)(tta, *stream[0], MALICIOUS)
    assert len(captured) == 1


def test_after_a_failed_capture_steps_are_eager_with_one_warning(model, stream, monkeypatch):
    def fail(function, inputs, pool):
        raise CaptureError("that one test")

    simulate_graphs(monkeypatch, fail)
    monkeypatch.setattr(_graph, "_warned", set())
    tta = make(model, "tebn")
    with pytest.warns(UserWarning, match=r"that one test.*MEDBN_GRAPHS=0"):
        poisoned = quick()(tta, *stream[0], MALICIOUS)
    assert torch.equal(poisoned, quick(graph=False)(tta, *stream[0], MALICIOUS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick()(copy.deepcopy(tta), *stream[1], MALICIOUS)
    with pytest.raises(RuntimeError, match="that one test"):
        quick(graph=True)(tta, *stream[0], MALICIOUS)


# --- what is replayed ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tebn", "tent", "sotta", "sema", "eata"])
def test_one_graph_serves_a_stream(method, model, stream, captured):
    tta = make(model, method)
    for (images, labels), malicious in zip(stream, ([7, 8, 9], [1, 3, 5], [9, 4, 2], slice(6, 9)), strict=True):
        before = state(tta)
        replayed, eager = (quick(graph=graph)(tta, images, labels, malicious) for graph in (True, False))
        assert torch.equal(replayed, eager)
        assert_same(state(tta), before)
        tta(images)
    assert len(captured) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"method": "past", "batch_size": 10}, {"method": "sema", "counted": True}], ids=str
)
def test_a_weight_that_changes_from_batch_to_batch_is_not_replayed(options, model, stream, captured):
    tta = medbn.adapt(model, estimator="median", **options)
    for images, labels in stream:
        replayed, eager = (quick(graph=graph)(tta, images, labels, MALICIOUS) for graph in (True, False))
        assert torch.equal(replayed, eager)
        tta(images)
    assert len(captured) == len(stream)


@pytest.mark.parametrize(
    "options",
    [
        *slow({"restarts": 3, "start": "random"}, {"check_every": 2, "objective": Targeted(1)}),
        {"check_every": 3, "restarts": 2},
        {"alignment": 1.0, "gradient": "smooth", "knowledge": "semi"},
    ],
    ids=str,
)
def test_every_option_of_the_loop_works_with_replays(options, model, stream, captured):
    tta, calls = make(model, "tent"), {True: [], False: []}
    a, b = (
        quick(**options, graph=g, callback=lambda *call, g=g: calls[g].append(call)).craft(tta, *stream[1], MALICIOUS)
        for g in (True, False)
    )
    assert len(captured) == 1
    assert torch.equal(a.images, b.images)
    assert (a.value, a.steps) == (b.value, b.steps)
    for (step, images, value), expected in zip(calls[True], calls[False], strict=True):
        assert (step, value) == (expected[0], expected[2])
        assert torch.equal(images, expected[1])


def test_stopping_early_returns_the_images_that_succeeded(captured):
    images = torch.full((10, 4), 0.5) + 0.01 * torch.randn(10, 4)
    images[0] += 0.005
    labels = torch.zeros(10, dtype=torch.long)
    tta = medbn.adapt(Linear(4), "tebn", "mean")
    early, eager = (DIA(steps=100, check_every=5, graph=g).craft(tta, images, labels, MALICIOUS) for g in (True, False))
    assert len(captured) == 1
    assert 0 < early.steps == eager.steps < 100
    assert torch.equal(early.images, eager.images)


@dataclass(frozen=True)
class Sparse(DIA):
    """A variant with an option of its own: it moves only pixels with a large gradient."""

    scale: float = 1.0

    def ascend(self, malicious, gradient, clean):
        return super().ascend(malicious, self.scale * gradient.sign() * (gradient.abs() > self.scale * 1e-4), clean)


def test_what_a_step_depends_on_has_a_graph_of_its_own_and_data_has_not(model, stream, captured):
    tta = make(model, "tent")
    quick(graph=True)(tta, *stream[0], MALICIOUS)
    quick(graph=True, steps=2, start="random", seed=4, check_every=1)(tta, *stream[1], [2, 4, 6])
    assert len(captured) == 1
    variants = [
        quick(graph=True, steps=1, **options)
        for options in (
            {"objective": Targeted(1)},
            {"objective": Indiscriminate()},
            {"step_size": 1 / 255},
            {"epsilon": 0.5},
            {"gradient": "smooth"},
            {"gradient": "smooth", "temperature": 0.25},
            {"knowledge": "semi"},
            {"alignment": 1.0},
        )
    ]
    variants += [Sparse(steps=1, graph=True, scale=scale) for scale in (1.0, 2.0)]
    for number, attack in enumerate(variants, start=2):
        attack(tta, *stream[0], MALICIOUS)
        assert len(captured) == number, attack
    quick(graph=True)(tta, *stream[0], [8, 9])
    assert len(captured) == len(variants) + 2


def test_graphs_die_with_their_adapter(model, stream, monkeypatch):
    simulate_graphs(monkeypatch, lambda function, inputs, pool: Graph(None, list(inputs), None))
    monkeypatch.setattr(Graph, "replay", lambda self: (torch.zeros(()), torch.zeros(10, 10)))
    tta = make(model, "tebn")
    quick()(tta, *stream[0], MALICIOUS)
    count = len(_graph._caches)
    del tta
    gc.collect()
    assert len(_graph._caches) == count - 1


def test_graph_is_no_part_of_what_an_attack_is():
    assert DIA(graph=True) == DIA(graph=False) == DIA()
    assert repr(DIA(graph=True)) == repr(DIA())
    assert "graph" not in Attack.__dataclass_fields__


# --- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.fixture
def exact():
    with deterministic(Place(device="cuda")):
        yield


@pytest.fixture
def on_gpu(stream):
    return [(images.cuda(), labels.cuda()) for images, labels in stream]


def victim(method, estimator, **options):
    if method == "eata":
        g = torch.Generator().manual_seed(11)
        options["source"] = [torch.randn(8, 3, 8, 8, generator=g).cuda() for _ in range(2)]
    return make(small_model().cuda(), method, estimator, **options)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize(
    ("method", "estimator", "gradient"),
    [
        *(("tent", e, g) for e in ("median", "image_median") for g in ("exact", "straight_through", "smooth")),
        ("tebn", "mean", "exact"),
        *((method, "median", "smooth") for method in ("sotta", "sema", "mdia", "eata")),
    ],
)
def test_a_replayed_step_gives_the_same_bits(method, estimator, gradient, on_gpu, exact):
    tta = victim(method, estimator)
    tta(on_gpu[0][0])
    requires = [p.requires_grad for p in tta.parameters()]
    random = torch.cuda.get_rng_state()
    for (images, labels), malicious in ((on_gpu[1], MALICIOUS), (on_gpu[2], [1, 5, 6])):
        before = state(tta)
        for steps in (1, 10):
            replayed, eager = (
                quick(steps=steps, gradient=gradient, graph=graph)(tta, images, labels, malicious)
                for graph in (True, False)
            )
            assert torch.equal(replayed, eager)
        assert_same(state(tta), before)
        tta(images)  # the state changes, and so do labels and positions
    assert len(_graph._caches[tta]) == 1
    assert [p.requires_grad for p in tta.parameters()] == requires
    assert all(p.grad is None for p in tta.parameters())
    assert torch.equal(torch.cuda.get_rng_state(), random)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
def test_every_option_gives_the_same_bits_on_a_gpu(on_gpu, exact):
    tta = victim("tent", "median")
    tta.model.to(memory_format=torch.channels_last)
    tta(on_gpu[0][0])
    images, labels = on_gpu[1]
    images = images.contiguous(memory_format=torch.channels_last)
    for options in (
        {"restarts": 3, "start": "random"},
        {"check_every": 3, "restarts": 2, "objective": Indiscriminate()},
        {"alignment": 1.0, "knowledge": "semi", "epsilon": 0.2},
    ):
        a, b = (quick(**options, graph=g).craft(tta, images, labels, MALICIOUS) for g in (True, False))
        assert torch.equal(a.images, b.images), options
        assert (a.value, a.steps) == (b.value, b.steps), options
        assert a.images.stride() == images.stride()


@pytest.mark.gpu
def test_dense_outputs_half_precision_and_autocast_can_be_captured(dense_model, dense_stream, on_gpu):
    images, labels = (t.cuda() for t in dense_stream[0])
    tta = make(dense_model.cuda(), "tebn")
    quick(objective=IndiscriminateSegmentation(), graph=True)(tta, images, labels, [4, 5])
    images, labels = on_gpu[0]
    quick(graph=True)(make(small_model().cuda().bfloat16(), "tebn"), images.bfloat16(), labels, MALICIOUS)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        tta = victim("tent", "median")
        a, b = (quick(steps=2, graph=g)(tta, images, labels, MALICIOUS) for g in (True, False))
    assert (a - b).abs().max() <= 4 * 8 / 255 + 1e-6
    assert ((a - b).abs() < 1e-6).float().mean() > 0.9


@pytest.mark.gpu
def test_a_gpu_captures_unasked_and_frees_the_memory(on_gpu):
    def reserved():
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    tta = make(small_model(width=64).cuda(), "tebn")
    images = torch.rand(300, 3, 32, 32, device="cuda")
    labels = torch.zeros(300, dtype=torch.long, device="cuda")
    quick(graph=False)(tta, images, labels, MALICIOUS)
    least = reserved()
    quick()(tta, images, labels, MALICIOUS)
    assert len(_graph._caches[tta]) == 1
    assert reserved() > least + 2**29
    quick(gradient="smooth")(tta, images, labels, MALICIOUS)
    del tta
    assert reserved() < least + 2**28  # cuBLAS keeps some for its streams


@pytest.mark.gpu
def test_a_model_that_waits_is_attacked_with_eager_steps(on_gpu, monkeypatch):
    monkeypatch.setattr(_graph, "_warned", set())
    images, labels = on_gpu[0]
    with pytest.warns(UserWarning, match="waits for the GPU"):
        poisoned = quick()(make(Waiting().cuda(), "tebn"), images, labels, MALICIOUS)
    assert torch.equal(poisoned[:7], images[:7])
    assert not torch.equal(poisoned[7:], images[7:])
