"""Your own method
===============

A method says which statistics normalise a batch, and what is learned from it. It is a class with one or two short
methods; saving, restoring, surrogates for attackers and threads come from the base class.
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

import medbn
from medbn import bench
from medbn.methods import Learner, mean_over, register

torch.set_num_threads(1)

# %%
# Pseudo-labels (Lee, 2013): learn from the model's own confident predictions. ``loss`` returns what to minimise, or
# None to learn nothing from a batch.


@register("pseudo_label")
class PseudoLabel(Learner):
    """Minimises the cross-entropy with the model's own confident predictions as labels."""

    label = "pseudo-label"  # in reports

    def __init__(self, model, *, confidence=0.9, **options):
        super().__init__(model, **options)
        self.confidence = confidence

    def loss(self, predictions, memory, learned):
        """Return the mean cross-entropy of the confident images."""
        confidence, labels = predictions.probabilities().max(dim=1)
        confident = predictions.usable & (confidence >= self.confidence)
        if not bool(confident.any()):
            return None
        return mean_over(F.cross_entropy(predictions.logits, labels, reduction="none"), confident)


# %%
# It adapts like any other method, with any estimator. Its options are the arguments of its constructor.

model = medbn.models.get("resnet-small", weights="shipped")
batches = list(medbn.data.load("digits", corruption="contrast", severity=5).batches(200, drop_last=True))
figure, axis = plt.subplots(figsize=(6, 2.5))
for method, options in (("tebn", {}), ("pseudo_label", {"confidence": 0.8, "lr": 0.01})):
    tta = medbn.adapt(model, method, "image_median", **options)
    wrong = [
        100 * (tta(images).argmax(1) != labels).float().mean().item() for _ in range(3) for images, labels in batches
    ]
    axis.plot(range(1, len(wrong) + 1), wrong, label=tta.label)
axis.set_xlabel("batch; the stream comes three times")
axis.set_ylabel("error (%)")
axis.set_ylim(bottom=0)
axis.legend()
figure.tight_layout()

# %%
# It can be restored to the bit, and attacked.

snapshot = tta.snapshot()
images, labels = batches[0]
attack = medbn.attacks.DIA(medbn.attacks.Indiscriminate(), steps=10, step_size=0.1)
poisoned = attack(tta, images, labels, malicious=slice(160, 200))
print(f"under attack {(tta(poisoned).argmax(1) != labels)[:160].float().mean():.1%}")
tta.restore(snapshot)

# %%
# It takes part in the bench by its name, beside all other methods.

recipe = bench.Recipe(
    name="own-method", settings=(bench.DIGITS,), methods=("tebn", "pseudo_label"), estimators=("image_median",)
)
[(cell.method, cell.estimator, cell.corruption) for cell in recipe.narrow(corruptions=["contrast"], batches=1).cells()]

# %%
# :doc:`../extending` lists what else a method may override.

medbn.methods.unregister("pseudo_label")
