"""What do figures show of the attacks in a store of results? This copies attacks into a store for `medbn figure`.

A store of results keeps six images of each attack, as bytes.
From grey images and with gradients that treat all malicious images alike (exact ones of a mean, straight-through ones),
all malicious images of a batch stay equal. Then one stored image is the whole attack, rounded to bytes. Each copy is
checked: it has to do about the same harm as the attack did when it was measured.

    xz -dk results/cifar10-c.db.xz
    python experiments/stored_attacks.py results/cifar10-c.db figures.db --weights resnet26-cifar10.safetensors
    medbn figure shift --data cifar10-c --weights resnet26-cifar10.safetensors --store figures.db
        --epsilons 1 --gradient straight_through --seed 1
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from dataclasses import replace

import numpy as np
import torch

from medbn import analysis, cli
from medbn.analysis.cache import write_poisoned
from medbn.bench import Place, Store, missing_requirements
from medbn.methods import predict_logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="a store of results with example images")
    parser.add_argument("store", help="the store for medbn figure")
    parser.add_argument("--weights", help="weights of the model")
    parser.add_argument("--root", help="folder of the datasets")
    parser.add_argument("--data", default="cifar10-c")
    parser.add_argument("--steps", type=cli.positive_int, default=analysis.PAPER_STEPS, help="of the stored attacks")
    parser.add_argument("--seed", type=int, default=1, help="of the stored cells (default: 1)")
    options = parser.parse_args()
    setting = analysis.known_setting(options.data)
    if setting is None:
        raise ValueError(f"--data {options.data} is neither digits nor of the paper's first table.")
    if options.weights:
        setting = replace(setting, weights=options.weights)
    missing = missing_requirements(setting, ["tebn"], options.root)
    if missing:
        raise ValueError(f"this needs: {'; '.join(missing)}.")
    attack = replace(analysis.attack_of(options.steps), gradient="straight_through")
    settings = analysis.Settings(setting, attack, epsilons=(1.0,), seed=options.seed)
    with Store(options.results, create=False) as results, Store(options.store) as store:
        experiment = analysis.Experiment(settings, Place(options.root))
        stored = {cell.key: cell for cell in results.cells()}
        for estimator in settings.estimators:
            print(f"{estimator}: {copy(experiment, estimator, stored, results, store)}", flush=True)


def copy(experiment, estimator, stored, results, store) -> str:
    """Copy the attack on one estimator, and say what it does."""
    cell = experiment.cell(estimator)
    key = experiment.load(cell).key
    if key not in stored:
        return "this store has no such cell, with these images and weights."
    crafted = [decode(poisoned) for _, poisoned in results.examples(key)]
    if len(crafted) < 2 or any(not torch.equal(image, crafted[0]) for image in crafted):
        return "its malicious images differ; one cannot stand for all."
    images, labels = experiment.batch(cell)
    malicious = crafted[0].expand_as(images[experiment.malicious])
    poisoned = images.clone()
    poisoned[experiment.malicious] = malicious
    logits = predict_logits(experiment.adapter(cell), poisoned)
    wrong = int((logits.argmax(1) != labels)[experiment.benign].sum())
    measured = stored[key].batches[0]["wrong"]
    write_poisoned(store, key, 0, malicious, cell.to_dict(), stored[key].facts, 0.0)
    device = json.dumps(stored[key].facts.get("device"))
    return f"{wrong} of the benign images are wrong under attack; {measured} were when it was crafted on {device}."


def decode(png: bytes) -> torch.Tensor:
    """Return a stored image (C, H, W) in [0, 1]."""
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(png))).copy()
    return torch.from_numpy(pixels).reshape(*pixels.shape[:2], -1).permute(2, 0, 1).float() / 255


if __name__ == "__main__":
    sys.exit(cli.run_program("stored_attacks.py", main))
