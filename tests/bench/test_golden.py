"""A tiny run whose numbers are written down, so that a change of results is noticed.

Bits are compared only between two runs on the same machine. Between machines, rounding differs, and an attack amplifies
it. So every number has the tolerance of its own conditioning, measured in two ways on a CPU:

- *Rounding* was imitated by parameters perturbed by 1e-6 (four seeds), by the reference kernels, by the AVX2 kernels
  and by two threads. Straight-through attacks hardly react: below 0.4 % of the loss, most not at all. Attacks through
  the exact gradient of the median are chaotic: up to 9 %. No prediction without attack changed.
- *Mistakes* were made on purpose. Their smallest effects on the loss of a straight-through attack: a lower median over
  images instead of the averaged one 0.3 %; the upper median of values 1.1 %; one attack step fewer 1.2 %; predictions
  before the update 2.0 %; MADs without the factor 1.4826 5.8 %. A momentum of 0.15 instead of 0.2 changes 3 to 5
  predictions without attack.

Each tolerance is above the rounding and, for the straight-through attacks, below the mistakes.
"""

from __future__ import annotations

import pytest

from medbn import bench
from medbn.bench import recipe_file

from .stored import stored_metrics

RECIPE = """
data = "digits"
model = "resnet-small"
weights = "shipped"
clean = "digits"
frost = "synthetic"
methods = ["tebn", "sotta"]
estimators = ["mean", "median", "image_median"]
corruptions = ["snow"]
batches = 1
[[attacks]]
objective = "indiscriminate"
steps = 15
step_size = 0.02
[[attacks]]
objective = "indiscriminate"
gradient = "straight_through"
steps = 15
step_size = 0.02
[options.sotta]
statistics = "batch"
"""
# Wrong benign predictions of 160 without attack; the loss under attack, and its relative tolerance.
GOLDEN = {
    ("tebn", "mean", "exact"): (10, 146.74, 0.015),
    ("tebn", "median", "exact"): (10, 58.58, 0.15),  # chaotic; still far from straight-through
    ("tebn", "median", "straight_through"): (10, 104.51, 0.003),
    ("tebn", "image_median", "exact"): (9, 44.13, 0.03),
    ("tebn", "image_median", "straight_through"): (9, 48.87, 0.0015),
    ("sotta", "mean", "exact"): (10, 75.59, 0.003),
    ("sotta", "median", "exact"): (12, 74.88, 0.025),
    ("sotta", "median", "straight_through"): (12, 71.12, 0.007),
    ("sotta", "image_median", "exact"): (9, 43.32, 0.03),
    ("sotta", "image_median", "straight_through"): (9, 48.70, 0.0015),
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("golden") / "golden.toml"
    path.write_text(RECIPE)
    return recipe_file.read(path)


def run(recipe, path) -> dict[tuple[str, str, str], dict[str, object]]:
    """Run a recipe, and return the metrics of its batches without times."""
    bench.run(recipe, path)
    with bench.Store(path) as store:
        cells = {stored.key: bench.Cell.from_dict(stored.cell) for stored in store.cells()}
    return {
        (cells[key].method, cells[key].estimator, cells[key].attack.gradient): batch
        for key, (batch,) in stored_metrics(path).items()
    }


@pytest.mark.slow
def test_numbers_are_those_that_were_written_down_and_repeat_to_the_bit(recipe, tmp_path):
    metrics = run(recipe, tmp_path / "first.db")
    assert metrics.keys() == GOLDEN.keys()
    different = {
        key: (metrics[key]["wrong_without"], metrics[key]["loss"], "expected", *expected)
        for key, expected in GOLDEN.items()
        if metrics[key]["wrong_without"] != expected[0]
        or metrics[key]["loss"] != pytest.approx(expected[1], rel=expected[2])
    }
    assert not different
    again = run(recipe.narrow(methods=["sotta"]), tmp_path / "second.db")
    assert again == {key: value for key, value in metrics.items() if key[0] == "sotta"}
