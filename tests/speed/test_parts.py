"""What the parts measure, on tiny shapes. No test depends on how long anything takes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from medbn import kernels, speed
from medbn.speed import memory
from medbn.speed.layer import LayerProblem
from medbn.speed.settings import Settings

TINY = Settings(
    "cpu",
    shapes=((4, 3, 5, 5), (2, 6, 3, 3)),
    model="resnet-small",
    batch=10,
    attack_batch=10,
    attack_steps=2,
    rounds=1,
    values=(1_000, 10_000),
    channels=(1, 2),
    elements=10_000,
)


def measure(name, settings=TINY):
    part = speed.PARTS[name]
    return [row for case in part.cases(settings) for row in part.measure(settings, case)]


def paths(name):
    return {kernels.selected(torch.zeros(2, 2, 2, 2), name), "reference"}


def test_a_layer_is_measured_in_every_layout_direction_and_path():
    rows = measure("layer")
    for layout in ("nchw", "channels_last"):
        for direction in ("forward", "forward+backward"):
            for shape in TINY.shapes:
                case = {"layout": layout, "direction": direction, "shape": shape, "dtype": "float32"}
                group = [row for row in rows if row.case == case]
                assert {(row.estimator, row.path) for row in group} == {
                    ("mean", "torch"),
                    *(("median", path) for path in paths("median")),
                    *(("image_median", path) for path in paths("image_median")),
                }
                assert all(len(row.values) == len(row.batch_norm) == 2 and min(row.values) > 0 for row in group)


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_mean_of_a_layer_is_batch_norm(layout, dtype):
    settings = replace(TINY, dtype=dtype)
    problem = LayerProblem.random(settings, (4, 3, 5, 5), layout, "forward+backward")
    assert problem.x.dtype == getattr(torch, dtype)
    last = layout == "channels_last"
    assert problem.x.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    plain, mean = (problem.in_direction(norm)() for norm in (problem.batch_norm, problem.robust_norm("mean")))
    for a, b in zip(plain, mean, strict=True):
        assert torch.equal(a, b)
    assert [g.shape for g in plain] == [(4, 3, 5, 5), (3,), (3,)]
    forward = LayerProblem.random(settings, (4, 3, 5, 5), layout, "forward")
    assert not forward.in_direction(forward.batch_norm)().requires_grad


@pytest.mark.slow
def test_a_step_and_an_attack_are_measured_on_every_path():
    expected = {(name, path) for name in ("median", "image_median") for path in paths(name)}
    rows = measure("step")
    assert {(row.estimator, row.path) for row in rows} == expected
    assert {row.case["method"] for row in rows} == {"tent"}
    rows = measure("attack")
    for method in ("tebn", "tent"):
        assert {(row.estimator, row.path) for row in rows if row.case["method"] == method} == expected


@pytest.mark.slow
def test_a_model_of_any_name_is_measured_with_each_method(monkeypatch):
    assert measure("model") == []
    small = replace(TINY, models=("resnet-small",), pixels=8, batch=6, reference=False)
    rows = measure("model", small)
    path = kernels.selected(torch.zeros(2, 2, 2, 2))
    assert {(row.case["method"], row.estimator, row.path) for row in rows} == {
        (method, estimator, path) for method in ("tebn", "tent", "past") for estimator in ("median", "image_median")
    }
    assert all(row.clock == "wall" and len(row.ratios) == 2 for row in rows)
    (table,) = speed.build_tables(rows)
    assert len(table.rows) == 3 * 3


def test_a_fifth_of_an_attacked_batch_is_malicious(monkeypatch):
    calls, selected = [], set()

    def fake(objective, steps):
        assert objective == speed.attack.Targeted(index=0)

        def attack(adapter, images, labels, malicious):
            calls.append((steps, len(images), len(labels), malicious))
            selected.add(kernels.selected(images))

        return attack

    monkeypatch.setattr(speed.attack, "DIA", fake)
    measure("attack")
    assert all(call == (2, 10, 10, slice(8, 10)) for call in calls)
    assert calls
    assert selected == paths("median")


def test_scaling_stays_within_the_limit_on_elements():
    def sizes(settings):
        return {(w["values"], w["channels"]) for w in speed.PARTS["scaling"].cases(settings)}

    assert sizes(TINY) == {(1_000, 1), (10_000, 1)}  # 20,000 elements are too many, and C = 2 is not the smallest
    assert sizes(replace(TINY, all_sizes=True)) == {(1_000, 1), (1_000, 2), (10_000, 1)}
    assert sizes(replace(TINY, elements=20_000)) == {(1_000, 1), (10_000, 1), (10_000, 2)}
    for row in measure("scaling"):
        b, c, s = row.case["shape"]
        assert (b * s, c) == (row.case["values"], row.case["channels"])
    default = sizes(Settings.defaults("cpu"))
    assert {n for n, _ in default} == {10**k for k in range(3, 8)}
    assert {c for _, c in default} == {16, 64, 256, 1024, 2048}


def test_memory_counts_every_storage_once():
    problem = LayerProblem.random(TINY, (4, 3, 5, 5), "nchw", "forward+backward")
    size = problem.x.numel() * 4
    assert memory.saved_bytes(problem, lambda: problem.x.exp(), "torch") == size  # its own output is all that it saves
    assert memory.saved_bytes(problem, lambda: problem.x.sin(), "torch") == 2 * size  # output and input
    assert memory.saved_bytes(problem, lambda: problem.x.sin() + problem.x.cos(), "torch") == 2 * size
    for row in measure("memory"):
        unit = row.case["activation"]
        assert 2 * unit <= row.batch_norm[0] <= 2 * unit + 16 * row.case["shape"][1]  # x, y, up to four per channel
        assert row.ratios == [row.values[0] / row.batch_norm[0]]


def test_the_default_shapes_are_those_of_the_two_resnets(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=139 * 2**30))
    gpu, cpu = Settings.defaults("cuda"), Settings.defaults("cpu")
    images = [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4), (64, 112, 112), (64, 56, 56), (256, 56, 56)]
    images += [(512, 28, 28), (1024, 14, 14), (2048, 7, 7)]
    assert gpu.shapes == tuple((200, *shape) for shape in images)
    assert cpu.shapes == tuple((200 if i < 4 else 16, *shape) for i, shape in enumerate(images))
    assert (gpu.batch, gpu.attack_batch, gpu.attack_steps) == (200, 200, 100)
    assert gpu.on_gpu
    assert not cpu.on_gpu
    assert len(gpu.named_shapes("small")) == 4
    assert gpu.named_shapes("2x3x4x5") == ((2, 3, 4, 5),)


@pytest.mark.gpu
def test_layers_on_a_gpu_have_both_clocks():
    settings = replace(TINY, device="cuda", shapes=((8, 4, 6, 6),))
    rows = measure("layer", settings)
    assert {row.clock for row in rows} == {"wall", "graph"}
    fast = [row for row in rows if row.path in ("triton", "torch")]
    assert all(row.values and not row.note for row in fast)
    assert all(row.values[0] > 0 for row in measure("memory", settings))


@pytest.mark.gpu
def test_a_model_on_a_gpu_has_graphs_and_the_device_s_work():
    settings = replace(TINY, device="cuda", models=("resnet-small",), pixels=32, batch=6, reference=False)
    rows = measure("model", settings)
    assert {row.clock for row in rows} == {"wall", "device", "kernels"}
    replayed = {row.case["method"] for row in rows if row.path == "graph"}
    assert replayed == {"tebn", "tent", "past"}
    kernels_run = {
        (row.case["method"], row.estimator, row.path): row.values[0] for row in rows if row.clock == "kernels"
    }
    assert all(count > 10 for count in kernels_run.values())
    assert kernels_run["tebn", "median", "triton"] > kernels_run["tebn", "mean", "graph"]
