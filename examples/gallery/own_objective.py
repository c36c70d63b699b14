"""Your own objective
==================

An objective says what an attacker wants. ``value`` is what her gradient ascends; ``harm`` says, between 0 and 1, how
far she got.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch

import medbn
from medbn import attacks

torch.set_num_threads(1)

# %%
# This attacker wants a model that is unsure of everybody's images, so that a service which asks a person in doubt has
# to ask all the time. ``benign`` is the mask of the images that count; malicious ones never do.


@attacks.objectives.register("doubt")
@dataclass(frozen=True)
class Doubt(attacks.Objective):
    """Raises the entropy of the predictions for benign images."""

    harm_label = "share of unsure predictions"
    threshold: float = 0.9

    def value(self, logits, labels, benign):
        """Return the entropy, to maximise."""
        entropy = torch.distributions.Categorical(logits=logits).entropy()
        return torch.where(benign, entropy, 0.0).sum()

    def harm(self, logits, labels, benign):
        """Return the share of the benign images that are predicted with little confidence."""
        confidence = logits.softmax(dim=1).amax(dim=1)
        return ((confidence < self.threshold) & benign).sum() / benign.sum()


# %%
# Every attack and every scenario takes it.

model = medbn.models.get("resnet-small", weights="shipped")
stream = list(medbn.data.load("digits", corruption="motion_blur", severity=5).batches(100, drop_last=True))[:4]


def both(outcome):
    """Return the harm of one batch without attack and under attack."""
    return float(outcome.harm_without()), float(outcome.harm())


attack = attacks.DIA(Doubt(), steps=15, step_size=0.06, gradient="straight_through")
figure, axis = plt.subplots(figsize=(6, 2.5))
for name, arguments in {
    "BatchNorm": ("tebn", "mean"),
    "MedBN": ("tebn", "median"),
    "image_median": ("tebn", "image_median"),
    "medbn.adapt(model)": (),
}.items():
    victim = medbn.adapt(model, *arguments)
    outcomes = list(attacks.instant(victim, stream, attack, malicious=slice(80, 100)))
    without, under = (sum(shares) / len(shares) for shares in zip(*map(both, outcomes), strict=True))
    print(f"{name:20} unsure of {without:4.0%} without attack, of {under:4.0%} under attack")
    axis.plot([100 * without, 100 * under], [name, name], "o-")
axis.invert_yaxis()
axis.set_xlim(left=0)
axis.set_xlabel("unsure predictions without and under attack (%)")
figure.tight_layout()

# %%
# In a recipe file it is ``objective = "doubt"``, with ``--import`` of the module that registers it:
# :doc:`../bench`.

attacks.objectives.unregister("doubt")
