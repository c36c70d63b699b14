import copy
import gc
import os
import subprocess
import sys
import types
import warnings
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

import medbn
from medbn.attacks import DIA, Indiscriminate, IndiscriminateSegmentation, Targeted, _graph
from medbn.attacks._insert import Places, inserted
from medbn.bench import Attack, Place, deterministic

from ..methods.conftest import small_model
from ..methods.table import assert_same, make, state

MALICIOUS = slice(7, 10)


def quick(**options):
    return DIA(**{"steps": 10, "step_size": 8 / 255, **options})


@pytest.fixture
def replayed(monkeypatch):
    """On a CPU: record nothing and run the step again instead, from the static tensors alone."""
    made = []

    def record(step, given, pool, logits):
        static = tree_map(lambda t: torch.full_like(t, 1), given)  # to be filled by whoever plays it

        def replay():
            moved, value, scores = step(static)
            static.mine.copy_(moved)
            found.value.copy_(value)
            if logits:
                found.logits = scores

        found = _graph.Recording(types.SimpleNamespace(replay=replay), object(), static, torch.zeros(()), None)
        made.append(found)
        return found

    monkeypatch.setattr(_graph, "record", record)
    monkeypatch.setattr(_graph, "obstacle", lambda adapter, images: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    return made


# --- which loop ------------------------------------------------------------------------------------------------------


def test_on_a_cpu_the_loop_is_plain(model, stream, monkeypatch):
    tta = make(model, "tebn")
    monkeypatch.setattr(_graph, "recorded", lambda *a, **k: pytest.fail("nothing can be recorded here"))
    expected = quick(graph=False)(tta, *stream[0], MALICIOUS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(quick()(tta, *stream[0], MALICIOUS), expected)


def test_what_is_insisted_on_and_impossible_is_an_error(model, stream, monkeypatch):
    tta = make(model, "tent")
    must = quick(graph=True)
    with pytest.raises(RuntimeError, match=r"graph=True.*the images are on cpu, and CUDA graphs need a CUDA device"):
        must(tta, *stream[0], MALICIOUS)
    with pytest.raises(RuntimeError, match="with unroll=1 the surrogate learns"):
        replace(must, unroll=1)(tta, *stream[0], MALICIOUS)
    with pytest.raises(RuntimeError, match="Loose is no frozen dataclass"):
        replace(must, objective=Loose())(tta, *stream[0], MALICIOUS)
    monkeypatch.setenv("MEDBN_GRAPHS", "0")
    with pytest.raises(RuntimeError, match="MEDBN_GRAPHS=0 switches it off"):
        must(tta, *stream[0], MALICIOUS)
    monkeypatch.setenv("MEDBN_GRAPHS", "no")
    with pytest.raises(ValueError, match="unknown MEDBN_GRAPHS 'no'"):
        must(tta, *stream[0], MALICIOUS)


class Loose(Targeted):
    """Not a dataclass of its own, and mutable."""

    __dataclass_params__ = None


def test_hooks_and_observers_rule_it_out(model, stream):
    tta = make(model, "tebn")
    images = types.SimpleNamespace(is_cuda=True, device=torch.device("cpu"))
    assert _graph.obstacle(tta, images) is None
    with medbn.observe(tta.model):
        assert "'bn' has a hook or an observer" in _graph.obstacle(tta, images)
    handle = tta.model.register_forward_hook(lambda *a: None)
    assert "'the model' has a hook" in _graph.obstacle(tta, images)
    handle.remove()
    images.device = torch.device("meta")
    assert "parts of the model on cpu" in _graph.obstacle(tta, images)


def test_short_attacks_are_not_recorded_unasked(model, stream, replayed):
    tta = make(model, "tebn")
    quick(steps=9)(tta, *stream[0], MALICIOUS)
    quick(steps=0, graph=True)(tta, *stream[0], MALICIOUS)
    assert not replayed
    quick(steps=9, graph=True)(tta, *stream[0], MALICIOUS)
    assert len(replayed) == 1


def test_what_cannot_be_recorded_runs_anyway_and_says_so_once(model, stream, replayed, monkeypatch):
    def record(*a):
        tried.append(1)
        raise _graph.CaptureError("it waits for the GPU: that one test.")

    tried = []
    monkeypatch.setattr(_graph, "record", record)
    monkeypatch.setattr(_graph, "_told", set())
    tta = make(model, "tebn")
    with pytest.warns(UserWarning, match=r"could not be recorded.*waits for the GPU: that one test.*MEDBN_GRAPHS=0"):
        poisoned = quick()(tta, *stream[0], MALICIOUS)
    assert torch.equal(poisoned, quick(graph=False)(tta, *stream[0], MALICIOUS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick()(tta, *stream[1], MALICIOUS)
        assert len(tried) == 1
        quick()(copy.deepcopy(tta), *stream[1], MALICIOUS)
    with pytest.raises(RuntimeError, match="that one test"):
        quick(graph=True)(tta, *stream[0], MALICIOUS)


# --- what is played back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["tebn", "tent", "sotta", "sema", "mdia", "eata"])
@pytest.mark.parametrize("objective", [Targeted(0), Indiscriminate()], ids=["targeted", "indiscriminate"])
def test_one_recording_serves_a_stream(method, objective, model, stream, replayed):
    tta = make(model, method)
    for (images, labels), malicious in zip(stream, ([7, 8, 9], [1, 3, 5], [9, 4, 2], slice(6, 9)), strict=True):
        before = state(tta)
        recorded, plain = (
            quick(objective=objective, graph=graph)(tta, images, labels, malicious) for graph in (True, False)
        )
        assert torch.equal(recorded, plain)
        assert_same(state(tta), before)
        tta(images)
    assert len(replayed) == 1


def test_every_option_of_the_loop_can_be_played_back(model, stream, replayed):
    tta, seen = make(model, "tent"), {True: [], False: []}
    for options in (
        {"restarts": 3, "start": "random"},
        {"check_every": 2, "objective": Targeted(1)},
        {"check_every": 3, "restarts": 2},
        {"alignment": 1.0, "gradient": "smooth", "knowledge": "semi"},
    ):
        a, b = (quick(**options, graph=g).craft(tta, *stream[1], MALICIOUS) for g in (True, False))
        assert torch.equal(a.images, b.images)
        assert (a.value, a.steps) == (b.value, b.steps)
    for g, found in seen.items():
        quick(graph=g, callback=lambda *step, found=found: found.append(step))(tta, *stream[1], MALICIOUS)
    for one, other in zip(seen[True], seen[False], strict=True):
        assert one[0] == other[0]
        assert torch.equal(one[1], other[1])
        assert one[2] == other[2]


def test_stopping_early_keeps_the_images_that_fooled(replayed):
    from .conftest import Linear

    images = torch.full((10, 4), 0.5) + 0.01 * torch.randn(10, 4)
    images[0] += 0.005
    labels = torch.zeros(10, dtype=torch.long)
    tta = medbn.adapt(Linear(4), "tebn", "mean")
    early, plain = (DIA(steps=100, check_every=5, graph=g).craft(tta, images, labels, MALICIOUS) for g in (True, False))
    assert len(replayed) == 1
    assert 0 < early.steps == plain.steps < 100
    assert torch.equal(early.images, plain.images)


# --- keys and the cache ----------------------------------------------------------------------------------------------


def key(tta, stream, attack=None, batch=0, malicious=MALICIOUS):
    found = []
    attack = attack or quick()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_graph, "obstacle", lambda adapter, images: None)

        def stop(adapter, key, *a, **k):
            found.append(key)
            raise _graph.CaptureError("enough")

        patch.setattr(_graph, "recorded", stop)
        patch.setattr(_graph, "warn", lambda reason: None)
        attack(tta, *stream[batch], malicious)
    return found[0]


def test_data_is_not_in_the_key(model, stream):
    tta = make(model, "sotta")
    first = key(tta, stream)
    tta(stream[0][0])
    assert key(tta, stream, batch=1, malicious=[2, 4, 6]) == first
    assert key(tta, stream, quick(steps=40, start="random", seed=4)) == first
    hash(first)


@pytest.mark.parametrize(
    "options",
    [
        {"objective": Targeted(1)},
        {"objective": Indiscriminate()},
        {"step_size": 1 / 255},
        {"epsilon": 0.5},
        {"gradient": "smooth"},
        {"gradient": "smooth", "temperature": 0.25},
        {"knowledge": "semi"},
        {"alignment": 1.0},
        {"check_every": 2},
    ],
    ids=str,
)
def test_options_are_in_the_key(options, model, stream):
    tta = make(model, "tent")
    assert key(tta, stream, quick(**options)) not in (key(tta, stream), key(tta, stream, quick(gradient="smooth"))) or (
        options == {"gradient": "smooth"}
    )


def test_settings_are_in_the_key(model, stream, monkeypatch):
    tta = make(model, "tent")
    keys = [key(tta, stream)]

    def changed():
        keys.append(key(tta, stream))
        assert len(set(keys)) == len(keys)

    for name in ("benchmark", "deterministic"):
        with monkeypatch.context() as patch:
            patch.setattr(torch.backends.cudnn, name, not getattr(torch.backends.cudnn, name))
            changed()
    with torch.backends.cudnn.flags(enabled=False):
        changed()
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        changed()
    finally:
        torch.set_float32_matmul_precision(before)
    with deterministic(Place()):
        changed()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=True) if torch.cuda.is_available() else _autocast():
        changed()
    monkeypatch.setenv("MEDBN_KERNELS", "reference")
    changed()
    tta.layers["bn"].estimator = "mad"
    changed()
    tta.layers["bn"].eps = 1e-3
    changed()
    tta.layers["bn"].policy = "source"
    changed()
    tta.model.fc.weight = nn.Parameter(tta.model.fc.weight.detach().clone(), requires_grad=False)
    changed()
    tta.model.scale = 3.0
    changed()
    assert key(tta, [(i.to(memory_format=torch.channels_last), y) for i, y in stream]) not in keys
    assert key(tta, stream, malicious=[8, 9]) not in keys
    assert key(tta, [(i[:9], y[:9]) for i, y in stream]) not in keys


class _autocast:  # noqa: N801 - autocast of CUDA, as far as one sees it without a GPU
    def __enter__(self):
        torch.set_autocast_enabled("cuda", True)

    def __exit__(self, *a):
        torch.set_autocast_enabled("cuda", False)


def test_few_are_kept_and_they_die_with_the_adapter(model, stream, monkeypatch):
    made = []

    def record(step, given, pool, logits):
        found = _graph.Recording(types.SimpleNamespace(replay=lambda: None), pool, given, torch.zeros(()), None)
        made.append(weakref.ref(found))
        pools.append(pool)
        return found

    pools = []
    monkeypatch.setattr(_graph, "record", record)
    monkeypatch.setattr(_graph, "obstacle", lambda adapter, images: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: len(pools))
    tta = make(model, "tebn")
    for index in range(_graph.KEPT + 2):
        quick(objective=Targeted(index))(tta, *stream[0], MALICIOUS)
    quick(objective=Targeted(3))(tta, *stream[0], MALICIOUS)  # is still there
    assert len(made) == _graph.KEPT + 2
    assert [ref() is not None for ref in made] == [False, False, True, True, True, True]
    assert set(pools) == {0}  # one memory for all
    count = len(_graph._recordings)
    del tta
    gc.collect()
    assert len(_graph._recordings) == count - 1
    assert all(ref() is None for ref in made)


def test_it_is_no_part_of_what_an_attack_is():
    assert DIA(graph=True) == DIA(graph=False) == DIA()
    assert repr(DIA(graph=True)) == repr(DIA())
    assert "graph" not in Attack.__dataclass_fields__


# --- parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_insertion_puts_images_in_place(form):
    images, mine = torch.rand(6, 3, 4, 4).to(memory_format=form), torch.rand(2, 3, 4, 4, requires_grad=True)
    benign = torch.tensor([True, False, True, True, False, True])
    batch = inserted(images, mine, Places.of(benign))
    expected = images.clone()
    expected[[1, 4]] = mine.detach()
    assert torch.equal(batch, expected)
    assert batch.stride() == images.stride()
    g = torch.rand(batch.shape)
    (slope,) = torch.autograd.grad(batch, mine, g)
    assert torch.equal(slope, g[[1, 4]])


def test_harm_is_the_share_of_wrong_predictions():
    logits, labels = torch.randn(50, 10), torch.randint(10, (50,))
    for benign in (torch.rand(50) < 0.7, torch.zeros(50, dtype=torch.bool)):
        old = (logits.argmax(dim=1) != labels)[benign].float().mean()
        torch.testing.assert_close(Indiscriminate().harm(logits, labels, benign), old, rtol=0, atol=0, equal_nan=True)
    benign = torch.rand(50) < 0.7
    dense, planes = torch.randn(50, 10, 4, 3), torch.randint(10, (50, 4, 3))
    planes[torch.rand(planes.shape) < 0.2] = 255
    counts = benign.view(-1, 1, 1) & (planes != 255)
    old = (dense.argmax(dim=1) != planes)[counts].float().mean()
    assert torch.equal(IndiscriminateSegmentation().harm(dense, planes, benign), old)


def test_the_benchmark_runs(tmp_path):
    script = Path(__file__).parents[2] / "experiments" / "cuda_graph_attack.py"
    options = "--device cpu --model resnet-small --images 8 --size 16 --malicious 2 --steps 2 --rounds 1"
    for more in ("--estimator mean,median --json out.json", "--profile median"):
        run = subprocess.run(
            [sys.executable, script, *options.split(), *more.split()],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(script.parents[1] / "src")},
        )
        assert run.returncode == 0, run.stderr
        assert "a step" in run.stdout
    assert (tmp_path / "out.json").exists()


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
@pytest.mark.parametrize("gradient", ["exact", "straight_through", "smooth"])
@pytest.mark.parametrize("estimator", ["mean", "median", "image_median"])
@pytest.mark.parametrize("method", ["tebn", "tent", "sotta", "sema", "mdia", "eata"])
def test_a_recorded_step_is_the_plain_step(method, estimator, gradient, on_gpu, exact):
    tta = victim(method, estimator)
    tta(on_gpu[0][0])
    requires = [p.requires_grad for p in tta.parameters()]
    random = torch.cuda.get_rng_state()
    for (images, labels), malicious in ((on_gpu[1], MALICIOUS), (on_gpu[2], [1, 5, 6])):
        before = state(tta)
        for steps in (1, 2, 10):
            recorded, plain = (
                quick(steps=steps, gradient=gradient, graph=graph)(tta, images, labels, malicious)
                for graph in (True, False)
            )
            assert torch.equal(recorded, plain)
        assert_same(state(tta), before)
        tta(images)  # the state moves on, and so do labels and places
    assert len(_graph._recordings[tta]) == 1
    assert [p.requires_grad for p in tta.parameters()] == requires
    assert all(p.grad is None for p in tta.parameters())
    assert torch.equal(torch.cuda.get_rng_state(), random)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize(
    "options",
    [
        {"restarts": 3, "start": "random"},
        {"check_every": 2},
        {"check_every": 3, "restarts": 2, "objective": Indiscriminate()},
        {"alignment": 1.0},
        {"knowledge": "semi", "epsilon": 0.2},
    ],
    ids=str,
)
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_every_option_is_the_same_on_a_gpu(options, form, on_gpu, exact):
    tta = victim("tent", "median")
    tta.model.to(memory_format=form)
    tta(on_gpu[0][0])
    images, labels = on_gpu[1]
    images = images.contiguous(memory_format=form)
    a, b = (quick(**options, graph=g).craft(tta, images, labels, MALICIOUS) for g in (True, False))
    assert torch.equal(a.images, b.images)
    assert (a.value, a.steps) == (b.value, b.steps)
    assert a.images.stride() == images.stride()


@pytest.mark.gpu
def test_dense_outputs_half_precision_and_autocast_can_be_recorded(dense_model, dense_stream, on_gpu):
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
def test_a_gpu_records_unasked_and_frees_the_memory(on_gpu):
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
    assert len(_graph._recordings[tta]) == 1
    most = reserved()
    assert most > least + 2**29
    for gradient in ("straight_through", "smooth"):
        quick(gradient=gradient)(tta, images, labels, MALICIOUS)
    del tta
    assert reserved() < least + 2**28  # cuBLAS keeps some for its streams


class Rude(nn.Module):
    """A model that waits for the GPU, or breaks a recording outright."""

    def __init__(self, how):
        super().__init__()
        self.inner, self.how = small_model(), how

    def forward(self, x):
        if self.how == "item":
            assert x.sum().item() == x.sum().item()
        elif self.how == "synchronize":
            torch.cuda.synchronize()
        elif torch.cuda.is_current_stream_capturing():
            raise OSError("not now")
        return self.inner(x)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("how", "reason"), [("item", "it waits for the GPU"), ("raise", "not now"), ("synchronize", "")]
)
def test_a_broken_recording_leaves_everything_usable(how, reason, on_gpu, monkeypatch):
    monkeypatch.setattr(_graph, "_told", set())
    images, labels = on_gpu[0]
    tta = make(Rude(how).cuda(), "tebn")
    stream, random = torch.cuda.current_stream(), torch.cuda.get_rng_state()
    with pytest.warns(UserWarning, match=f"could not be recorded.*{reason}"):
        poisoned = quick()(tta, images, labels, MALICIOUS)
    assert torch.cuda.current_stream() == stream
    assert torch.equal(torch.cuda.get_rng_state(), random)
    assert torch.cuda.get_sync_debug_mode() == 0
    assert torch.rand(5, device="cuda").isfinite().all()
    assert torch.equal(poisoned[:7], images[:7])
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    other = victim("tent", "median")
    a, b = (quick(steps=1, graph=g)(other, images, labels, MALICIOUS) for g in (True, False))  # another one works
    assert ((a - b).abs() < 1e-6).float().mean() > 0.95
