import copy
import pickle
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

import medbn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return x + self.norm(self.conv(x)).relu()


class Network(nn.Module):
    """Layers at several depths, one of them used in two places, one reachable under two names."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.stages = nn.ModuleList([nn.Sequential(Block(4), Block(4)), nn.Sequential(Block(4))])
        self.shared = nn.BatchNorm2d(4)
        self.alias = self.shared
        self.head = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))

    def forward(self, x):
        x = self.shared(self.stem(x))
        for stage in self.stages:
            x = stage(x)
        return self.head(self.alias(x).mean(dim=(2, 3)))


def trained_network():
    torch.manual_seed(3)
    model = Network()
    for _ in range(3):
        model(torch.randn(8, 3, 8, 8))
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    return model


class Renamed(nn.BatchNorm2d):
    """Adds a constructor alone."""

    def __init__(self, channels):
        super().__init__(channels, eps=1e-2)


class WithReLU(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x).relu()


class AnyRank(nn.BatchNorm2d):
    def _check_input_dim(self, input):
        pass


# --- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_convert_then_revert_is_the_original_to_the_bit(training):
    original, model = trained_network().train(training), trained_network().train(training)
    classes = {name: type(m) for name, m in model.named_modules()}
    dictionaries = {name: set(vars(m)) for name, m in model.named_modules()}
    keys = list(model.state_dict())
    assert medbn.convert(model) is model
    assert list(model.state_dict()) == keys
    assert medbn.revert(model) is model
    assert {name: type(m) for name, m in model.named_modules()} == classes
    assert {name: set(vars(m)) for name, m in model.named_modules()} == dictionaries
    x = torch.randn(4, 3, 8, 8)
    assert torch.equal(model(x), original(x))
    for a, b in zip(model.state_dict().values(), original.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_every_batch_norm_at_any_depth_becomes_robust():
    model = medbn.convert(trained_network(), "image_median", "interpolate")
    layers = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert len(layers) == 6
    assert all(type(m) in (medbn.RobustBatchNorm1d, medbn.RobustBatchNorm2d) for m in layers)
    assert all(m.estimator.name == "image_median" and m.policy.name == "interpolate" for m in layers)
    assert model.shared is model.alias


def test_the_converted_model_computes_what_its_layers_do():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    x = torch.randn(5, 3, 6, 6)
    expected = medbn.functional.robust_norm(model[0](x), model[1].weight, model[1].bias)
    torch.testing.assert_close(medbn.convert(model)(x), expected)


def test_the_mean_with_source_statistics_is_the_original_in_eval():
    original = trained_network().eval()
    model = medbn.convert(copy.deepcopy(original), "mean", "source")
    x = torch.randn(4, 3, 8, 8)
    assert torch.equal(model(x), original(x))


def test_parameters_buffers_mode_and_hooks_are_the_same_objects():
    model = trained_network().eval()
    model.stem[1].train()
    model.shared.requires_grad_(False)
    calls = []
    model.shared.register_forward_hook(lambda *_: calls.append("forward"))
    tensors = {name: id(t) for name, t in (*model.named_parameters(), *model.named_buffers())}
    modules = {name: id(m) for name, m in model.named_modules()}
    medbn.convert(model)
    assert {name: id(t) for name, t in (*model.named_parameters(), *model.named_buffers())} == tensors
    assert {name: id(m) for name, m in model.named_modules()} == modules
    assert model.stem[1].training
    assert not model.shared.training
    assert not model.shared.weight.requires_grad
    model(torch.randn(4, 3, 8, 8))
    assert calls == ["forward"] * 2
    medbn.revert(model)
    model(torch.randn(4, 3, 8, 8))
    assert calls == ["forward"] * 4


@pytest.mark.parametrize(
    ("plain", "shape"), [(nn.BatchNorm1d, (6, 3)), (nn.BatchNorm2d, (6, 3, 2, 2)), (nn.BatchNorm3d, (6, 3, 2, 2, 2))]
)
def test_a_root_that_is_itself_a_batch_norm(plain, shape):
    layer = plain(3)
    converted = medbn.convert(layer)
    assert converted is layer
    assert isinstance(layer, medbn.RobustBatchNorm)
    x = torch.randn(shape)
    torch.testing.assert_close(layer(x), medbn.functional.robust_norm(x))
    assert type(medbn.revert(layer)) is plain


def test_layers_built_robust_revert_to_torch_s():
    model = nn.Sequential(medbn.MedBatchNorm2d(3), medbn.RobustBatchNorm1d(3))
    medbn.revert(model)
    assert [type(m) for m in model] == [nn.BatchNorm2d, nn.BatchNorm1d]
    with pytest.raises(ValueError, match="rank"):
        medbn.revert(medbn.RobustBatchNorm(3))


def test_reverting_a_plain_model_changes_nothing():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    assert type(medbn.revert(model)[1]) is nn.BatchNorm1d


def test_converting_again_changes_the_settings_and_still_reverts():
    model = medbn.convert(trained_network(), "median")
    medbn.convert(model, "mad", "ema", nonfinite="propagate")
    model.shared.commit(torch.ones(4), torch.ones(4))
    medbn.convert(model, "mad", "ema", nonfinite="propagate")
    assert model.shared.ema_mean is not None  # nothing has changed
    medbn.convert(model, "median", "ema")
    assert model.shared.ema_mean is None  # the average was another estimator's
    medbn.convert(model, "mad", "ema", nonfinite="propagate")
    assert (model.shared.estimator.name, model.shared.policy.name, model.shared.nonfinite) == (
        "mad",
        "ema",
        "propagate",
    )
    assert type(medbn.revert(model).shared) is nn.BatchNorm2d


def test_a_converted_model_copies_and_pickles():
    model = medbn.convert(trained_network().eval(), "mad_scaled")
    x = torch.randn(4, 3, 8, 8)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), model(x))
        assert type(medbn.revert(twin).shared) is nn.BatchNorm2d


# --- choosing layers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        ("stages.*", None, {"stages.0.0.norm", "stages.0.1.norm", "stages.1.0.norm"}),
        (["stem.*", "head.*"], None, {"stem.1", "head.1"}),
        (None, "stages.*", {"stem.1", "shared", "head.1"}),
        ("stages.*", ["*.1.*"], {"stages.0.0.norm", "stages.1.0.norm"} - {"stages.1.0.norm"}),
        (None, "alias", {"stem.1", "stages.0.0.norm", "stages.0.1.norm", "stages.1.0.norm", "head.1"}),
        ("alias", None, {"shared"}),
        (lambda name, m: m.num_features == 6, None, {"head.1"}),
    ],
)
def test_include_and_exclude(include, exclude, expected):
    model = medbn.convert(trained_network(), include=include, exclude=exclude)
    assert {name for name, m in model.named_modules() if isinstance(m, medbn.RobustBatchNorm)} == expected


def test_choosing_no_layer_is_an_error_that_lists_names():
    model = trained_network()
    with pytest.raises(ValueError, match=r"include='layer1.*'.*'stem.1'"):
        medbn.convert(model, include="layer1.*")
    with pytest.raises(ValueError, match=r"exclude='stages'.*'stages.\*'"):
        medbn.convert(model, exclude="stages")
    with pytest.raises(ValueError, match="none of the 6"):
        medbn.convert(model, include="stem.*", exclude="stem.*")
    assert not any(isinstance(m, medbn.RobustBatchNorm) for m in model.modules())


def test_patterns_from_a_generator():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.BatchNorm2d(3))
    medbn.convert(model, include=(name for name in ["1", "0", "2"]))
    assert all(isinstance(m, medbn.RobustBatchNorm) for m in model)


# --- what cannot be converted ----------------------------------------------------------------------------------------


def test_a_model_without_batch_norm_is_an_error():
    with pytest.raises(ValueError, match=r"Sequential.*BatchNorm"):
        medbn.convert(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)))
    with pytest.raises(TypeError, match=r"Module.*function"):
        medbn.convert(lambda x: x)


@pytest.mark.parametrize("kind", [WithReLU, AnyRank])
def test_a_subclass_with_code_of_its_own_is_refused_and_nothing_changes(kind):
    model = nn.Sequential(nn.BatchNorm2d(3), kind(3))
    with pytest.raises(ValueError, match=rf"'1'.*{kind.__name__}.*exclude='1'.*register_tail"):
        medbn.convert(model)
    assert [type(m) for m in model] == [nn.BatchNorm2d, kind]
    medbn.convert(model, exclude="1")
    assert [type(m) for m in model] == [medbn.RobustBatchNorm2d, kind]


def test_a_subclass_with_a_constructor_alone_is_converted_and_comes_back():
    layer = medbn.convert(Renamed(3))
    assert isinstance(layer, medbn.RobustBatchNorm2d)
    assert layer.eps == 1e-2
    assert type(medbn.revert(layer)) is Renamed


def test_a_registered_tail_is_applied(monkeypatch):
    monkeypatch.setattr(medbn.layers, "tails", medbn.layers.tails)
    monkeypatch.setitem(medbn.layers.tails, f"{__name__}.WithReLU", None)
    medbn.register_tail(f"{__name__}.WithReLU", lambda layer, y: y.relu())
    layer, x = WithReLU(3), torch.randn(5, 3, 2, 2)
    original = copy.deepcopy(layer)
    medbn.convert(layer, "mean")
    torch.testing.assert_close(layer(x), original(x))
    assert (layer(x) >= 0).all()
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))
    assert type(medbn.revert(layer)) is WithReLU


def test_timm_s_fused_activations_are_kept():
    """A class with timm's names and attributes; its module path identifies it."""

    def forward(self, x):
        return self.act(self.drop(nn.BatchNorm2d.forward(self, x)))

    kind = type("BatchNormAct2d", (nn.BatchNorm2d,), {"forward": forward, "__module__": "timm.layers.norm_act"})
    layer = kind(3)
    layer.drop, layer.act = nn.Identity(), nn.SiLU()
    x = torch.randn(5, 3, 2, 2)
    expected = layer(x)
    keys = list(layer.state_dict())
    medbn.convert(layer, "mean")
    torch.testing.assert_close(layer(x), expected)
    assert list(layer.state_dict()) == keys
    medbn.convert(layer, "median")
    torch.testing.assert_close(layer(x), nn.functional.silu(medbn.functional.robust_norm(x)))
    assert type(medbn.revert(layer)) is kind


