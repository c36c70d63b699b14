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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_plain_models_take_the_types_that_adapters_take(dtype, batches):
    adapter = medbn.adapt(network(None).to(dtype), "tebn", "image_median")
    images = batches[0].to(dtype)
    plain = medbn.to_batchnorm(adapter, images)
    assert plain(images).dtype == dtype
    rounding = {torch.float64: 1e-9, torch.bfloat16: 0.1, torch.float16: 0.02}[dtype]
    torch.testing.assert_close(plain(images), adapter(images), rtol=rounding, atol=rounding)


@pytest.mark.slow
def test_a_plain_model_is_a_torch_model_like_others(batches):
    torch._dynamo.reset()
    plain = medbn.to_batchnorm(medbn.adapt(network(None), "tent"), batches[0])
    expected = plain(batches[1])
    others = {
        "compiled": torch.compile(plain, backend="aot_eager", fullgraph=True),
        "copied": copy.deepcopy(plain),
        "channels_last": copy.deepcopy(plain).to(memory_format=torch.channels_last),
    }
    for name, model in others.items():
        images = batches[1].contiguous(memory_format=torch.channels_last) if name == "channels_last" else batches[1]
        torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-5, msg=name)
    with torch.inference_mode():
        torch.testing.assert_close(plain(batches[1]), expected)
    with torch.autocast("cpu"):
        torch.testing.assert_close(plain(batches[1]).float(), expected, rtol=0.05, atol=0.05)


def test_plain_models_of_synchronised_layers_and_of_layer_norm(batches):
    model = nn.SyncBatchNorm.convert_sync_batchnorm(network(None))
    plain = medbn.to_batchnorm(medbn.adapt(model, "tebn", "median"), batches[0])
    torch.testing.assert_close(plain(batches[0]), medbn.adapt(network(None), "tebn", "median")(batches[0]))
    layers = nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4 * 6 * 6, 5)
    with pytest.warns(UserWarning, match="no BatchNorm"):
        adapter = medbn.adapt(nn.Sequential(*layers).eval(), "tent")
    adapter(batches[0])
    plain = medbn.to_batchnorm(adapter)
    assert torch.equal(plain[1].weight, adapter.model[1].weight)
    adapter.paused = True
    torch.testing.assert_close(plain(batches[1]), adapter(batches[1]))


@pytest.mark.slow
def test_adapters_are_not_exported(batches):
    with pytest.raises(Exception):  # noqa: B017, PT011 - what torch raises there is torch's own affair
        torch.export.export(medbn.adapt(network(None), "tent"), (batches[0],))
