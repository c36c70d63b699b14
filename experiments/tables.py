"""What do the committed stores say? Every table of README.md, docs/results.md and docs/results/ that is made from them.

    python experiments/tables.py             # print them
    python experiments/tables.py --write     # write them into the pages, between their marks
    python experiments/tables.py --check     # exit with 2 if a page says something else

It takes seconds on a CPU: nothing is attacked again. A table is between ``<!-- table NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
import sys

import _cifar10_tables  # noqa: F401  adds its tables
import _every_method_tables  # noqa: F401
import _owned_tables  # noqa: F401
import _segmentation_tables  # noqa: F401
import _summary_tables  # noqa: F401
from _stored import REPOSITORY, TABLES, Rows
from medbn import cli

PAGES = (
    "README.md",
    "docs/results.md",
    "docs/results/cifar10-c.md",
    "docs/results/segmentation.md",
    "docs/results/every-method.md",
    "docs/results/owned-batches.md",
)


def markdown(rows: Rows) -> str:
    """Return a table in Markdown, the first column to the left."""
    header, *body = rows
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fill(text: str) -> str:
    """Return a page with its tables as the stores say."""

    def replace(match: re.Match[str]) -> str:
        if match[1] not in TABLES:
            raise ValueError(f"there is no table {match[1]!r}; there are {', '.join(TABLES)}.")
        return f"<!-- table {match[1]} -->\n{markdown(TABLES[match[1]]())}\n<!-- end -->"

    return re.sub(r"<!-- table (\S+) -->\n.*?<!-- end -->", replace, text, flags=re.DOTALL)


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"only these, of {', '.join(TABLES)}")
    parser.add_argument("--write", action="store_true", help="write the tables into the pages")
    parser.add_argument("--check", action="store_true", help="compare the pages with the stores")
    options = parser.parse_args()
    for name in options.tables:
        if name not in TABLES:
            parser.error(f"tables are {', '.join(TABLES)}, not {name}.")
    for page in map(REPOSITORY.joinpath, PAGES if options.write or options.check else ()):
        text = page.read_text(encoding="utf-8")
        filled = fill(text)
        if options.write:
            page.write_text(filled, encoding="utf-8")
        elif filled != text:
            raise ValueError(f"{page} does not say what the stores say: python experiments/tables.py --write")
    if not (options.write or options.check):
        for name in options.tables or TABLES:
            print(f"{name}\n\n{markdown(TABLES[name]())}\n")


if __name__ == "__main__":
    sys.exit(cli.run_program("tables.py", main))
