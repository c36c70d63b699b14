"""The directive ``registered``: the API of everything that is registered with a part of medbn.

``.. registered:: medbn.methods`` documents the class of each method. So a new method is on the site without an edit.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def public_path(value: Any, part: str) -> str:
    """Return under which path a value is public: of the package above a part, or else where it is defined."""
    above = part.rpartition(".")[0]
    if above.count(".") and getattr(importlib.import_module(above), value.__name__, None) is value:
        return f"{above}.{value.__name__}"
    return f"{value.__module__}.{value.__qualname__}"


class Registered(SphinxDirective):
    """Document the classes and functions that a registry has, by name."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the nodes of all entries."""
        part = importlib.import_module(self.arguments[0])
        lines: list[str] = []
        seen = set()
        for name in part.available():
            value = part.get(name)
            value = value if inspect.isclass(value) or inspect.isfunction(value) else type(value)
            if value in seen or not value.__module__.startswith("medbn."):
                continue
            seen.add(value)
            kind = "autoclass" if inspect.isclass(value) else "autofunction"
            lines += [f".. rubric:: {name}", "", f".. {kind}:: {public_path(value, self.arguments[0])}", ""]
        return self._parse(lines)

    def _parse(self, lines: list[str]) -> list[nodes.Node]:
        source = f"registered {self.arguments[0]}"
        container = nodes.container()
        self.state.nested_parse(StringList(lines, source=source), 0, container)
        return list(container.children)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add to Sphinx."""
    app.add_directive("registered", Registered)
    return {"parallel_read_safe": True}
