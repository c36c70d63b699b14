"""One adapter in several threads: calls take turns, and contexts that overlap leave every layer as configured."""

import copy
import pickle
import sys
import threading

import pytest
import torch

import medbn
from medbn import hooks, policies

from ..tiers import slow
from .table import METHODS, assert_same, make, state


@pytest.fixture
def switch_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def run_together(*functions):
    """Run functions at the same time, and raise the first error."""
    barrier, errors = threading.Barrier(len(functions)), []

    def run(function):
        barrier.wait()
        try:
            function()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("method", ["past", "tent", *slow(*(m for m in METHODS if m not in ("past", "tent")))])
def test_calls_in_several_threads_take_turns(method, model, batches, switch_often):
    """All calls have the same images, so their order does not matter."""
    alone, shared = make(model, method, predict="after"), make(model, method, predict="after")
    x, outputs = batches[0], []
    expected = [alone(x) for _ in range(12)]
    surrogate = shared.surrogate(of="source")
    logits = surrogate(x)

    def serve():
        for _ in range(4):
            outputs.append(shared(x))

    def attack():
        for _ in range(4):
            assert torch.equal(surrogate(x), logits)
            shared.snapshot()

    run_together(serve, serve, serve, attack)
    assert_same(state(shared), state(alone))
    assert all(any(torch.equal(a, b) for b in outputs) for a in expected)
    for a, b in zip(alone.layers.values(), shared.layers.values(), strict=True):
        assert a.policy == b.policy


def test_contexts_that_overlap_leave_the_configured_policy(model):
    tta = make(model, "past")
    configured = {name: layer.policy for name, layer in tta.layers.items()}
    mask = torch.ones(12, dtype=torch.bool)
    for context in (
        lambda: hooks.use_policy(tta.model, policies.ema(0.3)),
        lambda: hooks.mask_images(tta.model, mask),
        lambda: hooks.backward_through(tta.model, "mean"),
        lambda: hooks.observe(tta.model),
    ):
        first, second = context(), context()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)  # before the one that it was entered before
        second.__exit__(None, None, None)
        for name, layer in tta.layers.items():
            assert layer.policy == configured[name]
            assert (layer._valid, layer._backward, layer._observers) == (None, None, ())


def test_contexts_in_several_threads_leave_the_configured_policy(model, switch_often):
    robust = medbn.convert(model, policy="ema")

    def use():
        for _ in range(200):
            with hooks.use_policy(robust, "batch"), hooks.observe(robust):
                pass

    run_together(use, use, use)
    assert {(str(p.policy), p._observers) for p in hooks.robust_layers(robust).values()} == {("ema(momentum=0.2)", ())}


@pytest.mark.parametrize("method", ["sotta", "past", "mdia"])
def test_restore_and_reset_put_policies_back(method, model, batches):
    tta, fresh = make(model, method), make(model, method)
    snapshot = tta.snapshot()
    for undo in (tta.reset, lambda: tta.restore(snapshot)):
        for layer in tta.layers.values():
            layer.policy = policies.ema(0.7)
        undo()
        assert [p.policy for p in tta.layers.values()] == [p.policy for p in fresh.layers.values()]


def test_a_call_inside_a_call_of_the_same_thread_is_an_error(model, batches):
    tta = make(model, "tent")
    before = state(tta)
    surrogate = tta.surrogate()
    for call in (tta, surrogate):
        handle = tta.model.fc.register_forward_hook(lambda module, args, output, call=call: call(batches[0]) and None)
        with pytest.raises(RuntimeError, match="inside"):
            tta(batches[0])
        handle.remove()
        assert_same(state(tta), before)


@pytest.mark.parametrize("method", ["tent", "sotta", "past"])
def test_copies_and_pickles_go_on_alike(method, model, batches):
    tta = make(model, method)
    tta(batches[0])
    with hooks.use_policy(tta.model, "batch"):
        copies = [copy.deepcopy(tta), pickle.loads(pickle.dumps(tta))]
    expected = tta(batches[1])
    for other in copies:
        assert torch.equal(other(batches[1]), expected)
        assert_same(state(other), state(tta))


def test_without_a_lock_no_thread_waits_and_calls_still_undo_themselves(model, batches):
    tta, locked = make(model, "sar", lock=False), make(model, "sar")
    inside, ready = threading.Event(), threading.Event()

    def wait(*_):
        inside.set()
        ready.wait()

    handle = tta.model.register_forward_pre_hook(wait)
    thread = threading.Thread(target=lambda: tta(batches[0]))
    thread.start()
    inside.wait()
    tta.lock.held.acquire()  # another thread's would wait
    tta.lock.held.release()
    assert not tta.lock.is_mine()
    ready.set()
    thread.join()
    handle.remove()
    locked(batches[0])
    assert_same(state(tta), state(locked))
    with pytest.raises(ValueError, match="finite"):
        tta(torch.full_like(batches[0], torch.nan))
    assert_same(state(tta), state(locked))
    nested = tta.model.register_forward_pre_hook(lambda *_: tta(batches[1]))
    with pytest.raises(RuntimeError, match="inside"):
        tta(batches[1])
    nested.remove()
    for other in (copy.deepcopy(tta), pickle.loads(pickle.dumps(tta))):
        assert torch.equal(other(batches[1]), copy.deepcopy(locked)(batches[1]))
