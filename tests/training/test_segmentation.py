"""Training a class per pixel: it learns, ignores what does not count, is reproducible and can be continued."""

from __future__ import annotations

import importlib.resources
import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from medbn import confusion, data, models
from medbn.cli import main
from medbn.training import (
    SegmentationEpoch,
    SegmentationPlan,
    measure_confusion,
    pixel_cross_entropy,
    train_segmentation,
)

SMALL = SegmentationPlan(epochs=3, batch_size=4, lr=0.05, validate_every=2)


def squares(count: int, size: int = 16) -> data.SegmentationDataset:
    """Grey images with a bright square each: two classes, and a border that does not count."""
    generator = torch.Generator().manual_seed(count)
    images = torch.randint(60, 90, (count, 3, size, size), generator=generator)
    labels = torch.zeros(count, size, size, dtype=torch.int64)
    corners = torch.randint(1, size - 7, (count, 2), generator=generator)
    for image, label, (row, column) in zip(images, labels, corners.tolist(), strict=True):
        image[:, row : row + 6, column : column + 6] += 120
        label[row : row + 6, column : column + 6] = 1
    labels[:, 0] = data.IGNORE
    colours = ((0, 0, 0), (255, 255, 255))
    return data.segmentation_from_tensors("squares", "train", ("ground", "square"), colours, images.byte(), labels)


@pytest.fixture(scope="module")
def images() -> data.SegmentationDataset:
    return squares(13)


def tiny(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(dropout), nn.Conv2d(6, 2, 1)
    )


def test_the_loss_is_the_mean_over_the_pixels_that_count():
    logits, labels = torch.randn(2, 3, 4, 5, requires_grad=True), torch.randint(0, 3, (2, 4, 5))
    labels[0, :2] = data.IGNORE
    by_hand = [
        -logits[b, :, i, j].double().log_softmax(0)[labels[b, i, j]]
        for b in range(2)
        for i in range(4)
        for j in range(5)
        if labels[b, i, j] != 255
    ]
    assert len(by_hand) == 30
    loss = pixel_cross_entropy(logits, labels)
    torch.testing.assert_close(loss.double(), torch.stack(by_hand).mean())
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels, ignore_index=255))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert (gradient[0, :, :2] == 0).all()
    assert (gradient[0, :, 2:] != 0).all()
    nothing = pixel_cross_entropy(logits, torch.full_like(labels, 255))
    assert nothing.item() == 0
    assert torch.autograd.grad(nothing, logits)[0].abs().sum() == 0


def test_an_output_per_image_is_refused():
    with pytest.raises(ValueError, match="deeplabv3plus"):
        pixel_cross_entropy(torch.randn(2, 3), torch.zeros(2, 4, 5, dtype=torch.int64))


def test_the_learning_rate_falls_polynomially_and_the_backbone_learns_more_slowly(images, monkeypatch):
    class WithBackbone(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone, self.head = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)

        def forward(self, x):
            return self.head(self.backbone(x))

    rates = []
    step = torch.optim.SGD.step
    monkeypatch.setattr(
        torch.optim.SGD, "step", lambda self: (rates.append([g["lr"] for g in self.param_groups]), step(self))[1]
    )
    train_segmentation(WithBackbone(), images, SegmentationPlan(epochs=2, batch_size=4, lr=0.5, backbone_factor=0.1))
    expected = [0.5 * (1 - k / 6) ** 0.9 for k in range(6)]  # three batches of 4 of 13 images in each epoch
    torch.testing.assert_close(torch.tensor(rates), torch.tensor([[0.1 * rate, rate] for rate in expected]))


def test_it_learns_and_reports(images):
    model, epochs = tiny(), []
    plan = SegmentationPlan(epochs=12, batch_size=4, lr=0.1, validate_every=5, scale=(0.8, 1.25))
    last = train_segmentation(model, images, plan, validation=squares(5), report=epochs.append)
    assert [epoch.number for epoch in epochs if epoch.mean_iou is not None] == [5, 10, 12]
    assert last == epochs[-1]
    assert epochs[0].loss > 2 * last.loss
    assert last.mean_iou > 0.9
    counts = measure_confusion(model, squares(5), size=2)
    assert last.mean_iou == confusion.mean_iou(counts)
    assert counts.sum() == 5 * 15 * 16  # without the pixels that do not count
    assert not model.training


