"""The monitor through its public face, on a small network and on the shipped one."""

from __future__ import annotations

import copy
import math
import pickle
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import medbn
from medbn import methods

from ..methods.table import one_of_each_kind
from ..seeds import seed_torch


def network(seed=0):
    seed_torch(seed)
    blocks = [
        nn.Sequential(
            nn.Conv2d(c, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6)
        )
        for c in (4, 6)
    ]
    stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    model = nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2.0)
    return model.eval()


def watched(method="tent", estimator="median", changes=None, **options):
    adapter = medbn.adapt(network(), method, estimator, **({} if changes is None else {"changes": changes}))
    return adapter, medbn.Monitor(adapter, **options)


def stream(batches, size=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(size, 3, 12, 12, generator=generator) for _ in range(batches)]


def poisoned(images):
    """A fifth of the images replaced by bright ones."""
    images = images.clone()
    images[: len(images) // 5 + 1] = 1.0
    return images


@pytest.mark.filterwarnings("ignore:the model has")
@pytest.mark.parametrize("method", one_of_each_kind(methods.available()))
def test_predictions_and_state_are_those_without_a_monitor(method, device):
    options = (
        {"source": [(torch.rand(8, 3, 12, 12), torch.arange(8) % 5)]} if methods.get(method).needs_source_images else {}
    )
    plain = medbn.adapt(network().to(device), method=method, **options)
    seen = medbn.adapt(network().to(device), method=method, **options)
    monitor = medbn.Monitor(seen, reference=2, on_alarm="rollback", snapshot_every=1)
    for images in stream(4):
        assert torch.equal(plain(images.to(device)), seen(images.to(device)))
    assert monitor.batches == 4
    assert [record.batch for record in monitor.records] == [1, 2, 3, 4]
    before, after = plain.snapshot(), seen.snapshot()
    for name, parameter in before["learned"].items():
        assert torch.equal(parameter, after["learned"][name])
    for name, averages in before["averages"].items():
        assert all(torch.equal(a, b) for a, b in zip(averages, after["averages"][name], strict=True))


def test_the_first_layer_and_one_per_stage_are_read_by_default():
    adapter, monitor = watched()
    assert list(monitor.layers) == ["0.1", "1.4", "2.4"]
    adapter(stream(1)[0])
    assert {name for name in monitor.latest.signals if name.startswith("pressure/")} == {
        "pressure/0.1",
        "pressure/1.4",
        "pressure/2.4",
    }
    adapter, monitor = watched(layers=["2.1"])
    adapter(stream(1)[0])
    assert [name for name in monitor.latest.signals if name.startswith("pressure/")] == ["pressure/2.1"]


def test_signals_equal_their_definitions_in_float64():
    adapter, monitor = watched("tebn")
    images = poisoned(stream(1)[0])
    with torch.no_grad():
        logits = adapter(images).double()
    inputs = network()[0][0](images).detach().double()
    layer = adapter.layers["0.1"]
    scale = (layer.running_var.double() + layer.eps).sqrt()
    means = inputs.mean(dim=(2, 3))
    median = means.quantile(0.5, dim=0)
    signals = monitor.latest.signals

    def rms(x):
        return float(x.square().mean().sqrt())

    assert signals["pressure/0.1"] == pytest.approx(rms((means.mean(0) - median) / scale), rel=1e-4)
    assert signals["source_distance/0.1"] == pytest.approx(rms((median - layer.running_mean) / scale), rel=1e-4)
    probabilities = logits.softmax(1)
    assert signals["entropy"] == pytest.approx(float(-(probabilities * probabilities.log()).sum(1).mean()), rel=1e-4)
    assert signals["confidence"] == pytest.approx(float(probabilities.amax(1).mean()), rel=1e-4)
    mean = probabilities.mean(0)
    assert signals["classes"] == pytest.approx(float(-(mean * mean.log()).sum()), rel=1e-4)
    features = torch.cat([means, inputs.var(dim=(2, 3), correction=0).log()], dim=1)
    distances = (features - features.quantile(0.5, dim=0)).abs()
    z = (distances / (1.4826 * distances.quantile(0.5, dim=0))).mean(1)
    assert signals["outliers"] == pytest.approx(float((z > 3).double().mean()))
    assert signals["outliers"] >= 3 / 12
    assert signals["images"] == 12
    assert signals["out_of_range"] == signals["isolated"] == signals["resets"] == 0


def test_padding_counts_nowhere():
    images = stream(1)[0]
    adapter, monitor = watched("tebn")
    adapter(images)
    padded = torch.cat([images, torch.full((4, 3, 12, 12), 9.0)])
    other, padded_monitor = watched("tebn")
    other(padded, valid=torch.arange(16) < 12)
    for name, value in monitor.latest.signals.items():
        assert padded_monitor.latest.signals[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_images_that_are_isolated_or_out_of_range_are_counted_and_move_nothing_else():
    images = stream(1)[0]
    images[0], images[1, 0, 0, 0] = math.nan, 1.5
    adapter, monitor = watched("tebn")
    adapter(images)
    signals = monitor.latest.signals
    assert signals["isolated"] == pytest.approx(1 / 12)
    assert signals["out_of_range"] == pytest.approx(2 / 12)
    assert all(math.isfinite(value) for value in signals.values())


def test_drift_is_the_distance_from_the_source():
    adapter, monitor = watched("tent")
    for images in stream(3):
        adapter(images)
    now = torch.cat([p.detach().flatten() for p in adapter.learned.values()]).double()
    source = torch.cat([adapter.source_state["learned"][n].flatten() for n in adapter.learned]).double()
    assert monitor.latest.signals["parameter_drift"] == pytest.approx(
        float((now - source).norm() / source.norm()), rel=1e-4
    )
    adapter.reset()
    adapter(images)
    assert monitor.latest.signals["resets"] == 1

    adapter, monitor = watched("sema")
    for images in stream(3):
        adapter(images)
    layer = adapter.layers["1.4"]
    moved = (layer.ema_mean - layer.running_mean).double() / (layer.running_var.double() + layer.eps).sqrt()
    assert monitor.latest.signals["average_drift/1.4"] == pytest.approx(float(moved.square().mean().sqrt()), rel=1e-4)


def run_until_alarm(adapter, monitor, attacked=30):
    for images in stream(30, seed=1):
        adapter(images)
    assert not monitor.alarms
    for k, images in enumerate(stream(attacked, seed=2)):
        adapter(poisoned(images))
        if monitor.alarms:
            return k + 1
    raise AssertionError("no alarm")


def test_outliers_raise_an_alarm_soon_and_its_onset_is_when_they_began():
    calls = []
    adapter, monitor = watched("tebn", reference=20, on_alarm=calls.append)
    delay = run_until_alarm(adapter, monitor)
    assert delay <= 10
    first = monitor.alarms[0]
    assert first.signal.startswith(("pressure", "outliers"))
    assert abs(first.onset - 31) <= 3
    assert first.log10_evidence >= monitor.threshold
    assert calls == monitor.alarms
    assert monitor.records[-1].alarms == tuple(monitor.alarms)
    assert not adapter.paused


def test_no_alarm_comes_twice_until_the_monitor_is_restarted():
    adapter, monitor = watched("tebn", reference=20)
    run_until_alarm(adapter, monitor)
    for images in stream(10, seed=3):
        adapter(poisoned(images))
    names = [alarm.signal for alarm in monitor.alarms]
    assert len(names) == len(set(names))
    monitor.restart(10)
    adapter(stream(1)[0])
    assert monitor.latest.state == "reference"
    assert monitor.latest.batch == monitor.batches


def test_pause_serves_with_the_state_as_it_is():
    adapter, monitor = watched("tent", reference=20, on_alarm="pause")
    run_until_alarm(adapter, monitor)
    assert adapter.paused
    assert monitor.alarms[0].action == "paused"
    state = adapter.snapshot()
    images = stream(1, seed=9)[0]
    first, second = adapter(images), adapter(images)
    assert torch.equal(first, second)
    assert all(torch.equal(state["learned"][n], p) for n, p in adapter.snapshot()["learned"].items())
    assert monitor.latest.state == "paused"
    monitor.restart()
    assert not torch.equal(adapter(images), adapter(images))


def test_rollback_returns_to_a_snapshot_from_before_the_change_and_at_last_pauses():
    adapter, monitor = watched("sema", reference=20, on_alarm="rollback", snapshot_every=5, snapshots=4, rollbacks=1)
    states = {}
    for images in stream(30, seed=1):
        adapter(images)
        states[monitor.batches] = adapter.snapshot()
    for images in stream(60, seed=2):
        adapter(poisoned(images))
        if monitor.alarms:
            break
    number = int(monitor.alarms[0].action.removeprefix("rolled back to batch "))
    assert number in (25, 30)
    now = adapter.snapshot()
    for name, averages in states[number]["averages"].items():
        assert all(torch.equal(a, b) for a, b in zip(averages, now["averages"][name], strict=True))
    count = len(monitor.alarms)
    for images in stream(60, seed=4):
        adapter(poisoned(images))
        if len(monitor.alarms) > count:
            break
    assert monitor.alarms[count].action == "paused"


def test_a_change_without_a_snapshot_from_before_returns_to_the_source():
    adapter, monitor = watched("tent", reference=20, on_alarm="rollback", snapshot_every=1, snapshots=1)
    run_until_alarm(adapter, monitor)
    assert monitor.alarms[0].action == "reset to the source model"
    assert adapter.resets == 1


def test_a_stream_may_be_compared_with_a_reference_of_another_one():
    adapter, monitor = watched("tebn", reference=20)
    for images in stream(40, seed=5):
        adapter(images)
    other, second = watched("tebn", reference=list(monitor.records))
    other(stream(1, seed=6)[0])
    assert second.latest.state == "watching"
    for images in stream(20, seed=7):
        other(poisoned(images))
    assert second.alarms


class Declaring(methods.Adapter):
    def commit(self, commit, images, inputs, output):
        self.memory["declared"] = int(inputs.args[0].mean() > 0.8) + self.memory.get("declared", 0)
        commit(None)


def test_a_declared_change_begins_a_new_reference_and_shares_alpha():
    model = medbn.convert(network())
    adapter = Declaring(model)
    adapter.memory["declared"] = 0
    adapter.begin()
    monitor = medbn.Monitor(adapter, reference=10, alpha=0.05)
    for images in stream(12):
        adapter(images)
    assert monitor.latest.state == "watching"
    signals = len(monitor.latest.evidence)
    assert 10**monitor.threshold == pytest.approx(signals * 2 / 0.05)
    adapter(stream(1)[0].clamp(min=0.8))
    assert monitor.latest.signals["declared_changes"] == 1
    assert monitor.latest.state == "reference"
    assert 10**monitor.threshold == pytest.approx(signals * 6 / 0.05)


def test_a_change_that_past_declares_begins_a_new_reference():
    adapter, monitor = watched("past", estimator="image_median", changes="detect", reference=4)
    images = stream(8, size=200)
    for batch in images:
        adapter(batch)
    assert monitor.latest.state == "watching"
    before = monitor.latest.signals["declared_changes"]
    adapter(images[0] / 4)
    assert monitor.latest.signals["declared_changes"] == before + 1
    assert monitor.latest.state == "reference"


def test_a_call_that_raises_leaves_the_monitor_as_it_is():
    adapter, monitor = watched("tent", reference=2)
    adapter(stream(1)[0])
    with pytest.raises(ValueError, match="finite"):
        adapter(torch.full((4, 3, 12, 12), math.nan))
    assert monitor.batches == 1
    adapter(stream(1)[0])
    assert monitor.batches == 2


def test_whatever_fails_in_a_callback_an_exporter_or_a_signal_is_a_warning_once():
    class Broken:
        def export(self, record):
            raise OSError("disk full")

        def close(self):
            pass

    @medbn.monitor.signals.register("broken", about="raises")
    def broken(batch):
        raise KeyError("x")

    try:
        adapter, monitor = watched("tebn", exporters=[Broken()])
    finally:
        medbn.monitor.signals.unregister("broken")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for images in stream(3):
            assert adapter(images).shape == (12, 5)
    assert sorted("disk full" in str(w.message) for w in caught) == [False, True]
    assert monitor.batches == 3


def test_own_signals_are_measured_and_may_raise_alarms():
    @medbn.monitor.signals.register("brightness", side="above", about="mean of the images")
    def brightness(batch):
        return batch.images.mean()

    try:
        adapter, monitor = watched("tebn", alarms=["brightness"], reference=10)
    finally:
        medbn.monitor.signals.unregister("brightness")
    images = stream(1)[0]
    adapter(images)
    assert monitor.latest.signals["brightness"] == pytest.approx(float(images.mean()))
    assert list(monitor.latest.evidence) == ["brightness"]


@pytest.mark.parametrize(("method", "learns"), [("tent", True), ("tebn", False)])
def test_signals_that_follow_learning_raise_no_alarm_where_the_method_learns(method, learns):
    adapter, monitor = watched(method)
    adapter(stream(1)[0])
    tested = set(monitor.latest.evidence)
    assert {"source_distance/0.1", "pressure/0.1", "pressure/2.4", "outliers"} <= tested
    assert ("source_distance/2.4" in tested) == ("entropy" in tested) == (not learns)
    assert not tested & {"images", "confidence", "parameter_drift", "resets"}


def test_copies_and_pickles_of_the_adapter_are_not_watched():
    adapter, monitor = watched("tebn")
    copied, pickled = copy.deepcopy(adapter), pickle.loads(pickle.dumps(adapter))
    for other in (copied, pickled):
        other(stream(1)[0])
    assert monitor.batches == 0
    adapter(stream(1)[0])
    assert monitor.batches == 1


def test_attacks_on_the_adapter_are_no_batches():
    adapter, monitor = watched("tebn")
    attack = medbn.attacks.DIA(medbn.attacks.Indiscriminate(), steps=2, step_size=0.1)
    attack(adapter, stream(1)[0], torch.arange(12) % 5, malicious=slice(9, 12))
    assert monitor.batches == 0


def test_a_closed_monitor_is_gone():
    with watched("tebn")[1] as monitor:
        adapter = monitor.adapter
        adapter(stream(1)[0])
    adapter(stream(1)[0])
    assert monitor.batches == 1
    assert not adapter._forward_hooks
    assert not adapter._forward_pre_hooks
    assert not any(layer._forward_pre_hooks for layer in adapter.layers.values())


def test_threads_may_share_a_watched_adapter():
    adapter, monitor = watched("tent", reference=4, on_alarm="rollback", snapshot_every=1)
    threads = [threading.Thread(target=lambda s=s: [adapter(x) for x in stream(5, seed=s)]) for s in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [record.batch for record in monitor.records] == list(range(1, 21))


def test_models_without_logits_or_robust_layers_are_watched_as_far_as_possible():
    class Pair(nn.Module):
        def forward(self, x):
            return {"boxes": x.flatten(1)}

    adapter = medbn.adapt(Pair(), method="source")
    monitor = medbn.Monitor(adapter)
    with pytest.warns(UserWarning, match="predictions"):
        adapter(stream(1)[0])
    assert monitor.latest.signals["images"] == 12
    assert "entropy" not in monitor.latest.signals

    bare = medbn.adapt(Pair(), method="source")
    monitor = medbn.Monitor(bare, bounds=None)
    with pytest.warns(UserWarning, match="predictions"):
        bare(stream(1)[0])
    assert monitor.latest.signals == {"images": 12.0, "resets": 0.0}


class Reads(TorchDispatchMode):
    """Counts the operations that make a host wait for a GPU; reading all signals at once is not among them on a CPU."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        waits = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2")
        self.count += function.name().split(".")[0] in waits
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", ["tebn", "tent", "past"])
def test_nothing_is_read_from_the_device_but_all_signals_at_once(method):
    counts = []
    for with_monitor in (False, True):
        adapter = medbn.adapt(network(), method)
        monitor = medbn.Monitor(adapter, reference=2) if with_monitor else None
        for images in stream(3):
            adapter(images)
        with Reads() as reads:
            adapter(images)
        counts.append(reads.count)
    assert monitor.batches == 4
    assert counts[0] == counts[1]


class Operations(TorchDispatchMode):
    """Counts the operations that compute something: each of them is at least one kernel on a GPU."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("method", "most"), [("tebn", 80), ("tent", 85), ("past", 85)])
def test_a_watched_layer_more_costs_one_kernel_and_all_else_a_hundred(method, most):
    counts = {}
    for layers in ((), None, ["0.1", "1.1", "1.4", "2.1", "2.4"]):
        adapter = medbn.adapt(network(), method)
        if layers != ():
            medbn.Monitor(adapter, reference=2, layers=layers)
        for images in stream(3):
            adapter(images)
        with Operations() as operations:
            adapter(images)
        counts["none" if layers == () else "three" if layers is None else "five"] = operations.count
    assert counts["three"] - counts["none"] <= most
    assert counts["five"] - counts["three"] == 2


@pytest.mark.parametrize("known", [True, False])
def test_layers_that_see_other_numbers_of_images_are_measured_apart(known):
    class Halves(nn.Module):
        """Its second layer sees the upper and the lower half of each image as two images."""

        def __init__(self):
            super().__init__()
            self.first = nn.BatchNorm2d(3, track_running_stats=known)
            self.second = nn.BatchNorm2d(3)
            self.third = nn.BatchNorm1d(3)

        def forward(self, x):
            x = self.first(x)
            halves = self.second(torch.cat([x[:, :, :6], x[:, :, 6:]]))
            return self.third(halves.mean(dim=(2, 3)).unflatten(0, (2, -1)).sum(0))

    adapter = medbn.adapt(Halves().eval(), "tebn", "mean")
    monitor = medbn.Monitor(adapter, layers=["first", "second", "third"])
    images = poisoned(stream(1)[0])
    adapter(images)
    signals = monitor.latest.signals
    means = images.double().mean(dim=(2, 3))
    pull = means.mean(0) - means.quantile(0.5, dim=0)
    if not known:  # the deviation between images instead of the source's
        pull = pull / (1.4826 * (means - means.quantile(0.5, dim=0)).abs().quantile(0.5, dim=0))
    assert signals["pressure/first"] == pytest.approx(float(pull.square().mean().sqrt()), rel=1e-3)
    assert ("source_distance/first" in signals) == known
    normal = torch.nn.functional.batch_norm(images, None, None, training=True).double()
    halves = torch.cat([normal[:, :, :6], normal[:, :, 6:]]).mean(dim=(2, 3))
    distance = halves.quantile(0.5, dim=0).square().mean().sqrt()
    assert signals["source_distance/second"] == pytest.approx(float(distance), rel=1e-3)
    assert {"pressure/third", "source_distance/third"} <= set(signals)


@pytest.mark.gpu
def test_a_gpu_is_not_waited_for_once_more():
    counts = []
    for with_monitor in (False, True):
        adapter = medbn.adapt(network().cuda(), "tebn")
        monitor = medbn.Monitor(adapter, reference=2) if with_monitor else None
        images = stream(1)[0].cuda()
        for _ in range(3):
            adapter(images)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                adapter(images)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("synchroniz" in str(w.message) for w in caught))
    assert monitor.batches == 4
    assert counts[1] <= counts[0]


def test_dense_outputs_are_read():
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5))
    adapter = medbn.adapt(model.eval(), method="tebn")
    monitor = medbn.Monitor(adapter)
    logits = adapter(stream(1)[0])
    probabilities = logits.softmax(1).transpose(1, 3).flatten(0, 2)
    assert monitor.latest.signals["confidence"] == pytest.approx(float(probabilities.amax(1).mean()), rel=1e-4)


