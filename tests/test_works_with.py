"""The cells of "What works with what" in docs/choosing.md that no other test is about."""

import copy
import threading

import pytest
import torch
from torch import nn

import medbn


def network(convert="image_median@0.5"):
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5)
    model = nn.Sequential(*layers).eval()
    return medbn.convert(model, convert) if convert else model


@pytest.fixture
def batches():
    return torch.rand(3, 20, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["past", "tebn", "tent"])
def test_a_compiled_model_is_adapted_as_the_model_is(method, batches):
    torch._dynamo.reset()
    eager = medbn.adapt(network(None), method, "image_median")
    compiled = medbn.adapt(torch.compile(network(None), backend="aot_eager"), method, "image_median")
    for images in batches:
        torch.testing.assert_close(compiled(images), eager(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["past", "tent"])
def test_channels_last_models_and_images_are_adapted_alike(method, batches):
    last = {"memory_format": torch.channels_last}
    adapter, other = medbn.adapt(network(), method), medbn.adapt(network().to(**last), method)
    for images in batches:
        torch.testing.assert_close(other(images.contiguous(**last)), adapter(images), rtol=1e-4, atol=1e-5)


def test_threads_share_a_converted_model(batches):
    model, outputs = network(), {}
    expected = [model(images) for images in batches]

    def call(number):
        outputs[number] = [model(batches[number]) for _ in range(20)]

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(one, expected[number]) for number, several in outputs.items() for one in several)


def test_a_converted_model_serves_under_inference_mode(batches):
    model = network()
    with torch.inference_mode():
        inside = model(batches[0])
    assert torch.equal(inside, model(batches[0]))


@pytest.mark.filterwarnings("ignore")  # that torch.jit is going
@pytest.mark.parametrize("compiler", [torch.jit.script, torch.fx.symbolic_trace])
def test_torchscript_and_fx_refuse_robust_layers_and_change_nothing(compiler, batches):
    model = network()
    before = copy.deepcopy(model)
    with pytest.raises((torch.fx.proxy.TraceError, ValueError, RuntimeError)):
        compiler(model)
    assert torch.equal(model(batches[0]), before(batches[0]))
