"""Attack it
=========

An attacker owns 20 of 100 images of a batch. She crafts them so that the other 80 are misclassified, or so that one of
them is predicted as a class of her choice. How far does she get?
"""

import matplotlib.pyplot as plt
import torch

import medbn
from medbn import attacks

torch.set_num_threads(1)
model = medbn.models.get("resnet-small", weights="shipped")
stream = list(medbn.data.load("digits", corruption="glass_blur", severity=5).batches(100, drop_last=True))
malicious = slice(80, 100)

# %%
# Three defences, each after some batches of the stream.

victims = {
    "BatchNorm": medbn.adapt(model, "tebn", "mean"),
    "MedBN": medbn.adapt(model, "tebn", "median"),
    "medbn.adapt(model)": medbn.adapt(model),
}
for victim in victims.values():
    for images, _ in stream[:4]:
        victim(images)

# %%
# ``DIA`` is the attack of the paper: gradient ascent on the malicious images, through the statistics of the batch. A
# median passes its own gradient to one value per channel. So a weak attack is mistaken for a strong defence, unless the
# attacker may choose another gradient for the way back.

images, labels = stream[4]
gradients = ("exact", "straight_through", "smooth")
errors = {}
for name, victim in victims.items():
    for gradient in (None, *gradients):
        poisoned = images
        if gradient is not None:
            attack = attacks.DIA(attacks.Indiscriminate(), steps=20, step_size=0.05, gradient=gradient)
            poisoned = attack(victim, images, labels, malicious=malicious)
        before = victim.snapshot()
        wrong = victim(poisoned).argmax(1) != labels
        victim.restore(before)
        errors[name, gradient] = 100 * wrong[:80].float().mean().item()
        if gradient == "straight_through":
            crafted = poisoned[malicious]

print(f"{'error of the other 80':24}" + "".join(f"{name:>20}" for name in victims))
for gradient in (None, *gradients):
    print(f"{gradient or 'without attack':24}" + "".join(f"{errors[name, gradient]:18.0f} %" for name in victims))

# %%
# The default does not move: it predicts a batch with statistics of *earlier* ones, so nothing in a batch reaches the
# other images. Poison for later batches is what is left; the scenario ``cumulative`` measures that.
#
# These are five of the malicious images, crafted for the default, and what they were.

figure, axes = plt.subplots(2, 5, figsize=(6, 2.6))
for column in range(5):
    for row, (shown, title) in enumerate(((images[malicious], "before"), (crafted, "crafted"))):
        axes[row, column].imshow(shown[column, 0], cmap="gray", vmin=0, vmax=1)
        axes[row, column].set_axis_off()
        if column == 0:
            axes[row, column].set_title(title, loc="left", fontsize=8)
figure.tight_layout()

# %%
# A targeted attack wants one image to be predicted as one class. ``worst_case`` runs several attacks and keeps the
# result that harms the real adapter most: judge a defence by that. ``instant`` attacks every batch of a stream from a
# clean state, and ``Summary`` counts.

attack = attacks.worst_case(attacks.Targeted(index=0), steps=10, step_size=0.1)
for name, victim in victims.items():
    summary = attacks.Summary.of(attacks.instant(victim, stream[:3], attack, malicious=malicious))
    print(f"{name:20} {summary.hits} of {summary.targets} targets are hit")
