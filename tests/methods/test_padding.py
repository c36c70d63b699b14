"""Padding and non-finite images take no part in anything."""

from itertools import product

import pytest
import torch

from ..tiers import slow
from .conftest import small_model
from .table import (
    FROM_MEMORY,
    METHODS,
    assert_same,
    each_kind,
    each_kind_that_adapts,
    each_kind_that_learns,
    make,
    one_of_each_kind,
    state,
)


@each_kind
@pytest.mark.parametrize("estimator", ["median", "image_median@0.5"])
def test_a_non_finite_image_leaves_the_state_of_the_batch_without_it(method, estimator, model, batches):
    options = {"capacity": 100} if method in FROM_MEMORY else {}  # a full memory replaces images at random
    attacked, clean = (make(model, method, estimator, **options) for _ in range(2))
    for step, (x, value) in enumerate(zip(batches, (torch.nan, torch.inf, -torch.inf), strict=False)):
        poisoned = x.clone()
        poisoned[4, step % 3, 2, 2] = value
        y = attacked(poisoned)
        others = [i for i in range(12) if i != 4]
        torch.testing.assert_close(y[others], clean(x[others]), rtol=1e-3, atol=1e-3)
    assert_same(state(attacked), state(clean), exact=False)
    assert all(p.isfinite().all() for p in attacked.parameters())


@each_kind_that_learns
@pytest.mark.parametrize("estimator", ["image_median", "mad"])
def test_an_image_with_huge_logits_changes_no_parameter_to_nan(method, estimator, batches):
    """Its logits are finite, and so far apart that their entropy and its gradient are not."""
    tta = make(small_model(scale=12.0), method, estimator)
    for x in batches[:3]:
        x = x.clone()
        x[3] *= 1e37
        tta(x)
    assert all(p.isfinite().all() for p in tta.parameters())
    assert tta(batches[3]).isfinite().all()


@each_kind_that_adapts
def test_a_batch_without_a_finite_image_is_refused_and_changes_nothing(method, model, batches):
    tta = make(model, method)
    tta(batches[0])
    before = state(tta)
    with pytest.raises(ValueError, match="finite"):
        tta(torch.full((4, 3, 8, 8), torch.nan))
    assert_same(state(tta), before)
    tta(batches[1])


@pytest.mark.parametrize(
    ("method", "estimator"),
    [*one_of_each_kind(METHODS, "median"), *slow(*product(METHODS, ["mean", "image_median@0.5"]))],
)
def test_padding_changes_nothing(method, estimator, model, batches):
    padded, plain = make(model, method, estimator), make(model, method, estimator)
    for x, filler in zip(batches, (7.0, torch.nan, 1e30), strict=False):
        filled = x.clone()
        filled[9:] = filler
        y = padded(filled, valid=torch.arange(12) < 9)
        torch.testing.assert_close(y[:9], plain(x[:9]), rtol=1e-3, atol=1e-3)
    assert_same(state(padded), state(plain), exact=False)
