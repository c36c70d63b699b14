import json
import math

import pytest

from medbn import monitor

from .records import RECORDS


def test_records_come_back_from_the_file_that_they_were_written_to(tmp_path):
    path = tmp_path / "stream.jsonl"
    exporter = monitor.JSONLines(path)
    for number, record in enumerate(RECORDS, start=1):
        exporter.export(record)
        assert len(monitor.read(path)) == number  # at once, for those who follow the file
    exporter.close()
    for record, read in zip(RECORDS, monitor.read(path), strict=True):
        assert read.signals.keys() == record.signals.keys()
        for name, value in record.signals.items():
            assert read.signals[name] == value or (math.isnan(value) and math.isnan(read.signals[name]))
        assert (read.batch, read.time, read.state) == (record.batch, record.time, record.state)
        assert (read.evidence, read.threshold, read.alarms) == (record.evidence, record.threshold, record.alarms)
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_a_file_is_continued_after_a_process_was_killed_within_a_line(tmp_path):
    path = tmp_path / "stream.jsonl"
    exporter = monitor.JSONLines(path)
    exporter.export(RECORDS[0])
    exporter.close()
    with open(path, "a") as file:
        file.write('{"batch": 2, "ti')
    assert [record.batch for record in monitor.read(path)] == [1]
    exporter = monitor.JSONLines(path)
    exporter.export(RECORDS[1])
    exporter.close()
    assert [record.batch for record in monitor.read(path)] == [1, 2]


def test_another_file_is_neither_overwritten_nor_read(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt"):
        monitor.JSONLines(path)
    assert path.read_text() == "mine"
    with pytest.raises(ValueError, match=r"notes\.txt"):
        monitor.read(path)
    with pytest.raises(ValueError, match="no file"):
        monitor.read(tmp_path / "nothing.jsonl")
    with pytest.raises(ValueError, match="cannot write"):
        monitor.JSONLines(tmp_path / "nowhere" / "x.jsonl")
    path = tmp_path / "newer.jsonl"
    path.write_text('{"medbn_monitor": 99}\n')
    with pytest.raises(ValueError, match="99"):
        monitor.read(path)
    path.write_text('{"medbn_monitor": 1}\n{"batch": 1}\n')
    with pytest.raises(ValueError, match="line 2"):
        monitor.read(path)
