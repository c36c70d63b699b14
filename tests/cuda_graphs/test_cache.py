"""When a graph may be replayed: the rule of ``GraphCache``."""

import copy
import gc
import os
import types
import weakref
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import medbn
from medbn.cuda_graphs import CaptureError, GraphCache, Guard, ObstacleError, cache, find_obstacle, settings

from ..methods.conftest import small_model


class Captured:
    """Stands for a graph."""


@pytest.fixture
def anywhere(monkeypatch):
    monkeypatch.setattr(cache, "find_obstacle", lambda model, tensors: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)


@pytest.fixture
def adapted():
    return medbn.adapt(small_model(), "sema").model


def get(graphs, model, *inputs, key=None, wait=False):
    return graphs.get(model, key, inputs, lambda guard, pool: Captured(), wait=wait)


def test_calls_of_one_kind_share_a_graph(anywhere, adapted):
    graphs, x = GraphCache(capacity=10), torch.rand(4, 3, 8, 8)
    first = get(graphs, adapted, x, 1)
    assert get(graphs, adapted, torch.rand(4, 3, 8, 8), 1) is first
    others = [(x[:3], 1), (x.to(memory_format=torch.channels_last), 1), (x.double(), 1), (x, 1.0), (x, True)]
    all_graphs = {first, *(get(graphs, adapted, *inputs) for inputs in others), get(graphs, adapted, x, 1, key="other")}
    assert len(all_graphs) == len(graphs) == len(others) + 2
    with pytest.raises(ObstacleError, match="list"):
        get(graphs, adapted, x, [1])


def test_a_capture_can_wait_for_the_second_call(anywhere, adapted):
    graphs = GraphCache()
    assert get(graphs, adapted, 1, wait=True) is None
    assert get(graphs, adapted, 2, wait=True) is None
    assert get(graphs, adapted, 1, wait=True) is get(graphs, adapted, 1, wait=True) is not None


@pytest.mark.slow
def test_the_least_recently_used_is_dropped_and_the_pool_is_shared(anywhere, adapted):
    graphs, pools = GraphCache(capacity=2), []

    def call(kind):
        return weakref.ref(graphs.get(adapted, kind, [], lambda guard, pool: pools.append(pool) or Captured()))

    one, two = call(1), call(2)
    assert call(1)() is one()
    three = call(3)
    gc.collect()
    assert [ref() is None for ref in (one, two, three)] == [False, True, False]
    assert len(pools) == 3
    assert len(set(map(id, pools))) == 1


def test_a_failed_capture_is_not_tried_again_until_the_model_changes(anywhere, adapted):
    graphs, tries = GraphCache(), []

    def fail(guard, pool):
        tries.append(1)
        raise CaptureError("no")

    for _ in range(2):
        with pytest.raises(CaptureError, match="no"):
            graphs.get(adapted, None, [], fail)
    assert len(tries) == 1
    adapted.scale = 3.0
    assert get(graphs, adapted) is not None


def test_a_hook_is_an_obstacle_also_after_the_capture(monkeypatch, adapted):
    image = types.SimpleNamespace(is_cuda=True, device=torch.device("cpu"))  # on the model's device, as far as one asks
    monkeypatch.setattr(cache, "find_obstacle", lambda model, tensors: find_obstacle(model, [image]))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    graphs = GraphCache()
    assert get(graphs, adapted) is not None
    with medbn.observe(adapted), pytest.raises(ObstacleError, match="'bn'"):
        get(graphs, adapted)
    handle = adapted.register_forward_hook(lambda *a: None)
    with pytest.raises(ObstacleError, match="'the model'"):
        get(graphs, adapted)
    handle.remove()
    assert get(graphs, adapted) is not None
    image.device = torch.device("meta")
    assert "meta" in find_obstacle(adapted, [image])


def test_obstacles(monkeypatch, adapted):
    assert "cpu" in find_obstacle(adapted, [torch.zeros(1)])
    monkeypatch.setenv("MEDBN_GRAPHS", "0")
    assert "MEDBN_GRAPHS=0" in find_obstacle(adapted, [])
    monkeypatch.setenv("MEDBN_GRAPHS", "no")
    with pytest.raises(ValueError, match="MEDBN_GRAPHS 'no'"):
        find_obstacle(adapted, [])


# --- the model --------------------------------------------------------------------------------------------------------


def set_average(m):
    m.bn.ema_mean = m.bn.ema_mean + 1


