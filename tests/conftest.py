"""Fixtures of all tests. Nothing here needs more than torch, numpy and pytest, so that GPU machines need no more."""

import atexit
import gc
import os

# One torch thread in every test process and in the processes that tests start, set before torch is loaded: several
# processes with a thread per core each spend a busy machine's time waiting for one another. The few tests of several
# threads set their number; threads that wait then sleep instead of spinning.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:
    pass
else:
    # The same examples on every run. No deadline: the time that an example takes on a shared machine proves nothing.
    settings.register_profile(
        "medbn", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("medbn")

# Deterministic cuBLAS, for the tests that switch deterministic algorithms on.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_sessionstart(session):
    if not session.config.pluginmanager.hasplugin("dsession"):  # a process that only distributes tests needs no torch
        import torch

        torch.set_num_threads(1)  # for a plugin that has loaded torch already


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Exempt what importing leaves from garbage collection, which would visit these million objects again and again.

    What tests leave is collected after more objects than usual: each adapter has thousands.
    """
    gc.disable()
    gc.set_threshold(20_000)
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries report what is left when the interpreter ends
        gc.enable()


def pytest_collection_modifyitems(items):
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):  # not a keyword: those have the names of folders too
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@pytest.fixture
def refusal(capsys):
    """A function that runs ``medbn`` with wrong arguments and returns the one line that it prints on stderr."""
    from medbn.cli import main

    def run(arguments):
        try:
            code = main(arguments)
        except SystemExit as exit_:
            code = exit_.code
        printed = capsys.readouterr()
        assert code == 2
        assert printed.err.count("\n") == 1
        assert printed.out == ""
        return printed.err

    return run


@pytest.fixture(autouse=True)
def seed():
    from .seeds import seed_torch

    seed_torch(0)
