"""``medbn merge``: join the stores of several machines or shards."""

from __future__ import annotations

import argparse
import shlex

SUMMARY = "join the stores of several machines or shards"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Join stores into one, which is then reported or continued like any other. The same batch may be in several of"
        " them\nif its numbers are the same; otherwise the contradictions are listed and nothing is changed."
    )
    parser.epilog = (
        "examples:\n"
        "  medbn merge medbn-*-of-16.db\n"
        "  medbn merge laptop.db cluster.db --store all.db\n"
        "  medbn report medbn.db"
    )
    parser.add_argument("stores", nargs="+", metavar="STORE", help="a store to merge; it is only read")
    parser.add_argument(
        "--store", default="medbn.db", metavar="FILE", help="the store that gets the results (default: medbn.db)"
    )


def run(options: argparse.Namespace) -> None:
    """Merge the stores and print what was added."""
    from ..bench import merge

    merged = merge(options.stores, options.store)
    known = merged.cells - merged.new - merged.longer
    print(
        f"{options.store}: {merged.cells} streams merged ({merged.new} new, {merged.longer} longer, {known} known),"
        f" {merged.batches} batches added."
    )
    if merged.missing:
        shown = ", ".join(merged.missing[:8]) + (", ..." if len(merged.missing) > 8 else "")
        print(f"not finished: {len(merged.missing)} shards ({shown}).")
    print(f"show it as a page: medbn report {shlex.quote(str(options.store))}")