def test_wrong_arguments_are_refused_and_nothing_is_attached():
    adapter = medbn.adapt(network(), method="tebn")
    for options, words in [
        ({"layers": ["0.7"]}, "0.1"),
        ({"on_alarm": "stop"}, "rollback"),
        ({"alpha": 0}, "alpha"),
        ({"reference": 1}, "reference"),
        ({"reference": []}, "records"),
        ({"snapshots": 0}, "snapshots"),
    ]:
        with pytest.raises(ValueError, match=words):
            medbn.Monitor(adapter, **options)
    with pytest.raises(TypeError, match=r"medbn\.adapt"):
        medbn.Monitor(network())
    with pytest.raises(ValueError, match="graph"):
        medbn.Monitor(medbn.adapt(network(), method="tebn", graph=True))
    assert not adapter._forward_hooks
    for options, words in (({"alarms": ["presure/*"]}, "pressure"), ({"bounds": (1, 0)}, "bounds")):
        with pytest.raises(ValueError, match=words):
            medbn.Monitor(adapter, **options)
    assert not adapter._forward_hooks
    monitor = medbn.Monitor(adapter, alarms=["pressure/no_such_layer"])
    with pytest.warns(UserWarning, match="no_such_layer"):
        adapter(stream(1)[0])
    assert monitor.latest is None
