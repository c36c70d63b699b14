"""Modules of the user's own: those that a command imports, and the files beside a recipe file that it may use.

A recipe file names functions as ``MODULE:FUNCTION``, and its author may be a stranger: without these limits, the model
``"os:abort"`` would be called. A module of an installed package must be named by the user, with ``--import``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

UserModules = tuple[dict[str, Path], list[str]]
"""Files beside recipe files by the names of their modules, and names of imported modules."""

_files: dict[str, Path] = {}
_imported: list[str] = []


class _Finder:
    """Finds the modules that lie beside recipe files, and no other file of their folders."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return where a module comes from, or None if it is not beside a recipe file."""
        return importlib.util.spec_from_file_location(name, _files[name]) if name in _files else None


def import_modules(names: Iterable[str]) -> None:
    """Import modules of installed packages; recipe files may then name their functions."""
    for name in names:
        try:
            importlib.import_module(name)
        except (ModuleNotFoundError, ValueError, TypeError) as error:
            if isinstance(error, ModuleNotFoundError) and not f"{name}.".startswith(f"{error.name}."):
                raise  # the module exists, and something that it imports does not
            raise ValueError(
                f"there is no module {name!r} on Python's path, which the current folder is not part of (PYTHONPATH=."
                " adds it)."
            ) from None
        if name not in _imported:
            _imported.append(name)


def allow(model: str, folder: Path) -> None:
    """Raise a ValueError unless a recipe file in ``folder`` may call the function ``MODULE:FUNCTION``."""
    module = model.partition(":")[0]
    if any(f"{module}.".startswith(f"{name}.") for name in _imported):
        return
    top = module.partition(".")[0]
    places = (folder / f"{top}.py", folder / top / "__init__.py") if top.isidentifier() else ()
    file = next((place.resolve() for place in places if place.is_file()), None)
    if file is None:
        raise ValueError(
            f"model {model!r}: a recipe file may use functions of Python files beside it, and there is no"
            f" {top}.py; to use a module of an installed package, name it with --import {module}."
        )
    if _files.get(top, file) != file:
        raise ValueError(f"model {model!r}: {_files[top]} and {file} have the same name; rename one of them.")
    spec = importlib.util.find_spec(top)
    if spec is not None and (spec.origin is None or Path(spec.origin).resolve() != file):
        raise ValueError(f"model {model!r}: {file} has the name of another module, {spec.origin}; rename it.")
    use(({top: file}, []))


def list_modules() -> UserModules:
    """Return what ``use`` needs to know in another process."""
    return dict(_files), list(_imported)


def use(modules: UserModules) -> None:
    """Make modules available that were available in another process."""
    files, imported = modules
    _files.update(files)
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)
    import_modules(imported)
