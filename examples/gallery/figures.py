"""Figures
=======

The figures of the paper, for any data, model and attack. ``medbn figure NAME`` writes one as a file; this is
the same in Python.
"""

import io

import matplotlib.pyplot as plt
import torch

from medbn import analysis

torch.set_num_threads(1)

# %%
# What there is:

analysis.available()


# %%
# A figure is measured first and drawn afterwards.


def show(numbers):
    """Show a figure on this page."""
    picture = plt.imread(io.BytesIO(analysis.render(numbers, "png", caption=False)))
    figure = plt.figure(figsize=(picture.shape[1] / 200, picture.shape[0] / 200), frameon=False)
    figure.add_axes((0, 0, 1, 1)).imshow(picture)
    figure.axes[0].set_axis_off()


illustration = analysis.measure("illustration")
show(illustration)

# %%
# Its numbers are rows, which can be selected: how far one of fifteen samples moves a centre when it is 20 standard
# deviations away.

for estimator in ("mean", "median"):
    print(estimator, illustration.select(value=20.0, estimator=estimator)[0]["shift"])

# %%
# Figures about attacks run them first. ``Settings`` says on what: here on digits, with few steps, which take seconds.

settings = analysis.Settings(attack=analysis.attack_of(10), epsilons=(1.0,))
experiment = analysis.Experiment(settings)
shift = analysis.measure("shift", experiment)
show(shift)

# %%
# :doc:`../figures` shows all of them and says what agrees with the paper. A figure of your own is two functions:
# :doc:`../extending`.
