"""``medbn figure``: draw the paper's figures for any model, data and attack."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from ._arguments import add_device, add_import, add_root, choose_device, natural_int, positive_float, positive_int
from ._completion import complete, corruption_names, dataset_names, estimator_names, figure_names, model_names
from ._figure_files import FigureFiles, locate
from ._terminal import format_table, show_progress

if TYPE_CHECKING:
    from ..analysis import Numbers, Settings

SUMMARY = "draw the paper's figures, or write their numbers"
LISTING, ALL = "list", "all"
DIGITS = "digits"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Draw a figure of the paper, or of ours, for any data, model and attack. Without options it is measured on\n"
        "the embedded digits in seconds, with smaller batches and fewer steps than the paper's. `medbn figure list`\n"
        "says what there is, `medbn figure all` makes a contact sheet. Numbers and poisoned batches are kept in the\n"
        "store: the same command again measures nothing twice."
    )
    parser.epilog = (
        "examples:\n"
        "  medbn figure shift\n"
        "  medbn figure tsne --data cifar10-c --weights resnet26.safetensors --layers all --format pdf\n"
        "  medbn figure all --out figures.png --theme dark\n"
        "  medbn figure all --out pictures/ --json numbers/ --theme light dark\n"
        "  medbn figure shift --csv shift.csv --json shift.json      numbers alone; needs no matplotlib\n"
        "  medbn figure shift --from shift.json --format pdf         draws them\n"
        "  medbn figure shift --width column --no-caption --format pdf"
    )
    name = parser.add_argument("name", metavar="NAME", help="a figure of `medbn figure list`, or all")
    complete(name, figure_names)

    out = parser.add_argument_group("output")
    out.add_argument("--out", metavar="PATH", help="file or folder/ (default: NAME.svg, or the suffix of --format)")
    out.add_argument("--format", metavar="F", help="svg, pdf or png (default: from --out, else svg)")
    out.add_argument(
        "--theme", nargs="+", default=["light"], metavar="T", help="light (default), dark, or both: NAME-dark.svg too"
    )
    out.add_argument("--width", default="page", metavar="W", help="page (default) or column of a paper")
    out.add_argument("--no-caption", action="store_true", help="leave the caption below the figure out")
    out.add_argument("--json", metavar="PATH", help="write the numbers; without --out nothing is drawn")
    out.add_argument("--csv", metavar="PATH", help="the same as a table")
    out.add_argument("--from", dest="source", metavar="PATH", help="draw the numbers of --json and measure nothing")
    out.add_argument("--quiet", action="store_true", help="show no progress")

    what = parser.add_argument_group("what is measured")
    data = what.add_argument("--data", default=DIGITS, metavar="NAME", help="default: digits, which ship with medbn")
    model = what.add_argument("--model", metavar="NAME", help="default: the paper's for this data")
    what.add_argument("--weights", metavar="FILE", help="default: what `medbn train` writes; shipped for digits")
    corruptions = what.add_argument("--corruptions", nargs="+", metavar="C", help="default: the paper's figure's")
    what.add_argument("--severity", type=positive_int, metavar="N", help="1 to 5 (default: 5)")
    estimators = what.add_argument("--estimators", nargs="+", metavar="E", help="default: mean median image_median")
    what.add_argument(
        "--layers", metavar="L", help="stages (default: one layer per stage) or all; also chooses from --from"
    )
    what.add_argument("--batches", type=positive_int, default=1, metavar="N", help="attacked batches (default: 1)")
    what.add_argument(
        "--batch-size", type=positive_int, metavar="B", help="images per batch (default: 200, on digits 100)"
    )
    what.add_argument("--malicious", type=positive_int, metavar="M", help="of them malicious (default: the paper's)")
    what.add_argument("--seed", type=natural_int, default=0, metavar="S", help="0 is the order of the file")
    complete(data, dataset_names)
    complete(model, model_names)
    complete(corruptions, corruption_names)
    complete(estimators, estimator_names)

    attack = parser.add_argument_group("attack")
    attack.add_argument(
        "--steps", type=positive_int, metavar="N", help="default: 100 as in the paper; on digits 8 to 20"
    )
    attack.add_argument(
        "--step-size", type=fraction, metavar="X", help="default: 1/255; larger with fewer steps, to reach as far"
    )
    attack.add_argument("--epsilons", type=fraction, nargs="+", metavar="E", help="default: 1 8/255")
    attack.add_argument(
        "--objectives", nargs="+", metavar="O", help="of figures that compare them (default: targeted indiscriminate)"
    )
    attack.add_argument("--gradient", metavar="G", help="exact (default), straight_through or smooth")
    attack.add_argument("--start", metavar="S", help="grey (default, as the authors' code), offset, clean or random")

    place = parser.add_argument_group("data and machine")
    place.add_argument("--store", default="medbn.db", metavar="FILE", help="keeps the numbers (default: medbn.db)")
    add_root(place)
    add_import(place)
    add_device(place)
    place.add_argument(
        "--threads", type=positive_int, metavar="N", help="torch's threads (default: torch's; on digits 1)"
    )


def fraction(text: str) -> float:
    """Return the positive number in a text such as ``0.5`` or ``8/255``."""
    try:
        return positive_float(str(float(Fraction(text.strip()))))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise argparse.ArgumentTypeError(f"a number such as 1 or 8/255 is expected, not {text!r}") from None


def run(options: argparse.Namespace) -> None:
    """Measure, store and draw one figure or all."""
    from .. import analysis
    from ..bench import import_modules

    import_modules(options.imports)
    if options.name == LISTING:
        print_figures()
        return
    names = analysis.available() if options.name == ALL else [options.name]
    for name in names:
        analysis.get(name)
    analysis.check_layers(options.layers or "stages")
    output = FigureFiles.of(options)
    output.check(names)
    if options.source:
        for name in names:
            path = locate(options.source, name, "json")
            numbers = read_numbers(path, name, quiet=options.quiet)
            output.write(analysis.choose_layers(numbers, options.layers) if options.layers else numbers)
    else:
        for numbers in measure_figures(options, names):
            output.write(numbers)
    if options.name == ALL:
        output.write_contact_sheet()


def measure_figures(options: argparse.Namespace, names: list[str]) -> Iterator[Numbers]:
    """Yield the numbers of one figure after another, which are stored as soon as they are measured."""
    from .. import analysis
    from ..bench import Place, Store

    settings = {name: read_settings(options, name) for name in names}
    command = shlex.join(["medbn", *sys.argv[1:]])
    device = choose_device(options.device)
    # Threads wait for each other after every operation, and spin meanwhile: where other programs use the cores, two
    # take many times as long as one. On idle cores they are not much faster, for digits are small.
    threads = options.threads or (1 if options.data == DIGITS and device == "cpu" else None)
    place = Place(options.root, device, threads)
    check_data(settings, options.root)
    with Store(options.store) as store:
        for name in names:
            parts = analysis.get(name).parts
            with show_parts(name, parts and parts(settings[name]), quiet=options.quiet) as on_step:
                experiment = analysis.Experiment(settings[name], place, store, command, on_step)
                numbers = analysis.measure(name, experiment)
            yield numbers


@contextmanager
def show_parts(name: str, parts: int | None, *, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show how many of the parts of a figure are done; the function that is returned is called after their steps.

    Args:
        name: of the figure.
        parts: how many parts there are, such as attacks; None if that is not known.
        quiet: show nothing.
    """
    finished = 0
    with show_progress(name, quiet=quiet) as progress:

        def on_step(what: str, done: int, steps: int) -> None:
            nonlocal finished
            note = f"{what} {finished + 1}" + (f" of {parts}" if parts else "")
            if parts:
                progress.update(min(finished + done / steps, parts), parts, note)
            else:
                progress.update(done, steps, note)
            finished += done == steps

        yield on_step
        if parts and finished:  # what was stored before is not reported part by part
            progress.update(parts, parts, "done")