class Clock:
    """A clock that moves on by an amount whenever a training step is done."""

    def __init__(self, monkeypatch, seconds: float):
        self.now, self.seconds = 0.0, seconds
        for module in ("pace", "segmentation"):
            monkeypatch.setattr(f"medbn.training.{module}.time.monotonic", lambda: self.now)

    def tick(self) -> None:
        self.now += self.seconds


def test_as_many_epochs_as_fit_into_the_minutes(images, monkeypatch):
    rates, clock, step = [], Clock(monkeypatch, 1.0), torch.optim.SGD.step

    def slower_later(self):
        step(self)
        rates.append(self.param_groups[0]["lr"])
        clock.seconds = 1.0 if len(rates) < 12 else 2.0
        clock.tick()

    monkeypatch.setattr(torch.optim.SGD, "step", slower_later)
    last = train_segmentation(tiny(), images, SegmentationPlan(minutes=1, batch_size=4, lr=0.1))
    assert len(rates) == 3 * last.number == 3 * last.epochs
    assert 60 - 2 * 3 - 0.02 * 60 <= clock.now <= 60  # less than one more epoch of three steps would have fit
    assert all(later < earlier for earlier, later in itertools.pairwise(rates))
    assert rates[0] == 0.1
    assert rates[-1] < 0.02  # one step before the end, where it is 0


@pytest.mark.parametrize("stop_after", [1, 2])
def test_a_stopped_run_continues_to_the_same_bits(images, tmp_path, stop_after):
    path = tmp_path / "run.checkpoint"
    whole = tiny(dropout=0.5)
    before = torch.get_rng_state()
    train_segmentation(whole, images, SMALL)
    assert torch.equal(torch.get_rng_state(), before)

    def stop(epoch: SegmentationEpoch) -> None:
        if epoch.number == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_segmentation(tiny(dropout=0.5), images, SMALL, checkpoint=path, report=stop)
    torch.rand(5)
    seen: list[SegmentationEpoch] = []
    continued = tiny(dropout=0.5)
    train_segmentation(continued, images, SMALL, checkpoint=path, report=seen.append)
    assert [epoch.number for epoch in seen] == list(range(stop_after + 1, 4))
    assert models.fingerprint(continued) == models.fingerprint(whole)
    again = train_segmentation(tiny(dropout=0.5), images, SMALL, checkpoint=path, validation=images)
    assert again.mean_iou is not None  # all epochs are done: nothing but the score
    assert math.isnan(again.loss)
    other = tiny(dropout=0.5)
    train_segmentation(other, images, SegmentationPlan(**{**vars(SMALL), "seed": 1}))
    assert models.fingerprint(other) != models.fingerprint(whole)


def test_a_checkpoint_of_another_run_is_refused(images, tmp_path):
    path = tmp_path / "run.checkpoint"
    train_segmentation(tiny(), images, SegmentationPlan(epochs=1, batch_size=4), checkpoint=path)
    for plan, dataset, word in (
        (SegmentationPlan(epochs=1, batch_size=4, crop=(8, 8)), images, "crop"),
        (SegmentationPlan(epochs=1, batch_size=4), squares(12), "data"),
    ):
        with pytest.raises(ValueError, match=word):
            train_segmentation(tiny(), dataset, plan, checkpoint=path)


def test_images_that_are_read_from_files_give_the_same_bits(images, monkeypatch):
    one, two = tiny(), tiny()
    train_segmentation(one, images, SMALL)
    monkeypatch.setattr("medbn.training.crops.IN_MEMORY", 0)
    train_segmentation(two, images, SMALL)
    assert models.fingerprint(one) == models.fingerprint(two)


def test_a_diverging_loss_is_an_error(images):
    with pytest.raises(ValueError, match="lr"):
        train_segmentation(tiny(), images, SegmentationPlan(epochs=2, batch_size=4, lr=1e30))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epochs": 0}, "epochs"),
        ({"lr": -1.0}, "lr"),
        ({"backbone_factor": 0.0}, "backbone_factor"),
        ({"batch_size": 1}, "BatchNorm"),
        ({"validate_every": 0}, "validate_every"),
        ({"minutes": 0.0}, "minutes"),
    ],
)
def test_wrong_plans_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        SegmentationPlan(**wrong)


