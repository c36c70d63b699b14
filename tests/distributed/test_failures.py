"""A process that dies, or does not answer, is an error in the others within the timeout of the group."""

import os
import time
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist

import medbn

from ..methods.conftest import small_model
from ..methods.table import assert_same, state
from .pool import PATIENCE, start

pytestmark = pytest.mark.slow

TIMEOUT = 2.0
"""Seconds that the processes wait for each other."""


def serve(rank, store, failure, connection):
    """Adapt twice; the last process fails in the middle of the second call. The first one sends what it sees."""
    torch.set_num_threads(1)
    timeout = timedelta(seconds=TIMEOUT)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3, timeout=timeout)
    tta = medbn.adapt(small_model(), "sotta", "median", group="world", confidence=0.2)
    images = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(rank))
    tta(images)
    if rank == 2:

        def fail(*arguments):
            connection.send(None)
            if failure == "dies":
                os._exit(1)
            connection.recv()  # until the test is over

        tta.model.layer2.register_forward_hook(fail)
    before, began = state(tta), time.monotonic()
    try:
        tta(images)
    except medbn.distributed.GroupError as error:
        assert_same(before, state(tta))
        connection.send((time.monotonic() - began, str(error)))


@pytest.mark.parametrize("failure", ["dies", "hangs"])
def test_the_others_get_an_error_within_the_timeout(tmp_path, failure):
    started = [start(serve, rank, str(tmp_path / "store"), failure) for rank in range(3)]
    try:
        connections = [connection for _, connection in started]
        assert connections[2].poll(PATIENCE)
        for connection in connections[:2]:
            assert connection.poll(PATIENCE)
            seconds, error = connection.recv()
            assert "has died, does not answer" in error
            assert seconds < 30 * TIMEOUT  # a busy machine stretches the part of a second that a call takes
            assert failure == "dies" or seconds > 0.9 * TIMEOUT
    finally:
        for process, connection in started:
            connection.close()
            process.kill()
            process.join()
