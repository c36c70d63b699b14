"""A monitor that does not wait judges each batch one call later, or when somebody asks; forced here on any device."""

from __future__ import annotations

import copy
import math
import pickle
import threading

import pytest
import torch

import medbn

from ..tiers import slow
from .test_monitor import network, poisoned, stream, watched


class Kept:
    """An exporter that keeps what it gets."""

    def __init__(self):
        self.records, self.closed = [], False

    def export(self, record):
        self.records.append(record)

    def close(self):
        self.closed = True


def comparable(record):
    return record.batch, record.state, record.signals, record.evidence, record.threshold, record.alarms


def attacked_stream(clean=24, attacked=12):
    return stream(clean, seed=1) + [poisoned(images) for images in stream(attacked, seed=2)]


def serve(wait, method="tebn", batches=None, **options):
    kept, calls = Kept(), []
    adapter, monitor = watched(
        method,
        reference=20,
        on_alarm=[calls.append, *options.pop("actions", ())],
        exporters=[kept],
        wait=wait,
        **options,
    )
    seen = []
    for images in attacked_stream() if batches is None else batches:
        adapter(images)
        seen.append(len(kept.records))
    return adapter, monitor, kept, calls, seen


@pytest.mark.parametrize("method", ["past", *slow("tebn", "tent")])
def test_everything_is_the_same_one_call_later(method):
    _, waiting, told, calls, seen = serve(True, method)
    _, monitor, later, late_calls, late = serve(False, method)
    assert seen == list(range(1, 37))
    assert late == list(range(36))
    assert monitor.batches == 36
    assert [comparable(r) for r in later.records] == [comparable(r) for r in told.records][:-1]
    assert [comparable(r) for r in monitor.records] == [comparable(r) for r in waiting.records]  # asking is enough
    assert [comparable(r) for r in later.records] == [comparable(r) for r in told.records]
    assert monitor.alarms == waiting.alarms
    assert waiting.alarms
    assert calls == late_calls == waiting.alarms
    assert monitor.threshold == waiting.threshold


def test_a_cpu_waits_by_default_and_a_wrong_wait_is_refused():
    assert serve(None, batches=stream(2))[4] == [1, 2]
    with pytest.raises(TypeError, match="wait"):
        watched("tebn", wait="never")


@pytest.mark.parametrize("ask", ["latest", "records", "alarms", "threshold", "flush", "restart", "close"])
def test_whoever_asks_gets_the_last_batch(ask):
    _, monitor, kept, _, _ = serve(False, batches=stream(3))
    assert len(kept.records) == 2
    value = getattr(monitor, ask)
    if callable(value):
        value()
    assert [record.batch for record in kept.records] == [1, 2, 3]
    assert kept.closed == (ask == "close")
    if ask == "latest":
        assert value.batch == 3
    getattr(monitor, ask)
    assert len(kept.records) == 3


def test_signals_are_those_of_the_moment_when_the_batch_was_served():
    counter = torch.zeros(())

    @medbn.monitor.signals.register("first", about="a view of the images")
    def first(batch):
        return batch.images[0, 0, 0, 0]

    @medbn.monitor.signals.register("kept", about="a tensor that changes later")
    def kept(batch):
        return counter

    try:
        adapter, monitor = watched("tent", wait=False)
    finally:
        medbn.monitor.signals.unregister("first")
        medbn.monitor.signals.unregister("kept")
    images = stream(1)[0]
    value = float(images[0, 0, 0, 0])
    adapter(images)
    now = torch.cat([p.detach().flatten() for p in adapter.learned.values()])
    source = torch.cat([adapter.source_state["learned"][name].flatten() for name in adapter.learned])
    drift = float((now - source).norm() / source.norm())
    images.fill_(9.0)
    counter.fill_(7.0)
    adapter.reset()
    signals = monitor.latest.signals
    assert signals["first"] == pytest.approx(value)
    assert signals["kept"] == signals["resets"] == 0
    assert signals["parameter_drift"] == pytest.approx(drift, rel=1e-4)
    assert drift > 0


