import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import medbn
from medbn.attacks import DIA, Indiscriminate, IndiscriminateSegmentation, Targeted, TargetedPixel

from ..methods.table import make
from ..tiers import slow

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 3.0, 0.0], [0.0, 0.0, 9.0], [5.0, 0.0, 0.0]])
LABELS = torch.tensor([0, 2, 2, 1])
BENIGN = torch.tensor([True, True, True, False])


def cross_entropy(row, label):
    return -row[label].item() + math.log(sum(math.exp(v) for v in row.tolist()))


@pytest.mark.parametrize(
    ("index", "label", "target"), [(0, None, 1), (0, 2, 2), (1, None, 0), (2, None, 0), (-2, None, 0)]
)
def test_targeted(index, label, target):
    objective = Targeted(index, label)
    assert objective.target(LOGITS, LABELS).item() == target
    assert objective.value(LOGITS, LABELS, BENIGN).item() == pytest.approx(
        -cross_entropy(LOGITS[index], target), rel=1e-5
    )
    assert objective.harm(LOGITS, LABELS, BENIGN).item() == (LOGITS[index].argmax().item() == target)


@pytest.mark.parametrize("clamp", [5.0, 1.0, None])
def test_indiscriminate(clamp):
    objective = Indiscriminate(clamp)
    losses = [cross_entropy(row, label) for row, label in zip(LOGITS, LABELS.tolist(), strict=True)][:3]
    expected = sum(loss if clamp is None else min(loss, clamp) for loss in losses)
    assert objective.value(LOGITS, LABELS, BENIGN).item() == pytest.approx(expected, rel=1e-4)
    assert objective.harm(LOGITS, LABELS, BENIGN).item() == pytest.approx(1 / 3)


def test_a_clamped_image_gives_no_gradient():
    logits = torch.tensor([[9.0, 0.0], [0.5, 0.0]], requires_grad=True)
    labels, benign = torch.tensor([1, 0]), torch.tensor([True, True])
    (gradient,) = torch.autograd.grad(Indiscriminate(5.0).value(logits, labels, benign), logits)
    assert gradient[0].abs().sum() == 0
    assert gradient[1].abs().sum() > 0


def test_segmentation_objectives():
    g = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(3, 4, 2, 5, generator=g), torch.randint(4, (3, 2, 5), generator=g)
    labels[0, 0, 0], labels[0, 1, 1] = 255, 3
    benign = torch.tensor([True, True, False])
    pixel = TargetedPixel(0, (1, 1))
    assert pixel.target(logits, labels).item() == 0
    assert pixel.value(logits, labels, benign).item() == pytest.approx(-cross_entropy(logits[0, :, 1, 1], 0), rel=1e-5)
    losses = F.cross_entropy(logits[:2], labels[:2], ignore_index=255, reduction="none")
    whole = IndiscriminateSegmentation(clamp=2.0)
    assert whole.value(logits, labels, benign).item() == pytest.approx(losses.clamp(max=2.0).sum().item(), rel=1e-5)
    wrong = (logits.argmax(1) != labels)[:2]
    assert whole.harm(logits, labels, benign).item() == pytest.approx((wrong.sum().item() - 1) / 19, rel=1e-5)
    with pytest.raises(ValueError, match=r"\(2, 0\).*2 × 5"):
        TargetedPixel(0, (2, 0)).check(labels, benign)
    with pytest.raises(ValueError, match="255"):
        TargetedPixel(0, (0, 0)).check(labels, benign)
    with pytest.raises(ValueError, match="class 3"):
        TargetedPixel(0, (1, 1), target_class=3).check(labels, benign)
    other = labels.clone()
    other[labels == 255] = 7
    custom = IndiscriminateSegmentation(clamp=2.0, ignore=7)
    assert custom.value(logits, other, benign).item() == pytest.approx(whole.value(logits, labels, benign).item())
    with pytest.raises(ValueError, match=r"\(3, 4, 2, 5\).*\(3,\)"):
        Indiscriminate().value(logits, labels[:, 0, 0], benign)


