"""Each method against a short reference implementation of its paper, on models small enough to follow."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import medbn
from medbn.functional import statistics

from .table import assert_same, make, state

CLASSES = 5


class OneLayer(nn.Module):
    """One BatchNorm whose output is the logits, so that every quantity has a closed form."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(CLASSES)
        with torch.no_grad():
            self.bn.weight.copy_(torch.tensor([2.0, 1.5, 1.0, 2.5, 3.0]))
            self.bn.bias.copy_(torch.tensor([0.5, -0.2, 0.1, 0.3, 0.0]))
            self.bn.running_mean.copy_(torch.linspace(-0.5, 0.5, CLASSES))
            self.bn.running_var.copy_(torch.linspace(0.5, 2, CLASSES))

    def forward(self, x):
        return self.bn(x)


def normal(x):
    return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()


def entropies(logits):
    p = logits.softmax(1)
    return [-sum(q * q.log() for q in row) for row in p]


def in_plain_torch(model):
    """A copy whose BatchNorm layers use the batch's statistics, as torch's do in train mode, and their parameters."""
    reference = copy.deepcopy(model).eval()
    layers = [module.train() for module in reference.modules() if isinstance(module, nn.BatchNorm2d)]
    return reference, [p for layer in layers for p in (layer.weight, layer.bias)]


def stream(count=4, images=9):
    g = torch.Generator().manual_seed(3)
    return [2 * torch.randn(images, CLASSES, generator=g) for _ in range(count)]


# --- TENT ------------------------------------------------------------------------------------------------------------


def test_tent_is_the_loop_in_plain_torch(model, batches):
    """With the mean: plain torch layers in train mode, Adam on their affine parameters."""
    reference, affine = in_plain_torch(model)
    optimizer = torch.optim.Adam(affine, lr=1e-3)
    tta = medbn.adapt(model, "tent", "mean")
    for x in batches:
        logits = reference(x)
        loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(tta(x), logits, rtol=1e-4, atol=1e-4)
    for learned, expected in zip(tta.learned.values(), affine, strict=True):
        torch.testing.assert_close(learned, expected, rtol=1e-4, atol=1e-5)


