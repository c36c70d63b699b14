"""Does a median protect streets, also from an attacker who knows about gradients? Cityscapes to CARLA, CamVid to dusk.

    python experiments/segmentation_transfer.py [PIECE ...] [--root DATA] [--minutes 9] [--store segmentation.db]

Without a piece, all of them run in the order below, and train the two models first. Everything is continued where it
was stopped: run the same command again until it says that all is done. It is for a GPU: an attack takes 2 to 4 s on
an H200. docs/results/segmentation.md has what was measured of the first three pieces.

--within 3.5             train each model for so many minutes, with as many epochs as fit, and then attack
--size 384x512           read CARLA's images at this height and width; Cityscapes and CamVid keep the sizes of training
--turns                  the cells take turns, a batch of each at a time: wherever the run stops, all have as many
--minutes 9              stop after so many minutes, training included
--seal FILE              copy the numbers at the end, without pictures: these streets are not ours to pass on

Several commands, each with pieces of its own, may run at once into one store.

The data folder needs ``cityscapes`` (the published layout; 512 × 256 is enough), ``CamVid``, ``carla`` (a folder with
images/, labels/ and classes.toml) and ``models/resnet50-imagenet.safetensors``, ImageNet weights of the backbone.
``medbn data info cityscapes`` and ``medbn data info camvid`` say where the first two come from.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from medbn import bench, cli, data
from medbn.bench import DEFENCES, UNCORRUPTED, Event, Recipe, Setting

MODEL = "deeplabv3plus-resnet50"
SIZES = {"cityscapes": (256, 512), "camvid-day": (360, 480)}
"""Height and width that each model is trained at, by the dataset that it is trained on."""
PRIORS = ("mean@0.6", "median@0.6", "image_median@0.6")
CORRUPTIONS = ("gaussian_noise", "fog", "contrast")
"""One of noise, one of weather, one of light."""


def streets(name: str, target: Setting, recipe: str, about: str, batches: int | None, **changes: object) -> Recipe:
    """Return a recipe of the bench on another target; ``changes`` are fields of Recipe."""
    base = bench.recipes.get(recipe)
    malicious = 1 if base.attacks else 0
    target = replace(target, malicious=malicious)
    return replace(base, name=name, about=about, settings=(target,), batches=batches, published=(), **changes)


def list_pieces(options: argparse.Namespace) -> dict[str, list[Recipe]]:
    """Return the recipes of each piece, in the order in which they run."""
    start = bench.recipes.get("segmentation-targeted").settings[0]
    carla = start if options.smoke else replace(start, data=str(options.carla), size=options.size)
    corrupted = replace(start, data="cityscapes", size=SIZES["cityscapes"])
    dusk = replace(start, data="camvid-dusk", clean="camvid-day", size=SIZES["camvid-day"])
    none, one, all_ = "segmentation-no-attack", "segmentation-targeted", "segmentation-indiscriminate"
    exact_and_smooth = {
        recipe: tuple(a for a in bench.recipes.get(recipe).attacks if a.gradient in ("exact", "smooth"))
        for recipe in (one, all_)
    }
    source_and_tebn = {"methods": ("source", "tebn"), "estimators": (*DEFENCES, *PRIORS)}
    mixed = "Cityscapes to CARLA: batch statistics mixed with those of training."
    return {
        "no-attack": [
            streets("carla-no-attack", carla, none, "Cityscapes to CARLA without attack.", None, **source_and_tebn)
        ],
        "targeted": [streets("carla-targeted", carla, one, "Cityscapes to CARLA: one pixel.", 60, estimators=DEFENCES)],
        "indiscriminate": [
            streets("carla-indiscriminate", carla, all_, "Cityscapes to CARLA: all pixels.", 60, estimators=DEFENCES)
        ],
        "priors": [
            streets("carla-priors-targeted", carla, one, f"{mixed} One pixel.", 60, estimators=PRIORS),
            streets("carla-priors-indiscriminate", carla, all_, f"{mixed} All pixels.", 60, estimators=PRIORS),
        ],
        "corruptions": [
            streets(
                f"cityscapes-c-{kind}",
                corrupted,
                recipe,
                f"Cityscapes to Cityscapes-C: {what}.",
                20,
                estimators=DEFENCES,
                attacks=exact_and_smooth[recipe],
                corruptions=CORRUPTIONS,
            )
            for kind, recipe, what in (("targeted", one, "one pixel"), ("indiscriminate", all_, "all pixels"))
        ],
        "dusk": [
            streets("dusk-no-attack", dusk, none, "CamVid by day to dusk without attack.", None, **source_and_tebn),
            streets("dusk-targeted", dusk, one, "CamVid by day to dusk: one pixel.", 20, estimators=DEFENCES),
            streets("dusk-indiscriminate", dusk, all_, "CamVid by day to dusk: all pixels.", 20, estimators=DEFENCES),
        ],
    }


PIECES = ("no-attack", "targeted", "indiscriminate", "priors", "corruptions", "dusk")
SOURCES = {"dusk": "camvid-day"}
"""What the model of a piece is trained on; Cityscapes where it is not listed."""


def train_missing_models(pieces: list[str], options: argparse.Namespace, deadline: float | None) -> bool:
    """Train the models that the pieces need and that are not there yet; return whether all are there.

    Training keeps a checkpoint after every epoch, so that it may be stopped here and is continued the next time.
    """
    for source in dict.fromkeys(SOURCES.get(piece, "cityscapes") for piece in pieces):
        height, width = SIZES[source]
        weights = data.find_root(options.root) / "models" / f"{MODEL}-{source}.safetensors"
        if weights.is_file():
            continue
        command = ["medbn", "train", MODEL, "--data", source, "--size", f"{height}x{width}", "--out", str(weights)]
        command += ["--backbone", str(options.backbone), "--device", options.device]
        command += ["--root", str(options.root)] if options.root else []
        command += ["--epochs", str(options.epochs)] if options.epochs else []
        command += ["--within", str(options.within)] if options.within else []
        weights.parent.mkdir(parents=True, exist_ok=True)
        print(shlex.join(command), flush=True)
        process = subprocess.Popen([sys.executable, "-m", *command])
        try:
            code = process.wait(None if deadline is None else max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait()
            return False
        if code:
            raise ValueError(f"training on {source} ended with exit code {code}; see above.")
    return True


def find_missing_data(pieces: list[str], options: argparse.Namespace) -> list[str]:
    """Return what has to be there before anything is trained, and is not."""
    missing = []
    for source in dict.fromkeys(SOURCES.get(piece, "cityscapes") for piece in pieces):
        if not data.get(source).is_present(options.root):
            missing.append(f"{source} ({data.get(source).how_to_get()})")
        weights = data.find_root(options.root) / "models" / f"{MODEL}-{source}.safetensors"
        if not weights.is_file() and not options.backbone.is_file():
            missing.append(f"ImageNet weights of a ResNet-50, {options.backbone} (or name them with --backbone)")
    if {"no-attack", "targeted", "indiscriminate", "priors"} & set(pieces) and not (
        options.carla / "classes.toml"
    ).is_file():
        missing.append(f'{options.carla} with images/, labels/ and classes.toml (the line classes = "cityscapes")')
    return list(dict.fromkeys(missing))


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help=", ".join(PIECES))
    parser.add_argument("--store", type=Path, default=Path("segmentation.db"), help="default: %(default)s")
    parser.add_argument("--root", type=Path, help="the data folder")
    parser.add_argument("--carla", type=Path, metavar="FOLDER", help="default: carla in the data folder")
    parser.add_argument("--backbone", type=Path, metavar="FILE", help="default: models/resnet50-imagenet.safetensors")
    parser.add_argument("--minutes", type=cli.positive_float, help="stop after this long")
    parser.add_argument("--jobs", type=cli.positive_int, default=1, help="processes (default: 1)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=cli.positive_int, help="of training, instead of the command's own")
    parser.add_argument("--within", type=cli.positive_float, metavar="MINUTES", help="train each model for this long")
    parser.add_argument(
        "--size", type=cli.image_size, default=(384, 512), metavar="HEIGHTxWIDTH", help="of CARLA (default: 384x512)"
    )
    parser.add_argument("--turns", action="store_true", help="run the cells in turns, a batch of each at a time")
    parser.add_argument("--batches", type=cli.positive_int, help="of each stream, instead of what is reported")
    parser.add_argument("--steps", type=cli.positive_int, help="of each attack, instead of 100")
    parser.add_argument("--smoke", action="store_true", help="on scenes and a small model, in a minute or two")
    parser.add_argument("--seal", type=Path, metavar="FILE", help="copy the results there at the end")
    options = parser.parse_args()
    unknown = [name for name in options.pieces if name not in PIECES]
    if unknown:
        parser.error(f"pieces are {', '.join(PIECES)}, not {unknown[0]}.")
    if options.turns and options.jobs > 1:
        parser.error("--turns runs in one process; leave --jobs out, or start one command per piece.")
    options.device = cli.choose_device(options.device)
    options.carla = options.carla or data.find_root(options.root) / "carla"
    options.backbone = options.backbone or data.find_root(options.root) / "models" / "resnet50-imagenet.safetensors"
    pieces = options.pieces or list(PIECES)
    recipes = [_narrow(recipe, options) for name in pieces for recipe in list_pieces(options)[name]]
    began = time.monotonic()
    deadline = None if options.minutes is None else began + 60 * options.minutes
    if not options.smoke:
        missing = find_missing_data(pieces, options)
        if missing:
            raise bench.MissingError(f"this needs: {'; '.join(missing)}.")
        if not train_missing_models(pieces, options, deadline):
            print("training is to be continued.")
            return
    batches = 0

    def print_progress(event: Event) -> None:
        nonlocal batches
        if event.kind == "batch":
            batches += 1
            if batches % 20 == 0:
                print(f"{time.monotonic() - began:5.0f} s  {batches} batches  {event.cell.label}", flush=True)

    place = bench.Place(None if options.root is None else str(options.root), options.device)
    done = bench.run(
        recipes,
        options.store,
        place=place,
        executor=_choose_executor(place, options),
        on_event=print_progress,
        seconds=None if deadline is None else max(1.0, deadline - time.monotonic()),
        command=shlex.join(["python", "experiments/segmentation_transfer.py", *sys.argv[1:]]),
    )
    print(f"{batches} batches in {time.monotonic() - began:.0f} s; {'all is done' if done else 'to be continued'}.")
    print(f"show them: medbn report {shlex.quote(str(options.store))}")
    if options.seal:
        options.seal.unlink(missing_ok=True)
        with bench.Store(options.store, create=False) as store:
            store.seal(options.seal, pictures=False)


def _choose_executor(place: bench.Place, options: argparse.Namespace) -> bench.Executor | None:
    if options.turns:
        return bench.InTurns(place)
    return bench.Processes(place, options.jobs) if options.jobs > 1 else None


def _narrow(recipe: Recipe, options: argparse.Namespace) -> Recipe:
    """Return the recipe with the changes that the options ask for."""
    recipe = recipe.smoke() if options.smoke else recipe
    if options.smoke and recipe.corruptions != (UNCORRUPTED,):
        recipe = replace(recipe, corruptions=recipe.corruptions[:1])
    if options.steps:
        recipe = replace(recipe, attacks=tuple(replace(attack, steps=options.steps) for attack in recipe.attacks))
    return recipe.narrow(batches=options.batches)


if __name__ == "__main__":
    sys.exit(cli.run_program("segmentation_transfer.py", main))
