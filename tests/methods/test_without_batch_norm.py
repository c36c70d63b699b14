"""Models with LayerNorm, GroupNorm, InstanceNorm and RMSNorm: what is learned, and what is refused."""

import copy
import warnings

import pytest
import torch
from torch import nn

import medbn

from .conftest import SmallResNet
from .table import ADAPTING, FROM_MEMORY, LEARNING, METHODS, assert_same, each_kind_that_learns, every_learning, state

NORMS = {
    "layer": lambda: nn.LayerNorm(6),
    "group": lambda: nn.GroupNorm(2, 6),
    "instance": lambda: nn.InstanceNorm1d(6, affine=True),
    "rms": lambda: nn.RMSNorm(6),
}


class Attention(nn.Module):
    """One block of a vision transformer."""

    def __init__(self, width):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm2, self.mlp = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x)).relu()


class Transformer(nn.Module):
    """A vision transformer of the names that timm's have."""

    def __init__(self, depth=4, width=8):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.Sequential(*[Attention(width) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        x = self.blocks(self.patch_embed(x).flatten(2).transpose(1, 2))
        return 4 * self.head(self.norm(x).mean(dim=1))


def transformer(depth=4):
    torch.manual_seed(0)
    return Transformer(depth).eval()


def make(model, method, **options):
    options = {**{n: v for n, v in METHODS[method].items() if n != "estimator"}, **options}
    if method == "eata":
        options["source"] = [torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(11))]
    with pytest.warns(UserWarning, match="no BatchNorm"):
        return medbn.adapt(model, method, **options)


@each_kind_that_learns
def test_methods_that_learn_adapt_a_transformer(method, batches):
    model = transformer()
    tta = make(model, method)
    if tta.learns_everything:
        assert tta.learned.keys() == dict(model.named_parameters()).keys()
    else:
        layers = {name.rpartition(".")[0] for name in tta.learned}
        assert all(isinstance(model.get_submodule(name), nn.LayerNorm) for name in layers)
    before = copy.deepcopy(tta.model.state_dict())
    snapshot, source = tta.snapshot(), state(tta)
    for x in batches:
        assert tta(x).isfinite().all()
    changed = {name for name, value in tta.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert changed <= tta.learned.keys()
    after = state(tta)
    tta.restore(snapshot)
    for x in batches:
        tta(x)
    assert_same(state(tta), after)
    loaded = make(transformer(), method)
    loaded.load_state_dict(tta.state_dict())
    assert_same(state(loaded), after)
    tta.reset()
    assert_same(state(tta), source)


@every_learning
def test_an_image_s_prediction_depends_on_no_other_image_of_its_batch(method, batches):
    tta = make(transformer(), method, **({"prior": "none"} if method == "roid" else {}))  # it is of the batch
    whole = tta.surrogate()(batches[0])
    torch.testing.assert_close(tta.surrogate()(batches[0][:3]), whole[:3])
    if method not in FROM_MEMORY:
        x = batches[0].clone().requires_grad_()
        after = tta.surrogate(unroll=1)(x)
        assert not torch.allclose(after[:3], whole[:3])
        (dx,) = torch.autograd.grad(after[0].sum(), x)
        assert dx[3:].abs().sum() > 0  # what remains: to poison what is learned


def test_tent_is_the_loop_in_plain_torch(batches):
    reference = transformer()
    affine = [p for m in reference.modules() if isinstance(m, nn.LayerNorm) for p in (m.weight, m.bias)]
    optimizer = torch.optim.Adam(affine, lr=1e-3)
    tta = make(transformer(), "tent")
    for x in batches:
        logits = reference(x)
        loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(tta(x), logits.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", NORMS)
def test_every_kind_of_layer_is_learned(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), NORMS[kind](), nn.Linear(6, 3))
    x = torch.randn(8, 6, 4) if kind == "instance" else torch.randn(8, 4)
    if kind == "instance":
        model = nn.Sequential(model[1], nn.Flatten(), nn.Linear(24, 3))
    tta = make(model, "tent")
    name = "0" if kind == "instance" else "1"
    assert set(tta.learned) == {f"{name}.weight"} | ({f"{name}.bias"} if kind != "rms" else set())
    tta(x)
    assert not torch.equal(tta.learned[f"{name}.weight"], torch.ones(6))


def test_layers_of_other_libraries_are_known_by_their_name():
    class LlamaRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return self.weight * x

    assert set(make(nn.Sequential(LlamaRMSNorm(), nn.Linear(4, 3)), "tent").learned) == {"0.weight"}


def test_a_group_norm_beside_a_batch_norm_is_learned_and_plain_batch_norm_is_not(batches):
    model = SmallResNet(channels=3, width=4)
    model.layer2[0].bn1 = nn.GroupNorm(2, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tta = medbn.adapt(model, "tent", "median", exclude="layer3.*")
    learned = {name.rpartition(".")[0] for name in tta.learned}
    assert "layer2.0.bn1" in learned
    assert not any(name.startswith("layer3") for name in learned)
    before = tta.learned["layer2.0.bn1.weight"].detach().clone()
    tta(batches[0])
    assert not torch.equal(tta.learned["layer2.0.bn1.weight"], before)


@pytest.mark.parametrize(("depth", "frozen"), [(12, (9, 10, 11)), (4, (3,)), (2, (1,))])
def test_sar_does_not_learn_the_last_quarter_of_the_blocks(depth, frozen):
    tta = make(transformer(depth), "sar")
    last = {f"blocks.{block}.norm{k}" for block in frozen for k in (1, 2)} | {"norm"}
    norms = {name for name, module in tta.model.named_modules() if isinstance(module, nn.LayerNorm)}
    assert norms - {name.rpartition(".")[0] for name in tta.learned} == last
    every = make(transformer(depth), "sar", frozen=[])
    assert {name.rpartition(".")[0] for name in every.learned} == norms
    with pytest.raises(ValueError, match=r"typo.*'blocks\.0\.norm1'"):
        medbn.adapt(transformer(depth), "sar", frozen="typo")


@pytest.mark.parametrize("method", LEARNING)
@pytest.mark.parametrize("option", [{"estimator": "median"}, {"include": "norm"}, {"exclude": "norm"}])
def test_options_of_batch_statistics_are_an_error(method, option):
    with pytest.raises(ValueError, match=rf"{next(iter(option))}=.*no BatchNorm"):
        medbn.adapt(transformer(), method, **option)


@pytest.mark.parametrize("method", [name for name in ADAPTING if medbn.methods.get(name).needs_batch_norm])
def test_methods_that_adapt_statistics_alone_refuse_such_a_model(method):
    with pytest.raises(ValueError, match=r"no BatchNorm.*tent"):
        medbn.adapt(transformer(), method)


def test_in_place_it_is_said_once_and_the_model_itself_learns(batches):
    model = transformer()
    with pytest.warns(UserWarning, match="no BatchNorm") as caught:
        tta = medbn.adapt(model, "tent", inplace=True)
    assert len(caught) == 1
    before = model.norm.weight.detach().clone()
    tta(batches[0])
    assert not torch.equal(model.norm.weight, before)


def test_a_call_that_raises_changes_nothing(batches):
    tta = make(transformer(), "sar", margin=0.95)
    tta(batches[0])
    before = state(tta)
    handle = tta.model.norm.register_forward_hook(lambda *_: 1 / 0)
    for call in (tta, tta.surrogate()):
        with pytest.raises(ZeroDivisionError):
            call(batches[1])
    handle.remove()
    assert_same(state(tta), before)
    assert all(p is tta.model.get_parameter(name) for name, p in tta.learned.items())


@pytest.mark.slow
def test_a_vision_transformer_adapts_to_bright_digits():
    pytest.importorskip("safetensors")
    model = medbn.models.get("vit-tiny", weights="shipped")
    bright = medbn.data.load("digits", corruption="brightness", severity=4)
    errors = {}
    for method, options in (("source", {}), ("eta", {"lr": 1e-2, "predict": "after"})):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tta = medbn.adapt(model, method, **options)
        wrong = [tta(images).argmax(1) != labels for images, labels in bright.batches(50)]
        errors[method] = torch.cat(wrong).float().mean().item()
    assert errors["source"] > 0.5
    assert errors["eta"] < errors["source"] - 0.1
