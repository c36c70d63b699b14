"""What the parts measure, on tiny shapes; no test looks at how long anything took."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from medbn import kernels, speed
from medbn.speed import build_tables, memory
from medbn.speed.layer import LayerProblem
from medbn.speed.measurement import Measurement
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


def rows(part, settings=TINY):
    found = speed.PARTS[part]
    return [row for case in found.cases(settings) for row in found.measure(settings, case)]


def paths(name):
    return {kernels.selected(torch.zeros(2, 2, 2, 2), name), "reference"}


def test_a_layer_in_every_layout_direction_and_path():
    found = rows("layer")
    for layout in ("nchw", "channels_last"):
        for direction in ("forward", "forward+backward"):
            for shape in TINY.shapes:
                where = {"layout": layout, "direction": direction, "shape": shape, "dtype": "float32"}
                here = [row for row in found if row.case == where]
                assert {(row.estimator, row.path) for row in here} == {
                    ("mean", "torch"),
                    *(("median", path) for path in paths("median")),
                    *(("image_median", path) for path in paths("image_median")),
                }
                assert all(len(row.values) == len(row.batch_norm) == 2 and min(row.values) > 0 for row in here)


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_layers_work_is_batch_norms(layout, dtype):
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


def test_a_step_and_an_attack_on_every_path():
    expected = {(name, path) for name in ("median", "image_median") for path in paths(name)}
    found = rows("step")
    assert {(row.estimator, row.path) for row in found} == expected
    assert {row.case["method"] for row in found} == {"tent"}
    found = rows("attack")
    for method in ("tebn", "tent"):
        assert {(row.estimator, row.path) for row in found if row.case["method"] == method} == expected


def test_an_attack_is_targeted_by_a_fifth_and_on_the_forced_path(monkeypatch):
    calls, selected = [], set()

    def fake(objective, steps):
        assert objective == speed.attack.Targeted(index=0)

        def attack(adapter, images, labels, malicious):
            calls.append((steps, len(images), len(labels), malicious))
            selected.add(kernels.selected(images))

        return attack

    monkeypatch.setattr(speed.attack, "DIA", fake)
    rows("attack")
    assert all(call == (2, 10, 10, slice(8, 10)) for call in calls)
    assert calls
    assert selected == paths("median")


def test_scaling_stays_within_its_limits():
    def sizes(settings):
        return {(w["values"], w["channels"]) for w in speed.PARTS["scaling"].cases(settings)}

    assert sizes(TINY) == {(1_000, 1), (10_000, 1)}  # 20,000 elements are too many, and C = 2 is not asked for
    assert sizes(replace(TINY, all_sizes=True)) == {(1_000, 1), (1_000, 2), (10_000, 1)}
    assert sizes(replace(TINY, elements=20_000)) == {(1_000, 1), (10_000, 1), (10_000, 2)}
    for row in rows("scaling"):
        b, c, s = row.case["shape"]
        assert (b * s, c) == (row.case["values"], row.case["channels"])
    usual = sizes(Settings.defaults("cpu"))
    assert {n for n, _ in usual} == {10**k for k in range(3, 8)}
    assert {c for _, c in usual} == {16, 64, 256, 1024, 2048}


def test_memory_counts_every_storage_once():
    problem = LayerProblem.random(TINY, (4, 3, 5, 5), "nchw", "forward+backward")
    size = problem.x.numel() * 4
    assert memory.saved_bytes(problem, lambda: problem.x.exp(), "torch") == size  # its own output is all that it saves
    assert memory.saved_bytes(problem, lambda: problem.x.sin(), "torch") == 2 * size  # output and input
    assert memory.saved_bytes(problem, lambda: problem.x.sin() + problem.x.cos(), "torch") == 2 * size
    for row in rows("memory"):
        unit = row.case["activation"]
        assert 2 * unit <= row.batch_norm[0] <= 2 * unit + 16 * row.case["shape"][1]  # x, y, up to four per channel
        assert row.ratios == [row.values[0] / row.batch_norm[0]]


def test_usual_settings_are_the_issues_shapes(monkeypatch):
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


# --- tables -----------------------------------------------------------------------------------------------------------


def row(part, path="c", values=(2.0, 2.0), base=(1.0, 1.0), clock="wall", **where):
    return Measurement(part, where, "median", path, clock, list(values), list(base))


def layer_rows(clock="wall"):
    given = {"layout": "nchw", "direction": "forward", "dtype": "float32", "clock": clock}
    return [
        row("layer", values=(2.0, 2.0, 8.0), base=(1.0, 2.0, 1.0), shape=(1, 2, 3, 4), **given),
        row("layer", values=(0.5, 0.5), base=(1.0, 1.0), shape=(4, 3, 2, 1), **given),
    ]


def test_the_layers_table_has_spread_mean_worst_and_shortest():
    (table,) = build_tables(layer_rows())
    assert table.columns == ["shape", "batch_norm", "median, c"]
    assert table.rows == [
        ["1×2×3×4", "1 s", "2.00 [1.50, 5.00]"],
        ["4×3×2×1", "1 s", "0.50 [0.50, 0.50]"],
        ["geometric mean", "", "1.00"],
        ["worst", "", "2.00"],
        ["of shortest runs", "", "1.00"],
    ]
    assert "wall clock" in table.title


def test_device_time_comes_first_and_gaps_are_explained():
    captured = layer_rows("graph")
    captured[1].values, captured[1].batch_norm, captured[1].note = [], [], "cannot be captured"
    first, second = build_tables([*layer_rows(), *captured])
    assert "graph" in first.title
    assert "wall" in second.title
    assert first.rows[1] == ["4×3×2×1", "–", "–"]
    assert first.rows[2][-1] == first.rows[3][-1] == "2.00"
    assert first.notes == ["– median, c: cannot be captured"]
    assert second.notes == []


def attack_row(**changes):
    where = {"method": "tent", "model": "resnet26", "layout": "nchw", "batch": 200, "steps": 100, "dtype": "float32"}
    return row("attack", values=(0.58, 0.58), base=(0.29, 0.29), **{**where, **changes})


def test_the_authors_throughput_is_shown_only_where_it_was_measured():
    (table,) = build_tables([attack_row()], "NVIDIA H200")
    assert table.columns[-1] == "× authors' throughput"
    assert [line[-1] for line in table.rows] == ["20.0", "10.0"]
    assert table.rows[1][-4:-1] == ["580 ms", "5.8 ms", "2.00 [2.00, 2.00]"]
    for rows_, device in (([attack_row()], "NVIDIA A100"), ([attack_row(steps=10)], "NVIDIA H200")):
        (table,) = build_tables(rows_, device)
        assert table.columns[-1] == "/ BatchNorm's"


def test_scaling_is_per_element():
    where = {"values": 1_000, "channels": 10, "shape": (100, 10, 10), "dtype": "float32"}
    (table,) = build_tables([Measurement("scaling", where, "median", "c", "wall", [2e-5, 2e-5], [1e-5, 1e-5])])
    assert table.rows == [["1e3", "10", "1", "2"]]


def test_nothing_measured_is_no_table():
    assert build_tables([]) == []


@pytest.mark.gpu
def test_layers_on_a_gpu_have_both_clocks():
    settings = replace(TINY, device="cuda", shapes=((8, 4, 6, 6),))
    found = rows("layer", settings)
    assert {row.clock for row in found} == {"wall", "graph"}
    fast = [row for row in found if row.path in ("triton", "torch")]
    assert all(row.values and not row.note for row in fast)
    assert all(row.values[0] > 0 for row in rows("memory", settings))
