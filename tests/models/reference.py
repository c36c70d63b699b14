"""The architectures once more, as functions of a state_dict in float64, written from their papers."""

import torch
from torch.nn import functional as F


class Net:
    """The layers of a state_dict, called by name."""

    def __init__(self, model):
        self.state = {name: value.double() for name, value in model.state_dict().items()}

    def __contains__(self, name):
        return f"{name}.weight" in self.state

    def conv(self, name, x, stride=1, dilation=1):
        weight = self.state[f"{name}.weight"]
        groups = x.shape[1] // weight.shape[1]
        padding = dilation * (weight.shape[-1] // 2)
        return F.conv2d(x, weight, self.state.get(f"{name}.bias"), stride, padding, dilation, groups)

    def bn(self, name, x, eps=1e-5):
        s = {
            key: self.state[f"{name}.{key}"][:, None, None] for key in ("weight", "bias", "running_mean", "running_var")
        }
        return (x - s["running_mean"]) / (s["running_var"] + eps).sqrt() * s["weight"] + s["bias"]

    def head(self, name, x):
        pooled = torch.stack([image.flatten(1).mean(1) for image in x])
        return pooled @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"]


def resnet(net, x):
    x = net.bn("bn1", net.conv("conv1", x)).clamp(min=0)
    for stage in range(1, 5):
        for block in range(3):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            if f"{name}.conv1" not in net:
                continue
            y = net.bn(f"{name}.bn1", net.conv(f"{name}.conv1", x, stride)).clamp(min=0)
            y = net.bn(f"{name}.bn2", net.conv(f"{name}.conv2", y))
            if f"{name}.shortcut.0" in net:
                x = net.bn(f"{name}.shortcut.1", net.conv(f"{name}.shortcut.0", x, stride))
            x = (x + y).clamp(min=0)
    return net.head("linear", x)


def wide_resnet(net, x):
    x = net.conv("conv1", x)
    for stage in range(1, 4):
        for block in range(4):
            name, stride = f"block{stage}.layer.{block}", 2 if stage > 1 and block == 0 else 1
            if f"{name}.conv1" not in net:
                continue
            active = net.bn(f"{name}.bn1", x).clamp(min=0)
            y = net.bn(f"{name}.bn2", net.conv(f"{name}.conv1", active, stride)).clamp(min=0)
            if f"{name}.convShortcut" in net:
                x = net.conv(f"{name}.convShortcut", active, stride)
            x = x + net.conv(f"{name}.conv2", y)
    return net.head("fc", net.bn("bn1", x).clamp(min=0))


def resnext(net, x):
    x = net.bn("bn_1", net.conv("conv_1_3x3", x)).clamp(min=0)
    for stage in range(1, 4):
        for block in range(3):
            name, stride = f"stage_{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            if f"{name}.conv_conv" not in net:
                continue
            y = net.bn(f"{name}.bn_reduce", net.conv(f"{name}.conv_reduce", x)).clamp(min=0)
            y = net.bn(f"{name}.bn", net.conv(f"{name}.conv_conv", y, stride)).clamp(min=0)
            y = net.bn(f"{name}.bn_expand", net.conv(f"{name}.conv_expand", y))
            if f"{name}.downsample.0" in net:
                x = net.bn(f"{name}.downsample.1", net.conv(f"{name}.downsample.0", x, stride))
            x = (x + y).clamp(min=0)
    return net.head("classifier", x)


def bottleneck_stages(net, x, blocks, strides, dilations, eps=1e-5, stride_in_1x1=False, prefix=""):
    """The activations of every stage. Strides and dilations are those of the 3×3 convolutions, one per block."""

    def bn(name, y):
        return net.bn(name, y, eps)

    x = bn(f"{prefix}bn1", net.conv(f"{prefix}conv1", x, 2)).clamp(min=0)
    x = F.max_pool2d(x, 3, 2, 1)
    outputs = []
    for stage, count in enumerate(blocks):
        for block in range(count):
            name = f"{prefix}layer{stage + 1}.{block}"
            stride, dilation = strides[stage][block], dilations[stage][block]
            first, second = (stride, 1) if stride_in_1x1 else (1, stride)
            y = bn(f"{name}.bn1", net.conv(f"{name}.conv1", x, first)).clamp(min=0)
            y = bn(f"{name}.bn2", net.conv(f"{name}.conv2", y, second, dilation)).clamp(min=0)
            y = bn(f"{name}.bn3", net.conv(f"{name}.conv3", y))
            if f"{name}.downsample.0" in net:
                x = bn(f"{name}.downsample.1", net.conv(f"{name}.downsample.0", x, stride))
            x = (x + y).clamp(min=0)
        outputs.append(x)
    return outputs


def conv_bn_relu(net, name, x, dilation=1):
    return net.bn(f"{name}.1", net.conv(f"{name}.0", x, dilation=dilation)).clamp(min=0)


def deeplabv3plus(net, x, rates, **stages):
    """DeepLabv3+ with torch's own interpolation."""
    size = x.shape[2:]
    low, *_, high = bottleneck_stages(net, x, prefix="backbone.", **stages)
    parts = [conv_bn_relu(net, "aspp.branches.0", high)]
    parts += [conv_bn_relu(net, f"aspp.branches.{k + 1}", high, rate) for k, rate in enumerate(rates)]
    average = conv_bn_relu(net, "aspp.pooling", F.adaptive_avg_pool2d(high, 1))
    parts.append(F.interpolate(average, high.shape[2:], mode="bilinear", align_corners=False))
    y = conv_bn_relu(net, "aspp.project", torch.cat(parts, 1))
    y = F.interpolate(y, low.shape[2:], mode="bilinear", align_corners=False)
    y = torch.cat([y, conv_bn_relu(net, "decoder.skip", low)], 1)
    y = conv_bn_relu(net, "decoder.refine.1", conv_bn_relu(net, "decoder.refine.0", y))
    return F.interpolate(net.conv("decoder.classifier", y), size, mode="bilinear", align_corners=False)


def unet(net, x):
    def stage(name, y):
        for conv, norm in ((0, 1), (3, 4)):
            y = net.bn(f"{name}.{norm}", net.conv(f"{name}.{conv}", y)).clamp(min=0)
        return y

    size = x.shape[2:]
    first = stage("encoder.0", net.bn("stem.1", net.conv("stem.0", x, 2)).clamp(min=0))
    second = stage("encoder.1", F.max_pool2d(first, 2))
    y = stage("encoder.2", F.max_pool2d(second, 2))
    for index, beside in enumerate((second, first)):
        y = F.interpolate(y, beside.shape[2:], mode="bilinear", align_corners=False)
        y = stage(f"decoder.{index}", torch.cat([y, beside], 1))
    return F.interpolate(net.conv("classifier", y), size, mode="bilinear", align_corners=False)
