"""Adapters that several processes call with a part of each batch, against one that has the whole batch."""

import copy
import functools

import pytest
import torch

import medbn
from medbn.distributed import GroupError

from ..methods.conftest import Dense, small_model
from ..methods.table import METHODS, assert_same, every_method, make, state
from .test_statistics import own

pytestmark = pytest.mark.slow

SHARES = [(5, 4, 3), (0, 12, 0), (1, 0, 11), (4, 4, 4)]
"""How many images each process has in each call."""


def stream(count=4, images=12):
    g = torch.Generator().manual_seed(5)
    return [torch.randn(images, 3, 8, 8, generator=g) + 0.5 for _ in range(count)]


def options_of(method, group=None, **options):
    if method == "eata":
        source = stream(2, 8)
        options["source"] = source if group is None else [own(group, batch, (5, 0, 3)) for batch in source]
    return options if group is None else {**options, "group": group}


def serve(group, method, batches, shares, options, dense=False, valid=None):
    """What one process predicts in each call, and its state after the last."""
    model = Dense(small_model()) if dense else small_model()
    adapter = make(model, method, **{**options_of(method, group), **options})
    answers = []
    for i, (batch, share) in enumerate(zip(batches, shares, strict=True)):
        mask = None if valid is None else own(group, valid[i], share)
        answers.append(adapter(own(group, batch, share), valid=mask))
    return answers, state(adapter)


def check(pool, method, batches, shares=SHARES, dense=False, valid=None, **options):
    """Compare three processes with one: predictions, states, and the states of the processes with each other."""
    model = Dense(small_model()) if dense else small_model()
    one = make(model, method, **{**options_of(method), **options})
    whole = [one(b, valid=None if valid is None else valid[i]) for i, b in enumerate(batches)]
    received = pool.run(serve, len(shares[0]), method, batches, shares, options, dense, valid)
    for i, expected in enumerate(whole):
        predicted = torch.cat([answers[i] for answers, _ in received])
        torch.testing.assert_close(predicted, expected, rtol=2e-3, atol=2e-3, equal_nan=True)
    for _, other in received[1:]:
        assert_same(received[0][1], other)
    assert_same(received[0][1], state(one), exact=False)
    return one


@every_method
def test_processes_predict_as_one_and_stay_in_the_same_state(pool, method):
    check(pool, method, stream())


@pytest.mark.parametrize("estimator", ["mean", "image_median@0.5"])
@pytest.mark.parametrize("method", ["tent", "past", "sotta"])
def test_other_estimators(pool, method, estimator):
    check(pool, method, stream(), estimator=estimator)


@pytest.mark.parametrize("method", ["sar", "sotta", "cotta"])
def test_dense_outputs(pool, method):
    check(pool, method, stream(2), SHARES[:2], dense=True)


@pytest.mark.parametrize("method", ["tent", "eata", "sotta", "past", "alpha_bn", "lame"])
def test_padding_and_images_with_nan(pool, method):
    batches = stream(2)
    batches[0][6, 0, 0, 0] = torch.nan
    valid = [torch.arange(12) != 2, torch.arange(12) < 5]  # the last process has nothing but padding
    check(pool, method, batches, [(5, 4, 3), (3, 2, 7)], valid=valid)


@pytest.mark.parametrize("method", ["sar", "cotta"])
def test_predictions_of_the_updated_model_and_several_steps(pool, method):
    check(pool, method, stream(2), SHARES[:2], predict="after", steps=2)


@pytest.mark.parametrize("method", ["tent", "past", "sema"])
def test_images_of_small_calls_are_collected_from_all(pool, method):
    batches, shares = stream(5, 4), [(1, 2, 1), (0, 4, 0), (2, 0, 2), (1, 1, 2), (4, 0, 0)]
    one = check(pool, method, batches, shares, min_images=10, collect=True)
    assert len(one.memory["collected"]["0"]) == 8  # three calls are twelve images


def test_changes_are_found_in_the_images_of_all(pool):
    batches = [b * (4.0 if i == 3 else 1.0) for i, b in enumerate(stream(5, 160))]
    shares = [(50, 60, 50), (0, 100, 60), (160, 0, 0), (53, 53, 54), (1, 1, 158)]
    one = check(pool, "past", batches, shares, changes="detect", batch_size=160)
    assert one.memory["declared"] == 2  # the first batch, and the change


def test_counted_averages_and_augmented_outputs(pool):
    check(pool, "sema", stream(), counted=True)
    check(pool, "cotta", stream(2), SHARES[:2], augmented_output=True)


def serve_transformer(group, batches, shares):
    model = medbn.models.get("vit-tiny", channels=1)
    with pytest.warns(UserWarning, match="no BatchNorm"):
        adapter = medbn.adapt(model, "tent", group=group)
    return [adapter(own(group, b, s)) for b, s in zip(batches, shares, strict=True)], state(adapter)


