"""Models with fused layers: what they compute, what they keep, and when layers are called as ever."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import medbn
from medbn import models

LAYERS = {  # of all layers, those that a ReLU follows in the same forward; the others are in shortcuts
    "resnet-small": (7, 9),
    "resnet26": (25, 28),
    "wide-resnet-28-10": (25, 25),
    "resnext29": (28, 31),
    "resnet50": (49, 53),
    "unet-small": (11, 11),
}


def small(estimator="image_median", fuse=True, seed=0):
    """Return a model with running statistics that differ from those of its layers' inputs."""
    torch.manual_seed(seed)
    model = models.get("resnet-small", channels=1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.weight, 1.0, 0.2)
            nn.init.normal_(module.bias, std=0.2)
    return medbn.convert(model.eval(), estimator, fuse=fuse)


@pytest.fixture
def images():
    return torch.rand(12, 1, 16, 16)


@pytest.mark.parametrize("name", LAYERS)
def test_which_layers_of_our_models_are_fused(name):
    with torch.device("meta"):
        model = models.get(name, classes=10, channels=3).eval()
    medbn.convert(model, fuse=True)
    layers = [n for n, m in model.named_modules() if isinstance(m, medbn.RobustBatchNorm)]
    fused = medbn.fused_layers(model)
    assert (len(fused), len(layers)) == LAYERS[name]
    assert set(fused) <= set(layers)
    assert not [n for n in set(layers) - set(fused) if "shortcut" not in n and "downsample" not in n]


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "googlenet", "vgg11_bn"])
def test_models_of_torchvision_are_fused(name):
    torchvision = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        model = torchvision.get_model(name, weights=None, **({"init_weights": False} if name == "googlenet" else {}))
    count = sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    shortcuts = {"resnet18": 3, "resnet50": 4}.get(name, 0)
    assert len(medbn.fused_layers(medbn.convert(model, fuse=True))) == count - shortcuts


@pytest.mark.parametrize("estimator", ["median", "image_median", "image_median@0.5"])
def test_outputs_and_gradients_are_those_of_the_model(estimator, images, fused_calls):
    results = []
    for fuse in (False, True):
        model = small(estimator, fuse)
        leaf = images.clone().requires_grad_()
        y = model(leaf)
        results.append([y, *torch.autograd.grad(y.square().sum(), (leaf, *model.parameters()))])
    assert len(fused_calls) == LAYERS["resnet-small"][0]
    assert sum(residual is not None for _, residual in fused_calls) == 3
    for found, expected in zip(*reversed(results), strict=True):
        torch.testing.assert_close(found, expected)


def test_without_a_kernel_that_fuses_the_bits_are_those_of_the_model(images):
    """On a CPU with the C kernels, and in plain torch for BatchNorm, MADs and float64."""
    for estimator, dtype in (("median", torch.float32), ("mean", torch.float32), ("mad", torch.float64)):
        model, own = (small(estimator, fuse).to(dtype) for fuse in (True, False))
        assert torch.equal(model(images.to(dtype)), own(images.to(dtype)))


def test_second_derivatives(images, fused_calls):
    gradients = []
    for fuse in (True, False):
        model = small("median", fuse).double() if not fuse else small("median", fuse)
        leaf = images.to(next(model.parameters()).dtype).requires_grad_()
        (first,) = torch.autograd.grad(model(leaf).square().sum(), leaf, create_graph=True)
        gradients.append(torch.autograd.grad(first.square().sum(), (leaf, model.bn1.weight)))
    assert fused_calls
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())


def test_the_gradient_of_a_residual_alone(fused_calls):
    model = nn.Sequential(small().layer1[0])
    block, x = model[0].requires_grad_(False), torch.randn(6, 16, 8, 8)
    own = medbn.convert(medbn.revert(copy.deepcopy(block)), "image_median")
    own.conv1, block.conv1 = (nn.Conv2d(16, 16, 1).requires_grad_(False) for _ in range(2))
    own.conv1.load_state_dict(block.conv1.state_dict())
    for create_graph in (False, True):
        found = []
        for each in (block, own):
            each.conv1.register_forward_hook(lambda m, inputs, y: y.detach())
            leaf = x.clone().requires_grad_()
            found.append(torch.autograd.grad(each(leaf).square().sum(), leaf, create_graph=create_graph)[0])
        torch.testing.assert_close(*found)
    assert any(residual is not None and residual.requires_grad for _, residual in fused_calls)


# --- there and back ---------------------------------------------------------------------------------------------------


def test_revert_is_the_original_to_the_bit(images):
    torch.manual_seed(0)
    original = models.get("resnet-small", channels=1).eval()
    model = copy.deepcopy(original)
    facts = {name: (id(m), type(m), set(vars(m))) for name, m in model.named_modules()}
    keys = list(model.state_dict())
    medbn.convert(model, fuse=True)
    assert type(model).__name__ == "FusedResNet"
    assert isinstance(model, type(original))
    assert list(model.state_dict()) == keys
    model.load_state_dict(original.state_dict())
    assert "FusedBasicBlock" in str(model)
    medbn.revert(model)
    assert {name: (id(m), type(m), set(vars(m))) for name, m in model.named_modules()} == facts
    assert torch.equal(model(images), original(images))
    assert medbn.fused_layers(model) == ()


