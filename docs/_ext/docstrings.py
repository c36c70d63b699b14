"""Docstrings of medbn as Sphinx reads them: plain text in which a bar is a bar and a colon a colon."""

from __future__ import annotations

import inspect
import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature

from medbn.methods import Adapter


def keep_bars(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Escape bars, which would name substitutions; code keeps them."""
    for number, line in enumerate(lines):
        parts = line.split("``")
        parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
        if not line.lstrip().startswith((">>>", "...")):
            lines[number] = "``".join(parts)


def show_code(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Let an indented paragraph between others be code."""
    places = range(len(lines) - 2, 0, -1)
    for number in places:
        before, blank, code = lines[number - 1 : number + 2]
        if before and not before.startswith((" ", "..")) and not blank and code.startswith("    "):
            lines[number : number + 1] = ["", "::", ""]


def link_pages(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Let the names of pages be links to them."""
    lines[:] = [re.sub(r"(``)?docs/([\w/-]+)\.md(``)?", r":doc:`/\2`", line) for line in lines]


def keep_sentences(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Join sentences about attributes again, of which napoleon takes the text before a colon for a type."""
    if what in {"attribute", "data", "property"} and lines and lines[-1].startswith(":type: "):
        kind = lines.pop().removeprefix(":type: ")
        lines[:] = [f"{kind}: {' '.join(lines).strip()}"]


def show_options(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, result: str | None
) -> tuple[str | None, str | None] | None:
    """Show the options of a method, which its class takes by the constructor alone."""
    if what != "class" or not issubclass(value, Adapter):
        return None
    own = [*inspect.signature(value.__init__).parameters.values()][1:]
    parameters = [each.replace(annotation=each.empty) for each in own]
    return stringify_signature(inspect.Signature(parameters)), result


def keep_backlinks(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Let links from source code lead to where a name is documented, or drop them: an object may have two names."""
    if page.startswith("_modules/"):
        known = app.env.domains["py"].objects

        def keep(match: re.Match[str]) -> str:
            if match[1] not in known:
                return ""
            where = known[match[1]]
            link = f"{app.builder.get_relative_uri(page, where.docname)}#{where.node_id}"
            return f'<a class="viewcode-back" href="{link}">[docs]</a>'

        context["body"] = re.sub(
            r'<a class="viewcode-back" href="[^"#]*#([^"]*)">.*?</a>', keep, context["body"], flags=re.S
        )


def setup(app: Sphinx) -> dict[str, bool]:
    """Add to Sphinx."""
    app.connect("autodoc-process-docstring", keep_bars, priority=400)
    app.connect("autodoc-process-docstring", show_code, priority=410)
    app.connect("autodoc-process-docstring", link_pages, priority=420)
    app.connect("autodoc-process-docstring", keep_sentences, priority=600)
    app.connect("autodoc-process-signature", show_options)
    app.connect("html-page-context", keep_backlinks)
    return {"parallel_read_safe": True}
