"""The order of imports that ``docs/architecture.md`` lists is true of the code, lazy imports included."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "medbn"
PAGE = ROOT / "docs" / "architecture.md"
FILES = sorted(PACKAGE.rglob("*.py"))
ABOVE = {"__init__", "__main__"}
"""The package's own front door, which may import everything."""


@dataclass(frozen=True)
class Import:
    """One imported module or name of medbn, as an absolute path such as ``("methods", "Adapter")``."""

    path: tuple[str, ...]
    bound: str
    line: int


def order() -> list[str]:
    """The parts of the package in the order in which they may import each other: the numbered list of the page."""
    return re.findall(r"^\d+\. `(\w+)`", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)


def part_of(file: Path) -> str:
    """The folder or file directly below the package."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@dataclass(frozen=True)
class Use:
    """An attribute of a name, as ``runner.run``."""

    name: str
    attribute: str
    line: int


@cache
def read(file: Path) -> tuple[list[Import], list[Use]]:
    """All imports of medbn in a file, wherever they stand, and all attributes of names."""
    imported, used = [], []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported += _imports(node, file.relative_to(PACKAGE).parent.parts)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.append(Use(node.value.id, node.attr, node.lineno))
    return imported, used


def imports(file: Path) -> list[Import]:
    return read(file)[0]


def _imports(node: ast.Import | ast.ImportFrom, package: tuple[str, ...]) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for name in node.names:
            parts = name.name.split(".")
            if parts[0] == "medbn":
                yield Import(tuple(parts[1:]), name.asname or parts[0], node.lineno)
        return
    module = tuple((node.module or "").split(".")) if node.module else ()
    if node.level:
        module = (*package[: len(package) - node.level + 1], *module)
    elif module[:1] == ("medbn",):
        module = module[1:]
    else:
        return
    for name in node.names:
        yield Import((*module, name.name), name.asname or name.name, node.lineno)


def is_module(path: tuple[str, ...]) -> bool:
    place = PACKAGE.joinpath(*path)
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def test_the_page_lists_every_part_of_the_package_once():
    parts = {part_of(file) for file in FILES} - ABOVE
    assert sorted(order()) == sorted(parts)


@pytest.mark.parametrize("part", sorted({part_of(file) for file in FILES} - ABOVE))
def test_a_part_imports_only_earlier_ones(part):
    earlier = set(order()[: order().index(part)])
    back = [
        f"{file.relative_to(ROOT)}:{one.line} imports {'.'.join(one.path)}"
        for file in FILES
        if part_of(file) == part
        for one in imports(file)
        if one.path[0] != part and one.path[0] not in earlier
    ]
    assert not back, "\n".join(back)


def test_other_folders_are_entered_by_their_front_door():
    """What another folder's ``__init__`` does not export is that folder's own."""
    beyond = [
        f"{file.relative_to(ROOT)}:{one.line} {'.'.join(one.path)}"
        for file in FILES
        if not (file.parent == PACKAGE and file.stem in ABOVE)
        for one in imports(file)
        if one.path[0] != part_of(file) and not is_public(one.path)
    ]
    assert not beyond, "\n".join(beyond)


def is_public(path: tuple[str, ...]) -> bool:
    """Return whether a folder exports what others import: `medbn.bench.Cell` and not `medbn.bench.cell.Cell`."""
    if any(part.startswith("_") and part != "__version__" for part in path[1:]):
        return False
    return len(path) == 1 or not (PACKAGE / path[0]).is_dir() or path[1] in exports(path[0])


@cache
def exports(folder: str) -> frozenset[str]:
    """The names that a folder's ``__init__`` lists in ``__all__``."""
    for node in ast.parse((PACKAGE / folder / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return frozenset(ast.literal_eval(node.value))
    raise AssertionError(f"medbn.{folder} has no __all__")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_no_module_uses_private_names_of_another():
    private = []
    for file in FILES:
        modules = {one.bound for one in imports(file) if is_module(one.path)}
        private += [
            f"{file.relative_to(ROOT)}:{use.line} {use.name}.{use.attribute}"
            for use in read(file)[1]
            if use.name in modules and is_private(use.attribute)
        ]
        private += [
            f"{file.relative_to(ROOT)}:{one.line} {'.'.join(one.path)}"
            for one in imports(file)
            if is_private(one.path[-1]) and not is_module(one.path)
        ]
    assert not private, "\n".join(private)


def test_every_file_that_the_page_names_exists():
    """Paths stand as they are from the root, or from the package, which the page leaves out."""
    named = set(re.findall(r"`([\w/.-]+\.(?:py|c|h|html|css|js))`", PAGE.read_text(encoding="utf-8")))
    assert len(named) > 30
    assert not [path for path in sorted(named) if not ((ROOT / path).exists() or (PACKAGE / path).exists())]
