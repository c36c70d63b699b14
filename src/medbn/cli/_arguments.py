"""Command-line arguments that several commands have, and types of arguments.

A type is a function that reads a value from text; argparse shows the error that it raises.
"""

from __future__ import annotations

import argparse
import math

UNFINISHED = 3
"""The exit code of a command whose work is not finished: its time is over, or another process does a part of it."""


def add_root(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add ``--root``, the folder of the datasets."""
    parser.add_argument(
        "--root", metavar="FOLDER", help="folder of the datasets (default: $MEDBN_DATA, or the cache folder)"
    )


def add_import(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add ``--import``, whose modules are in ``options.imports``."""
    parser.add_argument(
        "--import",
        dest="imports",
        nargs="+",
        default=[],
        metavar="MODULE",
        help="import these modules: recipe files may call their functions, and they may register your own methods",
    )


def add_device(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add ``--device``, to be read by ``choose_device``."""
    parser.add_argument("--device", help="default: cuda where there is one, else cpu")


def positive_int(text: str) -> int:
    """Return the integer in ``text``, which must be at least 1."""
    return _integer(text, 1)


def image_size(text: str) -> tuple[int, int]:
    """Return the height and the width in ``text``: ``256x512``, or one number for a square."""
    parts = [positive_int(part) for part in text.lower().replace("×", "x").split("x")]
    if len(parts) > 2:
        raise argparse.ArgumentTypeError(f"PX or HEIGHTxWIDTH is expected, not {text!r}")
    return parts[0], parts[-1]


def shard(text: str) -> tuple[int, int]:
    """Return the number of a part and how many parts there are, from a text such as ``3/16``."""
    parts = text.split("/")
    try:
        number, count = (natural_int(part) for part in parts)
    except (ValueError, argparse.ArgumentTypeError):
        number, count = 1, 0
    if not 1 <= number <= count:
        raise argparse.ArgumentTypeError(
            f"NUMBER/COUNT with NUMBER from 1 to COUNT is expected, as in 3/16, not {text!r}"
        )
    return number, count


def natural_int(text: str) -> int:
    """Return the integer in ``text``, which must be at least 0."""
    return _integer(text, 0)


def positive_float(text: str) -> float:
    """Return the number in ``text``, which must be above 0."""
    number = _finite(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"a number above 0 is expected, not {text!r}")
    return number


def non_negative_float(text: str) -> float:
    """Return the number in ``text``, which must be at least 0."""
    number = _finite(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"a number of at least 0 is expected, not {text!r}")
    return number


def choose_device(name: str | None) -> str:
    """Return the device to compute on: the named one, or without a name a GPU where there is one, else the CPU."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=torch.device(name))
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(f"the device {name!r} cannot be used on this machine; try --device cpu.") from None
    return name


def _integer(text: str, minimum: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = minimum - 1
    if number < minimum:
        raise argparse.ArgumentTypeError(f"a whole number of at least {minimum} is expected, not {text!r}")
    return number


def _finite(text: str) -> float:
    """Return the finite number in ``text``, else NaN, which fails every comparison."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
