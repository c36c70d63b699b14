import subprocess
import sys

import pytest
import torch
from torch import nn

import medbn

pytestmark = pytest.mark.slow


def network(estimator, policy="batch"):
    """No convolution: its rounding differs when compiled, and then a median may select another element."""
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Tanh(), nn.BatchNorm2d(3))
    for layer in (model[0], model[2]):
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    return medbn.convert(model, estimator, policy).eval()


# Operators of kernels are compiled in tests/kernels/test_operators.py.
@pytest.mark.parametrize("estimator", ["mean", "median", "mad"])
def test_compile_in_one_graph_forward_and_backward(estimator, device):
    torch._dynamo.reset()
    model, x, g = network(estimator).to(device), torch.randn(6, 3, 8, 8, device=device), torch.randn(6, 3, 8, 8)
    compiled = torch.compile(model, fullgraph=True)
    parameters = list(model.parameters())
    y, expected = compiled(x), model(x)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    gradients = (torch.autograd.grad(t, parameters, g.to(device)) for t in (y, expected))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)
    x[2] = torch.nan  # isolation is part of the graph
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("policy", ["ema", "interpolate", "source"])
def test_compile_with_each_policy(policy):
    torch._dynamo.reset()
    model, x = network("median", policy), torch.randn(6, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # that jit.trace is going, and that python values become constants
def test_a_traced_program_isolates_too():
    model, x = network("median"), torch.randn(6, 3, 8, 8)
    traced = torch.jit.trace(model, (x,), check_trace=False)
    x[2] = torch.nan
    torch.testing.assert_close(traced(x), model(x), equal_nan=True)


@pytest.mark.parametrize("estimator", ["mean", "median", "mad", "image_median"])
def test_an_exported_program_contains_aten_operators_only(estimator):
    model, x = network(estimator), torch.randn(6, 3, 8, 8)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=64)},))
    for node in program.graph.nodes:
        if node.op == "call_function" and not str(node.target).startswith("aten."):
            assert node.target.__module__ in ("_operator", "math"), node.target  # arithmetic on sizes
    other = torch.randn(9, 3, 8, 8)
    other[4, 0, 0, 0] = torch.inf
    torch.testing.assert_close(program.module()(other), model(other), equal_nan=True)


def test_an_exported_program_runs_without_medbn(tmp_path):
    model, x = network("median"), torch.randn(6, 3, 8, 8)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "model.pt2")
    torch.save({"x": x, "y": model(x).detach()}, tmp_path / "pair.pt")
    script = """
import sys
sys.modules["medbn"] = None  # importing it fails
import torch
pair = torch.load("pair.pt")
torch.testing.assert_close(torch.export.load("model.pt2").module()(pair["x"]), pair["y"])
print("the same")
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "the same", done.stderr