def test_pause_comes_one_call_later():
    until = {}
    for wait in (True, False):
        adapter, monitor, _, _, _ = serve(wait, "tent", batches=[], actions=["pause"])
        for k, images in enumerate(attacked_stream()):
            adapter(images)
            if adapter.paused:
                until[wait] = k
                break
        assert monitor.alarms[0].action == "paused"
        monitor.restart()
        assert not adapter.paused
    assert until[False] == until[True] + 1


def test_a_rollback_takes_back_the_batch_that_was_served_meanwhile():
    options = {"actions": ["rollback"], "snapshot_every": 1, "snapshots": 30, "rollbacks": 1}
    adapter, monitor, kept, _, _ = serve(False, "sema", batches=[], **options)
    states = {}
    for k, images in enumerate(attacked_stream(), start=1):
        before = monitor.rollbacks_left
        adapter(images)
        states[k] = adapter.snapshot()
        if monitor.rollbacks_left < before:
            break
    alarm = kept.records[-1].alarms[0]
    assert alarm.batch == k - 1
    number = int(alarm.action.removeprefix("rolled back to batch "))
    assert number == alarm.onset - 1 <= 26
    for name, averages in states[number]["averages"].items():
        for a, b in zip(averages, adapter.snapshot()["averages"][name], strict=True):
            assert torch.equal(a, b)


def test_no_rollback_returns_to_a_batch_that_raised_an_alarm():
    reference = serve(True, "sema", batches=stream(24, seed=1))[1].records
    adapter, monitor = watched(
        "sema", reference=list(reference), on_alarm="rollback", snapshot_every=1, snapshots=50, rollbacks=9, wait=False
    )
    for images in [*stream(8, seed=3), *(poisoned(images) for images in stream(40, seed=4))]:
        adapter(images)
    batches = {alarm.batch for alarm in monitor.alarms}
    returned = {alarm.action.removeprefix("rolled back to batch ") for alarm in monitor.alarms}
    assert len(batches) >= 2
    assert not returned & {str(batch) for batch in batches}
    assert all(action.isdigit() for action in returned)


@pytest.mark.parametrize("undo", ["reset", "restore"])
def test_a_state_that_was_replaced_meanwhile_is_not_rolled_back(undo):
    alarm = serve(True, "sema")[1].alarms[0].batch
    adapter, monitor, _, _, _ = serve(False, "sema", batches=[], actions=["rollback"], snapshot_every=1)
    images = attacked_stream()
    for one in images[:alarm]:
        adapter(one)
    if undo == "reset":
        adapter.reset()
    else:
        adapter.restore(adapter.snapshot())
    state = adapter.snapshot()
    assert monitor.alarms[0].batch == alarm
    assert monitor.alarms[0].action == "the state was replaced meanwhile"
    assert monitor.rollbacks_left == 3
    for name, averages in state["averages"].items():
        assert all(torch.equal(a, b) for a, b in zip(averages, adapter.snapshot()["averages"][name], strict=True))


def test_a_call_that_raises_loses_nothing_and_judges_nothing():
    adapter, monitor, kept, _, _ = serve(False, "tent", batches=stream(2))
    with pytest.raises(ValueError, match="finite"):
        adapter(torch.full((4, 3, 12, 12), math.nan))
    assert len(kept.records) == 1
    assert monitor.latest.batch == 2
    adapter(stream(1)[0])
    assert monitor.latest.batch == monitor.batches == 3


def test_a_callback_may_ask_the_monitor():
    asked = []
    adapter, monitor = watched(
        "tebn", reference=20, wait=False, on_alarm=lambda alarm: asked.append(monitor.latest.batch == alarm.batch)
    )
    for images in attacked_stream():
        adapter(images)
    assert asked
    assert all(asked)


def test_a_model_that_asks_during_a_call_gets_what_is_judged():
    """Inside a call the state is not final, so that nothing may be taken back."""
    asked = []
    adapter, monitor = watched("tent", wait=False)
    adapter.model[0].register_forward_hook(lambda *_: asked.append(monitor.latest and monitor.latest.batch))
    for images in stream(3):
        adapter(images)
    assert asked == [None, None, 1]


