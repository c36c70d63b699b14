"""Shards: every cell is in one, cells that share a poisoned batch stay together, and all shards have all estimators."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from medbn import bench
from medbn.bench.executors import group_by_poison
from medbn.bench.shard import identify


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 16, 100])
def test_every_cell_is_in_one_shard_with_those_that_share_its_poison(count):
    recipe = bench.recipes.get("worst-case")
    cells = list(replace(recipe, settings=recipe.settings[:1], corruptions=recipe.corruptions[:3]).cells())
    shards = [bench.Shard(number, count).select(cells) for number in range(1, count + 1)]
    assert Counter(cell for shard in shards for cell in shard) == Counter(map(identify, cells))
    groups = group_by_poison([(cell, None) for cell in cells])
    for group in groups:
        names = {identify(cell) for cell, _ in group}
        assert sum(bool(names & shard) for shard in shards) == 1
    sizes = [sum(identify(group[0][0]) in shard for group in groups) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


def test_every_shard_has_every_estimator():
    """Estimators differ in cost, and each is every third group here."""
    recipe = bench.recipes.get("targeted-instant")
    cells = list(recipe.cells())
    for number in (1, 2, 3):
        chosen = bench.Shard(number, 3).select(cells)
        counts = Counter(cell.estimator for cell in cells if identify(cell) in chosen)
        assert set(counts) == set(recipe.estimators)
        assert max(counts.values()) <= 1.2 * min(counts.values())


def test_what_several_recipes_share_is_in_one_shard(tiny):
    cells = [*tiny.cells(), *replace(tiny, name="other").cells()]
    shards = [bench.Shard(number, 2).select(cells) for number in (1, 2)]
    assert sum(map(len, shards)) == len(list(tiny.cells()))
    assert shards[0] == bench.Shard(1, 2).select(tiny.cells())


@pytest.mark.parametrize(("number", "count"), [(0, 3), (4, 3), (-1, 2), (1, 0)])
def test_a_shard_that_does_not_exist_is_refused(number, count):
    with pytest.raises(ValueError, match="shard"):
        bench.Shard(number, count)