# --- ETA and EATA ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fisher_weight", [None, 3.0])
def test_eta_and_eata_sample_by_sample(fisher_weight):
    margin, redundancy, lr = 0.7, 0.8, 0.5
    source = stream(3)[1:]
    options = {"margin": margin, "redundancy": redundancy, "optimizer": "sgd", "lr": lr}
    if fisher_weight is None:
        tta = medbn.adapt(OneLayer(), "eta", "mean", **options)
    else:
        tta = medbn.adapt(OneLayer(), "eata", "mean", source=source, fisher_weight=fisher_weight, **options)

    gamma, beta = (p.detach().clone().requires_grad_() for p in (OneLayer().bn.weight, OneLayer().bn.bias))
    start = [gamma.detach().clone(), beta.detach().clone()]
    if fisher_weight is not None:
        fisher = [torch.zeros(CLASSES), torch.zeros(CLASSES)]
        for x in source:
            logits = gamma * normal(x) + beta
            loss = sum(-logits.log_softmax(1)[i, logits[i].argmax()] for i in range(len(logits))) / len(logits)
            fisher = [f + g.square() / 2 for f, g in zip(fisher, torch.autograd.grad(loss, (gamma, beta)), strict=True)]
    average, selected_counts = None, []
    for x in stream():
        logits = gamma * normal(x) + beta
        total, chosen = 0.0, []
        for row, entropy in zip(logits, entropies(logits), strict=True):
            p = row.softmax(0).detach()
            if entropy.item() >= margin * math.log(CLASSES):
                continue
            if average is not None and F.cosine_similarity(p, average, dim=0).item() >= redundancy:
                continue
            total = total + entropy / math.exp(entropy.item() - margin * math.log(CLASSES))
            chosen.append(p)
        selected_counts.append(len(chosen))
        if chosen:
            mean = torch.stack(chosen).mean(0)
            average = mean if average is None else 0.9 * average + 0.1 * mean
            loss = total / len(chosen)
            if fisher_weight is not None:
                now = (gamma, beta)
                for f, p, s in zip(fisher, now, start, strict=True):
                    loss = loss + fisher_weight * (f * (p - s).square()).sum()
            d_gamma, d_beta = torch.autograd.grad(loss, (gamma, beta))
            gamma = (gamma - lr * d_gamma).detach().requires_grad_()
            beta = (beta - lr * d_beta).detach().requires_grad_()
        torch.testing.assert_close(tta(x), logits.detach(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(tta.learned["bn.weight"].detach(), gamma.detach(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(tta.learned["bn.bias"].detach(), beta.detach(), rtol=1e-4, atol=1e-4)
    assert min(selected_counts) > 0
    assert max(selected_counts) < 9  # both filters had something to do


def test_eata_uses_no_more_source_samples_than_asked():
    source = stream(5, images=8)
    few = medbn.adapt(OneLayer(), "eata", source=source, fisher_samples=12)
    exact = medbn.adapt(OneLayer(), "eata", source=[source[0], source[1][:4]])
    for name, value in few.memory["fisher"].items():
        torch.testing.assert_close(value, exact.memory["fisher"][name])


@pytest.mark.parametrize(("method", "option"), [("eta", "margin"), ("sar", "margin")])
def test_a_filter_that_selects_nothing_takes_no_step(method, option):
    tta = medbn.adapt(OneLayer(), method, **{option: 1e-9}, **({"frozen": []} if method == "sar" else {}))
    before = tta.snapshot()["learned"]
    for x in stream():
        tta(x)
    assert all(torch.equal(p, before[name]) for name, p in tta.learned.items())
    assert tta.optimizer.state_dict()["state"] == {}


# --- SAR and SAM -----------------------------------------------------------------------------------------------------


def test_sar_by_its_definition():
    margin, rho, lr = 0.6 * math.log(CLASSES), 1.0, 0.4
    options = {"margin": 0.6, "rho": rho, "recovery": 0.0, "optimizer": "sgd", "lr": lr, "frozen": []}
    tta = medbn.adapt(OneLayer(), "sar", "mean", **options)
    gamma, beta = (p.detach().clone().requires_grad_() for p in (OneLayer().bn.weight, OneLayer().bn.bias))
    average, nested = None, 0
    for x in stream():
        tta(x)
        first = torch.stack(entropies(gamma * normal(x) + beta))
        keep = first.detach() < margin
        g = torch.autograd.grad(first[keep].mean(), (gamma, beta))
        norm = math.sqrt(sum(t.square().sum().item() for t in g))
        up = [(p + rho * t / norm).detach().requires_grad_() for p, t in zip((gamma, beta), g, strict=True)]
        second = torch.stack(entropies(up[0] * normal(x) + up[1]))
        both = keep & (second.detach() < margin)
        nested += int(((second.detach() < margin) & ~keep).sum())  # would count if the filters were not nested
        loss = second[both].mean()
        d_gamma, d_beta = torch.autograd.grad(loss, up)
        gamma = (gamma - lr * d_gamma).detach().requires_grad_()
        beta = (beta - lr * d_beta).detach().requires_grad_()
        average = loss.item() if average is None else 0.9 * average + 0.1 * loss.item()
        torch.testing.assert_close(tta.learned["bn.weight"].detach(), gamma.detach(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(tta.learned["bn.bias"].detach(), beta.detach(), rtol=1e-4, atol=1e-4)
        assert tta.memory["loss"] == pytest.approx(average, rel=1e-4)
    assert nested > 0


def test_sam_agrees_with_pytorch_optimizer(model, batches):
    pytorch_optimizer = pytest.importorskip("pytorch_optimizer")
    tta = medbn.adapt(model, "sar", "mean", margin=10.0, recovery=-1.0, frozen=[])  # no filter, no recovery: SAM alone
    reference, affine = in_plain_torch(model)
    sam = pytorch_optimizer.SAM(affine, base_optimizer=torch.optim.Adam, rho=0.05, lr=1e-3)

    def loss(x):
        logits = reference(x)
        return -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()

    for x in batches:
        loss(x).backward()
        sam.first_step(zero_grad=True)
        loss(x).backward()
        sam.second_step(zero_grad=True)
        tta(x)
    for learned, expected in zip(tta.learned.values(), affine, strict=True):
        torch.testing.assert_close(learned, expected, rtol=1e-3, atol=1e-4)


def test_sar_recovers_when_its_loss_collapses():
    tta = medbn.adapt(OneLayer(), "sar", margin=10.0, recovery=0.9, lr=0.05, frozen=[])
    source = tta.snapshot()["learned"]
    recovered = []
    for x in stream(12):
        tta(x)
        recovered.append(all(torch.equal(p, source[name]) for name, p in tta.learned.items()))
        if recovered[-1]:
            assert tta.memory["loss"] is None
            assert tta.optimizer.state_dict()["state"] == {}
    assert True in recovered
    assert False in recovered  # and adapts again in between


def test_sar_learns_where_predictions_are_confident(model, batches):
    """On CIFAR-10 the loss lies below SAR's threshold of 0.2, which would reset the model on every batch."""
    model.scale = 100.0
    tta = medbn.adapt(model, "sar")
    source = tta.snapshot()["learned"]
    for x in batches:
        tta(x)
    assert 0 < tta.memory["loss"] < 0.2
    assert not any(torch.equal(p, source[name]) for name, p in tta.learned.items())


# --- sEMA and mDIA ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["mean", "median", "image_median"])
def test_sema_in_closed_form(estimator):
    tta = medbn.adapt(OneLayer(), "sema", estimator, momentum=0.3)
    bn = OneLayer().bn
    mean, var = bn.running_mean.clone(), bn.running_var.clone()
    for x in stream():
        centre, variance = statistics(x, estimator)
        mean, var = 0.7 * mean + 0.3 * centre, 0.7 * var + 0.3 * variance
        expected = (x - mean) / (var + 1e-5).sqrt() * bn.weight + bn.bias
        torch.testing.assert_close(tta(x), expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("estimator", ["mean", "median", "image_median"])
def test_past_in_closed_form(estimator):
    tta = medbn.adapt(OneLayer(), "past", estimator, momentum=0.5, batch_size=len(stream()[0]))
    bn = OneLayer().bn
    mean, var = bn.running_mean.clone(), bn.running_var.clone()
    for x in stream():
        expected = (x - mean) / (var + 1e-5).sqrt() * bn.weight + bn.bias
        torch.testing.assert_close(tta(x), expected.detach(), rtol=1e-4, atol=1e-5)
        centre, variance = statistics(x, estimator)
        mean, var = 0.5 * mean + 0.5 * centre, 0.5 * var + 0.5 * variance


def test_mdia_mixes_and_uses_source_statistics_in_the_last_layers():
    model = nn.Sequential(*[nn.BatchNorm1d(3) for _ in range(6)])
    for layer in model:
        layer.running_mean.normal_()
    tta = medbn.adapt(model, "mdia", "median", prior=0.7, terminal=2)
    x = expected = torch.randn(8, 3)
    for layer in model[:4]:
        centre, variance = statistics(expected)
        centre, variance = 0.7 * layer.running_mean + 0.3 * centre, 0.7 * layer.running_var + 0.3 * variance
        expected = (expected - centre) / (variance + 1e-5).sqrt()
    for layer in model[4:]:
        expected = (expected - layer.running_mean) / (layer.running_var + 1e-5).sqrt()
    torch.testing.assert_close(tta(x), expected)


def test_mdia_freezes_at_most_a_third_and_warns():
    model = nn.Sequential(*[nn.BatchNorm1d(3) for _ in range(7)])
    with pytest.warns(UserWarning, match=r"last 2.*not 8"):
        tta = medbn.adapt(model, "mdia")
    assert [layer.policy.name for layer in tta.layers.values()] == ["interpolate"] * 5 + ["source"] * 2


# --- SoTTA -----------------------------------------------------------------------------------------------------------


class Logits(nn.Module):
    """Returns its input as logits, so that a test chooses class and confidence; BatchNorm adds next to nothing."""

    def __init__(self):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm1d(3), nn.BatchNorm1d(3)

    def forward(self, x):
        return x + 1e-3 * self.bn2(self.bn1(x))


def logits_of(*classes, sure=True):
    return torch.stack([F.one_hot(torch.tensor(c), 3) * (9.0 if sure else 1.0) for c in classes])


@pytest.mark.filterwarnings("ignore:a batch has fewer than three values")
def test_sotta_s_memory_step_by_step():
    tta = medbn.adapt(Logits(), "sotta", capacity=4, confidence=0.9, frozen=[])
    table = [
        (logits_of(0, 0), {0: 2}),  # room
        (logits_of(1, 2, sure=False), {0: 2}),  # not confident
        (logits_of(0, 1), {0: 3, 1: 1}),  # full now
        (logits_of(2), {0: 2, 1: 1, 2: 1}),  # the largest class is replaced
        (logits_of(0), {0: 2, 1: 1, 2: 1}),  # of the largest class itself: one for one
        (logits_of(1), {0: 1, 1: 2, 2: 1}),
        (logits_of(1, 1), {0: 1, 1: 2, 2: 1}),
        (logits_of(2, 2), {0: 1, 1: 1, 2: 2}),  # the first 2 replaces the 1, and the second 2 replaces a 2
        (logits_of(1), {0: 1, 1: 2, 2: 1}),
        (logits_of(0), {0: 2, 1: 1, 2: 1}),
        (logits_of(1), {0: 1, 1: 2, 2: 1}),
        (logits_of(0), {0: 2, 1: 1, 2: 1}),
        (logits_of(2), {0: 1, 1: 1, 2: 2}),
    ]
    for images, expected in table:
        tta(images)
        classes = tta.memory["classes"]
        assert {c: classes.count(c) for c in set(classes)} == expected
        stored = tta.memory["images"]["0"]
        assert stored.argmax(1).tolist() == classes  # every image is where its class says
        assert len(stored) == len(classes)


@pytest.mark.filterwarnings("ignore:a batch has fewer than three values")
def test_of_several_largest_classes_the_incoming_one_is_replaced():
    tta = medbn.adapt(Logits(), "sotta", capacity=4, confidence=0.9, frozen=[])
    tta(logits_of(0, 0, 1, 1))
    for incoming in (1, 0, 1, 1, 0):
        tta(logits_of(incoming))
        assert sorted(tta.memory["classes"]) == [0, 0, 1, 1]


def test_sotta_replaces_images_at_random_but_repeatably():
    def run(seed):
        tta = medbn.adapt(Logits(), "sotta", capacity=6, confidence=0.9, frozen=[], seed=seed)
        for i in range(20):
            tta(logits_of(i % 3, (i + 1) % 3) + 0.001 * i)
        return tta.memory["images"]["0"]

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


@pytest.mark.parametrize("rule", ["batch", "memory", "both"])
def test_sotta_s_averages_and_predictions(rule):
    """One layer; whose statistics enter the average, and which normalise a batch."""
    bn = OneLayer().bn
    tta = medbn.adapt(OneLayer(), "sotta", "mean", statistics=rule, confidence=0.5, frozen=[], predict="before", lr=0.0)
    mean, var = bn.running_mean.clone(), bn.running_var.clone()
    memory = []
    for x in stream():
        logits = ((x - mean) / (var + 1e-5).sqrt() * bn.weight + bn.bias).detach()
        batch = 0.8 * mean + 0.2 * x.mean(0), 0.8 * var + 0.2 * x.var(0, correction=0)
        before = mean, var
        memory += [image for image, p in zip(x, logits.softmax(1), strict=True) if p.max() >= 0.5]
        if rule == "batch":
            mean, var = batch
            expected = (x - mean) / (var + 1e-5).sqrt() * bn.weight + bn.bias
        elif rule == "both":
            expected = (x - batch[0]) / (batch[1] + 1e-5).sqrt() * bn.weight + bn.bias
            stored = torch.stack(memory)
            parts = (stored.mean(0), stored.var(0, correction=0)), (x.mean(0), x.var(0, correction=0))
            mean, var = (0.512 * old + 0.288 * m + 0.2 * b for old, m, b in zip(before, *parts, strict=True))
        else:
            expected = logits
            stored = torch.stack(memory)
            mean, var = 0.8 * mean + 0.2 * stored.mean(0), 0.8 * var + 0.2 * stored.var(0, correction=0)
        torch.testing.assert_close(tta(x), expected.detach(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(tta.layers["bn"].ema_mean, mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(tta.layers["bn"].ema_var, var, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(tta.memory["images"]["0"], torch.stack(memory))


def test_sotta_predicts_after_the_update_with_both_statistics():
    """The authors' loop: 0.512 of the average before, 0.288 of the memory and 0.2 of the batch."""
    bn, x = OneLayer().bn, stream()[0]
    options = {"confidence": 0.5, "frozen": [], "lr": 0.0, "statistics": "both", "predict": "after"}
    tta = medbn.adapt(OneLayer(), "sotta", "mean", **options)
    logits = tta(x)
    memory = tta.memory["images"]["0"]
    mean = 0.512 * bn.running_mean + 0.288 * memory.mean(0) + 0.2 * x.mean(0)
    var = 0.512 * bn.running_var + 0.288 * memory.var(0, correction=0) + 0.2 * x.var(0, correction=0)
    torch.testing.assert_close(logits, ((x - mean) / (var + 1e-5).sqrt() * bn.weight + bn.bias).detach())


def test_sotta_learns_by_sam_on_the_whole_memory():
    lr, rho = 0.5, 0.3
    options = {"confidence": 0.5, "frozen": [], "optimizer": "sgd", "lr": lr, "rho": rho}
    tta = medbn.adapt(OneLayer(), "sotta", "mean", statistics="batch", **options)
    bn, x = OneLayer().bn, stream()[0]
    gamma, beta = (p.detach().clone().requires_grad_() for p in (bn.weight, bn.bias))
    tta(x)
    memory = tta.memory["images"]["0"]
    assert 0 < len(memory) < len(x)
    mean = 0.8 * bn.running_mean + 0.2 * memory.mean(0)
    var = 0.8 * bn.running_var + 0.2 * memory.var(0, correction=0)
    standard = (memory - mean) / (var + 1e-5).sqrt()

    def loss(gamma, beta):
        return torch.stack(entropies(gamma * standard + beta)).mean()

    g = torch.autograd.grad(loss(gamma, beta), (gamma, beta))
    norm = math.sqrt(sum(t.square().sum().item() for t in g))
    up = [(p + rho * t / norm).detach().requires_grad_() for p, t in zip((gamma, beta), g, strict=True)]
    d_gamma, d_beta = torch.autograd.grad(loss(*up), up)
    torch.testing.assert_close(tta.learned["bn.weight"].detach(), (gamma - lr * d_gamma).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tta.learned["bn.bias"].detach(), (beta - lr * d_beta).detach(), rtol=1e-4, atol=1e-5)


def test_sotta_remembers_one_size_of_image():
    tta = make(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()), "sotta", frozen=[]
    )
    tta(torch.randn(4, 3, 8, 8))
    before = state(tta)
    with pytest.raises(ValueError, match=r"\(3, 8, 8\).*\(3, 9, 9\)"):
        tta(torch.randn(4, 3, 9, 9))
    assert_same(state(tta), before)
    tta(torch.randn(4, 3, 8, 8))
    with pytest.raises(ValueError, match=r"capacity.*0"):
        medbn.adapt(Logits(), "sotta", capacity=0)


def test_dense_images_are_remembered_by_mean_confidence_and_most_frequent_class():
    class Pixels(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm2d(3)

        def forward(self, x):
            return x + 1e-4 * self.bn(x)

    sure, unsure = 9.0, 0.0
    image = torch.zeros(3, 3, 1, 4)
    image[0, 1, 0, :3], image[0, 2, 0, 3] = sure, sure  # class 1 most often
    image[1, 0, 0, :2], image[1, 0, 0, 2:] = sure, unsure  # confidence (1 + 1 + 1/3 + 1/3) / 4 = 2/3
    image[2, 2] = sure
    tta = medbn.adapt(Pixels(), "sotta", confidence=0.9, frozen=[])
    tta(image)
    assert tta.memory["classes"] == [1, 2]
    tta = medbn.adapt(Pixels(), "sotta", confidence=0.6, frozen=[])
    tta(image)
    assert tta.memory["classes"] == [1, 0, 2]


# --- alpha-BN --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["mean", "median", "image_median"])
def test_alpha_bn_is_tebn_with_a_prior(estimator, model, batches):
    fixed = medbn.adapt(model, "alpha_bn", estimator, prior=0.7)
    prior = medbn.adapt(model, "tebn", f"{estimator}@0.7")
    counted = medbn.adapt(model, "alpha_bn", estimator, source_images=28)  # 28 / (28 + 12)
    for x in batches[:2]:
        torch.testing.assert_close(fixed(x), prior(x))
        torch.testing.assert_close(counted(x), prior(x))


def test_the_prior_of_alpha_bn_counts_images():
    layer = OneLayer()
    tta = medbn.adapt(layer, "alpha_bn", "mean", source_images=6)
    for images in (3, 6, 18):
        x = stream(1, images)[0]
        source = 6 / (6 + images)
        mean = source * layer.bn.running_mean + (1 - source) * x.mean(0)
        var = source * layer.bn.running_var + (1 - source) * x.var(0, correction=0)
        expected = (x - mean) / (var + 1e-5).sqrt() * layer.bn.weight + layer.bn.bias
        torch.testing.assert_close(tta(x), expected.detach())
        padded = torch.cat([x, torch.full((2, CLASSES), 9.0)])
        out = tta(padded, valid=torch.arange(images + 2) < images)
        torch.testing.assert_close(out[:images], expected.detach())
        torch.testing.assert_close(tta.surrogate()(x), expected.detach())
    for wrong in (-1, float("inf")):
        with pytest.raises(ValueError, match="source_images"):
            medbn.adapt(layer, "alpha_bn", source_images=wrong)


# --- LAME ------------------------------------------------------------------------------------------------------------


def lame_in_loops(logits, features, neighbours, weight, iterations):
    """Eq. 7 of LAME's paper, image by image, in float64."""
    count = len(logits)
    p = logits.double().softmax(1)
    unit = [f.double() / f.double().norm() for f in features]
    near = []
    for i in range(count):
        others = sorted((j for j in range(count) if j != i), key=lambda j: (unit[i] - unit[j]).norm().item())
        near.append(others[:neighbours])
    z = p.clone()
    for _ in range(iterations):
        new = torch.stack([p[i] * (weight * sum(z[j] for j in near[i])).exp() for i in range(count)])
        z = new / new.sum(1, keepdim=True)
    return z


class Classifier(nn.Module):
    """Features, and logits that depend on them; no BatchNorm."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.body, self.head = nn.Linear(6, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        return {"features": x, "logits": self.head(self.body(x).tanh())}


@pytest.mark.parametrize(("neighbours", "weight", "iterations"), [(5, 1.0, 100), (2, 0.5, 1), (1, 3.0, 4)])
def test_lame_image_by_image(neighbours, weight, iterations):
    model = Classifier()
    options = {"neighbours": neighbours, "weight": weight, "iterations": iterations}
    with pytest.warns(UserWarning, match="no BatchNorm"):
        tta = medbn.adapt(model, "lame", **options)
    x = torch.randn(11, 6)
    with torch.no_grad():
        output = tta(x)
        expected = lame_in_loops(model(x)["logits"], model.body(x).tanh(), **options)
    assert output["features"] is not None
    torch.testing.assert_close(output["logits"].exp().double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tta.surrogate()(x), output["logits"])
    broken = torch.cat([x, torch.full((1, 6), torch.nan)])
    torch.testing.assert_close(tta(broken)["logits"][:-1], output["logits"])
    padded = torch.cat([x, torch.ones(2, 6)])
    torch.testing.assert_close(tta(padded, valid=torch.arange(13) < 11)["logits"][:-2], output["logits"])


def test_lame_s_surrogate_is_differentiated_through_its_iterations():
    with pytest.warns(UserWarning, match="no BatchNorm"):
        tta = medbn.adapt(Classifier(), "lame", neighbours=2, iterations=5).double()
    x = torch.randn(8, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(tta.surrogate(), (x,), eps=1e-7, atol=1e-5)
    (dx,) = torch.autograd.grad(tta.surrogate()(x)[0].square().sum(), x)
    assert (dx[1:].abs().sum(dim=1) > 0).any()  # what an attacker uses


def test_lame_with_one_image_and_with_wrong_options():
    model = Classifier()
    with pytest.warns(UserWarning, match="no BatchNorm"):
        tta = medbn.adapt(model, "lame")
    x = torch.randn(1, 6)
    torch.testing.assert_close(tta(x)["logits"], model(x)["logits"].log_softmax(1).detach())
    with pytest.raises(ValueError, match=r"heat.*head"):
        medbn.adapt(model, "lame", features="heat")
    with pytest.raises(ValueError, match="features="):
        medbn.adapt(OneLayer(), "lame")
    with pytest.raises(ValueError, match="neighbours"):
        medbn.adapt(model, "lame", neighbours=0)
    with pytest.warns(UserWarning, match="no BatchNorm"):
        computed = medbn.adapt(model, "lame", logits=lambda output: 2 * output["logits"])
    with pytest.raises(ValueError, match="logits="):
        computed(x)
    dense = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(2), nn.Linear(4, 4))
    with pytest.warns(UserWarning, match="no BatchNorm"):
        tta = medbn.adapt(dense, "lame")
    with pytest.raises(ValueError, match="per image"):
        tta(torch.randn(6, 3, 2, 2))
