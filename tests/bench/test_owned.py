"""Streams of which some batches are the attacker's: whose images are whose, and that runs continue."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st

from medbn import bench, data
from medbn.attacks import owned_before
from medbn.bench import Attack, Cell, Setting, recipes
from medbn.bench.loading import load_cell, load_stream
from medbn.bench.owned import OwnedStream, count_benign
from medbn.bench.place import Place

from .stored import stored_metrics

SETTING = replace(bench.DIGITS, batch_size=20, malicious=0, owned=0.5, per_corruption=20)
OWN = Attack("notch_high_entropy", steps=1, step_size=0.05, epsilon=0.3, knowledge="grey", start="random")


def small(**changes):
    return replace(
        recipes.get("owned-batches"),
        **{"settings": (SETTING,), "methods": ("tent",), "estimators": ("median",), "attacks": (OWN,), **changes},
    )


@pytest.mark.slow
@given(st.integers(1, 60), st.floats(0.01, 0.95))
def test_every_batch_of_the_stream_is_benign_or_hers_and_none_is_both(batches, share):
    images = torch.arange(batches, dtype=torch.uint8).view(-1, 1, 1, 1)
    stream = data.from_tensors("numbers", "test", ["a"], images, torch.zeros(batches, dtype=torch.int64))
    parts, steps = OwnedStream(stream, 1, share, "cpu"), count_benign(batches, share)
    numbers = [round(255 * x.item()) for x, _ in parts.benign(0, steps)]
    hers = [round(255 * parts.own(k)[0].item()) for k in range(owned_before(steps, share))]
    assert sorted(numbers + hers) == list(range(len(numbers + hers)))
    assert len(numbers + hers) <= batches
    assert steps + 1 + owned_before(steps + 1, share) > batches
    for step, number in enumerate(numbers):  # her batches that are due come before a benign one
        assert sum(one < number for one in hers) == owned_before(step + 1, share)


def test_a_continual_stream_has_all_corruptions_in_their_order():
    stream = load_stream("digits", "continual", 5, "synthetic", 0, None, None, 7)
    assert len(stream) == 15 * 7
    for number, name in enumerate(data.corruptions.NAMES):
        part = data.load("digits", corruption=name, frost="synthetic")
        images, labels = stream.read_range(range(7 * number, 7 * number + 7))
        assert torch.equal(images, part.read_range(range(7))[0])
        assert torch.equal(labels, part.labels[:7])
    images, _ = stream.read_range(range(5, 12))  # across the border
    assert torch.equal(images[2:], data.load("digits", corruption="shot_noise").read_range(range(5))[0])


def test_chained_datasets_are_of_one_kind():
    digits = data.load("digits")
    other = data.from_tensors("x", "test", ["a"], torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2))
    with pytest.raises(ValueError, match="same classes and shape"):
        data.chain("both", [digits, other])
    assert data.chain("a", [digits, digits]).fingerprint != data.chain("a", [digits]).fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["interleaved", "replay"])
def test_a_run_that_stops_continues_with_the_same_numbers(scenario, tmp_path):
    setting = replace(SETTING, per_corruption=8, batch_size=8)
    recipe = small(scenario=scenario, settings=(setting,))
    bench.run(replace(recipe, batches=2), tmp_path / "x.db")
    bench.run(recipe, tmp_path / "x.db")
    bench.run(recipe, tmp_path / "whole.db")
    metrics = stored_metrics(tmp_path / "whole.db")
    assert stored_metrics(tmp_path / "x.db") == metrics
    for batches in metrics.values():
        assert len(batches) == 7  # of fifteen, all but one of each pair are the attacker's
        assert all(batch["benign"] == batch["images"] == 8 for batch in batches)


def test_wrong_settings_are_refused():
    for message, make in (
        ("malicious", lambda: replace(SETTING, malicious=3)),
        ("owned", lambda: replace(SETTING, owned=1.0)),
        ("per_corruption", lambda: replace(SETTING, per_corruption=0)),
        ("interleaved and replay", lambda: small(scenario="instant")),
        ("warm_up", lambda: small(warm_up=1)),
        ("own", lambda: small(attacks=(replace(OWN, objective="indiscriminate"),))),
        ("model", lambda: small(attacks=(replace(OWN, knowledge="transfer"),))),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_the_protocol_of_rttdp():
    recipe = recipes.get("owned-batches")
    (setting,) = recipe.settings
    assert (setting.batch_size, setting.severity, setting.owned, setting.per_corruption) == (200, 5, 0.5, 2000)
    assert {a.objective for a in recipe.attacks} == {"notch_high_entropy", "balanced_low_entropy"}
    for attack in recipe.attacks:
        assert (attack.steps, attack.step_size, attack.epsilon, attack.start) == (40, 0.01, 0.3, "random")
        assert attack.knowledge == "grey"
    cell = next(recipe.cells())
    assert bench.time_estimate.count_batches(cell, None) == 75
    assert bench.time_estimate.count_attacked(cell, 75) == 75
    assert bench.plan(recipe, 1).streams == 30


def test_keys_of_a_transferred_attack_follow_the_foreign_weights():
    recipe = small(attacks=(replace(OWN, objective="entropy", knowledge="transfer", model="vit-tiny"),))
    cell = next(recipe.cells())
    loaded = load_cell(cell, Place(), None)
    assert type(loaded.foreign).__name__ == "VisionTransformer"
    assert cell.key("d", "w") != cell.key("d", "w", foreign="theirs") != cell.key("d", "w", foreign="others")
    missing = replace(recipe, settings=(replace(SETTING, weights=None, clean="digits"),))
    assert any("vit-tiny" in line for line in bench.recipe_requirements(missing, "/nowhere"))


def test_new_fields_leave_keys_as_they_were():
    cell = Cell(bench.DIGITS, "fog", "tent", "median", Attack(), "instant")
    keys = {cell.key("d", "w")}
    for changed in (
        replace(cell, setting=replace(cell.setting, malicious=0, owned=0.3)),
        replace(cell, setting=replace(cell.setting, malicious=0, owned=0.5)),
        replace(cell, setting=replace(cell.setting, per_corruption=9)),
        replace(cell, setting=replace(cell.setting, by_label=True)),
        replace(cell, attack=Attack(consistency=1.0)),
        replace(cell, attack=Attack("entropy", knowledge="transfer", model="resnet26")),
        replace(cell, corruption="continual"),
    ):
        keys.add(changed.key("d", "w"))
        assert Cell.from_dict(changed.to_dict()) == changed
    assert len(keys) == 8
    old = cell.to_dict()
    for name in ("owned", "per_corruption", "by_label"):
        del old["setting"][name]
    for name in ("consistency", "model"):
        del old["attack"][name]
    assert Cell.from_dict(old) == cell
    assert isinstance(cell.setting, Setting)
