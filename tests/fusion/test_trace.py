"""Which forwards are fused, and that they compute the same."""

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import medbn


class Module(nn.Module):
    """Two layers, two convolutions, and modules of ReLUs; the forward is a function of it and of its input."""

    def __init__(self, forward=None):
        super().__init__()
        self.conv, self.other = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.norm, self.second = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.relu, self.in_place, self.relu6 = nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6()
        self.steps = []
        self.scale = 1.0


def module_with(function):
    """Return a module with this forward."""
    torch.manual_seed(0)
    kind = type("Kind", (Module,), {"forward": function, "__module__": __name__})
    model = kind()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.eval()


def sequential():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.BatchNorm2d(4)).eval()


def overwritten_sum(self, x):
    y = self.norm(self.conv(x))
    y += x
    return self.in_place(y)


def shortcut_with_norm(self, x):
    y = self.norm(self.conv(x))
    return F.relu(y + self.second(self.other(x)))


def preactivated(self, x):
    active = F.relu(self.norm(x))
    return self.conv(F.relu(self.second(self.conv(active)))) + self.other(active)


def through_a_method(self, x):
    return self.body(x)


FUSED = {
    "F.relu": (1, lambda self, x: F.relu(self.norm(self.conv(x)))),
    "F.relu in place": (1, lambda self, x: F.relu(self.norm(self.conv(x)), inplace=True)),
    "F.relu, positional": (1, lambda self, x: F.relu(self.norm(self.conv(x)), True)),
    "torch.relu": (1, lambda self, x: torch.relu(self.norm(self.conv(x)))),
    "torch.relu_": (1, lambda self, x: torch.relu_(self.norm(self.conv(x)))),
    "a method": (1, lambda self, x: self.norm(self.conv(x)).relu()),
    "a method in place": (1, lambda self, x: self.norm(self.conv(x)).relu_()),
    "a module": (1, lambda self, x: self.relu(self.norm(self.conv(x)))),
    "a module twice": (2, lambda self, x: self.in_place(self.second(self.in_place(self.norm(self.conv(x)))))),
    "a sum": (1, lambda self, x: F.relu(self.norm(self.conv(x)) + x)),
    "a sum, residual first": (1, lambda self, x: F.relu(self.other(x) + self.norm(self.conv(x)))),
    "torch.add": (1, lambda self, x: torch.relu(torch.add(self.norm(self.conv(x)), x))),
    "a method that adds": (1, lambda self, x: self.norm(self.conv(x)).add_(x).relu_()),
    "a sum in place": (1, overwritten_sum),
    "two layers added": (1, shortcut_with_norm),
    "before convolutions": (2, preactivated),
    "a layer used twice": (2, lambda self, x: F.relu(self.norm(self.conv(F.relu(self.norm(x)))))),
    "a residual that is broadcast": (1, lambda self, x: F.relu(self.norm(self.conv(x)) + x.mean((2, 3), keepdim=True))),
}


@pytest.mark.parametrize("form", FUSED)
def test_what_is_fused_computes_the_same(form, fused_calls):
    count, function = FUSED[form]
    own = medbn.convert(module_with(function), "image_median")
    model = medbn.convert(module_with(function), "image_median", fuse=True)
    x = torch.randn(6, 4, 8, 8)
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    expected, y = own(leaves[0]), model(leaves[1])
    assert torch.equal(y, expected)
    assert len(medbn.fused_layers(model)) == count
    assert len(fused_calls) == (0 if "broadcast" in form else count)
    g = torch.randn(y.shape)
    gradients = [
        torch.autograd.grad(out, (leaf, *m.parameters()), g, allow_unused=True)
        for out, leaf, m in ((expected, leaves[0], own), (y, leaves[1], model))
    ]
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


# --- what is left as it is --------------------------------------------------------------------------------------------


def used_twice(self, x):
    y = self.norm(self.conv(x))
    return F.relu(y) + y


def overwrites_residual(self, x):
    residual = self.other(x)
    residual += self.norm(self.conv(x))
    return F.relu(residual) + residual


def overwrites_what_it_was_given(self, x):
    x += self.norm(self.conv(x))
    return F.relu(x)


def overwrites_input_between(self, x):
    z = self.conv(x)
    y = self.norm(z)
    self.in_place(z)
    return F.relu(y + x)


def overwrites_residual_between(self, x):
    residual = self.other(x)
    y = self.norm(self.conv(x)) + residual
    residual *= 2
    return F.relu(y) + residual


