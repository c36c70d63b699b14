"""``medbn report``: write what a store contains as a page, or in a format for other programs."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from .._files import replace_atomically
from ._completion import complete, format_names, recipe_names
from ._terminal import check_destination

SUMMARY = "write stored results as a page, or as Markdown, LaTeX, CSV or JSON"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.epilog = (
        "examples:\n  medbn report medbn.db\n  medbn report medbn.db --recipe targeted-instant --format latex --out -"
        "\n  medbn report stream.jsonl"
    )
    parser.add_argument(
        "store", nargs="?", default="medbn.db", metavar="STORE", help="default: medbn.db; a monitor's file too"
    )
    form = parser.add_argument(
        "--format", default="html", metavar="NAME", help="html (default), markdown, latex, csv or json"
    )
    complete(form, format_names)
    recipes = parser.add_argument("--recipe", nargs="+", metavar="NAME", help="only these recipes of the store")
    complete(recipes, recipe_names)
    parser.add_argument("--out", metavar="FILE", help="default: STORE with another suffix; '-' prints the report")


def run(options: argparse.Namespace) -> None:
    """Write the report and print its path."""
    path = write(options.store, options.format, options.recipe, options.out)
    if path is not None:
        print(path)


def write(store: str, kind: str = "html", names: list[str] | None = None, out: str | None = None) -> Path | None:
    """Write a report and return its path, or None if it was printed.

    Args:
        store: path of a store, or of a file that ``medbn.monitor.JSONLines`` wrote.
        kind: the name of the format.
        names: only these recipes.
        out: path of the report, ``"-"`` to print it; by default beside the store.
    """
    from ..bench import Store
    from ..monitor import is_stream
    from ..report import FORMATS, build, build_timeline

    form = FORMATS.get(kind)
    path = Path(out) if out else Path(store).with_suffix(form.suffix)
    if is_stream(store):
        if names:
            raise ValueError(f"{store} is a watched stream, which has no recipes.")
        if out != "-":
            _check(path)
        text = form.write(build_timeline(store))
    else:
        with Store(store, create=False) as opened:
            if out != "-":
                _check(path)
            text = form.write(build(opened, names))
    if out == "-":
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # as in a file
        sys.stdout.write(text)
        return None
    try:
        with replace_atomically(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}.") from None
    return path


def _check(path: Path) -> None:
    """Raise a ValueError if ``path`` cannot be replaced by a report."""
    check_destination(path)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file; '--out -' prints the report.")
