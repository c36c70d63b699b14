"""Every method, with options under which it adapts on the small model; a new method adds a row."""

import warnings

import pytest
import torch

import medbn

METHODS = {
    "source": {},
    "tebn": {},
    "tent": {},
    "eta": {"margin": 0.95, "redundancy": 0.98},
    "eata": {"margin": 0.95, "redundancy": 0.98, "fisher_weight": 50.0},
    "sar": {"margin": 0.95},
    "sotta": {"confidence": 0.2, "capacity": 10},
    "sema": {},
    "mdia": {"terminal": 2},
    "past": {"batch_size": 12},
    "alpha_bn": {"source_images": 4},
    "lame": {"neighbours": 3, "weight": 0.5},
    "cotta": {"augmentations": 2, "restored": 0.2},
    "rotta": {"capacity": 10, "frequency": 6, "average": 0.5},
    "deyo": {"margin": 0.95, "plpd": -0.3, "patches": 2},
    "roid": {},
    "note": {"capacity": 10, "frequency": 6, "momentum": 0.2, "lr": 1e-3},
}
LEARNING = [name for name in METHODS if issubclass(medbn.methods.get(name), medbn.methods.Learner)]
KEEPS_NOTHING = ["source", "tebn", "mdia", "alpha_bn", "lame"]
FROM_MEMORY = ["sotta", "rotta", "note"]  # learn from a memory of images, not from the batch at hand
AVERAGES_OF_MEMORY = ["rotta", "note"]  # those of them whose averages take the statistics of the memory alone
ADAPTING = [name for name in METHODS if medbn.methods.get(name).adapts]
# Methods use estimators only through layers, which have three ways to compute: torch's kernel, ours, and a mixture.
ESTIMATORS = ["mean", "median", "image_median@0.5"]

DENSE = [name for name in METHODS if name not in ("lame", "deyo")]  # which are for one prediction per image

# One method of each kind: nothing adapts, averages, a policy for each layer, learning from the batch, from a memory and
# from a teacher. In the fast tier they stand for all in tests of what methods have from their base classes.
KINDS = ["source", "past", "mdia", "tent", "sotta", "cotta"]


def one_of_each_kind(methods, *values, kinds=KINDS):
    """Return all methods, each with these values, as parameters of a test; the fast tier has one of each kind."""
    return [pytest.param(m, *values, marks=() if m in kinds else pytest.mark.slow) for m in methods]


def combine(methods, first, *others):
    """Return all methods with all values; the fast tier has all with the first, and the others with two methods.

    For values that methods pass on and do not look at, as the estimator of their layers.
    """
    first, *others = [way if isinstance(way, tuple) else (way,) for way in (first, *others)]
    every = [pytest.param(m, *first) for m in methods]
    return every + [case for way in others for case in one_of_each_kind(methods, *way, kinds=("past", "tent"))]


every_method = pytest.mark.parametrize("method", METHODS)
each_kind = pytest.mark.parametrize("method", one_of_each_kind(METHODS))
each_kind_that_adapts = pytest.mark.parametrize("method", one_of_each_kind(ADAPTING))
each_kind_that_learns = pytest.mark.parametrize("method", one_of_each_kind(LEARNING))
every_learning = pytest.mark.parametrize("method", LEARNING)
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)


def make(model, method, estimator="median", **options):
    """An adapter of a copy of the model, made without a warning."""
    options = {**METHODS[method], **options}
    if method == "eata" and "source" not in options:
        g = torch.Generator().manual_seed(11)
        options["source"] = [torch.randn(8, 3, 8, 8, generator=g) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return medbn.adapt(model, method, estimator, **options)


def state(adapter):
    """Everything that adapts, flat: names to tensors and plain values."""
    flat = {}

    def walk(prefix, value):
        if isinstance(value, dict):
            for key, item in value.items():
                walk(f"{prefix}.{key}", item)
        elif isinstance(value, list | tuple):
            for i, item in enumerate(value):
                walk(f"{prefix}.{i}", item)
        else:
            flat[prefix] = value

    walk("", adapter.snapshot())
    return flat


def assert_same(a, b, exact=True):
    assert a.keys() == b.keys()
    for name, value in a.items():
        if isinstance(value, torch.Tensor):
            if exact:
                assert torch.equal(value, b[name]), name
            else:
                torch.testing.assert_close(
                    value, b[name], rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}"
                )
        elif isinstance(value, float) and not exact:
            assert abs(value - b[name]) < 1e-3, name
        else:
            assert value == b[name], name
