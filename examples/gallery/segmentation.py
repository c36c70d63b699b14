"""Segmentation
============

Models with an output for every pixel adapt as they are. An attacker who owns one of three images can then change what
the model sees in the other two.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import ListedColormap

import medbn
from medbn import attacks

torch.set_num_threads(1)
scenes = medbn.data.load_segmentation("scenes", corruption="brightness", severity=3)
model = medbn.models.get("unet-small", weights="shipped")

# %%
# A batch has three scenes of digits on textured ground, and the third one is malicious. The attacker wants the pixels
# of the others mislabelled.

stream = list(scenes.batches(3))[:4]
gradients = ("exact", "straight_through")
outcomes = {}
for name, estimator in (("BatchNorm", "mean"), ("MedBN", "median"), ("image_median", "image_median")):
    victim = medbn.adapt(model, "tebn", estimator)
    for gradient in gradients:
        objective = attacks.IndiscriminateSegmentation()
        attack = attacks.DIA(objective, steps=12, step_size=1 / 12, gradient=gradient)
        outcomes[name, gradient] = list(attacks.instant(victim, stream, attack, malicious=slice(2, 3)))

# %%
# The share of pixels of the benign images that are right, over four batches. An attacker who follows MedBN's own
# gradient does little. One who takes a mean's instead does more harm than with BatchNorm. With ``image_median`` the own
# gradient is the more harmful one.


def right(outcome, logits):
    """Return the share of the benign pixels of a batch that are right, in per cent."""
    same = logits.argmax(1) == outcome.labels
    return 100 * same[outcome.benign].float().mean().item()


print(f"{'':14}{'without attack':>16}{'exact':>8}{'straight-through':>18}{'worst of both':>15}")
for name in dict.fromkeys(name for name, _ in outcomes):
    clean, attacked = [], []
    for pair in zip(*(outcomes[name, gradient] for gradient in gradients), strict=True):
        clean.append(right(pair[0], pair[0].clean))
        attacked.append([right(outcome, outcome.attacked) for outcome in pair])
    exact, other = (sum(column) / len(stream) for column in zip(*attacked, strict=True))
    worst = sum(map(min, attacked)) / len(stream)
    print(f"{name:14}{sum(clean) / len(stream):16.0f}{exact:8.0f}{other:18.0f}{worst:15.0f}")

# %%
# A scene of the third batch: what it is and its labels; then what each defence predicts without an attack and under the
# worse one.

shown = {}
for name in dict.fromkeys(name for name, _ in outcomes):
    worse = min((outcomes[name, gradient][2] for gradient in gradients), key=lambda one: right(one, one.attacked))
    shown[name] = (worse.clean[0].argmax(0), worse.attacked[0].argmax(0))
images, labels = stream[2]

colours = ListedColormap([[value / 255 for value in colour] for colour in scenes.colours])
figure, axes = plt.subplots(2, 4, figsize=(8, 3.2))
pictures = {"scene": (images[0].permute(1, 2, 0), labels[0])} | shown
for column, (title, pair) in enumerate(pictures.items()):
    for row, picture in enumerate(pair):
        axes[row, column].imshow(picture, cmap=colours, vmin=0, vmax=len(scenes.colours) - 1, interpolation="nearest")
        axes[row, column].set_axis_off()
    axes[0, column].set_title(title if column == 0 else f"{title}, no attack", fontsize=8)
    axes[1, column].set_title("labels" if column == 0 else f"{title}, attacked", fontsize=8)
figure.tight_layout()

# %%
# ``medbn demo segmentation`` measures this on sixteen batches, with the mean IoU and both attacks of the paper's
# table 4: :doc:`../results/segmentation`.
