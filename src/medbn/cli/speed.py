"""``medbn speed``: measure what the defence costs on this machine."""

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

from .._errors import unknown_name
from .._version import __version__
from ._arguments import add_device, choose_device, positive_int
from ._completion import complete, estimator_names, model_names, speed_dtypes, speed_layouts, speed_parts
from ._terminal import Progress, check_destination, format_table, show_progress

if TYPE_CHECKING:
    from ..speed import Measurement, Settings

SUMMARY = "time the defence on this machine, beside BatchNorm"
TEXT_COLUMNS = ("shape", "method", "layout", "estimator", "path")
"""Columns of words, aligned to the left; all others are numbers."""
BUSY = 0.5
"""A load of the machine above which a warning is printed."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Measure speed and memory on this machine, each as a ratio to BatchNorm measured in turns with it.\n"
        "Parts: layer, step (one of TENT), attack, scaling (time per element), memory; all of them by default.\n"
        "With --model: batches through that model, with TeBN, TENT and past, and nothing else by default."
    )
    parser.epilog = (
        "examples:\n  medbn speed --quick\n  medbn speed layer memory --estimators median --json speed.json\n"
        "  medbn speed --model torchvision:resnet50 --batch 64 --pixels 224"
    )
    parts = parser.add_argument(
        "parts", nargs="*", metavar="PART", help="layer, step, attack, scaling, memory (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and few repetitions, in seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time and every ratio to a file")
    what = parser.add_argument_group("what to measure")
    estimators = what.add_argument("--estimators", nargs="+", metavar="E", help="default: mean median image_median")
    what.add_argument(
        "--shapes", nargs="+", metavar="S", help="of layers: small (ResNet-26's), all, or BxCxHxW (default: all)"
    )
    layouts = what.add_argument("--layouts", nargs="+", metavar="L", help="nchw, channels_last")
    dtype = what.add_argument(
        "--dtype", default="float32", metavar="T", help="float32, bfloat16, float16 (default: float32)"
    )
    named = what.add_argument("--model", nargs="+", metavar="M", help="models: ours, torchvision:NAME, timm:NAME, ...")
    what.add_argument("--pixels", type=positive_int, metavar="N", help="size of the images of --model (default: 32)")
    what.add_argument("--batch", type=positive_int, metavar="B", help="images in a step and in an attacked batch")
    what.add_argument("--attack-steps", type=positive_int, metavar="N", help="default: 100; 2 on a CPU")
    what.add_argument("--no-reference", action="store_true", help="leave out the reference path, which takes longest")
    what.add_argument("--rounds", type=positive_int, metavar="N", help="rounds of each candidate, of two ratios each")
    place = parser.add_argument_group("machine")
    add_device(place)
    place.add_argument("--threads", type=positive_int, metavar="N", help="torch's threads")
    complete(estimators, estimator_names)
    complete(parts, speed_parts)
    complete(named, model_names)
    complete(layouts, speed_layouts)
    complete(dtype, speed_dtypes)


def run(options: argparse.Namespace) -> None:
    """Measure one part after another, and print and store each measurement as soon as it is made."""
    import torch

    from .. import speed

    every = [part for part in speed.PARTS if part != "model"]
    parts = list(dict.fromkeys(options.parts or (["model"] if options.model else every)))
    for part in parts:
        if part not in speed.PARTS:
            raise unknown_name("part", part, speed.PARTS)
    if ("model" in parts) != bool(options.model):
        raise ValueError("the part 'model' times the models that --model names, such as torchvision:resnet50.")
    settings = _settings(options)
    if options.threads:
        torch.set_num_threads(options.threads)
    if settings.on_gpu:
        torch.cuda.set_device(torch.device(settings.device).index or 0)
    if not settings.robust and parts != ["layer"]:
        raise ValueError("there is nothing to compare with mean; name another estimator: --estimators median")
    environment = speed.describe_environment(settings)
    _check_writable(options.json)
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    command = shlex.join(["medbn", *sys.argv[1:]])
    record = _Record(
        options.json,
        medbn=__version__,
        command=command,
        date=date,
        machine=environment,
        finished=False,
        settings=asdict(settings),
    )
    _print_header(f"$ {command}    # {date}", environment)
    try:
        for part in parts:
            measurements = record.parts.setdefault(part, [])
            try:
                for more in _measure(part, settings):
                    measurements += more
                    record.write()
            finally:
                _print_tables(measurements, environment["device"])
        record.facts["finished"] = True
        record.write()
    except KeyboardInterrupt:
        stored = f"; the measurements so far are in {options.json}" if options.json else ""
        print(f"\nstopped{stored}.", file=sys.stderr)
        raise SystemExit(130) from None


class _Record:
    """The JSON file of all measurements, which is written again after each of them."""

    def __init__(self, path: Path | None, **facts: Any) -> None:
        self.path, self.facts = path, facts
        self.parts: dict[str, list[Measurement]] = {}
        self.write()

    def write(self) -> None:
        """Write the file, with one line per measurement."""
        if self.path is None:
            return
        parts = [
            f"{json.dumps(part)}: [\n" + ",\n".join(json.dumps(row.to_record()) for row in rows) + "\n]"
            for part, rows in self.parts.items()
        ]
        facts = json.dumps(self.facts, indent=1).removesuffix("\n}")
        self.path.write_text(facts + ',\n"parts": {\n' + ",\n".join(parts) + "\n}}\n", encoding="utf-8")


def _settings(options: argparse.Namespace) -> Settings:
    """Return the default settings of the device, changed by the options."""
    from .. import estimators, models, speed

    settings = speed.Settings.defaults(choose_device(options.device), options.quick)
    changes: dict[str, Any] = {"dtype": options.dtype, "reference": not options.no_reference}
    if options.dtype not in speed.DTYPES:
        raise unknown_name("dtype", options.dtype, speed.DTYPES)
    if options.estimators:
        changes["estimators"] = tuple(estimators.get(name).name for name in dict.fromkeys(options.estimators))
    if options.layouts:
        for layout in options.layouts:
            if layout not in speed.LAYOUTS:
                raise unknown_name("layout", layout, speed.LAYOUTS)
        changes["layouts"] = changes["model_layouts"] = tuple(dict.fromkeys(options.layouts))
    if options.shapes:
        shapes = [s for name in options.shapes for s in settings.named_shapes(name)]
        changes["shapes"] = tuple(dict.fromkeys(shapes))
    if options.batch:
        if options.batch < 2:
            raise ValueError("--batch 1 has no benign image to attack; give 2 or more.")
        changes["batch"] = changes["attack_batch"] = options.batch
    if options.attack_steps:
        changes["attack_steps"] = options.attack_steps
    if options.model:
        for name in options.model:
            if ":" not in name and name not in models.available():  # now, and not behind the header
                raise unknown_name("model", name, models.available())
        changes["models"] = tuple(dict.fromkeys(options.model))
    if options.pixels:
        changes["pixels"] = options.pixels
    if options.rounds:
        changes["rounds"] = options.rounds
    return replace(settings, **changes)


def _check_writable(path: Path | None) -> None:
    """Raise a ValueError now, and not after minutes of measuring, if a file cannot be written."""
    if path is None:
        return
    check_destination(path)
    try:
        path.open("a").close()
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}.") from None


def _print_header(first: str, environment: dict[str, Any]) -> None:
    paths = ", ".join(f"{name}: {path}" for name, path in environment["paths"].items())
    load = environment["load"][0] if environment["load"] else 0.0
    print(first)
    print(
        f"{environment['device']}; torch {environment['torch']}, {environment['threads']} threads, load {load};"
        f" {environment['platform']}"
    )
    print(f"paths: {paths or 'none'}. Ratios to BatchNorm: median [quartiles].", flush=True)
    if load > BUSY:
        print(f"other programs are running (load {load}): the numbers may be off.", file=sys.stderr)


def _print_tables(measurements: list[Measurement], device: str) -> None:
    from ..speed import build_tables

    for table in build_tables(measurements, device):
        right = [i for i, name in enumerate(table.columns) if name not in TEXT_COLUMNS]
        print(f"\n{table.title}\n{format_table(table.columns, table.rows, right=right)}")
        print(*table.notes, sep="\n", end="\n" if table.notes else "", flush=True)


def _measure(part: str, settings: Settings) -> Iterator[list[Measurement]]:
    """Yield the measurements of one case after another, and show progress on stderr."""
    from .. import speed

    cases = speed.PARTS[part].cases(settings)
    with _show_progress_line(part) as progress:
        for done, case in enumerate(cases):
            note = ", ".join("×".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in case.values())
            progress.update(done, len(cases), note)
            yield speed.PARTS[part].measure(settings, case)
        progress.update(len(cases), len(cases))


@contextmanager
def _show_progress_line(part: str) -> Iterator[Progress]:
    """Show progress on one line of the terminal, without a thread that would disturb the measurements."""
    if not sys.stderr.isatty():
        with show_progress(part) as lines:
            yield lines
        return

    class Line:
        def update(self, done: float, total: float | None = None, note: str = "") -> None:
            text = f"{part}: {done:.0f} of {total:.0f}  {note}"
            print(f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)

    try:
        yield Line()
    finally:
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
