"""Measure adaptation on a folder of your own images, corrupted.

python examples/own_images.py                       # writes a folder of digits as image files, and uses that
python examples/own_images.py FOLDER                # a folder with one folder of 16 × 16 images per digit
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from PIL import Image

import medbn
from medbn import data, models


def write_digits(folder: Path, count: int = 100) -> Path:
    """Write digits as ``folder/CLASS/NUMBER.png``, the layout of an image folder."""
    digits = data.load("digits").subset(range(count))
    images = digits.read(range(count))
    for number in range(count):
        file = folder / digits.classes[int(digits.labels[number])] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[number, 0].numpy()).save(file)
    return folder


def main(arguments: list[str] | None = None) -> None:
    """Corrupt a folder of images, save them for later runs, and print the error with and without adaptation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="FOLDER/CLASS/IMAGE; by default digits are written")
    options = parser.parse_args(arguments)

    with tempfile.TemporaryDirectory() as scratch:
        clean = data.load_image_folder(options.folder or write_digits(Path(scratch) / "images"), size=16)
        print(f"{len(clean)} images of {len(clean.classes)} classes")
        # The same as: medbn data generate NAME --from FOLDER --corruptions contrast
        written = data.generate(clean, Path(scratch) / "corrupted", names=["contrast"])
        corrupted = data.load(written.folder, corruption="contrast", severity=5)

        model = models.get("resnet-small", weights="shipped")
        for method, estimator in (("source", None), ("tebn", "mean"), ("tebn", "median")):
            adapter = medbn.adapt(model, method, estimator)
            wrong = 0
            for images, labels in corrupted.batches(50):
                grey = images.mean(dim=1, keepdim=True)  # the model takes one channel, image files have three
                wrong += int((adapter(grey).argmax(1) != labels).sum())
            print(f"{method:8} {estimator or '':8} error {100 * wrong / len(corrupted):.1f} %")


if __name__ == "__main__":
    main()
