"""Output on a terminal: progress bars, or plain lines where stderr is not a terminal, and tables of text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

TextTable = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The names of the columns, and the rows."""


class Progress(Protocol):
    """A display of progress that can be updated."""

    def update(self, done: float, total: float | None = None, note: str = "") -> None:
        """Show that ``done`` of ``total`` is done, and a note."""


class _NoProgress:
    def update(self, done: float, total: float | None = None, note: str = "") -> None:
        """Show nothing."""


class _ProgressLines:
    """Prints a line at every fifth of the work; between the start and the end at most one in two seconds."""

    def __init__(self, title: str) -> None:
        self.title, self.last_fifth, self.last_time = title, -1, -2.0

    def update(self, done: float, total: float | None = None, note: str = "") -> None:
        """Print a line if another fifth is done."""
        fifth = int(5 * done / total) if total else 0
        now = time.monotonic()
        if fifth > self.last_fifth and (fifth == 5 or now - self.last_time > 2):
            self.last_fifth, self.last_time = fifth, now
            percentage = f" {100 * done / total:3.0f} %" if total else ""
            print(f"{self.title}{percentage}{'  ' + note if note else ''}", file=sys.stderr, flush=True)


@contextmanager
def show_progress(
    title: str, *, quiet: bool = False, unit: str = "", table: Callable[[], TextTable] | None = None
) -> Iterator[Progress]:
    """Show progress on stderr: a bar on a terminal that has the package rich, plain lines elsewhere.

    Args:
        title: printed before the bar.
        quiet: show nothing.
        unit: ``"bytes"`` adds sizes and transfer speed.
        table: returns a table to show above the bar; called whenever the bar is drawn.
    """
    if quiet:
        yield _NoProgress()
        return
    try:
        if not sys.stderr.isatty():
            raise ImportError
        from rich import progress
        from rich.console import Console, RenderableType
        from rich.table import Table
    except ImportError:
        yield _ProgressLines(title)
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

    class BarBelowTable(progress.Progress):
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

    with BarBelowTable(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None, note="")

        class RichProgress:
            def update(self, done: float, total: float | None = None, note: str = "") -> None:
                bar.update(task, completed=done, total=total, note=note)

        yield RichProgress()


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Return a table as lines of text with aligned columns.

    Args:
        header: the names of the columns.
        rows: the cells.
        right: indices of the columns that are aligned to the right.

    >>> print(format_table(["shape", "ms"], [["4×3", "0.5"], ["16×64", "12.0"]], right=[1]))
    shape    ms
    4×3     0.5
    16×64  12.0
    """
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in lines
    )


def check_destination(path: Path) -> None:
    """Raise a ValueError if no file can be written to ``path``."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give a file.")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: the folder {path.parent} does not exist.")