def test_converting_again_keeps_what_is_fused(images, fused_calls):
    model = small("median")
    before = medbn.fused_layers(model)
    medbn.convert(model, "image_median")
    medbn.convert(model, "image_median", fuse=True)
    assert medbn.fused_layers(model) == before
    assert torch.equal(model(images), small("image_median")(images))
    assert len(fused_calls) == 14


def test_a_conversion_that_fails_changes_nothing():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.LazyBatchNorm2d())
    with pytest.raises(ValueError, match="Lazy"):
        medbn.convert(model, fuse=True)
    assert [type(m) for m in model] == [nn.BatchNorm2d, nn.ReLU, nn.LazyBatchNorm2d]
    assert type(model) is nn.Sequential


@pytest.mark.parametrize("copies", ["deepcopy", "pickle", "save"])
def test_copies_are_fused_and_come_back(copies, images, fused_calls):
    model = small()
    if copies == "deepcopy":
        twin = copy.deepcopy(model)
    elif copies == "pickle":
        twin = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        twin = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    expected = model(images)
    fused_calls.clear()
    assert torch.equal(twin(images), expected)
    assert len(fused_calls) == 7
    assert medbn.fused_layers(twin) == medbn.fused_layers(model)
    assert type(medbn.revert(twin)).__name__ == "ResNet"
    assert type(model).__name__ == "FusedResNet"  # copies share nothing that changes


def test_names_of_what_is_no_module():
    with pytest.raises(TypeError, match="got dict"):
        medbn.fused_layers({})


def test_a_state_names_the_class_of_the_model(tmp_path):
    adapter = medbn.adapt(small(), "tent")
    adapter.save(tmp_path / "state.safetensors")
    assert medbn.methods.state_info(tmp_path / "state.safetensors").model == "ResNet"


# --- layers that are called as ever -----------------------------------------------------------------------------------


def assert_as_unfused(run, fused_calls, calls=0):
    """Assert that a function of a model gives the bits that it gives of an unfused one."""
    results = [run(small("median", fuse)) for fuse in (True, False)]
    assert torch.equal(*results)
    assert len(fused_calls) == calls


def test_train_mode_runs_the_own_forward(images, fused_calls):
    def run(model):
        y = model.train()(images)
        return torch.cat([y.flatten(), model.bn1.running_mean])

    assert_as_unfused(run, fused_calls)


@pytest.mark.parametrize(
    "register",
    ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"],
)
def test_a_layer_with_a_hook_is_called(register, images, fused_calls):
    seen = []
    results = []
    for fuse in (True, False):
        model = small("median", fuse)
        handle = getattr(model.bn1, register)(lambda *arguments: seen.append(arguments[0]))
        results.append(model(images))
        results[-1].sum().backward()
        handle.remove()
    torch.testing.assert_close(*results)
    assert len(seen) == 2
    assert len(fused_calls) == 6
    model = small("median")
    fused_calls.clear()
    model(images)
    assert len(fused_calls) == 7


def test_a_relu_with_a_hook_and_hooks_of_all_modules(images, fused_calls):
    model = medbn.convert(nn.Sequential(nn.BatchNorm2d(1), nn.ReLU()).eval(), fuse=True)
    seen = []
    handle = model[1].register_forward_hook(lambda module, inputs, y: seen.append(module))
    model(images)
    handle.remove()
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, y: seen.append(module))
    model(images)
    handle.remove()
    assert seen == [model[1], model[0], model[1], model]
    assert not fused_calls
    model(images)
    assert len(fused_calls) == 1


def test_observers(images, fused_calls):
    """Statistics without gradients are seen of fused layers too; else layers are called."""
    names = {}
    for fuse in (True, False):
        model = small("median", fuse)
        for detached in (True, False):
            fused_calls.clear()
            with medbn.observe(model, detached=detached) as observations:
                model(images)
                names[fuse, detached] = {o.name: (o.input, o.centre, o.variance, o.batch_centre) for o in observations}
            assert len(fused_calls) == (7 if fuse and detached else 0)
    for detached in (True, False):
        for name, expected in names[False, detached].items():
            torch.testing.assert_close(names[True, detached][name], expected)
    outputs = []

    def see(seen, y):
        outputs.append(y.amin())

    fused_calls.clear()
    model = small("median")
    with medbn.hooks.observe_outputs(model, see):
        model(images)
    assert not fused_calls
    assert min(outputs) < 0


def test_contexts(images, fused_calls):
    layers = 9

    def with_context(open_context):
        def run(model):
            with open_context(model):
                return model(images)

        return run

    valid = torch.arange(12) < 10
    assert_as_unfused(with_context(lambda m: medbn.hooks.mask_images(m, valid)), fused_calls)
    assert_as_unfused(with_context(lambda m: medbn.hooks.use_policy(m, "source")), fused_calls)
    chosen = lambda layer, x, centre, variance: (centre, 2 * variance)  # noqa: E731
    assert_as_unfused(with_context(lambda m: medbn.hooks.choose_statistics(m, chosen)), fused_calls)
    assert_as_unfused(with_context(lambda m: medbn.hooks.adjust_outputs(m, lambda seen, y: 2 * y)), fused_calls)
    with torch.no_grad():
        plain = with_context(lambda m: medbn.hooks.use_policy(m, "interpolate"))
        torch.testing.assert_close(plain(small()), plain(small(fuse=False)))
    assert len(fused_calls) == layers - 2


