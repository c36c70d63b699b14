"""``medbn state``: say what a file of an adapter's state is of."""

from __future__ import annotations

import argparse
from collections import Counter

from ._terminal import format_table

SUMMARY = "say what a saved state of an adapter is of"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions of the command."""
    parser.epilog = "example:\n  medbn state info tta.safetensors"
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    info = actions.add_parser(
        "info",
        help="check a file and show its method, model, estimators and contents",
        description="Check a file that tta.save has written, and show what it is of. Nothing in it is executed.",
    )
    info.add_argument("file", metavar="FILE", help="written by tta.save")
    info.set_defaults(run=show_info)


def show_info(options: argparse.Namespace) -> None:
    """Print what the file is of."""
    from .. import methods

    info = methods.state_info(options.file)
    given = ", ".join(f"{name}={value!r}" for name, value in info.options.items())
    counts = Counter(info.estimators.values())
    images = f"{info.images}: keep the file as you would keep them" if info.images else "none"
    rows = [
        ("method", f"{info.method}, version {info.method_version}"),
        ("options", given or "all default"),
        ("estimators", ", ".join(f"{name} in {count} layers" for name, count in counts.items()) or "none"),
        ("model", f"{info.model}, fingerprint {info.fingerprint}"),
        ("learned", f"{info.learned:,} numbers"),
        ("images of users", images),
        ("saved", f"{info.saved} by medbn {info.medbn}"),
        ("size", f"{info.size:,} bytes"),
    ]
    print(format_table(("state", options.file), rows))
