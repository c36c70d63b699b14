"""The timeline of a stream that a monitor has watched."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from ... import monitor
from ...monitor import Alarm, Record
from ..document import Document, Facts, Part, Section, Table, Timeline

POINTS = 400
"""A longer stream is drawn by this many medians of neighbouring batches."""


def build_timeline(path: str | Path) -> Document:
    """Return the report on a file that ``medbn.monitor.JSONLines`` wrote."""
    records = monitor.read(path)
    if not records:
        raise ValueError(f"there is no batch in {path} yet.")
    alarms = [alarm for record in records for alarm in record.alarms]
    images = sum(record.signals.get("images", 0) for record in records)
    lead = f"{len(records)} batches with {images:,.0f} images; {_count(len(alarms), 'alarm')}."
    if records[-1].state == "paused":
        lead += " The adapter is paused: it serves without adapting."
    sections = [
        Section("Alarms", [_alarm_table(alarms)], "A signal is no longer exchangeable with that of the reference.")
        if alarms
        else Section("Alarms", [Facts("", [("alarms", "none")])]),
        Section("Evidence", [_evidence(records)], "An alarm is raised where it reaches the threshold."),
        Section("Signals", [_signals(records, alarms)], "Each on its own scale, between the values at the right."),
        Section("What was watched", [_facts(path, records)]),
    ]
    return Document(f"medbn: {Path(path).name}", lead, sections)


def _signals(records: Sequence[Record], alarms: Sequence[Alarm]) -> Part:
    names = dict.fromkeys(name for record in records for name in record.signals)
    lines = {name: thin([(record.batch, record.signals.get(name, math.nan)) for record in records]) for name in names}
    changing = {name: line for name, line in lines.items() if len({y for _, y in line}) > 1}
    constant = [name for name in names if name not in changing]
    events = [(float(alarm.batch), alarm.signal, str(alarm)) for alarm in alarms]
    caption = "Red lines are alarms."
    caption += f" Not shown, because they never changed: {', '.join(constant)}." if constant else ""
    alt = f"The course of {_count(len(changing), 'signal')} over {len(records)} batches, with their alarms."
    return Timeline("Signals by batch", alt, "batch", changing or lines, _references(records), events, caption)


def _evidence(records: Sequence[Record]) -> Part:
    tested = [record for record in records if record.evidence]
    strongest = [(float(r.batch), max(r.evidence.values()) / r.threshold) for r in tested if r.threshold > 0]
    alt = "The evidence of the signal that has most of it, as a part of what raises an alarm."
    alarms = [(float(a.batch), "", str(a)) for record in records for a in record.alarms]
    series = {"strongest evidence, as a part of the threshold": thin(strongest)}
    return Timeline("Evidence by batch", alt, "batch", series, _references(records), alarms)


def _references(records: Sequence[Record]) -> list[tuple[float, float, str]]:
    """Return the stretches in which a reference was collected."""
    spans: list[tuple[float, float, str]] = []
    for record in records:
        if record.state == "reference":
            number = float(record.batch)
            if spans and spans[-1][1] == number - 1:
                spans[-1] = (spans[-1][0], number, "reference")
            else:
                spans.append((number, number, "reference"))
    return spans


def _alarm_table(alarms: Sequence[Alarm]) -> Table:
    rows = [
        [f"batch {a.batch}", a.signal, f"batch {a.onset}", f"{a.log10_evidence:.1f}", a.action or "nothing"]
        for a in alarms
    ]
    columns = ["Alarm", "Signal", "Probably since", "log₁₀ of the evidence", "What was done"]
    return Table("Alarms", columns, rows, labels=2)


def _facts(path: str | Path, records: Sequence[Record]) -> Part:
    items = [
        ("file", str(path)),
        ("first batch", _when(records[0])),
        ("last batch", _when(records[-1])),
        *((f"batches {state}", str(count)) for state, count in _states(records).items()),
    ]
    return Facts("The stream", items)


def _states(records: Sequence[Record]) -> dict[str, int]:
    names = [record.state for record in records]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def _when(record: Record) -> str:
    return f"{record.batch}, {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(record.time))} UTC"


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def thin(line: Sequence[tuple[float, float]], points: int = POINTS) -> list[tuple[float, float]]:
    """Return a line, or if it has too many points the medians of as many stretches, without NaN."""
    finite = [(float(x), y) for x, y in line if math.isfinite(y)]
    size = -(-len(finite) // points)
    if size <= 1:
        return finite
    parts = [finite[i : i + size] for i in range(0, len(finite), size)]
    return [(statistics.median(x for x, _ in part), statistics.median(y for _, y in part)) for part in parts]
