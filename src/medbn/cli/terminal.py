"""What a terminal shows: bars where somebody looks, plain lines where nobody does."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol


class Bar(Protocol):
    """Something that moves."""

    def update(self, done: float, total: float | None = None, note: str = "") -> None:
        """Show how far it is."""


class _Quiet:
    def update(self, done: float, total: float | None = None, note: str = "") -> None:
        """Show nothing."""


class _Lines:
    """A line at the start of every fifth, and at the end; never more than one in two seconds in between."""

    def __init__(self, title: str) -> None:
        self.title, self.shown, self.last = title, -1, -2.0

    def update(self, done: float, total: float | None = None, note: str = "") -> None:
        """Print a line, unless one was printed a moment ago."""
        fifth = int(5 * done / total) if total else 0
        now = time.monotonic()
        if fifth > self.shown and (fifth == 5 or now - self.last > 2):
            self.shown, self.last = fifth, now
            share = f" {100 * done / total:3.0f} %" if total else ""
            print(f"{self.title}{share}{'  ' + note if note else ''}", file=sys.stderr, flush=True)


Rows = tuple[Sequence[str], Sequence[Sequence[str]]]
"""A table: its columns, and its rows."""


@contextmanager
def bar(title: str, *, quiet: bool = False, unit: str = "", table: Callable[[], Rows] | None = None) -> Iterator[Bar]:
    """A progress bar on stderr; ``unit`` "bytes" shows sizes and speed, ``table`` is shown above it, as it is then."""
    if quiet:
        yield _Quiet()
        return
    try:
        if not sys.stderr.isatty():
            raise ImportError
        from rich import progress
        from rich.console import Console, RenderableType
        from rich.table import Table
    except ImportError:
        yield _Lines(title)
        return
    size: Sequence[progress.ProgressColumn] = (
        [progress.DownloadColumn(), progress.TransferSpeedColumn()] if unit == "bytes" else []
    )
    columns = [
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        *size,
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}"),
    ]

    class Shown(progress.Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            if table is not None:
                drawn = Table(box=None, header_style="dim")
                names, rows = table()
                for number, name in enumerate(names):
                    drawn.add_column(name, justify="right" if number > 1 else "left")
                for row in rows:
                    drawn.add_row(*row)
                yield drawn
            yield self.make_tasks_table(self.tasks)

    with Shown(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(title, total=None, note="")

        class Rich:
            def update(self, done: float, total: float | None = None, note: str = "") -> None:
                shown.update(task, completed=done, total=total, note=note)

        yield Rich()


def device(given: str | None) -> str:
    """The device to compute on: as given, if it is there; else a GPU where there is one."""
    import torch

    if given is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(given)
        torch.empty(0, device=kind)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(f"the device {given!r} is not usable here; try --device cpu.") from None
    return given


def check_destination(path: Path) -> None:
    """Refuse what cannot become a file, before there is anything to write."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give a file.")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: the folder {path.parent} does not exist.")


def positive(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """A whole number from 0 on, for argparse."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"a whole number from {least} on is expected, not {text!r}")
    return number


def above_zero(text: str) -> float:
    """A number above 0, for argparse."""
    number = _number(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"a number above 0 is expected, not {text!r}")
    return number


def not_negative(text: str) -> float:
    """A number from 0 on, for argparse."""
    number = _number(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"a number from 0 on is expected, not {text!r}")
    return number


def _number(text: str) -> float:
    """The number, if it is one and finite; NaN, which is not above anything, otherwise."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Aligned columns of text; ``right`` are the numbers of the columns that are aligned there."""
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in lines
    )
