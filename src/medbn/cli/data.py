"""``medbn data``: list, download, corrupt, describe and check datasets."""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .._errors import unknown_name
from ._arguments import add_root, image_size, natural_int, positive_int
from ._completion import complete, corruption_names, dataset_names
from ._terminal import format_table, show_progress

SUMMARY = "list, download, corrupt, describe and check datasets"

_CHECKED_AT_ONCE = 16


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions of the command, each with its arguments."""
    parser.epilog = "examples:\n  medbn data list\n  medbn data fetch cifar10\n  medbn data generate cifar10-c"
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _configure_list(actions.add_parser("list", help="list the datasets, and which of them are on this machine"))
    _configure_fetch(actions.add_parser("fetch", help="download a dataset, verify it and extract it"))
    _configure_generate(actions.add_parser("generate", help="corrupt a dataset in the 15 ways of the benchmark"))
    _configure_info(actions.add_parser("info", help="show classes, size, number of images and fingerprint"))
    _configure_check(actions.add_parser("check", help="read every image and label, and count the classes"))


def _configure_list(parser: argparse.ArgumentParser) -> None:
    add_root(parser)
    parser.set_defaults(run=list_datasets)


def _configure_fetch(parser: argparse.ArgumentParser) -> None:
    complete(parser.add_argument("name", metavar="NAME", help="a dataset of `medbn data list`"), dataset_names)
    parser.add_argument("--keep", action="store_true", help="keep the archives after extracting them")
    add_root(parser)
    parser.set_defaults(run=fetch)


def _configure_generate(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write 15 corruptions × 5 severities of a dataset as .npy files in the layout of CIFAR-10-C."
    parser.epilog = (
        "examples:\n  medbn data generate cifar10-c\n  medbn data generate photos-c --from photos --size 224"
    )
    name = parser.add_argument(
        "name",
        metavar="NAME",
        help="a dataset that ends in -c, such as cifar10-c or cityscapes-c, or a name for --from",
    )
    complete(name, dataset_names)
    parser.add_argument(
        "--from",
        dest="source",
        metavar="FOLDER",
        help="corrupt your own images: FOLDER/CLASS/IMAGE, or FOLDER with images/, labels/ and classes.toml",
    )
    parser.add_argument(
        "--size",
        type=image_size,
        metavar="PX|HxW",
        help="for --from and for segmentation: scale images to PX × PX, or to height × width (256x512)",
    )
    parser.add_argument("--out", metavar="FOLDER", help="folder to write to (default: in the folder of the datasets)")
    corruptions = parser.add_argument("--corruptions", nargs="+", metavar="C", help="only these (default: all 15)")
    complete(corruptions, corruption_names)
    parser.add_argument(
        "--severities", nargs="+", type=positive_int, metavar="S", help="only these (default: all five)"
    )
    parser.add_argument("--frost", metavar="FOLDER", help="photographs of frost, or 'synthetic' for a drawn texture")
    parser.add_argument("--seed", type=natural_int, default=0, help="seed of the noise (default: 0)")
    parser.add_argument("--jobs", type=positive_int, help="processes (default: one per core)")
    add_root(parser)
    parser.set_defaults(run=generate)


def _configure_info(parser: argparse.ArgumentParser) -> None:
    _add_dataset(parser)
    parser.set_defaults(run=info)


def _configure_check(parser: argparse.ArgumentParser) -> None:
    parser.description = "Read every image and label. The first file that cannot be used is named."
    _add_dataset(parser)
    parser.set_defaults(run=check)


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which dataset to open."""
    name = parser.add_argument("name", metavar="NAME", help="a dataset of `medbn data list`, or a path")
    complete(name, dataset_names)
    parser.add_argument("--split", default="test", choices=("train", "val", "test"), help="default: test")
    complete(parser.add_argument("--corruption", metavar="C", help="one of the 15 corruptions"), corruption_names)
    parser.add_argument("--severity", type=int, default=5, help="1 to 5 (default: 5)")
    add_root(parser)


def list_datasets(options: argparse.Namespace) -> None:
    """Print the datasets, which of them are on this machine, and what a download costs."""
    from .. import data

    rows = []
    for entry in map(data.get, data.available()):
        size = sum(archive.size or 0 for archive in entry.archives)
        status = "here" if entry.is_complete(options.root) else "in part" if entry.is_present(options.root) else "-"
        status = "ships" if entry.folder is None else status
        rows.append((entry.name, entry.task, status, f"{size / 1e9:.2f} GB" if size else "", entry.about))
    print(format_table(("dataset", "task", "status", "download", "what it is"), rows, right=(3,)))
    print(f"\nfolder: {data.find_root(options.root)}")
    print("get one: medbn data fetch NAME · corrupt one: medbn data generate NAME · describe one: medbn data info NAME")