def test_a_lazy_layer_needs_a_batch_first():
    model = nn.Sequential(nn.LazyBatchNorm2d())
    with pytest.raises(ValueError, match=r"'0'.*LazyBatchNorm2d"):
        medbn.convert(model)
    model(torch.randn(4, 3, 2, 2))
    medbn.convert(model)


def test_patched_and_parametrised_layers_are_refused():
    patched = nn.BatchNorm2d(3)
    patched.forward = lambda x: x
    with pytest.raises(ValueError, match=r"'0'.*forward"):
        medbn.convert(nn.Sequential(patched))
    parametrised = nn.BatchNorm2d(3)
    nn.utils.parametrize.register_parametrization(parametrised, "weight", nn.Softplus())
    with pytest.raises(ValueError, match="parametrised"):
        medbn.convert(parametrised)
    layer = medbn.convert(nn.BatchNorm2d(3))
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Softplus())
    with pytest.raises(ValueError, match="parametrised"):
        medbn.revert(layer)


def test_wrong_names_and_missing_statistics_change_nothing():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False))
    with pytest.raises(ValueError, match="medain"):
        medbn.convert(model, "medain")
    with pytest.raises(ValueError, match="policy"):
        medbn.convert(model, policy="none")
    with pytest.raises(ValueError, match=r"'1'.*source statistics.*ema"):
        medbn.convert(model, policy="ema")
    with pytest.raises(ValueError, match=r"'1'.*source statistics.*median@0.5"):
        medbn.convert(model, "median@0.5")
    assert [type(m) for m in model] == [nn.BatchNorm2d] * 2


# --- SyncBatchNorm ---------------------------------------------------------------------------------------------------


def test_sync_batch_norm_without_other_processes_is_converted_and_comes_back():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SyncBatchNorm(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no process group: nothing to warn about
        medbn.convert(model)
    x = torch.randn(4, 3, 5, 5)
    torch.testing.assert_close(model(x), medbn.functional.robust_norm(model[0](x)))
    medbn.revert(model)
    assert type(model[1]) is nn.SyncBatchNorm
    assert model[1].process_group is None


def test_a_group_of_one_process_changes_nothing(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        x = torch.randn(4, 3, 5, 5)
        layer = medbn.convert(nn.BatchNorm2d(3), group="world")
        assert layer.group.size == 1
        torch.testing.assert_close(layer(x), medbn.functional.robust_norm(x), rtol=0, atol=0)
        layer = medbn.convert(nn.SyncBatchNorm(3, process_group=dist.group.WORLD))
        assert layer.group.process_group is dist.group.WORLD
        assert medbn.revert(layer).process_group is dist.group.WORLD
    finally:
        dist.destroy_process_group()
