"""Your own estimator
==================

An estimator says how the activations of a batch become a centre and a variance per channel. It is a function; you
register it under a name, and use it everywhere.
"""

import matplotlib.pyplot as plt
import torch

import medbn

torch.set_num_threads(1)

# %%
# This one leaves out the tenth of the images whose mean is highest, and the tenth whose mean is lowest, per channel.
# ``x`` is ``(B, C, *)``. ``valid`` is a mask of the images that count, or None for all: padding and images with NaN do
# not count.


@medbn.estimators.register("trimmed_images", label="trimmed images", about="a mean without the outermost images")
def trimmed_images(x, valid=None):
    """Return the mean and the variance of the images in the middle, for each channel."""
    rows = x.flatten(2) if x.dim() > 2 else x.unsqueeze(2)  # (B, C, H·W)
    if valid is not None:
        rows = rows[valid]
    order = rows.mean(dim=2).argsort(dim=0)  # (B, C)
    cut = len(rows) // 10
    kept = order[cut : len(rows) - cut]
    chosen = torch.take_along_dim(rows, kept[:, :, None].expand(-1, -1, rows.shape[2]), dim=0)
    return chosen.mean(dim=(0, 2)), chosen.var(dim=(0, 2), unbiased=False)


# %%
# From now on its name works like any other. A prior mixes it with the training statistics.

model = medbn.models.get("resnet-small", weights="shipped")
tta = medbn.adapt(model, "tebn", "trimmed_images@0.5")
medbn.estimators.available()

# %%
# How far can a tenth of the images move the centre of a layer? One channel of Gaussian noise, in which six of sixty
# images are bright.

generator = torch.Generator().manual_seed(0)
x = torch.randn(60, 1, 8, 8, generator=generator)
shifts = torch.linspace(0, 20, 21)
figure, axis = plt.subplots(figsize=(6, 3))
for name in ("mean", "median", "image_median", "trimmed_images"):
    centres = []
    for shift in shifts:
        moved = x.clone()
        moved[:6] += shift
        centres.append(medbn.functional.statistics(moved, name)[0].item())
    axis.plot(shifts, centres, label=name)
axis.set_xlabel("how much brighter the six images are")
axis.set_ylabel("centre of the channel")
axis.legend()
figure.tight_layout()

# %%
# And under attack, by an attacker who knows it: autograd differentiates the estimator, which is made of torch
# operations.

images, labels = next(iter(medbn.data.load("digits", corruption="glass_blur", severity=5).batches(100)))
for name in ("mean", "trimmed_images"):
    victim = medbn.adapt(model, "tebn", name)
    for count in (8, 20):
        attack = medbn.attacks.DIA(medbn.attacks.Indiscriminate(), steps=15, step_size=0.06)
        poisoned = attack(victim, images, labels, malicious=slice(100 - count, 100))
        wrong = victim(poisoned).argmax(1) != labels
        share = wrong[: 100 - count].float().mean()
        print(f"{name:15} {count:2} of 100 images malicious: {share:.0%} of the others wrong")

# %%
# :doc:`../extending` says what an estimator must keep to, and how to give it a kernel.

medbn.estimators.unregister("trimmed_images")
