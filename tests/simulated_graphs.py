"""CUDA graphs on a CPU: a replay calls the captured function again, with its static inputs alone."""

import torch

from medbn.attacks import _graph as steps
from medbn.cuda_graphs import Graph, cache
from medbn.methods import _graph as forward
from medbn.methods import _step_graph as learning


class SimulatedGraph(Graph):
    def __init__(self, function, inputs):
        static = [torch.full_like(v, 1) if isinstance(v, torch.Tensor) else v for v in inputs]  # to be overwritten
        super().__init__(None, static, None)
        self.function = function

    def replay(self):
        return self.function(self.inputs)


def simulate_graphs(monkeypatch, capture=lambda function, inputs, pool: SimulatedGraph(function, inputs)):
    """Let adapters and attacks capture on a CPU; return the list to which every new graph is added."""
    captured = []

    def record(function, inputs, pool):
        captured.append(capture(function, inputs, pool))
        return captured[-1]

    for module in (steps, forward, learning):
        monkeypatch.setattr(module, "capture", record)
    for module in (cache, forward, learning):
        monkeypatch.setattr(module, "find_obstacle", lambda model, tensors: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    return captured
