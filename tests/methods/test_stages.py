"""Which layers are the last stage, which SAR and SoTTA do not learn."""

import warnings

import pytest
import torch
from torch import nn

import medbn

from .conftest import small_model


def block(*widths):
    return nn.Sequential(*[nn.Sequential(nn.Conv2d(w, w, 1), nn.BatchNorm2d(w)) for w in widths])


class WideResNetLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.block1, self.block2, self.block3 = block(4, 4), block(4, 4), block(4, 4)
        self.bn1 = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 10)

    def forward(self, x):
        return self.fc(self.bn1(self.block3(self.block2(self.block1(self.conv1(x))))).mean((2, 3)))


class EfficientNetLike(nn.Module):
    """One submodule contains all stages, between two single layers."""

    def __init__(self):
        super().__init__()
        self.stem, self.bn1 = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.blocks = nn.Sequential(block(4, 4), block(4, 4), block(4, 4))
        self.bn2 = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn2(self.blocks(self.bn1(self.stem(x)))).mean((2, 3))


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = nn.Sequential(small_model())

    def forward(self, x):
        return self.module(x)


def learned_layers(tta):
    return {name.rsplit(".", 1)[0] for name in tta.learned}


@pytest.mark.parametrize("method", ["sar", "sotta"])
@pytest.mark.parametrize(
    ("model", "frozen"),
    [
        (small_model(), "layer3."),
        (WideResNetLike(), ("block3.", "bn1")),
        (EfficientNetLike(), ("blocks.2.", "bn2")),
        (Nested(), "module.0.layer3."),
        (nn.DataParallel(small_model()), "module.layer3."),
    ],
    ids=["resnet", "wide", "efficient", "nested", "parallel"],
)
def test_the_last_stage_is_found_from_the_structure(method, model, frozen):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tta = medbn.adapt(model, method)
    frozen_layers = set(tta.layers) - learned_layers(tta)
    assert frozen_layers == {name for name in tta.layers if name.startswith(frozen)}
    assert frozen_layers
    assert learned_layers(tta)


def test_without_stages_the_last_quarter_is_not_learned_and_a_warning_says_so():
    flat = nn.Sequential(*[m for _ in range(8) for m in (nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))])
    with pytest.warns(UserWarning, match=r"the last 2 of its 8 .*'13', '15'.*frozen="):
        tta = medbn.adapt(flat, "sar")
    assert set(tta.layers) - learned_layers(tta) == {"13", "15"}
    with pytest.warns(UserWarning, match="no stages"):
        tta = medbn.adapt(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), "sar")
    assert learned_layers(tta) == {"1"}


def test_the_last_stage_can_be_given():
    model = small_model()
    tta = medbn.adapt(model, "sar", frozen=["layer2.*", "layer3.*"])
    assert learned_layers(tta) == {"bn", "layer1.0.bn1", "layer1.0.bn2"}
    assert learned_layers(medbn.adapt(model, "sar", frozen=[])) == set(tta.layers)
    assert learned_layers(medbn.adapt(model, "tent", frozen="bn")) == set(tta.layers) - {"bn"}
    assert learned_layers(medbn.adapt(model, "tent")) == set(tta.layers)
    with pytest.raises(ValueError, match=r"layer4.*'bn'"):
        medbn.adapt(model, "sar", frozen="layer4.*")
    with pytest.raises(ValueError, match="all 7"):
        medbn.adapt(model, "sar", frozen="*")
    with pytest.raises(ValueError, match="typo"):
        medbn.adapt(model, "sar", frozen=["layer3.*", "typo"])


def test_parameters_that_are_not_learned_keep_their_bits():
    tta = medbn.adapt(small_model(), "sar", margin=10.0)
    before = {name: p.clone() for name, p in tta.model.named_parameters()}
    tta(torch.randn(8, 3, 8, 8))
    changed = {name for name, p in tta.model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == set(tta.learned)
