"""The error of a model on corrupted images, un-adapted and with the statistics of each batch (TeBN), per corruption.

python examples/corruption_errors.py --model resnet26 --weights resnet26.safetensors --data cifar10-c --root DATA
python examples/corruption_errors.py                                             # digits and the shipped model
"""

from __future__ import annotations

import argparse

import torch

import medbn
from medbn import data, models


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet-small")
    parser.add_argument("--weights", default="shipped")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--root")
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=200)
    parser.add_argument("--frost", default=None, help="a folder of photographs, or 'synthetic'")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    model = models.get(options.model, weights=options.weights).to(options.device)
    columns = {"Source": ("source", None), "TeBN": ("tebn", "mean"), "MedBN": ("tebn", "median")}
    columns["image_median"] = ("tebn", "image_median")
    print(f"{'':18}" + "".join(f"{name:>14}" for name in columns))
    totals = dict.fromkeys(columns, 0.0)
    for corruption in data.corruptions.NAMES:
        stream = data.load(
            options.data, corruption=corruption, severity=options.severity, root=options.root, frost=options.frost
        )
        errors = {}
        for name, (method, estimator) in columns.items():
            adapter = medbn.adapt(model, method, estimator)
            wrong = images = 0
            for batch, labels in stream.batches(options.batch_size, device=options.device, drop_last=True):
                wrong += int((adapter(batch).argmax(1) != labels).sum())
                images += len(labels)
            errors[name] = 100 * wrong / images
            totals[name] += errors[name] / len(data.corruptions.NAMES)
        print(f"{corruption:18}" + "".join(f"{value:14.2f}" for value in errors.values()), flush=True)
    print(f"{'average':18}" + "".join(f"{value:14.2f}" for value in totals.values()))


if __name__ == "__main__":
    main()