def branches_on_values(self, x):
    return F.relu(self.norm(self.conv(x))) if x.mean() > 0 else x


def asks_for_types(self, x):
    return F.relu(self.norm(self.conv(x))) if isinstance(x, torch.Tensor) else x


def asks_in_a_comprehension(self, x):
    return F.relu(self.norm(self.conv(*[y for y in (x,) if not isinstance(y, int)])))


def asks_for_gradients(self, x):
    return F.relu(self.norm(self.conv(x))) if torch.is_grad_enabled() else x


def with_an_option(self, x, scale=2.0):
    return F.relu(self.norm(self.conv(x))) * scale


def keeps(self, x):
    self.features = F.relu(self.norm(self.conv(x)))
    return self.features


def appends(self, x):
    self.steps.append(F.relu(self.norm(self.conv(x))))
    return self.steps[-1]


def draws(self, x):
    return F.relu(self.norm(self.conv(x))) + torch.rand(4, 8, 8)


def draws_in_python(self, x):
    return F.relu(self.norm(self.conv(x))) * random.random()


UNFUSED = {
    "no ReLU": lambda self, x: self.norm(self.conv(x)),
    "another activation": lambda self, x: self.relu6(self.norm(self.conv(x))),
    "a number added": lambda self, x: F.relu(self.norm(self.conv(x)) + 1.0),
    "a multiple added": lambda self, x: F.relu(torch.add(self.norm(self.conv(x)), x, alpha=2.0)),
    "a layer added to itself": lambda self, x: F.relu((lambda y: y + y)(self.norm(self.conv(x)))),
    "a product": lambda self, x: F.relu(self.norm(self.conv(x)) * x),
    "used twice": used_twice,
    "overwrites the residual": overwrites_residual,
    "overwrites what it was given": overwrites_what_it_was_given,
    "overwrites the input before the ReLU": overwrites_input_between,
    "overwrites the residual before the ReLU": overwrites_residual_between,
    "branches on values": branches_on_values,
    "asks for types": asks_for_types,
    "asks in a comprehension": asks_in_a_comprehension,
    "asks for gradients": asks_for_gradients,
    "has an option": with_an_option,
    "keeps activations": keeps,
    "appends to a list": appends,
    "draws random numbers": draws,
    "draws random numbers in Python": draws_in_python,
}


@pytest.mark.parametrize("form", UNFUSED)
def test_what_is_not_fused_stays_as_it_is(form):
    model = module_with(UNFUSED[form])
    before = {name: dict(vars(m)) for name, m in model.named_modules()}
    with pytest.raises(ValueError, match=r"no robust layer in Kind that a ReLU follows"):
        medbn.convert(model, fuse=True)
    assert {name: dict(vars(m)) for name, m in model.named_modules()} == before
    assert model.steps == []
    assert type(model.norm) is nn.BatchNorm2d


def test_methods_that_a_forward_calls_are_looked_at_too():
    model = module_with(through_a_method)
    type(model).body = asks_for_types
    with pytest.raises(ValueError, match="isinstance"):
        medbn.convert(model, fuse=True)
    type(model).body = lambda self, x: F.relu(self.norm(self.conv(x)))
    assert medbn.fused_layers(medbn.convert(model, fuse=True)) == ("norm",)


def test_a_reason_is_in_the_error_and_others_in_the_log(caplog):
    model = nn.Sequential(module_with(with_an_option), sequential())
    with caplog.at_level("DEBUG", logger="medbn"):
        medbn.convert(model, fuse=True)
    assert medbn.fused_layers(model) == ("1.1",)
    assert "0 (Kind) is not fused: its forward has optional arguments" in caplog.text
    assert "1 of 4 robust layers are fused" in caplog.text
    with pytest.raises(ValueError, match=r"'Kind', for one.*optional arguments"):
        medbn.convert(module_with(with_an_option), fuse=True)


def test_layers_that_are_left_out_are_not_fused():
    model = medbn.convert(module_with(preactivated), exclude="norm", fuse=True)
    assert medbn.fused_layers(model) == ("second",)


def test_other_forwards_than_that_of_the_class_are_left_alone():
    patched = sequential()
    patched.forward = lambda x: x
    with pytest.raises(ValueError, match="no robust layer"):
        medbn.convert(patched, fuse=True)
    traced = torch.fx.symbolic_trace(sequential())
    with pytest.raises(ValueError, match="no robust layer"):
        medbn.convert(traced, fuse=True)


