"""What a monitor computes before the adapter waits for the device, against the same computed after the call."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import medbn
from medbn.monitor import signals

from ..methods.table import METHODS, one_of_each_kind
from ..seeds import seed_torch
from .test_monitor import network, poisoned, stream

IMAGES = {"images", "pressure", "outliers", "out_of_range", "source_distance"}
PREDICTIONS = {"isolated", "entropy", "confidence", "classes"}
ADAPTER = {"parameter_drift", "average_drift", "declared_changes", "resets"}


@pytest.fixture
def reused(monkeypatch):
    """The names of the signals that were taken from before the wait, of each call that a monitor has measured."""
    calls, original, measure = [], medbn.monitor.measure.Early.holds, medbn.monitor.measure.measure

    def holds(self, signal, batch):
        held = original(self, signal, batch)
        calls[-1] |= {signal.name} if held else set()
        return held

    def note(*arguments):
        calls.append(set())
        return measure(*arguments)

    monkeypatch.setattr(medbn.monitor.measure.Early, "holds", holds)
    monkeypatch.setattr(medbn.monitor.monitor, "measure", note)
    return calls


class Dense(nn.Module):
    """Predicts every pixel, under a key."""

    def __init__(self):
        super().__init__()
        seed_torch(1)
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 3))

    def forward(self, x):
        return {"out": self.body(x).transpose(2, 3)}


class Halves(nn.Module):
    """Its second layer sees two images for each one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x):
        x = self.first(x)
        return self.second(torch.cat([x[:, :, :6], x[:, :, 6:]])).mean(dim=(2, 3)).unflatten(0, (2, -1)).sum(0)


class Second(nn.Module):
    """Has a layer that runs in every second pass alone."""

    def __init__(self):
        super().__init__()
        self.body, self.last, self.passes = network(), nn.BatchNorm1d(5), 0

    def forward(self, x):
        self.passes += 1
        return self.last(self.body(x)) if self.passes % 2 == 0 else self.body(x)


class Darkens(nn.Module):
    """Writes to the images that it is given."""

    def __init__(self):
        super().__init__()
        self.body = network()

    def forward(self, x):
        return self.body(x.mul_(0.9))


class Overwrites(nn.Module):
    """Returns every prediction in the same memory."""

    def __init__(self):
        super().__init__()
        self.body, self.output = network(), torch.zeros(12, 5)

    def forward(self, x):
        with torch.no_grad():
            return self.output.copy_(self.body(x))


MODELS = {
    "network": network,
    "dense": lambda: Dense().eval(),
    "halves": lambda: Halves().eval(),
    "second": lambda: Second().eval(),
    "darkens": lambda: Darkens().eval(),
    "overwrites": lambda: Overwrites().eval(),
}


def batches(masked=1):
    """Five calls and, as the last one, one with padding."""
    images = stream(5, seed=3)
    images[1] = poisoned(images[1])
    images[2][0] = math.nan
    images[3][1, 0, 0, 0] = 1.5
    return [(one, None) for one in images] + [(images[0], torch.arange(12) % 3 > 0)] * masked


def serve(early, model="network", method="tebn", calls=None, masked=1, layers=None, forward=None, **options):
    """Return the bits of all outputs and all records of a monitor that computes signals early, or all of them late."""
    options = {**METHODS[method], **options}
    if medbn.methods.get(method).needs_source_images:
        options["source"] = [torch.rand(8, 3, 12, 12, generator=torch.Generator().manual_seed(4))]
    adapter = medbn.adapt(MODELS[model](), method, options.pop("estimator", "median"), **options)
    monitor = medbn.Monitor(adapter, layers=layers, reference=3, wait=False)
    if not early:
        adapter._prediction_hooks.clear()
    outputs = []
    for images, valid in batches(masked) if calls is None else calls:
        call = adapter if forward is None else forward(adapter)
        outputs.append(call(images.clone(), **({} if valid is None else {"valid": valid})))
    records = [(r.batch, r.state, list(r.signals.items()), r.evidence, r.threshold, r.alarms) for r in monitor.records]
    assert len(records) == len(outputs)
    return repr(records), [medbn.methods.extract_logits(output, None) for output in outputs]


