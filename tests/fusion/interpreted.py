"""Run a model with fused layers on the CPU, its Triton kernels in Triton's interpreter, beside the model as it was."""

from __future__ import annotations

import torch

import medbn
from medbn import kernels
from medbn.kernels import dispatch, smooth, triton
from medbn.models.resnet import ResNet

launched: list[bool] = []


def select_triton() -> None:
    """Let layers use the Triton kernels on a CPU, and note the activated passes."""

    def selected(x, estimator="median"):
        return "triton" if estimator in triton.KERNELS and x.dtype == torch.float32 else "reference"

    def activated_forward(*arguments):
        launched.append(True)
        return triton.forward(*arguments)

    kernels.selected = dispatch.selected = selected
    kernels.forward = dispatch.forward = triton.forward
    kernels.backward = dispatch.backward = lambda *a: (
        smooth.gpu_backward(*a) if a[-1].backward == "smooth" else triton.backward(*a)
    )
    kernels.activated_forward = activated_forward


def compute(fuse: bool, gradient: str, images: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = ResNet((1, 1), (2, 4), channels=1).eval()
    medbn.convert(model, "median", "interpolate", fuse=fuse)
    leaf = images.clone().requires_grad_()
    backward = medbn.gradients.get(gradient, 0.4)
    if backward is None:
        y = model(leaf)
    else:
        with medbn.backward_through(model, backward):
            y = model(leaf)
    assert y[1].isnan().all() == images[1].isnan().any()
    finite = y[images.flatten(1).isfinite().all(1)]
    return [finite, *torch.autograd.grad(finite.square().sum(), (leaf, *model.parameters()))]


def main() -> None:
    select_triton()
    torch.manual_seed(0)
    images = torch.rand(5, 1, 5, 5)
    for gradient in ("exact", "straight_through", "smooth"):
        if gradient == "smooth":
            images[1, 0, 0, 0] = torch.nan
        launched.clear()
        expected = compute(False, gradient, images)
        assert not launched
        found = compute(True, gradient, images)
        assert len(launched) == 5
        for one, other in zip(found, expected, strict=True):
            # A convolution's weight gets NaN from an image with NaN, fused or not.
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)
    model = ResNet((1,), (2,), channels=1)
    adapters = [medbn.adapt(model, "tent", "image_median", fuse=fuse) for fuse in (True, False)]
    images = torch.rand(4, 1, 5, 5)
    for _ in range(2):
        torch.testing.assert_close(*(adapter(images) for adapter in adapters), rtol=1e-4, atol=1e-5)
    print("all agree")


if __name__ == "__main__":
    main()
