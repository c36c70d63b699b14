"""The estimators once more, from their definitions, in float64 numpy: what the package is compared with."""

import numpy as np


def lower_median(values):
    """By sorting: the order statistic at rank ⌊(n−1)/2⌋; +0.0 for either zero."""
    ordered = np.sort(np.asarray(values, dtype=np.float64).ravel())
    return ordered[(ordered.size - 1) // 2] + 0.0


def statistics(x, estimator):
    """Centre and variance of each channel of x (B, C, *)."""
    x = np.asarray(x, dtype=np.float64)
    x = x.reshape(x.shape[0], x.shape[1], -1)
    pairs = [ESTIMATORS[estimator](x[:, c]) for c in range(x.shape[1])]
    return tuple(np.array(values) for values in zip(*pairs, strict=True))


def _mean(x):
    return x.mean(), ((x - x.mean()) ** 2).mean()


def _median(x):
    return lower_median(x), ((x - lower_median(x)) ** 2).mean()


def _mad(x):
    return lower_median(x), lower_median(np.abs(x - lower_median(x))) ** 2


def _mad_scaled(x):
    centre, variance = _mad(x)
    return centre, 1.4826**2 * variance


def _image_median(x):
    means, within = x.mean(1), x.var(1)
    centre = np.median(means)
    return centre, np.median(within) + (1.4826 * np.median(np.abs(means - centre))) ** 2


ESTIMATORS = {
    "mean": _mean,
    "median": _median,
    "mad": _mad,
    "mad_scaled": _mad_scaled,
    "image_median": _image_median,
}
ROBUST = [name for name in ESTIMATORS if name != "mean"]
