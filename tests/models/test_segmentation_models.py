"""DeepLabv3+, its ResNets and the small U-Net, against references in float64, and hand-written and published counts."""

import math
import warnings

import pytest
import torch
from torch.nn import functional as F

import medbn
from medbn import models
from medbn.models.interpolation import resize

from . import reference
from .reference import Net
from .test_architectures import randomise

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
R50 = (3, 4, 6, 3)
# By output stride: the strides and the dilations of the 3×3 convolutions of ResNet-50, block by block.
STRIDES = {
    32: [[1, 1, 1], [2, 1, 1, 1], [2, 1, 1, 1, 1, 1], [2, 1, 1]],
    16: [[1, 1, 1], [2, 1, 1, 1], [2, 1, 1, 1, 1, 1], [1, 1, 1]],
    8: [[1, 1, 1], [2, 1, 1, 1], [1, 1, 1, 1, 1, 1], [1, 1, 1]],
}
DILATIONS = {
    32: [[1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [1, 1, 1]],
    16: [[1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [1, 2, 2]],
    8: [[1, 1, 1], [1, 1, 1, 1], [1, 2, 2, 2, 2, 2], [2, 4, 4]],
}
RATES = {16: (6, 12, 18), 8: (12, 24, 36)}


def on_meta(name, **options):
    with torch.device("meta"):
        return models.get(name, **options)


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def normalised(x, mean, std):
    return (x.double() - torch.tensor(mean)[:, None, None].double()) / torch.tensor(std)[:, None, None].double()


def assert_same(model, x, expected):
    with torch.no_grad():
        got = model(x)
    assert got.shape == expected.shape
    assert expected.std() > 1e-3
    torch.testing.assert_close(got.double(), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet50", 25_557_032),  # torchvision's documentation
        ("resnet101", 44_549_160),
        # torchvision's DeepLabv3 without its auxiliary head (39,638,869 and 58,630,997) and its head after ASPP
        # (590,336 + 5,397), and with this decoder: 48·256 + 96, 304·256·9 + 512, 256·256·9 + 512, 256·19 + 19.
        ("deeplabv3plus-resnet50", 39_638_869 - 595_733 + 1_308_531),
        ("deeplabv3plus-resnet101", 58_630_997 - 595_733 + 1_308_531),
    ],
)
def test_parameter_counts_are_the_published_ones(name, parameters):
    assert count(on_meta(name)) == parameters


def test_the_names_of_the_backbone_are_torchvisions():
    state = on_meta("resnet50").state_dict()
    layers = [f"layer{s + 1}.{b}.{p}" for s, n in enumerate(R50) for b in range(n) for p in ("1", "2", "3")]
    convolutions = ["conv1", *(".conv".join(x.rsplit(".", 1)) for x in layers)]
    norms = ["bn1", *(".bn".join(x.rsplit(".", 1)) for x in layers)]
    convolutions += [f"layer{s}.0.downsample.0" for s in (1, 2, 3, 4)]
    norms += [f"layer{s}.0.downsample.1" for s in (1, 2, 3, 4)]
    fields = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = {f"{c}.weight" for c in convolutions} | {f"{n}.{f}" for n in norms for f in fields}
    assert set(state) == expected | {"fc.weight", "fc.bias"}
    assert len(state) == 320  # the number in torchvision's file
    inside = {k.removeprefix("backbone.") for k in on_meta("deeplabv3plus-resnet50").state_dict() if "backbone" in k}
    assert inside == expected


@pytest.mark.parametrize("output_stride", [16, 8])
def test_strides_and_dilations_are_those_of_the_hand_written_count(output_stride):
    model = on_meta("deeplabv3plus-resnet50", output_stride=output_stride)
    for stage, blocks in enumerate(R50):
        for block in range(blocks):
            convolution = model.get_submodule(f"backbone.layer{stage + 1}.{block}.conv2")
            assert convolution.stride == (STRIDES[output_stride][stage][block],) * 2
            assert convolution.dilation == convolution.padding == (DILATIONS[output_stride][stage][block],) * 2
    rates = [branch[0].dilation[0] for branch in model.aspp.branches]
    assert rates == [1, *RATES[output_stride]]
    low, high = model.backbone(torch.zeros(1, 3, 64, 128, device="meta"))
    assert low.shape == (1, 256, 16, 32)
    assert high.shape == (1, 2048, 64 // output_stride, 128 // output_stride)


@pytest.mark.slow
@pytest.mark.parametrize("stride_in_1x1", [False, True])
def test_resnet50_equals_its_reference(stride_in_1x1):
    model = randomise(models.get("resnet50", classes=7, eps=1e-3, stride_in_1x1=stride_in_1x1))
    x, net = torch.rand(2, 3, 40, 56), Net(model)
    options = {"eps": 1e-3, "stride_in_1x1": stride_in_1x1}
    high = reference.bottleneck_stages(net, normalised(x, *IMAGENET), R50, STRIDES[32], DILATIONS[32], **options)[-1]
    assert_same(model, x, net.head("fc", high))


@pytest.mark.slow
@pytest.mark.parametrize("output_stride", [16, 8])
def test_deeplabv3plus_equals_its_reference(output_stride):
    model = randomise(models.get("deeplabv3plus-resnet50", classes=5, output_stride=output_stride, eps=1e-3))
    for module in (*model.aspp.modules(), *model.decoder.modules()):
        if isinstance(module, torch.nn.BatchNorm2d):
            assert module.eps == 1e-5
            module.eps = 1e-3  # as in the backbone, so that the reference needs one value
    x = torch.rand(2, 3, 65, 97)
    stages = {"blocks": R50, "strides": STRIDES[output_stride], "dilations": DILATIONS[output_stride], "eps": 1e-3}

    class SameEps(Net):
        def bn(self, name, y, eps=1e-3):
            return super().bn(name, y, eps)

    expected = reference.deeplabv3plus(SameEps(model), normalised(x, *IMAGENET), RATES[output_stride], **stages)
    assert expected.shape == (2, 5, 65, 97)
    assert_same(model, x, expected)


def test_the_unet_equals_its_reference():
    model = randomise(models.get("unet-small", classes=5))
    x = torch.rand(2, 3, 21, 34)
    assert_same(model, x, reference.unet(Net(model), normalised(x, [0.5] * 3, [0.5] * 3)))
    assert count(model) < 250_000  # weights of less than 1 MB


@pytest.mark.parametrize("size", [(8, 12), (5, 7), (13, 3), (1, 1), (6, 9)])
def test_interpolation_is_torchs(size):
    x = torch.rand(2, 3, 6, 9, dtype=torch.float64, requires_grad=True)
    ours, theirs = resize(x, *size), F.interpolate(x, size, mode="bilinear", align_corners=False)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    g = torch.rand_like(ours)
    mine, yours = (torch.autograd.grad(y, x, g)[0] for y in (ours, theirs))
    torch.testing.assert_close(mine, yours, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_an_untrained_deeplabv3plus_prefers_no_class():
    torch.manual_seed(0)
    model = models.get("deeplabv3plus-resnet50", classes=7).train()
    logits = model(torch.rand(2, 3, 32, 48))
    loss = F.cross_entropy(logits, torch.randint(0, 7, (2, 32, 48)))
    assert abs(loss.item() - math.log(7)) < 0.2


def test_unknown_output_strides_and_options_are_refused():
    with pytest.raises(ValueError, match="output_stride=32"):
        models.get("deeplabv3plus-resnet50", output_stride=32)
    with pytest.raises(ValueError, match="output_stride"):
        models.get("deeplabv3plus-resnet50", output_strides=8)


# --- weights ----------------------------------------------------------------------------------------------------------

CONSTANTS = {"mean": "0.1,0.2,0.3", "std": "0.4,0.5,0.6", "eps": "1e-3", "stride": "in the first 1x1 convolution"}


@pytest.fixture(scope="module")
def keras_file(tmp_path_factory):
    """A file of ResNet-50 weights that says what is different about its network, as converted Keras weights do."""
    pytest.importorskip("safetensors")
    from safetensors.torch import save_file

    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("weights") / "keras.safetensors"
    state = {k: v for k, v in models.get("resnet50", classes=4).state_dict().items() if "num_batches" not in k}
    save_file(state, path, {**CONSTANTS, "classes": "4"})
    return path


@pytest.mark.slow
def test_a_file_says_what_is_different_about_its_network(keras_file):
    model = models.get("resnet50", weights=keras_file)
    assert model.fc.out_features == 4
    assert model.bn1.eps == model.layer4[2].bn3.eps == 1e-3
    assert (model.layer2[0].conv1.stride, model.layer2[0].conv2.stride) == ((2, 2), (1, 1))
    torch.testing.assert_close(model.normalise.std.flatten(), torch.tensor([0.4, 0.5, 0.6]))
    assert models.get("resnet50", weights=keras_file, eps=1e-4).bn1.eps == 1e-4


@pytest.mark.slow
def test_the_backbone_takes_over_weights_and_settings_and_a_saved_model_keeps_them(keras_file, tmp_path):
    resnet = models.get("resnet50", weights=keras_file)
    model = models.get("deeplabv3plus-resnet50", classes=3, output_stride=8, backbone_weights=keras_file)
    for name, value in model.backbone.state_dict().items():
        assert torch.equal(value, resnet.state_dict()[name])
    torch.testing.assert_close(model.normalise.mean, resnet.normalise.mean)
    models.save(model, tmp_path / "trained.safetensors", classes=3)
    again = models.get("deeplabv3plus-resnet50", weights=tmp_path / "trained.safetensors")
    assert models.fingerprint(again) == models.fingerprint(model)
    x = torch.rand(1, 3, 32, 48)
    with torch.no_grad():
        assert torch.equal(again(x), model(x))
    other = models.get("deeplabv3plus-resnet50", weights=tmp_path / "trained.safetensors", output_stride=16)
    assert models.fingerprint(other) != models.fingerprint(model)  # other predictions, with the same tensors


def test_settings_that_are_no_values_are_refused(tmp_path):
    pytest.importorskip("safetensors")
    path = tmp_path / "weights.safetensors"
    models.save(models.get("unet-small"), path, mean="a word")
    with pytest.raises(ValueError, match="mean='a word'"):
        models.get("unet-small", weights=path)


# --- what methods do with the layers ----------------------------------------------------------------------------------


def learned_layers(tta):
    return {name.rpartition(".")[0] for name, parameter in tta.model.named_parameters() if parameter.requires_grad}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sar", "sotta"])
@pytest.mark.parametrize("name", ["deeplabv3plus-resnet50", "unet-small"])
def test_sar_and_sotta_freeze_the_decoder(name, method):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tta = medbn.adapt(models.get(name, classes=3), method, "median")
    frozen = set(tta.layers) - learned_layers(tta)
    assert frozen == {layer for layer in tta.layers if layer.startswith("decoder.")}
    assert len(frozen) == {"deeplabv3plus-resnet50": 3, "unet-small": 4}[name]


@pytest.mark.slow
def test_the_terminal_layers_of_mdia_are_aspp_without_its_first_branch_and_the_decoder():
    tta = medbn.adapt(models.get("deeplabv3plus-resnet50", classes=3), "mdia", "median")
    assert tta.terminal == {
        *(f"aspp.branches.{k}.1" for k in (1, 2, 3)),
        *("aspp.pooling.1", "aspp.project.1", "decoder.skip.1", "decoder.refine.0.1", "decoder.refine.1.1"),
    }
    assert len(tta.layers) == 53 + 6 + 3