# --- what changes afterwards ------------------------------------------------------------------------------------------


def scaled_in_place(self, x):
    x *= 2
    return F.relu(self.norm(self.conv(x)))


def test_what_a_forward_overwrites_is_overwritten_still(fused_calls):
    model, x = medbn.convert(module_with(scaled_in_place), fuse=True), torch.ones(6, 4, 8, 8)
    with torch.no_grad():
        model(x)
    assert len(fused_calls) == 1
    assert (x == 2).all()


def scaled(self, x):
    return F.relu(self.norm(self.conv(x))) * self.scale


def test_a_changed_attribute_ends_the_fusion(fused_calls):
    model = medbn.convert(module_with(scaled), fuse=True)
    x = torch.randn(6, 4, 8, 8)
    y = model(x)
    assert len(fused_calls) == 1
    model.scale = 2.0
    assert torch.equal(model(x), 2 * y)
    assert len(fused_calls) == 1
    assert medbn.fused_layers(model) == ()


def test_children_may_be_replaced(fused_calls):
    model = medbn.convert(module_with(FUSED["a module"][1]), fuse=True)
    other = nn.Conv2d(4, 4, 3, padding=1)
    x = torch.randn(6, 4, 8, 8)
    own = copy.deepcopy(model)
    medbn.revert(own)
    medbn.convert(own)
    model.conv = own.conv = other
    assert torch.equal(model(x), own(x))
    assert len(fused_calls) == 1
    model.relu = own.relu = nn.ReLU6()
    assert torch.equal(model(x), own(x))
    assert len(fused_calls) == 1


def test_children_that_are_replaced_unnoticed_are_called(fused_calls):
    model = medbn.convert(module_with(FUSED["a module"][1]), fuse=True)
    model._modules["relu"], model._modules["norm"] = nn.Tanh(), nn.InstanceNorm2d(4)
    x = torch.randn(6, 4, 8, 8)
    assert torch.equal(model(x), model.norm(model.conv(x)).tanh())
    assert not fused_calls


CHANGES = {
    "append": lambda model: model.append(nn.Tanh()),
    "insert": lambda model: model.insert(3, nn.Tanh()),
    "extend": lambda model: model.extend([nn.Tanh()]),
    "add_module": lambda model: model.add_module("last", nn.Tanh()) or model,
    "del": lambda model: model.__delitem__(2) or model,
    "slice": lambda model: model[:3],
}


def fused_and_not(model):
    """Return the model with a fused layer, and an equal one without."""
    own = medbn.convert(copy.deepcopy(model))
    assert medbn.fused_layers(medbn.convert(model, fuse=True))
    return model, own


@pytest.mark.parametrize("change", CHANGES)
def test_children_may_be_added_and_removed(change, fused_calls):
    layers = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1)
    model, own = (CHANGES[change](each) for each in fused_and_not(nn.Sequential(*layers).eval()))
    x = torch.randn(6, 4, 8, 8)
    assert torch.equal(model(x), own(x))
    assert not fused_calls
    assert medbn.fused_layers(model) == ()
    assert torch.equal(medbn.revert(model)(x), medbn.revert(own)(x))


def one_by_one(self, x):
    for layer in self.layers:
        x = layer(x)
    return x


def test_children_of_lists_may_be_added_and_removed(fused_calls):
    model = module_with(one_by_one)
    model.layers = nn.ModuleList([model.conv, model.norm, model.relu])
    model, own = fused_and_not(model)
    x = torch.randn(6, 4, 8, 8)
    for each in (model, own):
        each.layers.append(nn.Tanh())
    assert torch.equal(model(x), own(x))
    assert not fused_calls
    del model.layers[3]
    assert torch.equal(model(x), own.layers[2](own.norm(own.conv(x))))
    assert len(fused_calls) == 1  # as it was when it was fused


def test_in_place_operations_are_those_of_the_original():
    """Fused or not, what a hook of the layer has kept is overwritten where the original overwrites it."""
    for function, overwrites in ((overwritten_sum, True), (FUSED["a sum"][1], False)):
        model, kept = medbn.convert(module_with(function), fuse=True), []
        model.norm.register_forward_hook(lambda module, inputs, y, kept=kept: kept.append((y, y.clone())))
        model(torch.randn(6, 4, 8, 8))
        ((kept_now, kept_then),) = kept
        assert torch.equal(kept_now, kept_then) != overwrites
