"""Pages whose text stands at the root of the repository, and links from pages to what is no page."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the tests read PAGES where there is no Sphinx
    from sphinx.application import Sphinx

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PAGES = {
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "security": "SECURITY.md",
    "notice": "NOTICE.md",
    "conduct": "CODE_OF_CONDUCT.md",
}
"""Pages of the site and the files whose text they show; the page's own file is a link for readers of the repository."""


def source_url() -> str:
    """Return where the repository is, as pyproject.toml says."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]


def read_source(app: Sphinx, page: str, content: list[str]) -> None:
    """Take the text of root files, and let links to root files and to folders lead somewhere."""
    up = "../" * (page.count("/") + 1)
    text = content[0]
    if page in PAGES:
        app.env.note_dependency(str(ROOT / PAGES[page]))
        text = (ROOT / PAGES[page]).read_text(encoding="utf-8")
        # Links of a root file are relative to the root: first as from any page, then as for these.
        text = re.sub(r"\]\((?!\w+:|#)([^)]+)\)", rf"]({up}\1)", text).replace(f"]({up}docs/", "](")
    shown = {file: name for name, file in PAGES.items()}

    def lead(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        if path in shown:
            return f"]({up[3:]}{shown[path]}.md{anchor})"
        if path == "README.md":
            return f"]({up[3:]}index.md{anchor})"
        return f"]({source_url()}/{path})" if (ROOT / path).is_dir() else match[0]

    content[0] = re.sub(rf"\]\({re.escape(up)}([\w./-]+)(#[\w-]+)?\)", lead, text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add to Sphinx."""
    app.connect("source-read", read_source)
    return {"parallel_read_safe": True}