KEPT = {
    "nothing": lambda m: None,
    "values": lambda m: m.fc.weight.data.mul_(2),
    "an average": set_average,
    "loaded values": lambda m: m.fc.load_state_dict({k: v + 1 for k, v in m.fc.state_dict().items()}),
    "an equal constant": lambda m: setattr(m, "scale", float("4.0")),
    "an equal tuple": lambda m: setattr(m.conv, "stride", m.conv.stride[:1] + m.conv.stride[1:]),
}
CHANGES = {
    "a parameter": lambda m: setattr(m.fc, "weight", nn.Parameter(m.fc.weight.detach() * 2)),
    "its data": lambda m: setattr(m.fc.weight, "data", m.fc.weight.data * 2),
    "a buffer": lambda m: setattr(m.bn, "running_mean", m.bn.running_mean + 1),
    "a module": lambda m: setattr(m, "layer1", nn.Identity()),
    "one more module": lambda m: m.layer1.append(nn.ReLU6()),
    "a constant": lambda m: setattr(m, "scale", 3.0),
    "its type": lambda m: setattr(m, "scale", 4),
    "a tuple": lambda m: setattr(m.conv, "stride", (1, 2)),
    "a longer tuple": lambda m: setattr(m.conv, "stride", (*m.conv.stride, 1)),
    "an average's type": lambda m: setattr(m.bn, "ema_mean", m.bn.ema_mean.double()),
    "a hook": lambda m: m.fc.register_forward_hook(lambda *a: None),
    "a pre-hook": lambda m: m.fc.register_forward_pre_hook(lambda *a: None),
    "eps": lambda m: setattr(m.bn, "eps", 1e-2),
    "estimator": lambda m: setattr(m.bn, "estimator", "mad"),
    "policy": lambda m: setattr(m.bn, "policy", "source"),
    "mode": lambda m: m.drop.train(),
    "fused layers": lambda m: medbn.convert(m, "mean", "ema", fuse=True),
    "a class": lambda m: setattr(m.drop, "__class__", nn.Identity),
}


@pytest.mark.parametrize("name", [*KEPT, *CHANGES])
def test_a_guard_notices_what_code_reads(name, adapted):
    guard = Guard(adapted)
    (KEPT | CHANGES)[name](adapted)
    assert guard.valid() == (name in KEPT)


def test_a_guard_notices_that_fused_modules_change(adapted):
    for change in (lambda m: setattr(m, "scale", 5.0), medbn.fusion.unfuse, medbn.revert):
        model = medbn.convert(copy.deepcopy(adapted), fuse=True)
        guard = Guard(model)
        assert guard.valid()
        change(model)
        assert not guard.valid()


@pytest.mark.parametrize("container", [[1.0], {"a": 1.0}, {1.0}])
def test_a_guard_notices_what_a_model_keeps_in_containers(container, adapted):
    adapted.kept = container
    guard = Guard(adapted)
    assert guard.valid()
    if isinstance(container, list):
        container.append(1.0)
    elif isinstance(container, dict):
        container["a"] = 2.0
    else:
        container.clear()
    assert not guard.valid()


# --- the settings -----------------------------------------------------------------------------------------------------


@contextmanager
def attribute(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def call(setter, value, before):
    setter(value)
    try:
        yield
    finally:
        setter(before)


@contextmanager
def environment(name, value):
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else os.environ.update({name: before})


@pytest.mark.parametrize(
    "change",
    [
        lambda: attribute(torch.backends.cudnn, "benchmark", not torch.backends.cudnn.benchmark),
        lambda: attribute(torch.backends.cudnn, "deterministic", not torch.backends.cudnn.deterministic),
        lambda: torch.backends.cudnn.flags(enabled=False),
        lambda: call(torch.set_float32_matmul_precision, "high", torch.get_float32_matmul_precision()),
        lambda: call(torch.use_deterministic_algorithms, True, torch.are_deterministic_algorithms_enabled()),
        lambda: call(torch.set_default_dtype, torch.float64, torch.get_default_dtype()),
        lambda: call(lambda on: torch.set_autocast_enabled("cuda", on), True, False),
        lambda: environment("MEDBN_KERNELS", "reference"),
        lambda: environment("MEDBN_GRAPHS", "1"),
    ],
    ids=["benchmark", "cudnn", "no cudnn", "tf32", "deterministic", "dtype", "autocast", "kernels", "switch"],
)
def test_settings_that_choose_kernels_are_compared(change):
    before = settings()
    with change():
        assert settings() != before
        hash(settings())
