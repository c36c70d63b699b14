"""Attackers who see no images but their own: a surrogate that follows answers, and a foreign model."""

import pytest
import torch
from torch import nn

import medbn
from medbn.attacks import DIA, Cumulative, Indiscriminate, Interleaved, worst_case
from medbn.attacks.knowledge import symmetric_divergence
from medbn.attacks.objectives import BalancedLowEntropy, Entropy, NotchHighEntropy

from ..methods.conftest import small_model
from ..methods.table import assert_same, make, state


def grey(objective=None, **options):
    options = {"steps": 2, "step_size": 0.02, "start": "clean", "knowledge": "grey", **options}
    return DIA(objective or NotchHighEntropy(), **options)


def train_mode(model):
    """A copy whose BatchNorm layers are torch's own, with statistics of the batch."""
    copy = small_model()
    copy.load_state_dict(model.state_dict())
    for module in copy.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.train()
            module.momentum = 0.0
    return copy


def test_the_divergence_is_the_mean_of_both_directions():
    p, q = torch.rand(5, 4, dtype=torch.float64).softmax(1), torch.rand(5, 4, dtype=torch.float64).softmax(1)
    both = ((p * (p / q).log()).sum(1) + (q * (q / p).log()).sum(1)) / 2
    assert symmetric_divergence(p.log(), q.log()).item() == pytest.approx(both.mean().item())