def read_numbers(path: Path, name: str, *, quiet: bool) -> Numbers:
    """Return the numbers of a figure from a file of ``--json``."""
    from .. import analysis

    try:
        numbers = analysis.Numbers.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}.") from None
    except (TypeError, ValueError):
        raise ValueError(f"{path} has no numbers that `medbn figure --json` wrote.") from None
    if numbers.figure != name:
        raise ValueError(f"{path} has the numbers of the figure {numbers.figure!r}, not of {name!r}.")
    with show_parts(name, 1, quiet=quiet) as on_step:
        return analysis.complete(numbers, on_step)


def print_figures() -> None:
    """Print the names of the figures and what they show."""
    from .. import analysis

    entries = [(name, analysis.get(name)) for name in analysis.available()]
    print(format_table(["name", "paper", "what it shows"], [[name, e.paper, e.title] for name, e in entries]))


def read_settings(options: argparse.Namespace, name: str) -> Settings:
    """Return what to measure a figure on, from the options."""
    from .. import analysis
    from ..bench import Setting

    known = analysis.known_setting(options.data)
    if known is None and not options.model:
        raise ValueError(f"--data {options.data} needs --model and --weights; `medbn models` lists the models.")
    setting = known or Setting(options.data, options.model)
    if options.model and options.model != setting.model:
        setting = replace(setting, model=options.model, weights=None)
    changes = {
        "weights": options.weights,
        "severity": options.severity,
        "batch_size": options.batch_size,
        "malicious": options.malicious,
    }
    if options.batch_size and not options.malicious:  # the same share of the batch
        changes["malicious"] = max(1, options.batch_size * setting.malicious // setting.batch_size)
    setting = replace(setting, **{name: value for name, value in changes.items() if value is not None})
    defaults = analysis.default_settings(name)
    steps = options.steps or (defaults.attack.steps if options.data == DIGITS else analysis.PAPER_STEPS)
    attack = analysis.attack_of(steps, options.step_size)
    chosen = {"start": options.start, "gradient": options.gradient}
    return replace(
        defaults,
        setting=setting,
        attack=replace(attack, **{name: value for name, value in chosen.items() if value is not None}),
        estimators=tuple(dict.fromkeys(options.estimators or defaults.estimators)),
        epsilons=tuple(dict.fromkeys(options.epsilons or defaults.epsilons)),
        corruptions=tuple(dict.fromkeys(options.corruptions or ())),
        objectives=tuple(dict.fromkeys(options.objectives or ())),
        batches=options.batches,
        seed=options.seed,
        layers=options.layers or "stages",
    )


def check_data(settings: dict[str, Settings], root: str | None) -> None:
    """Raise an error that says which data or weights figures need and how to get them."""
    from .. import analysis
    from ..bench import MissingError, missing_requirements

    shown = [name for name in settings if analysis.get(name).on_data]
    missing = missing_requirements(settings[shown[0]].setting, ["tebn"], root) if shown else []
    if missing:
        raise MissingError(f"figure {shown[0]!r} needs: {'; '.join(missing)}.")