def test_a_model_without_batch_norm(pool):
    g = torch.Generator().manual_seed(5)
    batches, shares = [torch.rand(9, 1, 16, 16, generator=g) for _ in range(2)], [(4, 0, 5), (9, 0, 0)]
    received = pool.run(serve_transformer, 3, batches, shares)
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="no BatchNorm"):
        one = medbn.adapt(medbn.models.get("vit-tiny", channels=1), "tent")
    for i, batch in enumerate(batches):
        torch.testing.assert_close(torch.cat([a[i] for a, _ in received]), one(batch), rtol=1e-4, atol=1e-4)
    assert_same(received[0][1], received[2][1])
    assert_same(received[0][1], state(one), exact=False)


# --- what goes wrong --------------------------------------------------------------------------------------------------


def raised_by(function):
    """The type and the text of what a function raises."""
    try:
        function()
    except Exception as error:
        return type(error), str(error)
    return None, ""


def refuse(group, kind):
    """The error of one process in a call that one of them cannot take part in, and what came of its state."""
    rank = group.rank()
    adapter = make(small_model(), "tent", group=group, bounds=(-9, 9))
    images = stream(1)[0][:4]
    adapter(images)
    if kind == "value" and rank == 1:
        images = images * 100
    if kind == "shape" and rank == 1:
        images = torch.rand(4, 3, 6, 6)
    if kind == "empty":
        images = images[:0]
    if kind == "nan":
        images = torch.full_like(images, torch.nan)
        adapter.bounds = None
    if kind == "state" and rank == 1:
        adapter.reset()
    if kind == "paused" and rank == 1:
        adapter.paused = True
    before = state(adapter)
    error = raised_by(lambda: adapter(images))
    assert_same(before, state(adapter))
    if kind != "state":
        adapter.bounds, adapter.paused = None, False
        adapter(stream(1)[0][:4])  # all can go on
    return error


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("value", [(GroupError, "process 1"), (ValueError, "outside of bounds"), (GroupError, "process 1")]),
        ("shape", [(ValueError, "different shapes")] * 3),
        ("empty", [(ValueError, "no process has an image")] * 3),
        ("nan", [(ValueError, "no image of this batch has a finite output")] * 3),
        ("state", [(GroupError, "different states")] * 3),
        ("paused", [(GroupError, "paused")] * 3),
    ],
)
def test_what_one_process_cannot_do_all_refuse(pool, kind, expected):
    for (error, text), (wanted, word) in zip(pool.run(refuse, 3, kind), expected, strict=True):
        assert error is wanted
        assert word in text


def differ(group, kind):
    model = small_model()
    if kind == "weights" and group.rank() == 1:
        with torch.no_grad():
            model.fc.bias.add_(1e-6)
    options = {"lr": 0.1} if kind == "options" and group.rank() == 1 else {}
    if kind == "source":
        source = stream(2 - group.rank(), 8)
        return raised_by(lambda: make(model, "eata", group=group, source=source))
    return raised_by(lambda: make(model, "tent", group=group, **options))


@pytest.mark.parametrize("kind", ["weights", "options", "source"])
def test_processes_that_differ_from_the_start_are_refused(pool, kind):
    for error, text in pool.run(differ, 2, kind):
        assert error is GroupError
        assert kind in text


def make_others(group):
    adapter = make(small_model(), "tent", group=group)
    layers = copy.deepcopy(adapter.model)
    layers.bn.group = "local"
    mixed = functools.partial(medbn.adapt, layers, "tent")
    monitor = functools.partial(medbn.Monitor, adapter, on_alarm="pause")
    graph = functools.partial(make, small_model(), "tebn", group=group, graph=True)
    return [raised_by(f) for f in (adapter.surrogate, mixed, monitor, graph)]


def test_what_is_for_one_process_is_refused(pool):
    for answers in pool.run(make_others, 2):
        for (error, text), word in zip(answers, ("attacker", "several", "one process", "one process"), strict=True):
            assert error is ValueError
            assert word in text


def watch(group, early):
    adapter = make(small_model(), "tent", group=group)
    monitor = medbn.Monitor(adapter)
    if not early:
        adapter._prediction_hooks.clear()
    for batch, share in zip(stream(), SHARES, strict=True):
        adapter(own(group, batch, share))
    return repr([record.signals for record in monitor.records])


def test_each_process_watches_its_own_images(pool):
    early, late = (pool.run(watch, 3, computed_early) for computed_early in (True, False))
    assert early == late
    assert [records.count("'images': ") for records in early] == [3, 3, 3]  # each has no image in one call


def save_and_load(group, path):
    adapter = make(small_model(), "sotta", group=group)
    batches = stream(2)
    adapter(own(group, batches[0], (7, 5)))
    if group.rank() == 0:
        adapter.save(path)
    torch.distributed.barrier(group)
    again = make(small_model(), "sotta", group=group)
    again.load(path)
    other = again(own(group, batches[1], (2, 10)))
    torch.testing.assert_close(other, adapter(own(group, batches[1], (2, 10))), rtol=0, atol=0)
    assert_same(state(adapter), state(again))


def test_a_state_that_one_process_saves_continues_in_all(pool, tmp_path):
    pool.run(save_and_load, 2, str(tmp_path / "state.safetensors"))


def test_every_method_is_in_the_table():
    assert set(METHODS) == set(medbn.methods.available())