def fetch(options: argparse.Namespace) -> None:
    """Download a dataset, verify it and extract it."""
    from .. import data

    entry = data.get(options.name)
    if entry.folder is None:
        print(f"{entry.name} ships with medbn: nothing to fetch.")
        return
    with ExitStack() as bars:

        def progress(archive: Any) -> Any:
            return bars.enter_context(show_progress(archive.filename, unit="bytes")).update

        path = data.fetch(options.name, options.root, keep=options.keep, progress=progress)
    print(f"{options.name} is in {path}")


def generate(options: argparse.Namespace) -> None:
    """Corrupt a dataset and write it as a new one."""
    from .. import data

    size = {"size": options.size} if options.size else {}
    if options.source:
        source: Any
        if data.task_of(Path(options.source)) == "segmentation":
            source = data.load_segmentation(Path(options.source), **size)
        else:
            source = data.load_image_folder(options.source, **size)
        default = data.find_root(options.root) / options.name
    else:
        clean = {name: data.get(name).clean for name in data.available() if data.get(name).clean}
        if options.name not in clean:
            raise unknown_name("dataset to generate (or give your own with --from FOLDER)", options.name, clean)
        name = str(clean[options.name])
        if size and data.task_of(name) == "classification":
            raise ValueError("--size goes with --from and with segmentation: the named datasets have a size.")
        load = data.load_segmentation if data.task_of(name) == "segmentation" else data.load
        source = load(name, root=options.root, **size)
        default = data.get(options.name).path(options.root)
    names = tuple(dict.fromkeys(options.corruptions or data.corruptions.NAMES))
    if "frost" in names and options.frost is None:
        _check_frost()
    with show_progress(options.name) as bar:
        result = data.generate(
            source,
            Path(options.out) if options.out else default,
            names=names,
            seed=options.seed,
            frost=options.frost,
            severities=options.severities or data.corruptions.SEVERITIES,
            jobs=options.jobs or os.cpu_count() or 1,
            report=lambda name, done, total: bar.update(
                names.index(name) + done / total, len(names), f"{name} ({names.index(name) + 1} of {len(names)})"
            ),
        )
    already = f"; {len(result.skipped)} existed already" if result.skipped else ""
    severities = len(set(options.severities or data.corruptions.SEVERITIES))
    times = f"{severities} severities" if severities > 1 else "one severity"
    print(f"{len(result.written)} corruptions × {times} of {len(source):,} images in {result.folder}{already}")


def _check_frost() -> None:
    """Raise an error that names the options that help if there are no photographs of frost."""
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
    """Print the classes, size, number of images and fingerprint of a dataset."""
    from .. import data

    entry = data.get(options.name) if options.name in data.available() else None
    if entry and entry.instructions and not entry.is_present(options.root):
        print(f"{entry.name} ({entry.about}) is not on this machine.\n\n{entry.how_to_request(options.root)}")
        return
    dataset = _open(options)
    channels, height, width = dataset.shape
    classes = ", ".join(dataset.classes[:10]) + (", ..." if len(dataset.classes) > 10 else "")
    print(f"name         {dataset.name}\ntask         {data.task_of(options.name)}")
    print(f"split        {dataset.split}\nimages       {len(dataset):,}")
    print(f"size         {height} × {width} px, {channels} channel{'s' if channels > 1 else ''}")
    print(f"classes      {len(dataset.classes)}: {classes}\nfingerprint  {dataset.fingerprint}")


def check(options: argparse.Namespace) -> None:
    """Read all images and labels of a dataset, and print how often each class occurs."""
    import torch

    dataset = _open(options)
    count = len(dataset.classes)
    total = torch.zeros(count + 1, dtype=torch.int64)  # the last: pixels that do not count
    with show_progress(dataset.name) as bar:
        for position, (_, labels) in enumerate(dataset.batches(_CHECKED_AT_ONCE, dtype=torch.uint8)):
            total += torch.bincount(labels.flatten().clamp(max=count), minlength=count + 1)
            bar.update(min(len(dataset), _CHECKED_AT_ONCE * (position + 1)), len(dataset))
    shares = [f"{100 * number / int(total.sum()):.2f} %" for number in total.tolist()]
    rows = list(zip([*dataset.classes, "does not count"], shares, strict=True))
    print(format_table(("class", "share"), rows if total[-1] else rows[:-1], right=(1,)))
    print(f"\nall {len(dataset):,} images of {dataset.name} ({dataset.split}) and their labels can be read")


def _open(options: argparse.Namespace) -> Any:
    """Open the dataset that ``_add_dataset``'s arguments say."""
    from .. import data

    corruption = options.corruption
    if corruption is None and options.name in data.available() and data.get(options.name).corrupted:
        corruption = data.corruptions.NAMES[0]
    load = data.load_segmentation if data.task_of(options.name) == "segmentation" else data.load
    return load(options.name, options.split, corruption=corruption, severity=options.severity, root=options.root)
