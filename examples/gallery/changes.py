"""A stream that changes
=====================

The default remembers earlier batches, which protects it. When images change, what it remembers is wrong.
``changes="detect"`` finds the change.
"""

import matplotlib.pyplot as plt
import torch

import medbn

torch.set_num_threads(1)
model = medbn.models.get("resnet-small", weights="shipped")

# %%
# Clear digits, bright ones, and both again.


def batches(corruption, seed, count):
    """Return batches of 100 digits."""
    digits = medbn.data.load("digits", corruption=corruption, severity=5) if corruption else medbn.data.load("digits")
    return list(digits.shuffle(seed).batches(100, drop_last=True))[:count]


clear, bright = None, "brightness"
parts = [(clear, 4), (bright, 6), (clear, 4), (bright, 4)]
stream = [batch for seed, (corruption, count) in enumerate(parts) for batch in batches(corruption, seed, count)]

adapters = {
    "TeBN, BatchNorm": medbn.adapt(model, "tebn", "mean"),
    "medbn.adapt(model)": medbn.adapt(model, batch_size=100),
    'changes="detect"': medbn.adapt(model, batch_size=100, changes="detect"),
}
errors = {name: [] for name in adapters}
found = []
for images, labels in stream:
    for name, tta in adapters.items():
        errors[name].append(100 * (tta(images).argmax(1) != labels).float().mean().item())
    found.append(tta.memory["declared"] + tta.memory["returned"])

figure, axis = plt.subplots(figsize=(7, 3))
styles = {
    "TeBN, BatchNorm": ("#9c3208", "o"),
    "medbn.adapt(model)": ("#17a36f", "^"),
    'changes="detect"': ("#1d66d6", "s"),
}
for name, values in errors.items():
    colour, mark = styles[name]
    axis.plot(range(1, len(stream) + 1), values, color=colour, marker=mark, markersize=4, label=name)
end = 0
for corruption, count in parts:
    axis.axvspan(end + 0.5, end + count + 0.5, color="#a88600", alpha=0.12 if corruption else 0.0, linewidth=0)
    end += count
axis.set_xlabel("batch; those with bright digits are shaded")
axis.set_ylabel("error (%)")
axis.legend()
figure.tight_layout()

# %%
# Changes that were found, and returns to something that was known already:

changed = [number + 1 for number in range(len(stream)) if found[number] > (found[number - 1] if number else 0)]
print("in batches", changed)

# %%
# A minority of crafted images cannot raise an alarm, and cannot hide one for long: :doc:`../threat-model` has the bound
# and its proof, :doc:`../results/changes` what was measured. The batch in which a change is found is normalised with
# its own statistics, and is as exposed as with TeBN.
#
# If your program knows when images change, tell the adapter: ``tta.reset()``.