def test_a_drawn_pixel_counts_and_depends_on_the_seed_and_the_labels_alone():
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (3, 6, 7), generator=g)
    labels[:, :3] = 255
    benign = torch.tensor([True, True, False])
    masks = [TargetedPixel(seed=seed, target_class=2).mask(labels) for seed in range(50)]
    assert all(mask.sum() == 1 and labels[0][mask].item() in (0, 1, 3) for mask in masks)
    assert len({int(mask.flatten().int().argmax()) for mask in masks}) > 10
    assert torch.equal(TargetedPixel(seed=3).mask(labels), TargetedPixel(seed=3).mask(labels.clone()))
    other = labels.clone()
    other[1:] = 0
    assert torch.equal(TargetedPixel(seed=3).mask(labels), TargetedPixel(seed=3).mask(other))
    labels[0] = 255
    with pytest.raises(ValueError, match="no pixel"):
        TargetedPixel().check(labels, benign)
    labels[0, 2, 3] = 2
    with pytest.raises(ValueError, match="no pixel"):
        TargetedPixel(target_class=2).check(labels, benign)
    with pytest.raises(ValueError, match="no pixel"):
        TargetedPixel(classes=(0, 1)).check(labels, benign)
    TargetedPixel().check(labels, benign)
    assert TargetedPixel().mask(labels)[2, 3]


@pytest.mark.parametrize(
    "objective",
    [TargetedPixel(classes=(0, 2)), TargetedPixel(0, (1, 2), target_class=1), IndiscriminateSegmentation()],
    ids=["drawn", "given", "whole"],
)
def test_no_step_waits_for_a_gpu(objective):
    """Fake tensors have no values, so that reading one on the host, which a captured step must not do, raises."""
    with FakeTensorMode():
        labels, benign = torch.zeros(2, 4, 5, dtype=torch.long), torch.ones(2, dtype=torch.bool)
        logits = torch.zeros(2, 3, 4, 5, requires_grad=True)
        (gradient,) = torch.autograd.grad(objective.value(logits, labels, benign), logits)
        assert gradient.shape == logits.shape
        assert objective.harm(logits, labels, benign).shape == ()


def test_pixels_are_drawn_evenly():
    """Over many label maps: chi-squared with 23 degrees of freedom is below 50 with a probability of 0.999."""
    g = torch.Generator().manual_seed(1)
    hits = torch.zeros(24)
    for _ in range(1200):
        hits += TargetedPixel().mask(torch.randint(3, (1, 4, 6), generator=g)).flatten()
    assert ((hits - 50).square() / 50).sum() < 50
    assert hits.sum() == 1200


@pytest.mark.parametrize(("classes", "following"), [(None, {0: 1, 2: 3, 5: 0}), ((5, 0, 2), {0: 2, 2: 5, 5: 0})])
def test_the_target_is_the_next_class_that_is_scored(classes, following):
    logits = torch.zeros(1, 6, 2, 2)
    for true, target in following.items():
        labels = torch.full((1, 2, 2), true)
        assert TargetedPixel(classes=classes).target(logits, labels).item() == target
        assert TargetedPixel(classes=classes, pixel=(1, 0)).target(logits, labels).item() == target
    assert TargetedPixel(classes=classes, target_class=4).target(logits, labels).item() == 4


def test_the_labels_of_malicious_images_do_not_matter():
    labels = LABELS.clone()
    labels[3] = -1
    assert torch.equal(Indiscriminate().value(LOGITS, labels, BENIGN), Indiscriminate().value(LOGITS, LABELS, BENIGN))


@pytest.mark.parametrize(
    "objective",
    [TargetedPixel(1, (1, 0)), TargetedPixel(1), IndiscriminateSegmentation()],
    ids=["pixel", "drawn", "whole"],
)
@pytest.mark.parametrize(
    ("method", "estimator"), [("tent", "median"), *slow(("tebn", "mean"), ("sotta", "image_median"))]
)
def test_segmentation_models_are_attacked(objective, method, estimator, dense_model, dense_stream):
    tta, (images, labels) = make(dense_model, method, estimator), dense_stream[0]
    values = []
    attack = DIA(objective, steps=20, callback=lambda step, images, value: values.append(value.item()))
    poisoned = attack(tta, images, labels, [0, 5])
    assert torch.equal(poisoned[1:5], images[1:5])
    assert sum(values[-5:]) > sum(values[:5])


def test_an_objective_of_a_user_counts_its_hits(model, stream):
    @medbn.attacks.objectives.register("least_likely")
    @dataclass(frozen=True)
    class LeastLikely(Targeted):
        label = "least likely class"

        def target(self, logits, labels):
            return logits[self.index].detach().argmin()

    try:
        kind = medbn.attacks.objectives.get("least_likely")
        assert (kind.name, kind.label, kind.targeted, kind.dense) == ("least_likely", "least likely class", True, False)
        attack = DIA(kind(), steps=2)
        summary = medbn.attacks.Summary.of(medbn.attacks.instant(make(model, "tebn"), stream, attack, slice(7, 10)))
        assert summary.targets == len(stream)
    finally:
        medbn.attacks.objectives.unregister("least_likely")
    assert "least_likely" not in medbn.attacks.objectives.available()
    assert (Targeted.name, Targeted.label) == ("targeted", "targeted")
