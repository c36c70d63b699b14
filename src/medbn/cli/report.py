"""``medbn report``: what a store holds, as a page or for other programs."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from . import terminal

SUFFIXES = {"html": ".html", "markdown": ".md", "latex": ".tex", "csv": ".csv", "json": ".json"}


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("report", help="show results as a page, or as Markdown, LaTeX, CSV or JSON")
    parser.add_argument("store", nargs="?", default="medbn.db", metavar="STORE", help="default: medbn.db")
    parser.add_argument("--format", default="html", choices=SUFFIXES, help="default: html")
    parser.add_argument("--recipe", nargs="+", metavar="NAME", help="only these recipes of the store")
    parser.add_argument("--out", metavar="FILE", help="default: STORE with another ending; '-' for the terminal")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Write the report and say where it is."""
    path = write(options.store, options.format, options.recipe, options.out)
    if path is not None:
        print(path)


def write(store: str, kind: str = "html", names: list[str] | None = None, out: str | None = None) -> Path | None:
    """Write a report; None if it went to the terminal."""
    from ..bench import Store
    from ..report import FORMATS
    from ..report.build import build

    path = Path(out) if out else Path(store).with_suffix(SUFFIXES[kind])
    with Store(store, create=False) as opened:
        if out != "-":
            _check(path)
        text = FORMATS[kind](build(opened, names))
    if out == "-":
        sys.stdout.write(text)
        return None
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}.") from None
    finally:
        partial.unlink(missing_ok=True)
    return path


def _check(path: Path) -> None:
    """Refuse what cannot be replaced by a report."""
    terminal.check_destination(path)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no ordinary file; '--out -' writes to the terminal.")
