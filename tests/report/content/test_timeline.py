"""The timeline of a watched stream, from the monitor's file to the page."""

import re

import pytest

from medbn import monitor, report
from medbn.cli import main
from medbn.monitor import Alarm, Record
from medbn.report.content.timeline import thin

ALARM = Alarm(30, "entropy", onset=28, log10_evidence=4.0, action="paused")


def write(path, batches=40):
    exporter = monitor.JSONLines(path)
    for k in range(1, batches + 1):
        state = "reference" if k <= 20 else "paused" if k > 30 else "watching"
        signals = {"images": 8.0, "entropy": 1.0 + (k % 5) / 10 + (k > 27), "pressure/a": 0.1 * (k % 3)}
        evidence = {} if k <= 20 else {"entropy": 4.0 * (k >= 30), "pressure/a": -0.5}
        exporter.export(Record(k, 1e9 + k, state, signals, evidence, 3.5, (ALARM,) if k == 30 else ()))
    exporter.close()


def test_the_document_says_what_happened(tmp_path):
    write(tmp_path / "s.jsonl")
    document = report.build_timeline(tmp_path / "s.jsonl")
    assert "40 batches with 320 images; 1 alarm." in document.lead
    assert "paused" in document.lead
    sections = {section.title: section for section in document.sections}
    assert sections["Alarms"].parts[0].rows == [["batch 30", "entropy", "batch 28", "4.0", "paused"]]
    signals = sections["Signals"].parts[0]
    assert list(signals.series) == ["entropy", "pressure/a"]
    assert "images" in signals.caption  # which never changed
    assert signals.spans == [(1.0, 20.0, "reference")]
    assert signals.events == [(30.0, "entropy", str(ALARM))]
    (line,) = sections["Evidence"].parts[0].series.values()
    assert line[0] == (21.0, 0.0)
    assert line[-1][1] == pytest.approx(4.0 / 3.5)


def test_long_streams_are_thinned_to_medians():
    line = [(float(k), float(k % 10)) for k in range(10_000)]
    thinned = thin(line, 100)
    assert len(thinned) == 100
    assert {y for _, y in thinned} == {4.5}
    assert thin([(1.0, float("nan")), (2.0, 5.0)]) == [(2.0, 5.0)]


def test_the_command_writes_it_in_every_format(tmp_path, capsys, refusal):
    pytest.importorskip("jinja2")
    path = tmp_path / "s.jsonl"
    write(path)
    for kind, ending in (("html", "html"), ("markdown", "md"), ("csv", "csv"), ("json", "json"), ("latex", "tex")):
        assert main(["report", str(path), "--format", kind]) == 0
        assert capsys.readouterr().out.strip() == str(path.with_suffix(f".{ending}"))
        text = path.with_suffix(f".{ending}").read_text()
        assert "batch 28" in text
    assert "recipes" in refusal(["report", str(path), "--recipe", "demo"])
    monitor.JSONLines(tmp_path / "new.jsonl").close()
    assert "no batch" in refusal(["report", str(tmp_path / "new.jsonl")])


def test_the_page_draws_a_strip_per_signal_and_a_line_per_alarm(tmp_path):
    pytest.importorskip("jinja2")
    write(tmp_path / "s.jsonl")
    page = report.FORMATS.get("html").write(report.build_timeline(tmp_path / "s.jsonl"))
    evidence, signals = re.findall(r'<svg class="chart wide".*?</svg>', page, re.DOTALL)
    assert signals.count('class="s1"') == 2
    assert evidence.count('class="s0 event"') == signals.count('class="s0 event"') == 1
    # Batches 1, 30 and 40 of 40, across a width of 760 with margins of 8.
    x = float(re.search(r'event"><title>[^<]*</title><path class="line" d="M([\d.]+)', signals)[1])
    assert x == pytest.approx(8 + 744 * 29 / 39, abs=0.1)
