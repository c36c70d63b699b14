"""The vision transformer against torch's own layers, and what methods learn of it."""

import pytest
import torch
from torch import nn

import medbn
from medbn import models
from medbn.models.vision_transformer import VisionTransformer, embed_positions


def torch_s_own(block, width, heads):
    """Return torch's transformer layer with the parameters of a block."""
    layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    pairs = {
        "self_attn.in_proj_": block.qkv,
        "self_attn.out_proj.": block.proj,
        "linear1.": block.fc1,
        "linear2.": block.fc2,
        "norm1.": block.norm1,
        "norm2.": block.norm2,
    }
    state = {f"{name}{kind}": getattr(own, kind) for name, own in pairs.items() for kind in ("weight", "bias")}
    layer.load_state_dict(state)
    return layer.eval()


def test_predictions_are_those_of_torch_s_layers():
    torch.manual_seed(0)
    model = VisionTransformer(2, 12, 3, 4, channels=1, mean=0.5, std=0.25).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    images = torch.rand(3, 1, 8, 12)
    patches = ((images - 0.5) / 0.25).unfold(2, 4, 4).unfold(3, 4, 4).reshape(3, 6, 16)
    x = patches @ model.patch_embed.weight.view(12, 16).T + model.patch_embed.bias
    x = x + embed_positions(12, 2, 3, like=x)
    for block in model.blocks:
        x = torch_s_own(block, 12, 3)(x)
    expected = model.head(model.norm(x).mean(dim=1))
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-4)


def test_positions_are_sines_and_cosines_of_both_coordinates():
    positions = embed_positions(8, 2, 3, like=torch.zeros(()))
    x, y = torch.tensor([0.0, 1, 2, 0, 1, 2]), torch.tensor([0.0, 0, 0, 1, 1, 1])
    columns = [f(p * w) for p in (x, y) for f in (torch.sin, torch.cos) for w in (1.0, 1e-4)]
    torch.testing.assert_close(positions, torch.stack(columns, dim=1))


@pytest.mark.parametrize(("name", "parameters"), [("vit-tiny", 116_026), ("vit-small", 3_570_634)])
def test_any_resolution_channels_and_classes(name, parameters):
    assert sum(p.numel() for p in models.get(name).parameters()) == parameters
    model = models.get(name, channels=1, classes=7, mean=0.5, std=0.5)
    assert model(torch.rand(2, 1, 16, 16)).shape == (2, 7)
    assert model(torch.rand(2, 1, 8, 20)).shape == (2, 7)
    with pytest.raises(ValueError, match="18x16"):
        model(torch.rand(2, 1, 18, 16))


def test_there_is_nothing_to_make_robust_and_sar_freezes_the_last_blocks():
    model = models.get("vit-tiny", channels=1)
    assert not medbn.methods.has_batch_norm(model)
    with pytest.warns(UserWarning, match="no BatchNorm"):
        tta = medbn.adapt(model, "sar")
    assert {name.split(".norm")[0] for name in tta.learned} == {"blocks.0", "blocks.1", "blocks.2"}