def test_fewer_images_than_one_batch_are_refused(images):
    with pytest.raises(ValueError, match="13 images"):
        train_segmentation(tiny(), images)


# --- on the command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def registered():
    data.register("squares", task="segmentation")(lambda folder, split, size=16: squares(8 if split == "train" else 4))
    yield
    data.unregister("squares")


def test_the_file_says_what_it_was_trained_on_and_how(registered, tmp_path, capsys):
    pytest.importorskip("safetensors")
    out = str(tmp_path / "model.safetensors")
    command = ["unet-small", "--data", "squares", "--epochs", "2", "--batch-size", "4", "--crop", "12x8", "--scale"]
    assert main(["train", *command, "0.8", "1.25", "--out", out, "--quiet", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    facts = models.metadata(out)
    assert (facts["data"], facts["classes"], facts["class_names"], facts["size"]) == (
        "squares",
        "2",
        "ground, square",
        "16x16",
    )
    options = "--epochs 2 --batch-size 4 --crop 12x8 --scale 0.8 1.25"
    assert facts["command"] == f"medbn train unet-small --data squares {options}"
    model = models.get("unet-small", weights=out)  # the file says how many classes
    iou = confusion.mean_iou(measure_confusion(model, squares(4)))
    assert facts["mean_iou"] == f"{iou:.4f}"
    assert f"{iou:.1%} mean IoU" in printed
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["resnet-small", "--data", "squares", "--batch-size", "4"], "deeplabv3plus"),
        (["unet-small", "--data", "squares"], "8 images"),
        (["unet-small", "--data", "squares", "--crop", "12x8x3"], "HEIGHTxWIDTH"),
        (["unet-small", "--data", "squares", "--batch-size", "4", "--backbone", "x.pt"], "backbone_weights"),
        (["deeplabv3plus-resnet50", "--data", "squares", "--backbone", "no-such-file.pt"], "no-such-file.pt"),
        (["resnet-small", "--data", "digits", "--crop", "12x12"], "--crop"),
        (["resnet-small", "--data", "digits", "--validate-every", "2"], "--validate-every"),
        (["unet-small", "--data", "squares", "--within", "1", "--epochs", "2"], "--within"),
        (["unet-small", "--data", "squares", "--minutes", "1", "--no-checkpoint"], "--no-checkpoint"),
        (["unet-small", "--data", "digits"], "digits"),
        (["unet-small", "--data", "cityscapes", "--root", "no-such-folder"], "cityscapes"),
    ],
)
def test_wrong_commands_are_one_line(registered, arguments, words, refusal):
    assert words in refusal(["train", *arguments])


def test_the_shipped_weights_are_good_and_small():
    pytest.importorskip("safetensors")
    model, test = models.get("unet-small", weights="shipped"), data.load_segmentation("scenes").subset(range(24))
    assert confusion.mean_iou(measure_confusion(model, test)) > 0.75
    file = importlib.resources.files("medbn.models") / "weights" / "unet-small-scenes.safetensors"
    assert len(file.read_bytes()) < 1_000_000
    facts = models.metadata(str(file))
    assert (facts["data"], facts["model"], facts["classes"]) == ("scenes", "unet-small", "13")


@pytest.mark.gpu
def test_it_learns_on_a_gpu(images):
    plan = SegmentationPlan(epochs=12, batch_size=4, lr=0.1, scale=(0.8, 1.25))
    last = train_segmentation(tiny(), images, plan, validation=squares(5), device="cuda")
    assert last.mean_iou > 0.8


def test_convolutions_are_cudnn_s_while_a_model_is_trained(images):
    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.seen = tiny(), []

        def forward(self, x):
            self.seen.append((torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark))
            return self.model(x)

    model = Watched()
    before = torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark
    train_segmentation(model, images, SegmentationPlan(epochs=1, batch_size=4), device="cpu")
    assert set(model.seen) == {(True, True)}
    assert before == (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark)
