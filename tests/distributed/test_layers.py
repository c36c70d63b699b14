"""Layers and models over gloo processes, against one process that has the whole batch."""

import copy
import pickle

import pytest
import torch
from torch import nn

import medbn

from .test_statistics import images, own

pytestmark = pytest.mark.slow


def network(sync=False):
    torch.manual_seed(5)
    make = nn.SyncBatchNorm if sync else nn.BatchNorm2d
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), make(6), nn.ReLU(), nn.Conv2d(6, 4, 3), make(4))
    model += nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias)
    return model


def run_share(group, x, shares, estimator, training, sync, nonfinite=None):
    """Output, gradients and statistics of a part of the batch."""
    model = network(sync)
    if sync:
        for layer in model.modules():
            if isinstance(layer, nn.SyncBatchNorm):
                layer.process_group = group
    model = medbn.convert(model, estimator, nonfinite=nonfinite, group=None if sync else group).train(training)
    part = own(group, x, shares).clone().requires_grad_()
    y = model(part)
    torch.where(y.isfinite(), y.square(), 0).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    return y.detach(), part.grad, gradients, [b.clone() for b in model.buffers()]


def run_whole(x, estimator, training, nonfinite=None):
    model = medbn.convert(network(), estimator, nonfinite=nonfinite).train(training)
    whole = x.clone().requires_grad_()
    y = model(whole)
    torch.where(y.isfinite(), y.square(), 0).sum().backward()
    return y.detach(), whole.grad, [p.grad for p in model.parameters()], list(model.buffers())


def check(answers, expected):
    y, gradient, parameters, buffers = expected
    torch.testing.assert_close(torch.cat([a[0] for a in answers]), y, equal_nan=True, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat([a[1] for a in answers]), gradient, equal_nan=True, rtol=1e-4, atol=1e-4)
    for each, whole in zip(zip(*(a[2] for a in answers), strict=True), parameters, strict=True):
        torch.testing.assert_close(sum(each), whole, equal_nan=True, rtol=1e-4, atol=1e-3)
    for answer in answers:
        torch.testing.assert_close(answer[3], answers[0][3], rtol=0, atol=0)
    torch.testing.assert_close(answers[0][3], buffers)


@pytest.mark.parametrize("estimator", ["mean", "median", "mad_scaled", "image_median", "median@0.3"])
@pytest.mark.parametrize("training", [False, True])
def test_a_model_computes_what_it_does_with_the_whole_batch(pool, estimator, training):
    x, shares = images(8, shape=(6, 6)), (3, 0, 5)
    answers = pool.run(run_share, 3, x, shares, estimator, training, False)
    check(answers, run_whole(x, estimator, training))


def test_sync_batch_norm_keeps_its_group(pool):
    x, shares = images(6, shape=(6, 6)), (2, 4)
    check(pool.run(run_share, 2, x, shares, "median", False, True), run_whole(x, "median", False))


@pytest.mark.parametrize(("estimator", "nonfinite"), [("median", None), ("image_median", None), ("mean", "propagate")])
def test_images_with_nan_on_one_process(pool, estimator, nonfinite):
    x, shares = images(8, shape=(6, 6)), (3, 1, 4)
    x[3] = torch.nan  # all that the second process has
    x[5, 0, 0, 0] = torch.inf
    answers = pool.run(run_share, 3, x, shares, estimator, False, False, nonfinite)
    check(answers, run_whole(x, estimator, False, nonfinite))


def run_few(group, x, shares):
    layer = medbn.RobustBatchNorm1d(3).eval()
    layer.group = group
    with torch.no_grad():
        return layer(own(group, x, shares))


def test_few_values_are_counted_over_all_processes(pool):
    layer = medbn.RobustBatchNorm1d(3).eval()
    x = images(4, shape=())
    y = torch.cat(pool.run(run_few, 4, x, (1, 1, 1, 1)))
    torch.testing.assert_close(y, layer(x))
    assert not torch.allclose(y, x, atol=1e-2)
    y = torch.cat(pool.run(run_few, 2, x[:2], (1, 1)))  # two values are normalised with the running statistics
    torch.testing.assert_close(y, x[:2] / (1 + layer.eps) ** 0.5)


def copy_and_pickle(group):
    model = medbn.convert(network(), group=group)
    copied = copy.deepcopy(model)
    world = pickle.loads(pickle.dumps(medbn.convert(network(), group="world")))
    before = str(copied[1])
    refused = False
    if group is not torch.distributed.group.WORLD:
        try:
            pickle.dumps(model)
        except TypeError:
            refused = True
    medbn.convert(copied, "mean")
    kept = copied[1].group == model[1].group
    medbn.convert(copied, group="local")
    return before, world[1].group.size, refused, kept, copied[1].group


def test_copies_keep_their_group(pool):
    for before, size, refused, kept, local in pool.run(copy_and_pickle, 2):
        assert "2 processes" in before
        assert (size, refused, kept, local) == (4, True, True, None)


def test_a_group_must_exist():
    with pytest.raises(ValueError, match="init_process_group"):
        medbn.convert(network(), group="world")
    with pytest.raises(ValueError, match=r"world.*local.*'globe'"):
        medbn.convert(network(), group="globe")
    with pytest.raises(ValueError, match=r"world.*local.*int"):
        medbn.convert(network(), group=3)
