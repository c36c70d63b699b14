"""Images outside of bounds are refused, or isolated."""

import pytest
import torch
from torch import nn

import medbn

from .table import assert_same, each_kind, make, state


def images_with(value, places, x):
    x = x.sigmoid()
    for place in places:
        x[place, 1, 2, 3] = value
    return x


@each_kind
def test_a_call_with_an_image_outside_is_refused_and_changes_nothing(method, model, batches):
    tta, free = make(model, method, bounds=(0, 1)), make(model, method)
    inside = batches[0].sigmoid()
    assert torch.equal(tta(inside), free(inside))
    before = state(tta)
    for value in (1.5, -0.1, torch.nan, torch.inf):
        with pytest.raises(ValueError, match=r"2 of 12.*3, 7"):
            tta(images_with(value, (3, 7), batches[1]))
    assert_same(state(tta), before)
    padded = images_with(7.0, (11,), batches[1])
    tta(padded, valid=torch.arange(12) < 11)  # padding may contain anything
    tta(torch.cat([torch.zeros(6, 3, 8, 8), torch.ones(6, 3, 8, 8)]))  # the bounds themselves are inside


@each_kind
def test_an_image_outside_is_isolated(method, model, batches):
    tta, other = make(model, method, bounds=(0, 1), outside="isolate"), make(model, method)
    for x in batches[:2]:
        x = x.sigmoid()
        nan = images_with(torch.nan, (3,), x)
        outside, expected = tta(images_with(40.0, (3,), x)), other(nan)
        torch.testing.assert_close(outside, expected, rtol=0, atol=0, equal_nan=True)
        assert outside.isnan().any(dim=1).tolist() == [i == 3 for i in range(12)]
    assert_same(state(tta), state(other))


def test_an_adapter_in_which_images_could_not_be_isolated_is_refused(model, batches):
    with pytest.raises(ValueError, match=r"nonfinite='isolate'"):
        make(model, "tent", "mean", bounds=(0, 1), outside="isolate")
    isolating = medbn.convert(model, "mean", nonfinite="isolate")
    tta = medbn.adapt(isolating, "tent", bounds=(0, 1), outside="isolate")
    outside = tta(images_with(2.0, (0,), batches[0]))
    assert outside.isnan().any(dim=1).tolist() == [i == 0 for i in range(12)]


def test_wrong_bounds(model):
    for wrong in ((1, 0), (0,), "01", 1.0, (0, None), (0, float("nan"))):
        with pytest.raises(ValueError, match="bounds"):
            make(model, "tent", bounds=wrong)
    with pytest.raises(ValueError, match=r"outsid.*isolate, refuse"):
        make(model, "tent", bounds=(0, 1), outside="drop")
    tta = medbn.adapt(nn.Flatten(), "source", bounds=(0, 1))
    with pytest.raises(TypeError, match="floating"):
        tta(torch.zeros(4, 3, 8, 8, dtype=torch.uint8))