def test_a_grey_box_follows_answers_as_a_loop_by_hand_does(model, stream):
    tta, attack = make(model, "tent", "mean", lr=0.05), grey()
    twin = train_mode(model)
    affine = [p for m in twin.modules() if isinstance(m, nn.BatchNorm2d) for p in (m.weight, m.bias)]
    optimizer = torch.optim.SGD(affine, lr=0.1)
    for images, _ in stream[:3]:
        answers = tta(images)
        attack.learn_from(tta, images, answers)
        a = answers.softmax(1)
        for _ in range(10):
            s = twin(images).softmax(1)
            loss = 0.5 * ((a * (a / s).log()).sum(1) + (s * (s / a).log()).sum(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        surrogate = attack.grey_box.surrogate(tta, "exact", 0.5)
        with torch.no_grad():
            torch.testing.assert_close(surrogate(images), twin(images), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(twin.bn.weight, model.bn.weight, atol=1e-3)
    assert len(attack.grey_box.fitted) == len(affine)


def test_a_grey_box_comes_nearer_to_an_adapter_that_has_learned(model, stream):
    tta, attack = make(model, "tent", "mean", lr=0.1), grey()
    for images, _ in stream:
        tta(images)
    images = stream[0][0]

    def distance():
        with torch.no_grad():
            s, a = attack.grey_box.surrogate(tta, "exact", 0.5)(images), tta.surrogate()(images)
        return symmetric_divergence(s.log_softmax(1), a.log_softmax(1)).item()

    before = distance()
    for _ in range(5):
        with torch.no_grad():
            answers = tta.surrogate()(images)
        attack.learn_from(tta, images, answers)
    assert distance() < 0.5 * before


@pytest.mark.parametrize("method", ["tent", "past", "cotta", "sotta"])
@pytest.mark.parametrize("gradient", ["exact", "smooth"])
def test_the_first_batch_is_crafted_on_the_source_model(method, gradient, model, stream):
    images, labels = stream[0]
    tta = make(model, method, "median")
    before = state(tta)
    crafted = grey(gradient=gradient)(tta, images, labels, slice(None))
    assert_same(state(tta), before)
    expected = DIA(NotchHighEntropy(), steps=2, step_size=0.02, start="clean", gradient=gradient, knowledge="semi")
    assert torch.equal(crafted, expected(make(model, "tebn", "median"), images, labels, slice(None)))


@pytest.mark.parametrize("knowledge", ["grey", "transfer"])
def test_no_image_but_her_own_is_seen(knowledge, model, stream):
    images, labels = stream[0]
    tta = make(model, "tent", "median")
    foreign = {"model": small_model(width=6)} if knowledge == "transfer" else {}

    def craft(benign):
        batch = torch.cat([benign, images[6:]])
        return grey(knowledge=knowledge, consistency=0.1, **foreign)(tta, batch, labels, slice(6, 10))

    first, second = craft(images[:6]), craft(stream[1][0][:6])
    assert torch.equal(first[6:], second[6:])
    assert torch.equal(second[:6], stream[1][0][:6])
    assert not torch.equal(first[6:], images[6:])


def test_a_transferred_attack_is_one_on_the_foreign_model(model, stream):
    images, labels = stream[0]
    other = small_model(width=6)
    options = {"steps": 3, "step_size": 0.02, "start": "clean"}
    attack = DIA(Entropy(), knowledge="transfer", model=other, **options)
    crafted = attack(make(model, "past", "median"), images, labels, slice(None))
    assert torch.equal(crafted, DIA(Entropy(), **options)(make(other, "tebn", "mean"), images, labels, slice(None)))
    flat = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))  # no BatchNorm
    moved = DIA(Entropy(), knowledge="transfer", model=flat, **options)(make(model, "tent"), images, labels, [0, 1])
    assert torch.equal(moved[2:], images[2:])
    assert not torch.equal(moved[:2], images[:2])


def test_what_she_cannot_know_is_refused():
    for message, options in (
        ("own", {"objective": Indiscriminate(), "knowledge": "grey"}),
        ("unroll", {"objective": Entropy(), "knowledge": "grey", "unroll": 1}),
        ("model", {"objective": Entropy(), "knowledge": "transfer"}),
        ("model", {"objective": Entropy(), "knowledge": "white", "model": nn.Linear(2, 2)}),
        ("black", {"knowledge": "black"}),
    ):
        with pytest.raises(ValueError, match=message):
            DIA(**options)


@pytest.mark.slow
def test_scenarios_pass_her_answers_on_and_continue(model):
    g = torch.Generator().manual_seed(8)
    stream = [(torch.rand(6, 3, 8, 8, generator=g), torch.randint(10, (6,), generator=g)) for _ in range(4)]

    def scenario():
        return Interleaved(make(model, "tent", "median", lr=0.01), grey(BalancedLowEntropy()), share=0.5)

    whole, first, second = scenario(), scenario(), scenario()
    expected = list(whole.run(stream))
    list(first.run(stream[:2]))
    second.load(first.state())
    for outcome, other in zip(second.run(stream[2:]), expected[2:], strict=True):
        assert torch.equal(outcome.attacked, other.attacked)
    assert_same(second.attack.grey_box.fitted, whole.attack.grey_box.fitted)
    seen = []
    mixed = Cumulative(make(model, "tebn"), grey(), slice(4, 6))
    mixed.attack.grey_box.learn_from = lambda adapter, images, answers: seen.append((images, answers))
    (outcome,) = mixed.run(stream[:1])
    assert torch.equal(seen[0][0], outcome.poisoned[4:])
    assert torch.equal(seen[0][1], outcome.attacked[4:])


def test_images_that_are_not_finite_teach_nothing(model, stream):
    tta, one, other = make(model, "tebn", "median"), grey(), grey()
    images = stream[0][0].clone()
    images[3] = torch.nan
    answers = tta(images)
    one.learn_from(tta, images, answers)
    keep = [i for i in range(10) if i != 3]
    other.learn_from(tta, images[keep], answers[keep])
    assert_same(one.grey_box.fitted, other.grey_box.fitted)
    nothing = grey()
    nothing.learn_from(tta, images[3:4], answers[3:4])
    assert not nothing.grey_box.fitted


@pytest.mark.slow
def test_the_worst_case_ranges_over_knowledge_and_objectives(model, stream):
    images, labels = stream[0]
    options = {"steps": 1, "start": "clean", "step_size": 0.05}
    objectives = (NotchHighEntropy(), Entropy())
    attack = worst_case(objectives, knowledge=("white", "grey"), **options)
    assert len(attack.attacks) == 16
    assert {(a.knowledge, a.objective) for a in attack.attacks} == {
        (k, o) for k in ("white", "grey") for o in objectives
    }
    tta = make(model, "tent", "mean", lr=0.05)
    before = state(tta)
    poisoned, scores = attack.craft(tta, images, labels, slice(None))
    assert_same(state(tta), before)
    best = max(range(16), key=lambda i: scores[i])
    assert torch.equal(poisoned, attack.attacks[best](tta, images, labels, slice(None)))
    tta(poisoned)  # the harm is what her own images are read as afterwards
    assert scores[best][0] == pytest.approx((tta(images).argmax(1) != labels).float().mean().item())
    attack.learn_from(tta, images, tta(images))
    second = worst_case(objectives, knowledge=("white", "grey"), **options)
    second.load(attack.state(), torch.device("cpu"))
    assert_same(second.attacks[-1].grey_box.fitted, attack.attacks[-1].grey_box.fitted)


# --- the consistency penalty ------------------------------------------------------------------------------------------


def test_the_penalty_is_the_divergence_of_gaussians_over_space(model, stream):
    images, labels = stream[0]
    tta, malicious = make(model, "tebn", "mean"), [2, 5]
    moved = DIA(Entropy(), steps=3, step_size=0.02, start="clean")(tta, images, labels, malicious)

    def inputs(batch):
        with torch.no_grad(), medbn.observe(tta.model) as observations:
            tta.model(batch)
            return {o.name: o.input[malicious].clone() for o in observations}

    clean, poisoned = inputs(images), inputs(moved)
    early = [name for name in clean if not name.startswith("layer3")]
    assert len(early) == 5
    penalties = []
    for name in early:
        m, n = (x[name].double().flatten(2) for x in (clean, poisoned))
        first, second = (
            torch.distributions.Normal(x.mean(2), (x.var(2, unbiased=False) + 1e-5).sqrt()) for x in (m, n)
        )
        penalties.append(torch.distributions.kl_divergence(first, second).sum(1).mean())

    def value(weight):
        attack = DIA(Entropy(), steps=0, start="clean", consistency=weight)
        batch = medbn.attacks._batch.Batch.of(images, labels, malicious, own=True)
        surrogate = tta.surrogate()
        if weight:
            batch = batch._replace(moments=medbn.attacks.consistency.clean_moments(tta, surrogate, batch))
        return attack.evaluate(tta, surrogate, batch, moved[malicious])[0].item()

    expected = torch.stack(penalties).mean().item()
    assert expected > 0.01
    assert value(0.0) - value(2.0) == pytest.approx(2.0 * expected, rel=1e-3)


def test_penalised_images_stay_nearer(model, stream):
    images, labels = stream[0]
    tta = make(model, "tebn", "median")
    from medbn.attacks.consistency import clean_moments, divergence

    batch = medbn.attacks._batch.Batch.of(images, labels, slice(None), own=True)
    batch = batch._replace(moments=clean_moments(tta, tta.surrogate(), batch))

    def distance(weight):
        attack = DIA(Entropy(), steps=6, step_size=0.02, start="clean", consistency=weight)
        moved = attack(tta, images, labels, slice(None))
        with torch.no_grad(), medbn.observe(tta.model) as observations:
            tta.model(moved)
            return divergence(tta, {o.name: o.input for o in observations}, batch).item()

    assert distance(100.0) < 0.5 * distance(0.0)


def test_a_penalty_needs_batchnorm_and_a_weight():
    with pytest.raises(ValueError, match="consistency"):
        DIA(Entropy(), consistency=-1.0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4 * 36, 10))
    with pytest.warns(UserWarning, match="BatchNorm"):
        tta = medbn.adapt(model, "tent")
    with pytest.raises(ValueError, match="no"):
        DIA(Entropy(), steps=1, consistency=1.0)(tta, torch.rand(4, 3, 8, 8), torch.zeros(4, dtype=torch.long), [0])
