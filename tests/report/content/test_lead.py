"""The first sentence of a report."""

from dataclasses import replace

import pytest

from medbn.bench import Recipe, Store, recipes
from medbn.report import FORMATS, build
from tests.report.stores import fill, keep_batches, set_wrong


@pytest.fixture
def recipe() -> Recipe:
    return recipes.get("indiscriminate-instant").narrow(data=["cifar10-c"], methods=["tebn"], limit=1)


def test_an_unfinished_run_is_compared_on_the_same_batches(tmp_path, recipe):
    fill(tmp_path / "x.db", recipe)
    with Store(tmp_path / "x.db") as store:
        for stored in store.cells():  # the second batch is much harder
            set_wrong(store, stored.key, "160", batch=1)
        assert "from 10 to 80 % with BatchNorm" in build(store).lead
        keep_batches(store, "image_median", 1)
        lead = build(store).lead
        assert "not complete" in lead
        assert "from 10 to 60 % with BatchNorm" in lead
        assert "from 10 to 20 % with image_median" in lead
        assert "one batch" in lead
        store.connection.execute("DELETE FROM batches WHERE key = ?", (store.cells()[0].key,))
        assert "not complete" in build(store).lead
        assert "BatchNorm" not in build(store).lead


def test_estimators_without_a_common_batch_are_not_compared(tmp_path):
    recipe = recipes.get("indiscriminate-instant").narrow(data=["cifar10-c"], methods=["tebn"], limit=2)
    fill(tmp_path / "x.db", recipe)
    with Store(tmp_path / "x.db") as store:
        for stored in store.cells():
            if (stored.cell["corruption"] == recipe.corruptions[0]) == (stored.cell["estimator"] == "median"):
                store.connection.execute("DELETE FROM batches WHERE key = ?", (stored.key,))
        lead = build(store).lead
    assert "BatchNorm" not in lead
    assert lead.endswith(recipe.about)


def test_a_run_that_ended_is_complete(tmp_path, recipe):
    fill(tmp_path / "x.db", replace(recipe, batches=9))  # of streams that are shorter
    with Store(tmp_path / "x.db") as store:
        assert "not complete" in build(store).lead
        store.end_run(store.runs()[-1].id)
        assert "not complete" not in build(store).lead


def test_a_targeted_attack_is_summed_up_by_its_success(report):
    document, _ = report("targeted-instant", data=["cifar10-c"], methods=["tebn"], limit=1)
    assert "100 % with BatchNorm, 50 % with MedBN" in document.lead


def test_a_smoke_run_says_first_that_it_proves_nothing(tmp_path, recipe):
    fill(tmp_path / "x.db", recipe.smoke())
    fill(tmp_path / "y.db", recipe)
    with Store(tmp_path / "x.db") as store:
        smoke = build(store)
    with Store(tmp_path / "y.db") as store:
        assert "smoke" not in build(store).lead
    assert "prove nothing" in smoke.lead.split("\n\n")[0]
    assert all("prove nothing" in FORMATS.get(name).write(smoke) for name in ("html", "markdown", "latex", "json"))
    fill(tmp_path / "y.db", recipe.smoke())
    with Store(tmp_path / "y.db") as store:
        assert "(indiscriminate-instant (smoke))" in build(store).lead
