"""``medbn data``: list, fetch, make and describe datasets."""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from . import terminal


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("data", help="list, fetch, make and describe datasets")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    listed = actions.add_parser("list", help="the datasets, and which of them are here")
    _root(listed)
    listed.set_defaults(run=show)

    fetched = actions.add_parser("fetch", help="download a dataset, verify it and unpack it")
    fetched.add_argument("name", metavar="NAME", help="a dataset of `medbn data list`")
    fetched.add_argument("--keep", action="store_true", help="keep the archives after unpacking")
    _root(fetched)
    fetched.set_defaults(run=fetch)

    made = actions.add_parser(
        "make",
        help="corrupt a dataset in the 15 ways of the benchmark",
        description="Write 15 corruptions × 5 severities of a dataset as .npy files in the layout of CIFAR-10-C.",
    )
    made.add_argument("name", metavar="NAME", help="cifar10-c, cifar100-c, digits-c, or a name for --from")
    made.add_argument("--from", dest="source", metavar="FOLDER", help="corrupt your own images: FOLDER/CLASS/IMAGE")
    made.add_argument(
        "--size", type=terminal.positive, metavar="PX", help="with --from: scale and cut images to PX × PX"
    )
    made.add_argument("--out", metavar="FOLDER", help="where to write (default: below the root)")
    made.add_argument("--corruptions", nargs="+", metavar="C", help="only these (default: all 15)")
    made.add_argument("--frost", metavar="FOLDER", help="photographs of frost, or 'synthetic' for a drawn texture")
    made.add_argument("--seed", type=terminal.natural, default=0, help="of the noise (default: 0)")
    made.add_argument("--jobs", type=terminal.positive, help="processes (default: one per core)")
    _root(made)
    made.set_defaults(run=make)

    described = actions.add_parser("info", help="classes, size, count and fingerprint of a dataset")
    described.add_argument("name", metavar="NAME", help="a dataset of `medbn data list`, or a path")
    described.add_argument("--split", default="test", choices=("train", "test"))
    described.add_argument("--corruption", metavar="C", help="one of the 15 (see medbn data make)")
    described.add_argument("--severity", type=int, default=5, help="1 to 5 (default: 5)")
    _root(described)
    described.set_defaults(run=info)


def _root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root", metavar="FOLDER", help="where datasets lie (default: $MEDBN_DATA, or the cache folder)"
    )


def show(options: argparse.Namespace) -> None:
    """Print what there is."""
    from .. import data

    rows = []
    for source in data.SOURCES.values():
        size = sum(archive.size or 0 for archive, _, _ in source.archives)
        here = "here" if source.complete(options.root) else "in part" if source.present(options.root) else "-"
        here = "ships" if source.folder is None else here
        rows.append((source.name, here, f"{size / 1e9:.2f} GB" if size else "", source.about))
    print(terminal.table(("name", "", "download", "what it is"), rows, right=(2,)))
    print(f"\nroot: {data.find_root(options.root)}")
    print("get one: medbn data fetch NAME · corrupt one: medbn data make NAME · describe one: medbn data info NAME")


def fetch(options: argparse.Namespace) -> None:
    """Download, verify, unpack."""
    from .. import data

    source = data.get(options.name)
    if source.folder is None:
        print(f"{source.name} ships with medbn: nothing to fetch.")
        return
    with ExitStack() as bars:

        def progress(archive: Any) -> Any:
            return bars.enter_context(terminal.bar(archive.filename, unit="bytes")).update

        path = data.obtain(options.name, options.root, keep=options.keep, progress=progress)
    print(f"{options.name} is in {path}")


def make(options: argparse.Namespace) -> None:
    """Corrupt a dataset."""
    from .. import data

    if options.source:
        source = data.folder(options.source, size=options.size)
        default = data.find_root(options.root) / options.name
    else:
        if options.size:
            raise ValueError("--size goes with --from: the named datasets have a size.")
        clean = {s.name: s.clean for s in data.SOURCES.values() if s.clean}
        if options.name not in clean:
            from .._errors import unknown_name

            raise unknown_name("dataset to make (or give your own with --from FOLDER)", options.name, clean)
        source = data.load(str(clean[options.name]), root=options.root)
        default = data.get(options.name).path(options.root)
    names = tuple(dict.fromkeys(options.corruptions or data.corruptions.NAMES))
    if "frost" in names and options.frost is None:
        _check_frost()
    with terminal.bar(options.name) as bar:
        made = data.make(
            source,
            Path(options.out) if options.out else default,
            names=names,
            seed=options.seed,
            frost=options.frost,
            jobs=options.jobs or os.cpu_count() or 1,
            report=lambda name, done, total: bar.update(
                names.index(name) + done / total, len(names), f"{name} ({names.index(name) + 1} of {len(names)})"
            ),
        )
    already = f"; {len(made.found)} were there already" if made.found else ""
    print(f"{len(made.written)} corruptions × 5 severities of {len(source):,} images in {made.folder}{already}")


def _check_frost() -> None:
    """Say which options help where there are no photographs of frost."""
    from .. import data

    try:
        data.corruptions.check("frost", 5)
    except FileNotFoundError:
        if os.environ.get("MEDBN_FROST"):
            raise
        raise ValueError(
            "the corruption 'frost' needs photographs of frost: pip install --no-deps imagecorruptions, or give their"
            " folder (--frost FOLDER), or draw a texture instead (--frost synthetic)."
        ) from None


def info(options: argparse.Namespace) -> None:
    """Describe a dataset."""
    from .. import data

    if options.corruption is None and options.name in data.SOURCES and data.get(options.name).corrupted:
        options.corruption = data.corruptions.NAMES[0]
    found = data.load(
        options.name, options.split, corruption=options.corruption, severity=options.severity, root=options.root
    )
    channels, height, width = found.shape
    classes = ", ".join(found.classes[:10]) + (", ..." if len(found.classes) > 10 else "")
    print(f"name         {found.name}\nsplit        {found.split}\nimages       {len(found):,}")
    print(f"size         {height} × {width} px, {channels} channel{'s' if channels > 1 else ''}")
    print(f"classes      {len(found.classes)}: {classes}\nfingerprint  {found.fingerprint}")
