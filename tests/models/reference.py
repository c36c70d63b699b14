"""The architectures once more, as functions of a state_dict in float64, written from their papers."""

import torch
from torch.nn import functional as F


class Net:
    """The layers of a state_dict, called by name."""

    def __init__(self, model):
        self.state = {name: value.double() for name, value in model.state_dict().items()}

    def __contains__(self, name):
        return f"{name}.weight" in self.state

    def conv(self, name, x, stride=1):
        weight = self.state[f"{name}.weight"]
        groups = x.shape[1] // weight.shape[1]
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2, groups=groups)

    def bn(self, name, x):
        s = {
            key: self.state[f"{name}.{key}"][:, None, None] for key in ("weight", "bias", "running_mean", "running_var")
        }
        return (x - s["running_mean"]) / (s["running_var"] + 1e-5).sqrt() * s["weight"] + s["bias"]

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