def test_an_adapter_without_a_lock_is_asked_like_any_other():
    adapter = medbn.adapt(network(), "tent", lock=False)
    with medbn.Monitor(adapter, wait=False) as monitor:
        for count, images in enumerate(stream(3), start=1):
            adapter(images)
            assert monitor.latest.batch == count


def test_buffers_that_were_made_in_inference_mode_are_read():
    adapter = medbn.adapt(network(), "tebn", "median")
    with torch.inference_mode():
        adapter.layers["0.1"].running_var = adapter.layers["0.1"].running_var.clone()
    monitor = medbn.Monitor(adapter)
    expected, known = watched("tebn")
    images = stream(1)[0]
    adapter(images)
    expected(images)
    assert adapter.layers["0.1"].running_var.is_inference()
    assert monitor.latest.signals == pytest.approx(known.latest.signals)


def test_a_rollback_under_inference_mode_leaves_a_state_that_learns():
    adapter, monitor, _, _, _ = serve(False, "sema", batches=[], actions=["rollback"], snapshot_every=1)
    with torch.inference_mode():
        for images in attacked_stream():
            adapter(images)
        assert monitor.alarms
    assert not any(layer.ema_mean.is_inference() for layer in adapter.layers.values())
    adapter(stream(1)[0])


def test_copies_and_pickles_have_no_part_in_a_batch_that_waits():
    adapter, monitor, kept, _, _ = serve(False, "tent", batches=stream(2))
    for other in (copy.deepcopy(adapter), pickle.loads(pickle.dumps(adapter))):
        other(stream(1)[0])
    assert len(kept.records) == 1
    assert monitor.latest.batch == monitor.batches == 2


def test_threads_may_serve_and_ask_at_once():
    adapter, monitor, kept, _, _ = serve(False, "tent", batches=[], actions=["rollback"], snapshot_every=1)
    latest = []

    def ask():
        for _ in range(20):
            monitor.flush()
            latest.append(len(kept.records))

    threads = [threading.Thread(target=lambda s=s: [adapter(x) for x in stream(5, seed=s)]) for s in range(3)]
    threads.append(threading.Thread(target=ask))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monitor.close()
    assert [record.batch for record in kept.records] == list(range(1, 16))
    assert latest == sorted(latest)


def test_source_statistics_that_are_loaded_are_used_at_once():
    adapter, monitor = watched("tebn")
    images = stream(1)[0]
    adapter(images)
    before = monitor.latest.signals["pressure/0.1"]
    layer = adapter.layers["0.1"]
    state = adapter.model.state_dict()
    state["0.1.running_var"] = (layer.running_var + layer.eps) * 4 - layer.eps
    adapter.model.load_state_dict(state)
    adapter(images)
    assert monitor.latest.signals["pressure/0.1"] == pytest.approx(before / 2, rel=1e-5)
    with torch.no_grad():
        layer.running_var = (layer.running_var + layer.eps) * 4 - layer.eps
    adapter(images)
    assert monitor.latest.signals["pressure/0.1"] == pytest.approx(before / 4, rel=1e-5)


@pytest.mark.gpu
def test_on_a_gpu_the_numbers_come_one_call_later_and_are_the_same():
    batches = attacked_stream()
    batches[5][0] = math.nan  # isolated on both
    _, waiting, _, _, _ = serve(True, batches=batches)
    kept = Kept()
    adapter = medbn.adapt(network().cuda(), "tebn", "median", graph=False)
    monitor = medbn.Monitor(adapter, reference=20, exporters=[kept])
    for images in batches:
        adapter(images.cuda())
    assert len(kept.records) == 35
    for record, expected in zip(monitor.records, waiting.records, strict=True):
        assert record.signals == pytest.approx(expected.signals, rel=1e-3, abs=1e-5)
    assert len(kept.records) == 36
