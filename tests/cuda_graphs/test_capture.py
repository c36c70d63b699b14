"""Capture and replay on a GPU, and what a failed capture leaves behind."""

import pytest
import torch

from medbn.cuda_graphs import CaptureError, capture

pytestmark = pytest.mark.gpu


@pytest.fixture
def pool():
    return torch.cuda.graph_pool_handle()


def test_a_replay_reads_its_inputs_anew_and_writes_the_same_output(pool):
    weight = torch.rand(5, device="cuda")

    def function(inputs):
        x, power = inputs
        x.add_(1)
        return x.clone(), (x * weight) ** power

    x = torch.rand(3, 5, device="cuda")
    graph = capture(function, [x, 2], pool)
    for value in (x, x + 1, x - 2):
        graph.load([value, 2])
        for step in (1, 2):
            moved, output = graph.replay()
            assert torch.equal(moved, value + 1 if step == 1 else value + 1 + 1)
            assert torch.equal(output, (moved * weight) ** 2)
    weight.mul_(2)  # read where it is
    graph.load([x, 2])
    assert torch.equal(graph.replay()[1], ((x + 1) * weight) ** 2)


def wait(inputs):
    return inputs[0] * inputs[0].sum().item()


def synchronise(inputs):
    torch.cuda.synchronize()
    return inputs[0] * 2


def fail(inputs):
    if torch.cuda.is_current_stream_capturing():
        raise OSError("not now")
    return inputs[0] * torch.rand(5, device="cuda")


@pytest.mark.parametrize(("function", "reason"), [(wait, "waits for the GPU"), (synchronise, "."), (fail, "not now")])
def test_a_failed_capture_leaves_everything_usable(function, reason, pool):
    x = torch.rand(5, device="cuda")
    stream = torch.cuda.current_stream()
    with pytest.raises(CaptureError, match=reason):
        capture(function, [x], pool)
    assert torch.cuda.current_stream() == stream
    assert torch.cuda.get_sync_debug_mode() == 0
    assert torch.rand(5, device="cuda").isfinite().all()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    graph = capture(lambda inputs: inputs[0] + 1, [x], torch.cuda.graph_pool_handle())
    assert torch.equal(graph.replay(), x + 1)
