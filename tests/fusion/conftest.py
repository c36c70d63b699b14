"""One kernel for layer, addition and ReLU on a CPU, which is made of the C kernels and two operations of torch."""

import pytest
import torch

from medbn import kernels
from medbn.kernels import c


@pytest.fixture
def fused_calls(monkeypatch):
    """Let layers be fused on a CPU; return the list to which each fused call is added."""
    if not c.available():
        pytest.skip("the C kernels are not built")
    calls = []

    def activates(x, residual, kernel):
        fits = residual is None or (residual.shape == x.shape and residual.dtype == x.dtype)
        return fits and not torch.compiler.is_compiling() and kernels.selected(x, kernel) == "c"

    def forward(x, weight, bias, running, spec, activation):
        calls.append((x, activation.residual))
        y, saved = kernels.forward(x, weight, bias, running, spec)
        with torch.no_grad():
            return (y if activation.residual is None else y + activation.residual).relu(), saved

    def backward(g, y, x, weight, saved, spec, residual):
        masked = torch.ops.aten.threshold_backward(g, y, 0)
        return *kernels.backward(masked, x, weight, saved, spec), masked if residual else None

    monkeypatch.setattr(kernels, "activates", activates)
    monkeypatch.setattr(kernels, "activated_forward", forward)
    monkeypatch.setattr(kernels, "activated_backward", backward)
    return calls
