"""Files that are written completely or not at all; TOML files."""

from __future__ import annotations

import importlib
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, and move what was written there to ``path`` at the end.

    After an exception, or when the process is killed, ``path`` is what it was before.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; a file that cannot be read is a ValueError that names it."""
    tomllib = _import_toml()
    try:
        with path.open("rb") as file:
            return dict(tomllib.load(file))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} cannot be read: its values are nested too deeply.") from None


def _import_toml() -> Any:
    try:
        return importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise ImportError("reading TOML needs tomli before Python 3.11: pip install 'medbn[bench]'") from None
