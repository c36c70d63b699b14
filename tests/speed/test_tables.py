"""Tables of measurements, against tables written by hand."""

from __future__ import annotations

from medbn.speed import Measurement, build_tables


def measurement(part, values=(2.0, 2.0), batch_norm=(1.0, 1.0), clock="wall", **case):
    return Measurement(part, case, "median", "c", clock, list(values), list(batch_norm))


def layer_measurements(clock="wall"):
    common = {"layout": "nchw", "direction": "forward", "dtype": "float32", "clock": clock}
    return [
        measurement("layer", values=(2.0, 2.0, 8.0), batch_norm=(1.0, 2.0, 1.0), shape=(1, 2, 3, 4), **common),
        measurement("layer", values=(0.5, 0.5), batch_norm=(1.0, 1.0), shape=(4, 3, 2, 1), **common),
    ]


def test_the_layer_table_has_quartiles_mean_worst_and_shortest():
    (table,) = build_tables(layer_measurements())
    assert table.columns == ["shape", "batch_norm", "median, c"]
    assert table.rows == [
        ["1×2×3×4", "1 s", "2.00 [1.50, 5.00]"],
        ["4×3×2×1", "1 s", "0.50 [0.50, 0.50]"],
        ["geometric mean", "", "1.00"],
        ["worst", "", "2.00"],
        ["of shortest runs", "", "1.00"],
    ]
    assert "wall clock" in table.title


def test_device_time_comes_first_and_notes_explain_gaps():
    captured = layer_measurements("graph")
    captured[1].values, captured[1].batch_norm, captured[1].note = [], [], "cannot be captured"
    first, second = build_tables([*layer_measurements(), *captured])
    assert "graph" in first.title
    assert "wall" in second.title
    assert first.rows[1] == ["4×3×2×1", "–", "–"]
    assert first.rows[2][-1] == first.rows[3][-1] == "2.00"
    assert first.notes == ["– median, c: cannot be captured"]
    assert second.notes == []


def attack_measurement(**changes):
    case = {"method": "tent", "model": "resnet26", "layout": "nchw", "batch": 200, "steps": 100, "dtype": "float32"}
    return measurement("attack", values=(0.58, 0.58), batch_norm=(0.29, 0.29), **{**case, **changes})


def test_the_authors_throughput_is_shown_only_for_their_gpu_and_settings():
    (table,) = build_tables([attack_measurement()], "NVIDIA H200")
    assert table.columns[-1] == "× authors' throughput"
    assert [line[-1] for line in table.rows] == ["20.0", "10.0"]
    assert table.rows[1][-4:-1] == ["580 ms", "5.8 ms", "2.00 [2.00, 2.00]"]
    for measurements, device in (
        ([attack_measurement()], "NVIDIA A100"),
        ([attack_measurement(steps=10)], "NVIDIA H200"),
    ):
        (table,) = build_tables(measurements, device)
        assert table.columns[-1] == "/ BatchNorm's"


def test_scaling_is_per_element():
    case = {"values": 1_000, "channels": 10, "shape": (100, 10, 10), "dtype": "float32"}
    (table,) = build_tables([Measurement("scaling", case, "median", "c", "wall", [2e-5, 2e-5], [1e-5, 1e-5])])
    assert table.rows == [["1e3", "10", "1", "2"]]


def test_no_measurements_make_no_table():
    assert build_tables([]) == []


def test_the_model_table_says_how_a_batch_is_served_and_what_the_device_does():
    case = {"model": "m", "method": "tebn", "layout": "nchw", "batch": 4, "pixels": 8, "dtype": "float32"}

    def row(estimator, path, clock, value, beside=1e-3):
        return Measurement("model", case, estimator, path, clock, [value], [beside])

    rows = [row("median", "triton", "wall", 2e-3), row("mean", "graph", "wall", 5e-4)]
    rows += [row("median", "triton", "device", 1.2e-3, 9e-4), row("median", "triton", "kernels", 40.0, 30.0)]
    (table,) = build_tables(rows)
    assert table.rows == [
        ["tebn", "nchw", "mean", "torch", "1 ms", "1", "900 µs", "30"],
        ["tebn", "nchw", "median", "triton", "2 ms", "2.00 [2.00, 2.00]", "1.2 ms", "40"],
        ["tebn", "nchw", "mean", "graph", "500 µs", "0.50 [0.50, 0.50]", "–", "–"],
    ]
    assert "m, 4 images of 8 pixels" in table.title
    assert rows[-1].to_record()["kernels"] == [40.0]