def check(reused, expected=IMAGES | PREDICTIONS, **options):
    """Compare both, bit for bit, and what was reused in the last call with what should be."""
    records, outputs = serve(True, **options)
    assert reused[-1] == expected
    reused.clear()
    late, late_outputs = serve(False, **options)
    assert not set().union(*reused)
    assert records == late
    for one, other in zip(outputs, late_outputs, strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


def test_the_signals_say_what_they_read():
    found = {name: signals.get(name).reads for name in signals.available()}
    assert {name for name, reads in found.items() if reads == "images"} == IMAGES
    assert {name for name, reads in found.items() if reads == "predictions"} == PREDICTIONS
    assert {name for name, reads in found.items() if reads == "adapter"} == ADAPTER
    with pytest.raises(ValueError, match="predictions"):
        signals.register("other", about="reads something else", reads="logits")
    assert "other" not in signals.available()


@pytest.mark.filterwarnings("ignore:the model has")
@pytest.mark.parametrize("method", one_of_each_kind(METHODS))
def test_every_method_has_the_same_numbers(method, reused):
    # ROID corrects what it returns
    check(reused, IMAGES if method == "roid" else IMAGES | PREDICTIONS, method=method)


TWO_PASSES = {"method": "past", "min_images": 1, "two_pass_batches": 9}
CASES = {
    "the model after the update": ({"method": "tent", "predict": "after"}, IMAGES),
    "the model after steps": ({"method": "sar", "predict": "after", "steps": 2}, IMAGES),
    "several steps": ({"method": "tent", "steps": 3}, IMAGES | PREDICTIONS),
    "bounded influence": ({"method": "tent", "influence": "clip"}, IMAGES | PREDICTIONS),
    "small calls": ({"method": "tent", "min_images": 30}, IMAGES | PREDICTIONS),
    "collected": ({"method": "tent", "min_images": 20, "collect": True}, IMAGES | PREDICTIONS),
    "past collects": ({"method": "past", "batch_size": 40, "min_images": 20}, IMAGES | PREDICTIONS),
    "past has two passes": (TWO_PASSES, IMAGES | PREDICTIONS),
    "augmented": ({"method": "cotta", "augmented_output": True, "threshold": 1.0, "augmentations": 2}, IMAGES),
    "isolating": ({"method": "sema", "bounds": (0, 1), "outside": "isolate"}, IMAGES | PREDICTIONS),
    "no layers": ({"layers": []}, IMAGES | PREDICTIONS),
    "segmentation": ({"method": "tent", "model": "dense"}, IMAGES | PREDICTIONS),
    "segmentation after": ({"method": "tent", "model": "dense", "predict": "after"}, IMAGES),
    "other numbers of images": ({"model": "halves", "layers": ["first", "second"], "masked": 0}, IMAGES | PREDICTIONS),
    "a layer of later passes": ({**TWO_PASSES, "model": "second", "layers": ["last"]}, set()),
    "a layer of all passes": ({"model": "second", "layers": ["body.0.1", "last"]}, IMAGES | PREDICTIONS),
    "images written to": ({"model": "darkens"}, IMAGES | PREDICTIONS),
    "images written to later": ({**TWO_PASSES, "model": "darkens"}, set()),
    "images written to, no layers": ({**TWO_PASSES, "model": "darkens", "layers": []}, set()),
    "predictions written to": ({**TWO_PASSES, "model": "overwrites"}, IMAGES),
}


@pytest.mark.parametrize("case", CASES)
def test_special_calls_have_the_same_numbers(case, reused):
    options, expected = CASES[case]
    check(reused, expected, **options)


@pytest.mark.slow
def test_detected_changes_have_the_same_numbers(reused):
    dark = [(images / (1 + k // 3), None) for k, images in enumerate(stream(6, size=100))]
    check(reused, method="past", changes="detect", estimator="image_median", batch_size=100, calls=dark)


def test_inference_mode_has_the_same_numbers(reused):
    def infer(adapter):
        return torch.inference_mode()(lambda *args, **kwargs: adapter(*args, **kwargs))

    check(reused, method="tent", forward=infer)
    with torch.inference_mode():
        inside = [(images.clone(), valid) for images, valid in batches()]
    check(reused, method="tent", forward=infer, calls=inside)


def test_a_paused_adapter_has_the_same_numbers(reused):
    def pause(adapter):
        adapter.paused = adapter.state_changes >= 2
        return adapter

    check(reused, set(), method="tent", forward=pause)


def test_copies_and_pickles_compute_nothing(reused):
    adapter = medbn.adapt(network(), "tent")
    monitor = medbn.Monitor(adapter)
    for other in (copy.deepcopy(adapter), pickle.loads(pickle.dumps(adapter))):
        other(stream(1)[0])
    assert reused == []
    adapter(stream(1)[0])
    assert reused == [IMAGES | PREDICTIONS]
    monitor.close()
    assert not adapter._prediction_hooks


@pytest.fixture
def events(monkeypatch):
    """In which order signals are computed and the adapter waits."""
    happened = []
    monkeypatch.setattr(medbn.methods.Adapter, "wait_for", lambda self, n: happened.append("wait") or int(n))
    for reads in signals.READS:
        about = {"about": "notes when it is computed", "reads": reads}
        signals.register(f"own-{reads}", **about)(lambda batch, reads=reads: happened.append(reads))
    signals.register("own-default", about="has no flag")(lambda batch: happened.append("default"))
    yield happened
    for name in [*(f"own-{reads}" for reads in signals.READS), "own-default"]:
        signals.unregister(name)


@pytest.mark.parametrize("method", ["tebn", "tent", "sema"])
def test_what_may_be_early_is_computed_before_the_adapter_waits(method, events):
    adapter = medbn.adapt(network(), method)
    medbn.Monitor(adapter)
    adapter(stream(1)[0])
    assert events == ["images", "predictions", "wait", "adapter", "default"]


def test_predictions_are_late_where_calls_return_others(events):
    adapter = medbn.adapt(network(), "tent", predict="after")
    medbn.Monitor(adapter)
    adapter(stream(1)[0])
    assert events == ["images", "predictions", "wait", "predictions", "adapter", "default"]
    events.clear()
    adapter(stream(1)[0])
    assert events == ["images", "wait", "predictions", "adapter", "default"]


def test_a_call_that_raises_leaves_nothing_behind(events):
    adapter = medbn.adapt(network(), "tent")
    monitor = medbn.Monitor(adapter)
    adapter(stream(1)[0])
    expected = monitor.latest.signals
    adapter.reset()
    with pytest.raises(ValueError, match="finite"):
        adapter(torch.full((4, 3, 12, 12), math.nan))
    assert events[-3:] == ["images", "predictions", "wait"]
    adapter(stream(1)[0])
    assert monitor.batches == 2
    assert monitor.latest.signals == {**expected, "resets": 1.0}


@pytest.mark.parametrize("reads", signals.READS)
def test_a_signal_that_fails_warns_once_and_only_for_a_call_that_returns(reads, recwarn):
    @signals.register("broken", about="raises", reads=reads)
    def broken(batch):
        raise KeyError("x")

    try:
        adapter = medbn.adapt(network(), "tent")
        monitor = medbn.Monitor(adapter)
    finally:
        signals.unregister("broken")
    with pytest.raises(ValueError, match="finite"):
        adapter(torch.full((4, 3, 12, 12), math.nan))
    assert not [w for w in recwarn if "broken" in str(w.message)]
    for images in stream(2):
        adapter(images)
    assert len([w for w in recwarn if "broken" in str(w.message)]) == 1
    assert "broken" not in monitor.latest.signals
    assert {"entropy", "resets"} <= set(monitor.latest.signals)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["tebn", "tent", "past"])
def test_the_numbers_are_the_same_on_a_gpu(method):
    found = []
    for early in (True, False):
        adapter = medbn.adapt(network().cuda(), method)
        monitor = medbn.Monitor(adapter)
        if not early:
            adapter._prediction_hooks.clear()
        for images, valid in batches():
            adapter(images.cuda(), **({} if valid is None else {"valid": valid.cuda()}))
        found.append(repr([record.signals for record in monitor.records]))
    assert found[0] == found[1]
