"""Changes of the images: found by ``past``, and raised by no minority of malicious images."""

import copy
import itertools

import pytest
import torch

import medbn
from medbn.attacks import DIA
from medbn.bench.poison_cache import CachedAttack, PoisonCache
from medbn.methods import _changes as changes
from medbn.methods._memories import Memories, approach
from medbn.methods._memory_settings import Settings

from ..simulated_graphs import simulate_graphs
from ..tiers import slow
from .table import assert_same, make, state

# Few images are enough for a test that tolerates no malicious ones and many false alarms.
FEW = {"changes": "detect", "malicious": 0.0, "false_alarms": 0.9, "batch_size": 12, "min_images": 1}


def images(shift, count=100, seed=0):
    g = torch.Generator().manual_seed(1000 * seed + round(10 * shift))
    return torch.randn(count, 3, 8, 8, generator=g) * (1 + shift) + shift


def detector(model, estimator="image_median@0.5", **options):
    return make(model, "past", estimator, **{"changes": "detect", "batch_size": 100, **options})


def averages(tta):
    return {name: (layer.ema_mean.clone(), layer.ema_var.clone()) for name, layer in tta.layers.items()}


# --- the test of a batch ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7,), (5, 8), (1, 6), (1, 1), (2, 4, 5)])
def test_features_of_an_image_are_moments_and_what_variance_neighbours_share(shape):
    x = torch.randn(4, 3, *shape, generator=torch.Generator().manual_seed(0))
    halved = x.double()
    for axis, size in enumerate(shape, start=2):
        if size > 1:
            first, second = (halved[(slice(None),) * axis + (slice(i, size // 2 * 2, 2),)] for i in (0, 1))
            halved = (first + second) / 2
    axes = tuple(range(2, x.dim()))
    variance, smooth = (v.double().var(dim=axes, correction=0).clamp(min=1e-12) for v in (x, halved))
    expected = torch.cat([x.double().mean(dim=axes), variance.log(), (smooth / variance).log()], dim=1)
    torch.testing.assert_close(changes.image_features(x), expected.float(), atol=1e-5, rtol=1e-5)


def test_smooth_images_of_the_same_moments_are_a_change(model):
    tta, x = detector(model), torch.randn(300, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.avg_pool2d(x, 2).repeat_interleave(2, 2).repeat_interleave(2, 3)
    smooth = (smooth - smooth.mean((2, 3), keepdim=True)) / smooth.std((2, 3), keepdim=True)
    sharp = (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True)
    counts = []
    for batch in (sharp[:100], sharp[100:200], smooth[200:]):
        tta(batch)
        counts.append(tta.memory["declared"])
    assert counts == [1, 1, 2]


@pytest.mark.parametrize(("count", "remembered"), [(200, 200), (200, 2000), (64, 64), (37, 100)])
@pytest.mark.parametrize("chance", [1e-2, 1e-5])
def test_the_lowest_rank_is_a_quantile_of_the_beta_binomial_distribution(count, remembered, chance):
    betabinom = pytest.importorskip("scipy.stats").betabinom
    benign, others = count - -(-count // 5), remembered - -(-remembered // 5)
    first = -(-remembered // 2) - (remembered - others)
    tail = betabinom(benign, first, others - first + 1).cdf
    rank = changes.lowest_rank(count, remembered, 0.2, chance)
    assert rank == 0 or tail(rank - 1) <= chance
    assert tail(rank) > chance


@pytest.mark.parametrize(("count", "remembered"), [(200, 200), (60, 120)])
def test_the_bound_holds_and_is_tight_where_malicious_images_do_their_worst(count, remembered):
    """Simulated at the bound: the malicious images of both batches lie on opposite sides of all benign ones."""
    g, draws, chance = torch.Generator().manual_seed(0), 20_000, 0.02
    rank = changes.lowest_rank(count, remembered, 0.2, chance)
    benign, others = count - count // 5, remembered - remembered // 5
    before = torch.cat([torch.rand(draws, others, generator=g), torch.full((draws, remembered - others), -1.0)], 1)
    median = before.sort(dim=1).values[:, remembered // 2 - 1]
    batch = torch.cat([torch.rand(draws, benign, generator=g), torch.full((draws, count - benign), 2.0)], 1)
    alarms = ((batch <= median.unsqueeze(1)).sum(dim=1) < rank).double().mean().item()
    margin = 4 * (chance / draws) ** 0.5
    assert alarms <= chance + margin
    lower = ((batch <= median.unsqueeze(1)).sum(dim=1) < rank + 1).double().mean().item()
    assert lower >= chance - margin


def test_ranks_widen_with_malicious_images_and_while_the_memory_is_young():
    ranks = [changes.lowest_rank(200, n, 0.2, 1e-5) for n in (50, 200, 800, 8000)]
    assert ranks == sorted(set(ranks))
    ranks = [changes.lowest_rank(200, 800, share, 1e-5) for share in (0.4, 0.2, 0.1, 0.0)]
    assert ranks == sorted(set(ranks))
    assert changes.lowest_rank(10, 10, 0.2, 1e-5) == changes.lowest_rank(200, 200, 0.49, 1e-5) == 0


def test_no_malicious_values_raise_an_alarm_where_benign_values_lie_on_both_sides():
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    values = st.floats(-100, 100, width=32)
    several = st.lists(values, min_size=2, max_size=20)

    @hypothesis.settings(max_examples=100, deadline=None, derandomize=True)
    @hypothesis.given(several, st.lists(values, max_size=20), values, st.integers(1, 9))
    def check(benign, malicious, remembered, rank):
        both = [sum(v <= remembered for v in benign), sum(v >= remembered for v in benign)]
        features = torch.tensor([benign + malicious]).T
        table = torch.full((1, changes.STEPS + 1), rank / len(features))
        share, _ = changes.changed_share(
            features, torch.tensor([[remembered]]), torch.ones(len(features), dtype=torch.bool), table
        )
        if min(both) >= rank:
            assert share.item() == 0
        if min(both) + len(malicious) < rank and min(abs(v - remembered) for v in benign + malicious) > 0.1:
            assert share.item() == 1

    check()


@pytest.mark.slow
def test_medians_move_by_half_of_the_malicious_images_at_most():
    """(a) Where benign medians lie in the batch, (b) where its median lies among the benign images."""
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    values = st.integers(-50, 50).map(float)

    @hypothesis.settings(max_examples=200, deadline=None, derandomize=True)
    @hypothesis.given(st.lists(values, min_size=1, max_size=30), st.lists(values, max_size=29))
    def check(benign, malicious):
        hypothesis.assume(len(malicious) < len(benign))
        everything, ordered = sorted(benign + malicious), sorted(benign)
        n, m = len(everything), len(malicious)
        middle = ordered[(len(ordered) - 1) // 2]
        below, above = sum(v <= middle for v in everything), sum(v >= middle for v in everything)
        assert below >= (n - m) / 2
        assert above >= (n - m) / 2
        median = everything[(n - 1) // 2]
        assert sum(v <= median for v in ordered) >= n / 2 - m
        assert sum(v >= median for v in ordered) >= n / 2 - m

    check()


def test_unusable_images_do_not_count():
    features = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    usable = torch.arange(64) < 48
    features[48:] = torch.nan
    for remembered in (0.0, 1.0, 3.0):
        medians = torch.full((1, 5), remembered)
        tables = [torch.tensor([changes.rank_table(n, 500, 0.2, 1e-3)]) for n in (64, 48)]
        some = changes.changed_share(features, medians, usable, tables[0])
        alone = changes.changed_share(features[:48], medians, usable[:48], tables[1])
        assert [t.tolist() for t in some] == [t.tolist() for t in alone]


# --- past -------------------------------------------------------------------------------------------------------------


def test_a_change_is_declared_and_an_earlier_condition_is_known_again(model):
    tta, counts = detector(model), []
    for number, shift in enumerate([0, 0, 0, 1, 1, 0, 0, 1, 2, 1, 0]):
        tta(images(shift, seed=number))
        counts.append((tta.memory["current"], tta.memory["declared"], tta.memory["returned"]))
    currents = [current for current, *_ in counts]
    assert currents == [0, 0, 0, 1, 1, 0, 0, 1, 2, 1, 0]
    assert counts[-1][1:] == (3, 4)


@pytest.mark.parametrize(("fallback", "prior"), [(None, 0.5), (0.0, 0.0), (0.3, 0.3)])
def test_a_declared_batch_is_predicted_with_its_own_statistics_and_starts_a_memory(fallback, prior, model):
    tta = detector(model, fallback=fallback)
    name = f"image_median@{prior}" if prior else "image_median"
    tebn = make(model, "tebn", name)
    for number, shift in enumerate([0, 0, 2]):
        tta.memory["declared"] = 0
        output = tta(images(shift, seed=number))
        if number != 1:
            assert tta.memory["declared"] == 1
            with medbn.observe(tebn.model, always_estimate=True) as observations:
                torch.testing.assert_close(output, tebn(images(shift, seed=number)))
                estimated = {o.name: (o.batch_centre.clone(), o.batch_variance.clone()) for o in observations}
    for layer_name, layer in tta.layers.items():
        source = (layer.running_mean, layer.running_var)
        for new, trained, kept in zip(estimated[layer_name], source, (layer.ema_mean, layer.ema_var), strict=True):
            torch.testing.assert_close(kept, (1 - prior) * new + prior * trained)


def test_with_fallback_1_a_declared_batch_is_predicted_by_the_source_model(model):
    tta = detector(model, fallback=1.0)
    torch.testing.assert_close(tta(images(1)), make(model, "source")(images(1)))


@pytest.mark.parametrize("poison", [1e30, torch.nan])
def test_no_prediction_depends_on_others_where_no_change_is_declared(poison, model):
    tta = detector(model)
    for seed in range(3):
        tta(images(0, seed=seed))
    before, x = tta.snapshot(), images(0, seed=3)
    expected = tta(x)
    poisoned = x.clone()
    poisoned[80:] = poison
    tta.restore(before)
    assert torch.equal(tta(poisoned)[:80], expected[:80])
    assert tta.memory["declared"] == 1
    tta.restore(before)
    torch.testing.assert_close(torch.cat([tta(part) for part in x[:60].split(10)]), expected[:60])


@pytest.mark.parametrize("value", [0.5, -20.0, *slow(0.0, 1.0, 20.0)])
def test_a_minority_raises_no_alarm_with_any_images_in_a_long_stream(value, model):
    tta = detector(model)
    for number in range(40):
        x = images(0, seed=number)
        x[:20] = value if number % 4 < 2 else -value
        tta(x)
    assert (tta.memory["declared"], tta.memory["returned"]) == (1, 0)


def test_an_owned_batch_does_not_destroy_what_was_remembered(model):
    tta = detector(model)
    for seed in range(5):
        tta(images(0, seed=seed))
    tta(torch.full((100, 3, 8, 8), 0.5))
    assert tta.memory["declared"] == 2
    attacked = tta(images(0, seed=6))
    assert tta.memory["returned"] == 1
    clean = detector(model)
    for seed in range(5):
        clean(images(0, seed=seed))
    torch.testing.assert_close(attacked, clean(images(0, seed=6)))


def test_the_memory_used_least_recently_is_replaced(model):
    tta = detector(model, memories=2)
    for number, shift in enumerate([0, 1, 0, 2, 0]):
        tta(images(shift, seed=number))
    assert (tta.memory["declared"], tta.memory["returned"]) == (3, 2)
    tta(images(1, seed=9))
    assert tta.memory["declared"] == 4


def test_few_images_are_collected_and_tested_together(model):
    tta, whole = detector(model), detector(model)
    assert 50 < tta.min_images < 100
    for adapter in (tta, whole):
        for seed in range(5):
            adapter(images(0, seed=seed))
    x = images(3, count=tta.min_images)
    for part in x.split(7):
        declared = tta.memory["declared"]
        tta(part)
    whole(x)
    assert declared == 1
    assert tta.memory["declared"] == 2
    assert_same(state(tta), state(whole), exact=False)


def test_padding_and_images_that_are_not_finite_do_not_count(model):
    padded, alone = detector(model), detector(model)
    for number, shift in enumerate([0, 0, 1, 0]):
        x = images(shift, seed=number)
        more = torch.cat([x, torch.full((25, 3, 8, 8), torch.nan if number % 2 else 7.0)])
        valid = None if number % 2 else torch.arange(125) < 100
        expected = alone(x)
        torch.testing.assert_close(padded(more, valid=valid)[:100], expected)
        for name in ("declared", "returned", "remembered", "current"):
            assert padded.memory[name] == alone.memory[name], name


def test_a_batch_pulls_a_memory_by_a_bounded_amount(model):
    tta = detector(model)
    for seed in range(3):
        tta(images(0, seed=seed))
    before, medians = averages(tta), tta.memory["medians"][0][0].clone()
    spreads = tta.memory["spreads"][0][0].clone()
    x = images(0, seed=3)
    x[:48] *= 1e4  # too few to be a change, and enough to move a median far
    tta(x)
    assert tta.memory["declared"] == 1
    pulled, weight = 0, 1 / 4
    for name, (mean, var) in averages(tta).items():
        old_mean, old_var = before[name]
        moved = torch.stack([(mean - old_mean).abs() / old_var.sqrt(), (var / old_var).log().abs()])
        assert moved.max() <= weight * 0.05 + 1e-5
        pulled += (moved > weight * 0.05 - 1e-5).sum()
    assert pulled > 10
    moved = (tta.memory["medians"][0][0] - medians).abs() / (1.4826 * spreads)
    torch.testing.assert_close(moved.max(), torch.tensor(weight * 0.3), rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("share", [0.45, *slow(0.1, 0.3)])
def test_owned_batches_keep_a_memory_within_a_part_of_the_bound(share):
    owned = torch.rand(4000, generator=torch.Generator().manual_seed(0)) < share
    average, bound, places = torch.tensor(0.0), torch.tensor(0.3), []
    for own in owned:
        average = approach(average, torch.tensor(1e30 if own else 0.0), 0.02, bound)
        places.append(average)
    assert torch.stack(places)[500:].mean() <= share / (1 - share) * bound * 1.2


def test_memories_of_a_resnet50_are_small():
    channels, features = 26_560, 3 * 64
    layer = medbn.RobustBatchNorm2d(channels, estimator="image_median@0.5")
    memories = Memories({"all": layer}, Settings(0.2, None, 4, 1e-4, 0.05, 200))
    memory = memories.first()
    size = memory["averages"].nbytes + 2 * 4 * features * 4  # and medians and spreads of the features
    assert size < 2_000_000


# --- state ------------------------------------------------------------------------------------------------------------


def stream(count=6):
    return [images(shift, count=24, seed=number) for number, shift in enumerate([0, 0, 2, 2, 0, 1][:count])]


def test_states_in_memory_and_in_files_have_the_memories(model, tmp_path):
    tta, other = (make(model, "past", "image_median@0.5", **FEW) for _ in range(2))
    for x in stream(4):
        tta(x)
    assert tta.memory["declared"] == 2
    torch.save(tta.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    before = tta.snapshot()
    twin = copy.deepcopy(tta)
    for x in stream()[4:]:
        expected = tta(x)
        assert torch.equal(twin(x), expected)
        assert torch.equal(other(x), expected)
    assert_same(state(tta), state(other))
    tta.restore(before)
    for x in stream()[4:]:
        last = tta(x)
    assert torch.equal(last, expected)
    tta.reset()
    fresh = make(model, "past", "image_median@0.5", **FEW)
    for x in stream():
        assert torch.equal(tta(x), fresh(x))


def test_states_of_other_options_are_refused_and_change_nothing(model):
    tta = make(model, "past", "image_median@0.5", **FEW)
    others = [make(model, "past", "image_median@0.5", **FEW | {"memories": 3}), make(model, "past", "image_median@0.5")]
    before = state(tta)
    for other in others:
        other(stream()[0])
        with pytest.raises(ValueError, match="memor"):
            tta.restore(other.snapshot())
    assert_same(state(tta), before)


def test_a_call_that_raises_changes_nothing(model):
    tta = make(model, "past", "image_median@0.5", **FEW)
    tta(stream()[0])
    before = state(tta)
    with pytest.raises(ValueError, match="finite"):
        tta(torch.full((24, 3, 8, 8), torch.nan))
    assert_same(state(tta), before)


def test_other_training_statistics_start_the_memories_again(model):
    tta = make(model, "past", "image_median@0.5", **FEW)
    for x in stream(2):
        tta(x)
    weights = {name: value + 1 for name, value in tta.model.state_dict().items()}
    tta.model.load_state_dict(weights)
    tta(stream()[0])
    assert tta.memory["declared"] == 1


def test_a_graph_gives_the_same_bits(model, monkeypatch):
    captured = simulate_graphs(monkeypatch)
    tta, plain = (make(model, "past", "image_median@0.5", **FEW, graph=graph) for graph in (True, False))
    for _ in range(2):
        for x in itertools.chain(stream(), [stream()[0][:9]] * 2):
            assert torch.equal(tta(x), plain(x))
            assert_same(state(tta), state(plain))
        tta.reset(), plain.reset()
    assert len(captured) == 2


def serve_two_streams(model, graph, device="cpu"):
    """Serve two streams in turn with one adapter, each from its own state, both from before the first batch."""
    tta = detector(model.to(device), graph=graph)
    states = [tta.snapshot(), tta.snapshot()]
    outputs = []
    for seed in range(4):
        for number, x in enumerate((images(0.0, seed=seed), images(1.0, seed=seed))):
            tta.restore(states[number])
            outputs.append(tta(x.to(device)).cpu())
            states[number] = tta.snapshot()
            assert tta.memory["declared"] == 1
    return outputs


def test_a_graph_reads_memories_that_a_state_without_any_is_followed_by(model, monkeypatch):
    """The second call of a kind may come before anything is remembered, as where an attacker restores the state."""
    expected = serve_two_streams(model, False)
    captured = simulate_graphs(monkeypatch)
    assert all(map(torch.equal, serve_two_streams(model, True), expected))
    assert len(captured) == 1


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("graph", [True, None])
def test_a_graph_on_a_gpu_reads_them_too(graph, model):
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        expected = serve_two_streams(model, False, "cuda")
        assert all(map(torch.equal, serve_two_streams(model, graph, "cuda"), expected))
    finally:
        torch.use_deterministic_algorithms(deterministic)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("estimator", ["mean", "median", "image_median@0.5"])
def test_estimators_and_devices_have_the_choice_of_the_reference(estimator, device, model, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # convolutions on a GPU as exact as on a CPU
    tta = make(model.to(device), "past", estimator, **FEW)
    monkeypatch.setenv("MEDBN_KERNELS", "reference")
    reference = make(model.cpu(), "past", estimator, **FEW)
    for x in stream():
        monkeypatch.setenv("MEDBN_KERNELS", "reference")
        expected = reference(x)
        monkeypatch.delenv("MEDBN_KERNELS")
        torch.testing.assert_close(tta(x.to(device)).cpu(), expected, rtol=1e-3, atol=1e-3)
        assert tta.memory["declared"] == reference.memory["declared"]


# --- the attacker's view ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", ["exact", "straight_through", "smooth"])
def test_the_surrogate_of_a_declared_batch_predicts_as_the_adapter_does(gradient, model):
    tta = make(model, "past", "image_median@0.5", **FEW)
    for x in stream(2):
        tta(x)
    x = stream()[2].requires_grad_()
    logits = tta.surrogate(gradient)(x)
    (slope,) = torch.autograd.grad(logits[:12].square().sum(), x)
    assert slope[12:].any()  # through the statistics
    torch.testing.assert_close(logits.detach(), tta(x.detach()))
    assert tta.memory["declared"] == 2


def test_the_surrogate_of_another_batch_has_an_average_that_includes_it(model):
    options = {**FEW, "memories": 1}
    tta = make(model, "past", "image_median@0.5", **options)
    for x in stream(2):
        tta(x)
    x = images(0, count=24, seed=8)
    surrogate = tta.surrogate()
    logits = surrogate(x)
    weight = 24 / (24 + 24)
    sema = make(model, "sema", "image_median@0.5", momentum=weight)
    for name, (mean, var) in averages(tta).items():
        sema.layers[name].ema_mean, sema.layers[name].ema_var = mean, var
    torch.testing.assert_close(logits, sema(x))
    tta(x)
    torch.testing.assert_close(surrogate(x), logits)  # of the moment when it was made


def test_surrogates_of_two_moments_have_one_key_and_other_tensors(model):
    """So that a captured step serves a whole stream, and no poison is taken for another's."""
    tta = make(model, "past", "image_median@0.5", **FEW)
    poison = CachedAttack(DIA(steps=1), PoisonCache(), "")
    x, labels = images(0, count=24), torch.zeros(24, dtype=torch.long)
    assert tta.min_images <= 24
    tta(x)
    keys, poisons = [], []
    for _ in range(2):
        keys.append(tta.surrogate_key(tta.snapshot(), 24))
        poisons.append(poison.key(tta, x, labels, slice(2)))
        before = tta.snapshot()
        tta.memory["averages"][1] += 1
        assert poison.key(tta, x, labels, slice(2)) != poisons[-1]
        tta.restore(before)
        tta(x)
    assert keys[0] == keys[1]
    assert poisons[0] != poisons[1]
    other = make(model, "past", "mean", **FEW)
    assert other.surrogate_key(other.snapshot(), 24) != keys[0]


def test_one_graph_of_an_attack_s_step_serves_a_stream(model, monkeypatch):
    captured = simulate_graphs(monkeypatch)
    labels = torch.arange(24) % 10
    batches = [images(shift, count=24, seed=seed).sigmoid() for seed, shift in enumerate((0, 0, 1, 0, 1, 0))]
    results = []
    for graph in (False, True):
        tta = make(model, "past", "image_median@0.5", **FEW, graph=False)
        attack = DIA(steps=2, step_size=0.1, graph=graph)
        results.append([attack(tta, x, labels, slice(21, 24)) for x in batches if tta(x) is not None])
        assert tta.memory["declared"] >= 2
    assert all(map(torch.equal, *results))
    assert len(captured) == 1


def test_wrong_options_are_refused(model):
    for name, value in (
        ("changes", "auto"),
        ("malicious", 0.5),
        ("malicious", -0.1),
        ("fallback", 1.5),
        ("memories", 0),
        ("false_alarms", 0.0),
    ):
        with pytest.raises(ValueError, match=name):
            detector(model, **{name: value})
