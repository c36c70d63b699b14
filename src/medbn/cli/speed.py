"""``medbn speed``: what the defence costs on this machine."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._arguments import choose_device, positive_int
from ._terminal import Progress, check_destination, format_table, show_progress

if TYPE_CHECKING:
    from ..speed import Row, Settings

LEFT = ("shape", "method", "layout", "estimator", "path")
"""Columns of words; all others are of numbers."""


SUMMARY = "time the defence on this machine, beside BatchNorm"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Measure speed and memory on this machine, each as a ratio to BatchNorm measured in turns with it."
        " Parts: layer, step (one of TENT), attack, scaling (time per element), memory; all of them by default."
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="layer, step, attack, scaling, memory (default: all)")
    parser.add_argument("--quick", action="store_true", help="small and few, in seconds: a first look")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    what = parser.add_argument_group("what")
    what.add_argument("--estimators", nargs="+", metavar="E", help="default: mean median image_median")
    what.add_argument(
        "--shapes", nargs="+", metavar="S", help="of layers: small (ResNet-26's), all, or BxCxHxW (default: all)"
    )
    what.add_argument("--layouts", nargs="+", metavar="L", help="nchw, channels_last")
    what.add_argument("--dtype", default="float32", metavar="T", help="float32, bfloat16, float16 (default: float32)")
    what.add_argument("--batch", type=positive_int, metavar="B", help="images in a step and an attacked batch")
    what.add_argument("--attack-steps", type=positive_int, metavar="N", help="default: 100; 2 on a CPU")
    what.add_argument("--no-reference", action="store_true", help="leave the reference path out, which takes longest")
    what.add_argument("--rounds", type=positive_int, metavar="N", help="turns, each with two ratios")
    place = parser.add_argument_group("where")
    place.add_argument("--device", help="default: cuda where there is one, else cpu")
    place.add_argument("--threads", type=positive_int, metavar="N", help="torch's threads")


def run(options: argparse.Namespace) -> None:
    """Measure part after part; what is measured is printed and kept, however it ends."""
    import torch

    from .. import speed
    from .._errors import unknown_name
    from .._version import __version__

    parts = list(dict.fromkeys(options.parts or speed.PARTS))
    for part in parts:
        if part not in speed.PARTS:
            raise unknown_name("part", part, speed.PARTS)
    settings = _settings(options)
    if options.threads:
        torch.set_num_threads(options.threads)
    if settings.on_gpu:
        torch.cuda.set_device(torch.device(settings.device).index or 0)
    if not settings.robust and parts != ["layer"]:
        raise ValueError("there is nothing to compare with mean; name another estimator: --estimators median")
    machine = speed.describe(settings)
    _check_writable(options.json)
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    command = shlex.join(["medbn", *sys.argv[1:]])
    record = _Record(options.json, medbn=__version__, command=command, date=date, machine=machine)
    record.head["settings"] = asdict(settings)
    _header(f"$ {command}    # {date}", machine)
    try:
        for part in parts:
            rows = record.parts.setdefault(part, [])
            try:
                for more in _measured(part, settings):
                    rows += more
                    record.write()
            finally:
                for table in speed.tables(rows, machine["device"]):
                    right = [i for i, name in enumerate(table.columns) if name not in LEFT]
                    print(f"\n{table.title}\n{format_table(table.columns, table.rows, right=right)}")
                    print(*table.notes, sep="\n", end="\n" if table.notes else "", flush=True)
        record.head["finished"] = True
        record.write()
    except KeyboardInterrupt:
        kept = f"; what is measured is in {options.json}" if options.json else ""
        print(f"\nstopped{kept}.", file=sys.stderr)
        raise SystemExit(130) from None


class _Record:
    """Everything that is measured, in a file, as far as it is."""

    def __init__(self, path: Path | None, **head: Any) -> None:
        self.path, self.head = path, {**head, "finished": False}
        self.parts: dict[str, list[Row]] = {}
        self.write()

    def write(self) -> None:
        """Put it there; a row is a line."""
        if self.path is None:
            return
        parts = [
            f"{json.dumps(part)}: [\n" + ",\n".join(json.dumps(row.record()) for row in rows) + "\n]"
            for part, rows in self.parts.items()
        ]
        head = json.dumps(self.head, indent=1).removesuffix("\n}")
        self.path.write_text(head + ',\n"parts": {\n' + ",\n".join(parts) + "\n}}\n", encoding="utf-8")


def _settings(options: argparse.Namespace) -> Settings:
    """The device's usual settings, with what was asked for in their place."""
    from .. import estimators, speed
    from .._errors import unknown_name

    settings = speed.Settings.usual_for(choose_device(options.device), options.quick)
    given: dict[str, Any] = {"dtype": options.dtype, "reference": not options.no_reference}
    if options.dtype not in speed.DTYPES:
        raise unknown_name("dtype", options.dtype, speed.DTYPES)
    if options.estimators:
        given["estimators"] = tuple(estimators.get(name).name for name in dict.fromkeys(options.estimators))
    if options.layouts:
        for layout in options.layouts:
            if layout not in speed.LAYOUTS:
                raise unknown_name("layout", layout, speed.LAYOUTS)
        given["layouts"] = given["model_layouts"] = tuple(dict.fromkeys(options.layouts))
    if options.shapes:
        shapes = [s for name in options.shapes for s in settings.named_shapes(name)]
        given["shapes"] = tuple(dict.fromkeys(shapes))
    if options.batch:
        if options.batch < 2:
            raise ValueError("--batch 1 has nobody to attack; give 2 or more.")
        given["batch"] = given["attack_batch"] = options.batch
    if options.attack_steps:
        given["attack_steps"] = options.attack_steps
    if options.rounds:
        given["rounds"] = options.rounds
    return replace(settings, **given)


def _check_writable(path: Path | None) -> None:
    """Find out now, and not after minutes of measuring."""
    if path is None:
        return
    check_destination(path)
    try:
        path.open("a").close()
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}.") from None


def _header(first: str, machine: dict[str, Any]) -> None:
    paths = ", ".join(f"{name}: {path}" for name, path in machine["paths"].items())
    print(first)
    load = machine["load"][0] if machine["load"] else 0.0
    threads = f"{machine['threads']} threads, load {load}"
    print(f"{machine['device']}; torch {machine['torch']}, {threads}; {machine['platform']}")
    print(f"paths: {paths or 'none'}. Ratios to BatchNorm: median [quartiles].", flush=True)
    if load > 0.5:
        print(f"other programs are running here (load {load}): numbers may be off.", file=sys.stderr)


def _measured(part: str, settings: Settings) -> Iterator[list[Row]]:
    """The rows of one situation after the other, with a word on stderr about each."""
    from .. import speed

    situations = speed.PARTS[part].situations(settings)
    with _progress(part) as bar:
        for done, where in enumerate(situations):
            note = ", ".join("×".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in where.values())
            bar.update(done, len(situations), note)
            yield speed.PARTS[part].measure(settings, where)
        bar.update(len(situations), len(situations))


@contextmanager
def _progress(part: str) -> Iterator[Progress]:
    """A line that is written over. A bar that moves has a thread to move it, and that would be on the clock."""
    if not sys.stderr.isatty():
        with show_progress(part) as bar:
            yield bar
        return

    class Line:
        def update(self, done: float, total: float | None = None, note: str = "") -> None:
            text = f"{part}: {done:.0f} of {total:.0f}  {note}"
            print(f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)

    try:
        yield Line()
    finally:
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
