"""The poison cache: methods share a crafted batch if, and only if, an attacker sees the same surrogate."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

import medbn
from medbn import bench, data, methods, models, policies
from medbn.bench import cell_stream
from medbn.bench.poison_cache import SIZE, CachedAttack, PoisonCache

from .stored import stored_metrics


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch):
    monkeypatch.setattr(cell_stream, "_poison_cache", PoisonCache())


@pytest.fixture
def model():
    return models.get("resnet-small", weights="shipped")


def key(adapter, attack, images=None, labels=None) -> str:
    images, labels = (torch.rand(4, 1, 16, 16), torch.arange(4)) if images is None else (images, labels)
    return CachedAttack(attack, PoisonCache(), "weights").key(adapter, images, labels, slice(3, 4))


@pytest.mark.slow
def test_methods_with_the_same_surrogate_share_the_first_batch(tmp_path, tiny):
    recipe = replace(tiny, methods=("tebn", "tent", "eta", "sar", "sema"), estimators=("mean",), batches=2)
    events = []
    bench.run(recipe, tmp_path / "x.db", on_event=lambda e: events.append(e) if e.kind == "batch" else None)
    shared = {(e.cell.method, e.batch): e.metrics["shared"] for e in events}
    assert shared[("tebn", 1)] is False
    assert all(shared[(method, 1)] for method in ("tent", "eta", "sar"))
    assert not shared[("sema", 1)]  # normalises with other statistics
    assert not any(shared[(method, 2)] for method in ("tent", "eta", "sema"))  # has learned since
    cell_stream._poison_cache.batches.clear()
    bench.run(replace(recipe, methods=("tent",)), tmp_path / "alone.db")
    ((alone, metrics),) = stored_metrics(tmp_path / "alone.db").items()
    assert stored_metrics(tmp_path / "x.db")[alone] == metrics


def test_only_first_batches_without_unrolled_steps_are_cached(tmp_path, tiny):
    unrolled = replace(tiny, methods=("tebn", "tent"), estimators=("mean",), batches=1)
    unrolled = replace(unrolled, attacks=(replace(tiny.attacks[0], unroll=1),))
    events = []
    bench.run(unrolled, tmp_path / "unrolled.db", on_event=events.append)
    assert not any(event.metrics["shared"] for event in events if event.kind == "batch")
    assert not cell_stream._poison_cache.batches
    bench.run(replace(tiny, estimators=("mean",)), tmp_path / "x.db")
    assert len(cell_stream._poison_cache.batches) == 1  # of three batches of two methods


def test_the_key_of_past_follows_the_weight_of_the_batch(tiny, model):
    images, labels, attack = torch.rand(4, 1, 16, 16), torch.arange(4), tiny.attacks[0].build(0)
    keys = [
        key(methods.adapt(model, "past", **options), attack, images, labels)
        for options in ({}, {"momentum": 0.9}, {"batch_size": 20})
    ]
    assert keys[0] == keys[1] != keys[2]  # the momentum does not matter for the first batch


def test_an_option_of_a_users_method_that_changes_normalisation_is_part_of_the_key(tiny, model):
    class Weighted(methods.Adapter):
        policy = policies.ema(0.0)

        def __init__(self, model, *, weight, **options):
            super().__init__(model, **options)
            self.weight = weight

        def commit_policy(self, images, memory):
            return policies.ema(self.weight)

    images, labels, attack = torch.rand(4, 1, 16, 16), torch.arange(4), tiny.attacks[0].build(0)
    robust = medbn.convert(model)
    adapters = [Weighted(copy.deepcopy(robust), weight=weight).begin() for weight in (0.2, 0.2, 0.8)]
    keys = [key(adapter, attack, images, labels) for adapter in adapters]
    assert keys[0] == keys[1] != keys[2]


def test_the_key_follows_what_the_attacker_knows(model):
    images, labels = next(data.load("digits").batches(20))
    tent, tebn = medbn.adapt(model, "tent", "mean"), medbn.adapt(model, "tebn", "mean")
    attack = bench.Attack("targeted").build(0)
    assert key(tent, attack, images, labels) == key(tebn, attack, images, labels)
    semi = replace(attack, knowledge="semi")
    before = key(tent, semi, images, labels)
    tent(images)
    assert key(tent, semi, images, labels) == before
    assert key(tent, attack, images, labels) != key(tebn, attack, images, labels)


def test_a_cache_drops_the_batch_that_was_used_least_recently():
    cache = PoisonCache()
    for number in range(SIZE):
        cache.put(str(number), torch.tensor(number))
    assert cache.get("0") == 0
    cache.put("new", torch.tensor(-1))
    assert cache.get("0") == 0
    assert cache.get("1") is None


def test_an_objective_with_a_state_sees_every_batch(tmp_path, tiny):
    """A batch from the cache would leave its running average behind."""
    attacks = (bench.Attack("balanced_low_entropy", steps=1),)
    events = []
    recipe = replace(tiny, methods=("tebn", "tent"), estimators=("mean",), attacks=attacks, batches=1)
    bench.run(recipe, tmp_path / "x.db", on_event=events.append)
    assert [event.metrics["shared"] for event in events if event.kind == "batch"] == [False, False]
