"""Print how much error each corruption causes, and how much of it batch statistics remove.

python examples/corruption_errors.py                                    # digits, with the weights that ship
python examples/corruption_errors.py --data cifar10-c --model resnet26 --weights resnet26-cifar10.safetensors
"""

from __future__ import annotations

import argparse

import torch

import medbn
from medbn import data, models

COLUMNS = {
    "Source": ("source", None),
    "TeBN": ("tebn", "mean"),
    "MedBN": ("tebn", "median"),
    "image_median": ("tebn", "image_median"),
}
"""Column title: method and estimator."""


def main(arguments: list[str] | None = None) -> None:
    """Print the error in per cent of each corruption without adaptation and with three estimators."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet-small")
    parser.add_argument("--weights", default="shipped", help="a file, or 'shipped'")
    parser.add_argument("--data", default="digits", help="a dataset of `medbn data list`, or a folder")
    parser.add_argument("--root", help="the data folder")
    parser.add_argument("--corruptions", nargs="+", default=data.corruptions.NAMES)
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=200)
    parser.add_argument("--frost", default="synthetic", help="a folder of photographs of frost, or 'synthetic'")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)

    model = models.get(options.model, weights=options.weights).to(options.device)
    print(f"{'':18}" + "".join(f"{title:>14}" for title in COLUMNS))
    totals = dict.fromkeys(COLUMNS, 0.0)
    for corruption in options.corruptions:
        images = data.load(
            options.data, corruption=corruption, severity=options.severity, root=options.root, frost=options.frost
        )
        errors = {}
        for title, (method, estimator) in COLUMNS.items():
            adapter = medbn.adapt(model, method, estimator)
            wrong = count = 0
            for batch, labels in images.batches(options.batch_size, device=options.device, drop_last=True):
                wrong += int((adapter(batch).argmax(1) != labels).sum())
                count += len(labels)
            errors[title] = 100 * wrong / count
            totals[title] += errors[title] / len(options.corruptions)
        print(f"{corruption:18}" + "".join(f"{error:14.2f}" for error in errors.values()), flush=True)
    print(f"{'average':18}" + "".join(f"{error:14.2f}" for error in totals.values()))


if __name__ == "__main__":
    main()
