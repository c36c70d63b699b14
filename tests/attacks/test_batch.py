"""Which images are malicious, and what is refused."""

import numpy as np
import pytest
import torch

from medbn.attacks import DIA, Targeted
from medbn.attacks._batch import Batch, check_batch

from ..methods.conftest import small_model
from ..methods.table import make
from .test_dia import MALICIOUS, quick

IMAGES, LABELS = torch.rand(10, 3, 8, 8), torch.arange(10)


@pytest.mark.parametrize(
    "malicious",
    [
        slice(7, 10),
        slice(-3, None),
        [7, 8, 8, 9],
        [-1, -2, -3],
        torch.tensor([7, 8, 9]),
        torch.arange(10) >= 7,
        np.arange(10) >= 7,
        (np.arange(10) >= 7).tolist(),
    ],
    ids=["slice", "slice from the end", "list", "from the end", "indices", "mask", "numpy mask", "list mask"],
)
def test_malicious_images_are_a_slice_indices_or_a_mask(malicious):
    assert torch.equal(check_batch(IMAGES, LABELS, malicious)[2], torch.arange(10) < 7)


@pytest.mark.parametrize(
    ("malicious", "message"),
    [
        ([], "no image"),
        (slice(10, 12), "no image"),
        (slice(None), "all 10"),
        ([3, 10], r"\[3, 10\]"),
        (torch.zeros(9, dtype=torch.bool), r"10.*\(9,\)"),
        ((torch.arange(10) >= 7).byte(), "uint8"),
        ([7.9, 8.2], "float"),
    ],
)
def test_bad_selections_are_refused(malicious, message):
    with pytest.raises((ValueError, TypeError), match=message):
        check_batch(IMAGES, LABELS, malicious)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (3 * IMAGES - 1, LABELS, "[0, 1]"),
        (IMAGES.index_fill(0, torch.tensor(3), torch.nan), LABELS, "nan"),
        (IMAGES, LABELS.tolist(), "list"),
        (IMAGES[:0], LABELS[:0], "empty"),
        (IMAGES, LABELS[:9], "10"),
        (IMAGES, LABELS.float(), "float32"),
        ((IMAGES * 255).byte(), LABELS, "uint8"),
    ],
)
def test_bad_batches_are_refused(images, labels, message):
    with pytest.raises((ValueError, TypeError)) as error:
        check_batch(images, labels, MALICIOUS)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (Targeted(8), "image 8"),
        (Targeted(12), "image 12.* 10"),
        (Targeted(0, target_class=99), "99.* 10"),
        (Targeted(4, target_class=4), "class 4"),
    ],
)
def test_targets_that_make_no_sense_are_refused(objective, message):
    with pytest.raises(ValueError, match=message):
        quick(objective=objective)(make(small_model(), "tebn"), IMAGES, LABELS, MALICIOUS)


def test_labels_of_another_kind_of_model_name_the_right_objectives():
    with pytest.raises(ValueError, match="TargetedPixel"):
        quick()(make(small_model(), "tebn"), IMAGES, torch.zeros(10, 2, 2, dtype=torch.long), MALICIOUS)


def test_a_plain_model_is_no_victim():
    with pytest.raises(TypeError, match=r"adapt.*SmallResNet"):
        quick()(small_model(), IMAGES, LABELS, MALICIOUS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"knowledge": "black"}, "'black'.*grey, semi, transfer, white"),
        ({"gradient": "exakt"}, "'exakt'.*'exact'"),
        ({"start": "gray"}, "'gray'.*'grey'"),
        ({"steps": -1}, "steps.*-1"),
        ({"steps": 2.5}, "steps.*2.5"),
        ({"restarts": 0}, "restarts.*0"),
        ({"epsilon": 0.0}, "epsilon.*0.0"),
        ({"temperature": 0.0}, "temperature.*0.0"),
        ({"step_size": float("nan")}, "step_size.*nan"),
        ({"alignment": -1.0}, "alignment.*-1.0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DIA(**options)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_insertion_replaces_the_malicious_images_which_alone_receive_gradients(form):
    images = torch.rand(6, 3, 4, 4).to(memory_format=form)
    malicious = torch.rand(2, 3, 4, 4, requires_grad=True)
    poisoned = Batch.of(images, torch.arange(6), [4, 1]).insert(malicious)
    expected = images.clone()
    expected[[1, 4]] = malicious.detach()
    assert torch.equal(poisoned, expected)
    assert poisoned.stride() == images.stride()
    g = torch.rand(poisoned.shape)
    (slope,) = torch.autograd.grad(poisoned, malicious, g)
    assert torch.equal(slope, g[[1, 4]])
