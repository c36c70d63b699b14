"""An exception may arrive at any line of a call: then nothing has changed, and the same call gives the same bits."""

import gc
import linecache
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch

import medbn
from medbn._layer_settings import overrides_lock

from ..tiers import slow
from .table import METHODS, assert_same, every_method, make, state

FILES = (str(Path(medbn.__file__).parent), str(Path(torch.optim.__file__).parent), "contextlib.py")


class Interrupted(BaseException):
    pass


def run_until(line, function):
    """Run a function and raise at that line of the package, of torch's optimisers or of contextlib; count the lines."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        name = frame.f_code.co_filename
        if not (name.startswith(FILES[:2]) or name.endswith(FILES[2])):
            return None
        if event == "line" and not undoing(frame) and not takes_lock(frame):
            count += 1
            if count == line:
                raise Interrupted
        return trace

    def undoing(frame):
        while frame is not None:
            if frame.f_code.co_name in ("undo", "roll_back"):
                return True
            frame = frame.f_back
        return False

    def takes_lock(frame):
        # CPython runs no signal handler between the end of such a block and the release of its lock, nor at the line of
        # a `try`, which does nothing; a trace does.
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        return text in ("with self.lock.held:", "with overrides_lock:", "try:")

    sys.settrace(trace)
    try:
        function()
    except Interrupted:
        return None
    finally:
        sys.settrace(None)
    return count


def assert_untouched(tta, before, policies):
    assert not overrides_lock._is_owned()  # another thread would wait for ever
    assert_same(state(tta), before)
    assert [layer.policy for layer in tta.layers.values()] == policies
    assert all((p._valid, p._backward, p._observers, p._overrides) == (None, None, (), ()) for p in tta.layers.values())
    assert all(p.grad is None for p in tta.learned.values())
    # Within autocast, torch keeps cast copies of weights, and no later step would change them.
    assert torch.autocast_increment_nesting() - 1 == torch.autocast_decrement_nesting() == 0


def interrupt_everywhere(method, model, batches, parts, **options):
    tta = make(model, method, **options)
    tta(batches[0])
    before, snapshot = state(tta), tta.snapshot()
    policies = [layer.policy for layer in tta.layers.values()]
    valid = torch.arange(12) < 10
    lines = run_until(None, lambda: tta(batches[1], valid=valid))
    after = state(tta)
    for part in range(parts):
        tta.restore(snapshot)
        # The last lines return what is committed already, so they are left out.
        line = 1 + part * (lines - 8) // parts
        assert run_until(line, lambda: tta(batches[1], valid=valid)) is None, line
        assert_untouched(tta, before, policies)
    tta(batches[1], valid=valid)
    assert_same(state(tta), after)


@pytest.mark.slow
@every_method
@pytest.mark.parametrize("predict", ["before", "after"])
def test_an_exception_at_any_line_changes_nothing(method, predict, model, batches):
    interrupt_everywhere(method, model, batches, 8, predict=predict)


@pytest.mark.slow
@every_method
def test_an_exception_at_many_lines_changes_nothing(method, model, batches):
    interrupt_everywhere(method, model, batches, 67, predict="after")


@pytest.mark.parametrize("method", ["sema", *slow("tebn", "sotta")])
def test_an_exception_at_any_line_of_a_surrogate_changes_nothing(method, model, batches):
    tta = make(model, method)
    tta(batches[0])
    surrogate, before = tta.surrogate("straight_through"), state(tta)
    policies = [layer.policy for layer in tta.layers.values()]
    tta(batches[1])
    tta.restore(surrogate.state)
    lines, expected = run_until(None, lambda: surrogate(batches[1])), surrogate(batches[1])
    for part in range(20):
        assert run_until(1 + part * (lines - 8) // 20, lambda: surrogate(batches[1])) is None
        assert_untouched(tta, before, policies)
    assert torch.equal(surrogate(batches[1]), expected)


def test_an_undo_that_is_interrupted_is_completed_by_the_next_use(model, batches, monkeypatch):
    tta = make(model, "sotta")
    tta(batches[0])
    before = state(tta)
    undo, attempts = medbn.methods._journal.Journal.undo, []

    def interrupted_undo(journal, adapter):
        attempts.append(journal)
        if len(attempts) == 1:
            raise KeyboardInterrupt
        undo(journal, adapter)

    monkeypatch.setattr(medbn.methods._journal.Journal, "undo", interrupted_undo)
    handle = tta.register_forward_hook(lambda *_: pytest.fail("a hook that raises after the call has adapted"))
    with pytest.raises(KeyboardInterrupt):
        tta(batches[1])
    handle.remove()
    assert_same(state(tta), before)
    assert len(attempts) == 2


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer signals")
@pytest.mark.skipif("COVERAGE_RUN" in os.environ, reason="an exception within coverage's code leaves its lock locked")
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals need the main thread")
@pytest.mark.parametrize("method", [m for m in METHODS if m in ("tent", "sotta", "past")])
def test_a_signal_handler_may_raise_in_the_middle_of_a_call(method, model, batches):
    tta = make(model, method)
    tta(batches[0])
    before, snapshot = state(tta), tta.snapshot()
    tta(batches[1])
    after = state(tta)
    tta.restore(snapshot)

    def raise_interrupted(number, frame):
        raise Interrupted

    previous = signal.signal(signal.SIGALRM, raise_interrupted)
    interrupted = 0
    gc.disable()  # Python loses what is raised in a callback of the garbage collector; Hypothesis has one
    try:
        for microseconds in range(200, 6000, 450):
            changes = tta.state_changes
            try:
                signal.setitimer(signal.ITIMER_REAL, microseconds * 1e-6)
                tta(batches[1])
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                committed = tta.state_changes != changes  # the signal came after the call, before the timer was stopped
                interrupted += not committed
                assert_same(state(tta), after if committed else before)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            tta.restore(snapshot)
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, previous)
    assert_same(state(tta), before)
    assert interrupted > 0
