"""``medbn monitor``: show a watched stream in the terminal."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ._arguments import positive_float, positive_int
from ._terminal import TextTable, format_table

if TYPE_CHECKING:
    from ..monitor import Alarm, Record

SUMMARY = "show what a monitor sees of a running stream"
BLOCKS = "▁▂▃▄▅▆▇█"
COLUMNS = ("signal", "now", "reference", "last batches", "evidence")
SHOWN_ALARMS = 5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Show the file that medbn.monitor.JSONLines writes: each signal, its median in the reference, its last values,"
        "\nand the evidence that it has changed, in per cent of what raises an alarm. On a terminal with the package"
        "\nrich it follows the file until Ctrl-C."
    )
    parser.epilog = (
        "examples:\n  medbn monitor stream.jsonl\n  medbn monitor stream.jsonl --once --signals 'pressure/*' entropy"
    )
    parser.add_argument("file", metavar="FILE", help="written by medbn.monitor.JSONLines")
    parser.add_argument("--once", action="store_true", help="show it as it is now, and end")
    parser.add_argument("--signals", nargs="+", metavar="PATTERN", help="only these, such as 'pressure/*'")
    parser.add_argument("--last", type=positive_int, default=30, metavar="N", help="batches to draw (default: 30)")
    parser.add_argument(
        "--every", type=positive_float, default=1.0, metavar="SECONDS", help="between two reads (default: 1)"
    )


def run(options: argparse.Namespace) -> None:
    """Show the stream once, or follow it."""
    from ..monitor import Reader

    reader = Reader(options.file)
    view = View(options.last, options.signals)
    view.add(reader.read())
    if options.once or not sys.stdout.isatty():
        print(view.text())
        return
    try:
        from rich.live import Live
    except ImportError:
        print(view.text())
        print("\nto follow the stream: pip install 'medbn[bench]', which has rich", file=sys.stderr)
        return
    with Live(view.renderable(), refresh_per_second=4) as live:
        while True:
            time.sleep(options.every)
            new = reader.read()
            if new:
                view.add(new)
                live.update(view.renderable())


class View:
    """What is shown of a stream.

    Args:
        last: how many batches are drawn.
        patterns: shell patterns of the signals to show; None for all.
    """

    def __init__(self, last: int, patterns: Sequence[str] | None) -> None:
        self.last, self.patterns = last, patterns
        self.records: deque[Record] = deque(maxlen=last)
        self.reference: list[Record] = []
        self.alarms: list[Alarm] = []
        self.count = 0

    def add(self, records: Iterable[Record]) -> None:
        """Add new records."""
        for record in records:
            if record.state == "reference":
                if self.records and self.records[-1].state != "reference":
                    self.reference = []  # another reference begins
                self.reference.append(record)
            self.records.append(record)
            self.alarms.extend(record.alarms)
            self.count += 1

    def headline(self) -> str:
        """Return one line on the whole stream."""
        if not self.records:
            return "no batch yet"
        record = self.records[-1]
        what = {"reference": "collecting the reference", "paused": "PAUSED: serving without adapting"}
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.time))
        alarms = f"{len(self.alarms)} alarm{'' if len(self.alarms) == 1 else 's'}"
        return f"batch {record.batch} at {when}; {what.get(record.state, record.state)}; {alarms}"

    def table(self) -> TextTable:
        """Return the table of signals."""
        from fnmatch import fnmatchcase

        if not self.records:
            return COLUMNS, []
        now = self.records[-1]
        names = [n for n in now.signals if not self.patterns or any(fnmatchcase(n, p) for p in self.patterns)]
        if self.patterns and not names:
            raise ValueError(f"no signal is like {' or '.join(self.patterns)}; there are {', '.join(now.signals)}.")
        rows = []
        for name in names:
            usual = [value for r in self.reference if math.isfinite(value := r.signals.get(name, math.nan))]
            rows.append(
                (
                    name,
                    _number(now.signals[name]),
                    _number(statistics.median(usual)) if usual else "",
                    sparkline([record.signals.get(name, math.nan) for record in self.records]),
                    self._evidence(name),
                )
            )
        return COLUMNS, rows

    def _evidence(self, name: str) -> str:
        """Return the evidence of a signal in per cent of what raises an alarm; an alarm is marked."""
        record = self.records[-1]
        if name not in record.evidence:
            return ""
        share = max(record.evidence[name], 0.0) / record.threshold if record.threshold else 0.0
        raised = any(alarm.signal == name for alarm in self.alarms)
        return f"{100 * share:.0f} %{'  ALARM' if raised else ''}"

    def last_alarms(self) -> list[str]:
        """Return the last alarms, the newest first."""
        return [f"ALARM  {alarm}" for alarm in self.alarms[: -SHOWN_ALARMS - 1 : -1]]

    def text(self) -> str:
        """Return everything as plain text."""
        header, rows = self.table()
        parts = [
            self.headline(),
            format_table(header, rows, right=(1, 2)) if rows else "",
            "\n".join(self.last_alarms()),
        ]
        return "\n\n".join(part for part in parts if part)

    def renderable(self) -> Any:
        """Return everything for a terminal, in colour."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        names, rows = self.table()
        drawn = Table(box=None, header_style="dim")
        for number, name in enumerate(names):
            drawn.add_column(name, justify="right" if number in (1, 2) else "left", no_wrap=True)
        for row in rows:
            drawn.add_row(*row, style="bold red" if row[-1].endswith("ALARM") else None)
        paused = bool(self.records) and self.records[-1].state == "paused"
        headline = Text(self.headline(), style="bold red" if paused else "bold")
        return Group(headline, drawn, *(Text(line, style="red") for line in self.last_alarms()))


def sparkline(values: Sequence[float]) -> str:
    """Return numbers as a line of blocks, from the smallest to the largest; a gap where there is no number.

    >>> sparkline([0, 1, float("nan"), 2])
    '▁▅ █'
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    top = len(BLOCKS) - 1
    return "".join(
        BLOCKS[round(top * (value - low) / span) if span else 0] if math.isfinite(value) else " " for value in values
    )


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else ""
