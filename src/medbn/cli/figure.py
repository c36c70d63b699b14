"""``medbn figure``: draw the paper's figures for any model, data and attack."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from .._files import replace_atomically
from ._arguments import add_device, add_import, add_root, choose_device, natural_int, positive_float, positive_int
from ._completion import complete, corruption_names, dataset_names, estimator_names, figure_names, model_names
from ._terminal import check_destination, format_table, show_progress

if TYPE_CHECKING:
    from ..analysis import Experiment, Numbers, Settings

SUMMARY = "draw the paper's figures, or write their numbers"
LISTING = "list"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Draw a figure of the paper, or of ours, for any data, model and attack. Without options it is measured on\n"
        "the embedded digits in seconds. `medbn figure list` says what there is, `medbn figure all` makes a contact\n"
        "sheet. Numbers and poisoned batches are kept in the store: the same command again\nmeasures nothing twice."
    )
    parser.epilog = (
        "examples:\n"
        "  medbn figure shift\n"
        "  medbn figure tsne --data cifar10-c --weights resnet26.safetensors --layers all --format pdf\n"
        "  medbn figure all --out figures.png --theme dark\n"
        "  medbn figure shift --csv shift.csv --json shift.json      numbers alone; needs no matplotlib"
    )
    name = parser.add_argument("name", metavar="NAME", help="a figure of `medbn figure list`, or all")
    complete(name, figure_names)

    out = parser.add_argument_group("output")
    out.add_argument("--out", type=Path, metavar="FILE", help="default: NAME.svg, or the suffix of --format")
    out.add_argument("--format", metavar="F", help="svg, pdf or png (default: from --out, else svg)")
    out.add_argument("--theme", default="light", metavar="T", help="light (default) or dark")
    out.add_argument("--no-caption", action="store_true", help="leave the caption below the figure out")
    out.add_argument("--json", type=Path, metavar="FILE", help="write the numbers; without --out nothing is drawn")
    out.add_argument("--csv", type=Path, metavar="FILE", help="the same as a table")
    out.add_argument("--quiet", action="store_true", help="show no progress")

    what = parser.add_argument_group("what is measured")
    data = what.add_argument("--data", default="digits", metavar="NAME", help="default: digits, which ship with medbn")
    model = what.add_argument("--model", metavar="NAME", help="default: the paper's for this data")
    what.add_argument("--weights", metavar="FILE", help="default: what `medbn train` writes; shipped for digits")
    corruptions = what.add_argument("--corruptions", nargs="+", metavar="C", help="default: the paper's figure's")
    what.add_argument("--severity", type=positive_int, metavar="N", help="1 to 5 (default: 5)")
    estimators = what.add_argument("--estimators", nargs="+", metavar="E", help="default: mean median image_median")
    what.add_argument("--layers", default="stages", metavar="L", help="stages (default: one layer per stage) or all")
    what.add_argument("--batches", type=positive_int, default=1, metavar="N", help="attacked batches (default: 1)")
    what.add_argument("--batch-size", type=positive_int, metavar="B", help="images per batch (default: 200)")
    what.add_argument("--malicious", type=positive_int, metavar="M", help="of them malicious (default: the paper's)")
    what.add_argument("--seed", type=natural_int, default=0, metavar="S", help="0 is the order of the file")
    complete(data, dataset_names)
    complete(model, model_names)
    complete(corruptions, corruption_names)
    complete(estimators, estimator_names)

    attack = parser.add_argument_group("attack")
    attack.add_argument("--steps", type=positive_int, metavar="N", help="default: 100 as in the paper; 40 on digits")
    attack.add_argument(
        "--step-size", type=fraction, metavar="X", help="default: 1/255; larger with fewer steps, to reach as far"
    )
    attack.add_argument("--epsilons", type=fraction, nargs="+", metavar="E", help="default: 1 8/255")
    attack.add_argument(
        "--objectives", nargs="+", metavar="O", help="of figures that compare them (default: targeted indiscriminate)"
    )
    attack.add_argument("--start", metavar="S", help="grey (default, as the authors' code), offset, clean or random")

    place = parser.add_argument_group("data and machine")
    place.add_argument("--store", default="medbn.db", metavar="FILE", help="keeps the numbers (default: medbn.db)")
    add_root(place)
    add_import(place)
    add_device(place)
    place.add_argument("--threads", type=positive_int, metavar="N", help="torch's threads")


def fraction(text: str) -> float:
    """Return the positive number in a text such as ``0.5`` or ``8/255``."""
    try:
        return positive_float(str(float(Fraction(text.strip()))))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise argparse.ArgumentTypeError(f"a number such as 1 or 8/255 is expected, not {text!r}") from None


def run(options: argparse.Namespace) -> None:
    """Measure, store and draw one figure or all."""
    from .. import analysis
    from ..bench import Place, Store, import_modules

    import_modules(options.imports)
    if options.name == LISTING:
        print_figures()
        return
    names = analysis.available() if options.name == "all" else [options.name]
    for name in names:
        analysis.get(name)
    settings = read_settings(options)
    form = options.format or (options.out.suffix[1:] if options.out else "svg")
    picture = options.out or (None if options.json or options.csv else Path(f"{options.name}.{form}"))
    check(options, picture, form)
    command = shlex.join(["medbn", *sys.argv[1:]])
    place = Place(options.root, choose_device(options.device), options.threads)
    with Store(options.store) as store, show_progress(options.name, quiet=options.quiet) as progress:
        experiment = analysis.Experiment(
            settings, place, store, command, lambda what, n, of: progress.update(n, of, what)
        )
        measured = []
        for name in names:
            check_data(experiment, name)
            measured.append(analysis.measure(name, experiment))
    write(measured, options, picture, form)


def print_figures() -> None:
    """Print the names of the figures and what they show."""
    from .. import analysis

    entries = [(name, analysis.get(name)) for name in analysis.available()]
    print(format_table(["name", "paper", "what it shows"], [[name, e.paper, e.title] for name, e in entries]))


def read_settings(options: argparse.Namespace) -> Settings:
    """Return what to measure on, from the options."""
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
    defaults = analysis.Settings()
    steps = options.steps or (defaults.attack.steps if options.data == "digits" else analysis.PAPER_STEPS)
    attack = analysis.attack_of(steps, options.step_size)
    return replace(
        defaults,
        setting=setting,
        attack=replace(attack, start=options.start) if options.start else attack,
        estimators=tuple(dict.fromkeys(options.estimators or defaults.estimators)),
        epsilons=tuple(dict.fromkeys(options.epsilons or defaults.epsilons)),
        corruptions=tuple(dict.fromkeys(options.corruptions or ())),
        objectives=tuple(dict.fromkeys(options.objectives or ())),
        batches=options.batches,
        seed=options.seed,
        layers=options.layers,
    )


def check(options: argparse.Namespace, picture: Path | None, form: str) -> None:
    """Raise an error now, and not after measuring, if something cannot be written or drawn."""
    from .. import analysis

    if (options.json or options.csv) and options.name == "all":
        raise ValueError("--json and --csv write the numbers of one figure; name it instead of all.")
    for path in (picture, options.json, options.csv):
        if path is not None:
            check_destination(path)
    if picture is not None:
        analysis.check_format(form, options.theme)
        analysis.check_drawing()


def check_data(experiment: Experiment, name: str) -> None:
    """Raise an error that says which data or weights a figure needs and how to get them."""
    from .. import analysis
    from ..bench import MissingError, missing_requirements

    setting = experiment.settings.setting
    missing = missing_requirements(setting, ["tebn"], experiment.place.root) if analysis.get(name).on_data else []
    if missing:
        raise MissingError(f"figure {name!r} needs: {'; '.join(missing)}.")


def write(measured: list[Numbers], options: argparse.Namespace, picture: Path | None, form: str) -> None:
    """Write the files and print their paths."""
    from .. import analysis

    files: dict[Path, bytes] = {}
    if options.json:
        files[options.json] = measured[0].to_json().encode()
    if options.csv:
        files[options.csv] = measured[0].to_csv().encode()
    if picture and options.name == "all":
        files[picture] = analysis.contact_sheet(measured, form, options.theme)
    elif picture:
        files[picture] = analysis.render(measured[0], form, options.theme, caption=not options.no_caption)
    for path, content in files.items():
        try:
            with replace_atomically(path) as partial:
                partial.write_bytes(content)
        except OSError as error:
            raise ValueError(f"cannot write {path}: {error.strerror}.") from None
        print(path)
