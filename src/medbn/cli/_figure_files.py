"""The files that ``medbn figure`` writes: pictures in one theme or both, numbers as JSON and CSV."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .._files import replace_atomically
from ._terminal import check_destination

if TYPE_CHECKING:
    from ..analysis import Numbers

SHEET = "all"
"""The name of the contact sheet's file in a folder."""


def locate(path: str, name: str, suffix: str) -> Path:
    """Return ``path``, or the file ``NAME.SUFFIX`` in it if it is a folder.

    >>> locate("pictures/", "shift", "svg").as_posix()
    'pictures/shift.svg'
    """
    return Path(path) / f"{name}.{suffix}" if is_folder(path) else Path(path)


def is_folder(path: str) -> bool:
    """Return whether a path is meant as a folder: it is one, or ends with a slash."""
    return path.endswith(("/", os.sep)) or Path(path).is_dir()


@dataclass
class FigureFiles:
    """Where to write figures and their numbers; each is written as soon as it is measured.

    Args:
        name: what was asked for, a figure or ``"all"``.
        form: the format of pictures.
        themes: light, dark or both.
        width: column or page.
        caption: write captions into the pictures.
        out: file or folder of pictures; None for none.
        json: file or folder of numbers.
        csv: file or folder of tables.
    """

    name: str
    form: str
    themes: list[str]
    width: str
    caption: bool
    out: str | None
    json: str | None
    csv: str | None
    written: list[Numbers] = field(default_factory=list)

    @classmethod
    def of(cls, options: argparse.Namespace) -> FigureFiles:
        """Return the files that the options ask for."""
        from .. import analysis

        suffix = Path(options.out).suffix[1:] if options.out and not is_folder(options.out) else ""
        form = options.format or suffix or "svg"
        if suffix in analysis.FORMATS and form != suffix:
            raise ValueError(f"--out {options.out} and --format {form} are two formats; leave --format out.")
        numbers_alone = (options.json or options.csv) and not options.out
        out = None if numbers_alone else options.out or f"{options.name}.{form}"
        themes = list(dict.fromkeys(options.theme))
        return cls(options.name, form, themes, options.width, not options.no_caption, out, options.json, options.csv)

    def check(self, names: list[str]) -> None:
        """Raise an error now, and not after measuring, if something cannot be written or drawn."""
        from .. import analysis

        for option, path in (("--json", self.json), ("--csv", self.csv)):
            if path and len(names) > 1 and not is_folder(path):
                raise ValueError(f"{option} {path}: give a folder for the numbers of all figures, such as numbers/.")
        for path in (self.out, self.json, self.csv):
            if path is None:
                continue
            if path.endswith(("/", os.sep)):
                _make_folder(path)
            check_destination(locate(path, self.name, self.form))
        if self.out is not None:
            for theme in self.themes:
                analysis.check_format(self.form, theme, self.width)
            analysis.check_drawing()

    def write(self, numbers: Numbers) -> None:
        """Write the files of one figure and print their paths; ``all`` into one file writes the contact sheet alone."""
        from .. import analysis

        self.written.append(numbers)
        if self.json:
            _write(locate(self.json, numbers.figure, "json"), numbers.to_json().encode())
        if self.csv:
            _write(locate(self.csv, numbers.figure, "csv"), numbers.to_csv().encode())
        if self.out and (self.name != SHEET or is_folder(self.out)):
            for theme in self.themes:
                picture = analysis.render(numbers, self.form, theme, width=self.width, caption=self.caption)
                _write(self._picture(numbers.figure, theme), picture)

    def write_contact_sheet(self) -> None:
        """Write all figures that were written on one sheet."""
        from .. import analysis

        for theme in self.themes if self.out else ():
            _write(self._picture(SHEET, theme), analysis.contact_sheet(self.written, self.form, theme))

    def _picture(self, name: str, theme: str) -> Path:
        """Return the file of a picture; where both themes are written, the dark one has another name."""
        assert self.out is not None
        path = locate(self.out, name, self.form)
        return path.with_stem(f"{path.stem}-{theme}") if theme == "dark" and len(self.themes) > 1 else path


def _make_folder(path: str) -> None:
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make the folder {path}: {error.strerror}.") from None


def _write(path: Path, content: bytes) -> None:
    try:
        with replace_atomically(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}.") from None
    print(path)
