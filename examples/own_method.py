"""A method of your own: pseudo-labels in fewer than thirty lines, then adapted, attacked and run in the bench.

python examples/own_method.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

import medbn
from medbn import bench, data, models, report
from medbn.methods import Learner, Predictions, mean_over, register


@register("pseudo_label")
class PseudoLabel(Learner):
    """Minimises the cross-entropy with the model's own confident predictions as labels (Lee, 2013).

    Args:
        model: the model to adapt.
        confidence: samples predicted with a lower confidence are not learned from.
        options: those of Learner.
    """

    label = "pseudo-label"  # in reports; the name of the class by default
    surrogate_from_policies = True  # `confidence` changes what is learned, not how images are normalised

    def __init__(self, model: nn.Module, *, confidence: float = 0.9, **options: Any) -> None:
        super().__init__(model, **options)
        self.confidence = confidence

    def loss(self, predictions: Predictions, memory: dict[str, Any], learned: dict[str, Tensor]) -> Tensor | None:
        """Return the mean cross-entropy of the confident samples; None if there are none."""
        confidence, labels = predictions.probabilities().max(dim=1)
        confident = predictions.usable & (confidence >= self.confidence)
        if not bool(confident.any()):
            return None
        return mean_over(F.cross_entropy(predictions.logits, labels, reduction="none"), confident)


def main() -> None:
    """Adapt to digits in low contrast, attack one batch of them, and compare methods in the bench."""
    model = models.get("resnet-small", weights="shipped")
    stream = data.load("digits", corruption="contrast", severity=5)
    batches = list(stream.batches(200, drop_last=True))

    tta = medbn.adapt(model, method="pseudo_label", estimator="median", confidence=0.8)
    wrong = sum(int((tta(images).argmax(1) != labels).sum()) for images, labels in batches)
    print(f"error: {wrong / 2 / len(batches):.1f} %")

    images, labels = batches[0]
    attack = medbn.attacks.DIA(medbn.attacks.Indiscriminate(), steps=5, step_size=0.1)
    poisoned = attack(tta, images, labels, malicious=slice(180, 200))
    wrong = int((tta(poisoned).argmax(1) != labels)[:180].sum())
    print(f"error of the 180 benign images of a poisoned batch: {wrong / 1.8:.1f} %")

    recipe = bench.Recipe(
        name="own-method",
        settings=(bench.DIGITS,),
        methods=("tebn", "pseudo_label"),
        estimators=("mean", "median"),
        attacks=(bench.Attack("indiscriminate", steps=5, step_size=0.1),),
        corruptions=("contrast",),
        options={"pseudo_label": {"confidence": 0.8}},
        batches=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own-method.db"
        bench.run(recipe, path)
        with bench.Store(path, create=False) as store:
            print(report.FORMATS.get("markdown").write(report.build(store)))


if __name__ == "__main__":
    main()
