"""Check that every link within a built site leads somewhere: ``python docs/_ext/check_links.py build/docs``."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Collects the links and the anchors of a page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note what a tag links to, and where it can be linked to."""
        for name, value in attributes:
            if name in ("href", "src") and value is not None:
                self.links.append(value)
            elif name in ("srcset", "data-srcset") and value:
                self.links += [part.split()[0] for part in value.split(",") if part.split()]
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken_links(site: Path) -> list[str]:
    """Return a line for each link of each page that leads to no file, or to no anchor of a page."""
    pages = {file: Page(file) for file in sorted(site.rglob("*.html"))}
    broken = []
    for file, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if not target.is_file():
                broken.append(f"{file.relative_to(site)}: there is no {link}")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                broken.append(f"{file.relative_to(site)}: no anchor for {link}")
    return broken


def main() -> int:
    """Print broken links; return 1 if there are any."""
    site = Path(sys.argv[1]).resolve()
    broken = broken_links(site)
    print("\n".join(broken) or f"{site / 'index.html'}: all links within the site lead somewhere")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
