"""``medbn monitor`` on a file of a stream, and with wrong arguments."""

import torch
from torch import nn

import medbn
from medbn.cli import main
from medbn.cli.monitor import View, sparkline
from medbn.monitor import read


def write_stream(path, batches=40, attacked=30):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    adapter = medbn.adapt(model, method="tebn")
    monitor = medbn.Monitor(adapter, reference=20, on_alarm="pause", exporters=[medbn.monitor.JSONLines(path)])
    for k in range(batches):
        images = torch.rand(10, 3, 8, 8)
        if k >= attacked:
            images[:3] = 1.0
        adapter(images)
    monitor.close()
    return monitor


def test_a_stream_is_shown_with_its_alarms(tmp_path, capsys):
    monitor = write_stream(tmp_path / "stream.jsonl")
    assert monitor.alarms
    assert main(["monitor", str(tmp_path / "stream.jsonl")]) == 0
    printed = capsys.readouterr().out
    assert "batch 40" in printed
    assert "PAUSED" in printed
    row = next(line for line in printed.splitlines() if line.startswith("pressure/1"))
    assert f"{monitor.latest.signals['pressure/1']:.4g}" in row
    assert "ALARM" in row
    assert f"ALARM  {monitor.alarms[-1]}" in printed
    assert main(["monitor", str(tmp_path / "stream.jsonl"), "--signals", "entropy", "--once", "--last", "5"]) == 0
    printed = capsys.readouterr().out
    assert "entropy" in printed
    assert "pressure/1  " not in printed


def test_a_view_that_follows_shows_what_one_that_reads_everything_does(tmp_path):
    write_stream(tmp_path / "stream.jsonl")
    records = read(tmp_path / "stream.jsonl")
    whole, following = View(10, None), View(10, None)
    whole.add(records)
    for record in records:
        following.add([record])
    assert whole.text() == following.text()
    assert whole.renderable() is not None


def test_a_stream_without_batches_is_no_error(tmp_path, capsys):
    medbn.monitor.JSONLines(tmp_path / "new.jsonl").close()
    assert main(["monitor", str(tmp_path / "new.jsonl")]) == 0
    assert "no batch" in capsys.readouterr().out


def test_wrong_arguments_are_one_line(tmp_path, refusal):
    assert "no file" in refusal(["monitor", str(tmp_path / "x.jsonl")])
    (tmp_path / "notes.txt").write_text("mine")
    assert "no monitor's file" in refusal(["monitor", str(tmp_path / "notes.txt")])
    write_stream(tmp_path / "stream.jsonl", batches=2)
    assert "entropy" in refusal(["monitor", str(tmp_path / "stream.jsonl"), "--signals", "entrpy"])


def test_sparklines_span_the_values():
    assert sparkline([]) == ""
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([0.0, 7.0]) == "▁█"