def test_statistics_without_weight_are_estimated_in_the_same_kernel(images, fused_calls):
    """As ``past`` does: it normalises with earlier batches, and takes the statistics of this one."""
    found = []
    for fuse in (True, False):
        model = small(fuse=fuse)
        with (
            torch.no_grad(),
            medbn.hooks.use_policy(model, "source"),
            medbn.observe(model, detached=True, always_estimate=True) as observations,
        ):
            y = model(images)
            found.append((y, {o.name: (o.centre, o.batch_centre, o.batch_variance) for o in observations}))
    assert len(fused_calls) == 7
    torch.testing.assert_close(found[0][0], found[1][0])
    for name, statistics in found[1][1].items():
        torch.testing.assert_close(found[0][1][name], statistics)


@pytest.mark.parametrize("gradient", ["exact", "straight_through", "smooth"])
def test_surrogates(gradient, images, fused_calls):
    found = []
    for fuse in (True, False):
        adapter = medbn.adapt(small("median", fuse), "tent")
        leaf = images.clone().requires_grad_()
        found.append(torch.autograd.grad(adapter.surrogate(gradient=gradient)(leaf).square().sum(), leaf)[0])
    assert len(fused_calls) == 7
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:a batch has fewer than three values")
def test_few_values_and_wrong_shapes(fused_calls):
    model = medbn.convert(nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()).eval(), "median", fuse=True)
    own = medbn.convert(nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()).eval(), "median")
    for shape in ((2, 3, 1, 1), (1, 3, 2, 1)):
        x = torch.randn(shape)
        assert torch.equal(model(x), own(x))
    for x in (torch.randn(4, 2, 5, 5), torch.randn(4, 3, 5), torch.randn(4)):
        with pytest.raises(ValueError, match="expected"):
            model(x)
    assert not fused_calls


def test_functional_calls_and_inference_mode(images, fused_calls):
    model, own = small(), small(fuse=False)
    values = {name: p * 1.5 for name, p in model.named_parameters()}
    found = torch.func.functional_call(model, values, (images,))
    torch.testing.assert_close(found, torch.func.functional_call(own, values, (images,)))
    with torch.inference_mode():
        torch.testing.assert_close(model(images), own(images))
    assert len(fused_calls) == 14
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(model)(images[None]), own(images)[None])
    assert len(fused_calls) == 14


@pytest.mark.slow
def test_compiled_and_exported_models_are_those_of_the_own_forward(images):
    torch._dynamo.reset()
    model, own = small("median"), small("median", fuse=False)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(images), torch.compile(own, backend="eager", fullgraph=True)(images))
    exported = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(exported(images), own(images), rtol=1e-4, atol=1e-5)
    assert type(model).__name__ == "FusedResNet"


# --- adapters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["past", "tebn", "tent", "sar"])
def test_adapters_adapt_as_without(method, images, fused_calls):
    torch.manual_seed(0)
    model = models.get("resnet-small", channels=1)
    own = medbn.adapt(model, method, "image_median")
    adapter = medbn.adapt(model, method, "image_median", fuse=True)
    assert medbn.fused_layers(model) == ()  # a copy is adapted
    for shift in (0.0, 0.3, 0.6):
        torch.testing.assert_close(adapter(images + shift), own(images + shift), rtol=1e-3, atol=1e-4)
    assert fused_calls
    snapshot = adapter.snapshot()
    first = adapter(images)
    adapter.restore(snapshot)
    assert torch.equal(adapter(images), first)
    twin = pickle.loads(pickle.dumps(adapter))
    twin.restore(snapshot)
    assert torch.equal(twin(images), first)
    plain = medbn.to_batchnorm(adapter, images)
    assert type(plain).__name__ == "ResNet"


def test_robust_models_without_batch_norm_and_source(images, fused_calls):
    adapter = medbn.adapt(small(fuse=False), "tebn", fuse=True)
    adapter(images)
    assert len(fused_calls) == 7
    adapter = medbn.adapt(small(), "tebn")
    adapter(images)
    assert len(fused_calls) == 14
    source = medbn.adapt(models.get("resnet-small", channels=1), "source", fuse=True)
    assert medbn.fused_layers(source) == ()
    with pytest.raises(ValueError, match=r"fuse=.*no BatchNorm"):
        medbn.adapt(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), "tent", fuse=True)
    with pytest.raises(ValueError, match="a ReLU follows"):
        medbn.adapt(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), "tent", fuse=True)


def test_no_poisoned_batch_is_shared_with_the_unfused_model():
    """The poison cache tells models apart by their texts."""
    assert str(small()) != str(small(fuse=False))
