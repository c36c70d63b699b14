"""A report as a whole: sections, several recipes, and which runs of a store it shows."""

from dataclasses import replace

import pytest

import medbn
from medbn.bench import Store, recipes, results
from medbn.report import FORMATS, build
from medbn.report.document import Facts, Gallery, Table, Text
from tests.report import stores
from tests.report.stores import fill, parts


def test_what_was_run_is_there_with_its_command(report):
    document, _ = report("no-attack", data=["cifar10-c"], limit=2)
    (facts,) = parts(document, Facts)
    items = dict(facts.items)
    assert items["recipe"] == "no-attack"
    assert items["device"] == "a machine"
    assert [text.text for text in parts(document, Text) if text.code] == ["medbn run no-attack"]
    assert not parts(document, Gallery)


def test_runs_with_other_options_or_newer_data_are_not_mixed(tmp_path):
    recipe = recipes.get("indiscriminate-instant").narrow(data=["cifar10-c"], methods=["tent"], limit=2)
    path = tmp_path / "x.db"

    def error() -> float:
        with Store(path) as store:
            return next(row for row in parts(build(store), Table)[0].rows if row[1] == "BatchNorm")[3].value

    fill(path, recipe)
    before = error()
    fill(path, replace(recipe, options={"tent": {"lr": 0.5}}), shift=20, prefix="b")
    assert error() == pytest.approx(before + 100 * 20 / 160)
    fill(path, recipe, again=True)
    assert error() == pytest.approx(before)
    fill(path, replace(recipe, corruptions=recipe.corruptions[:1]), shift=40, prefix="c")  # with newer images
    with Store(path) as store:
        streams = {(r.cell.corruption, r.key) for r in results.read(store)[0].cells if r.cell.estimator == "mean"}
    assert len(streams) == 2
    assert any(key.startswith("c-") for _, key in streams)


def test_several_recipes_and_a_choice_of_them(tmp_path):
    for name in ("epsilon", "knowledge"):
        fill(tmp_path / "x.db", recipes.get(name).narrow(limit=1))
    with Store(tmp_path / "x.db") as store:
        both, one = build(store), build(store, ["epsilon"])
        with pytest.raises(ValueError, match=r"epsilom.*'epsilon'"):
            build(store, ["epsilom"])
    assert {section.title.partition(":")[0] for section in both.sections} == {"Summary", "epsilon", "knowledge"}
    assert not any("knowledge" in section.title for section in one.sections)
    contents = FORMATS.get("html").write(both).partition("<nav")[2].partition("</nav>")[0]
    assert contents.count("<a ") == 3
    assert '<a href="#epsilon-results">epsilon</a>' in contents
    assert "What was run</a>" in FORMATS.get("html").write(one)


def test_an_empty_store_has_no_report(tmp_path):
    with Store(tmp_path / "x.db") as store, pytest.raises(ValueError, match="no results"):
        build(store)


def test_estimators_of_users_have_their_own_labels(tmp_path, monkeypatch):
    monkeypatch.setitem(stores.ERRORS, "mine", 70)
    medbn.estimators.register("mine", label="Mine", about="the first image")(lambda x, valid: (x[0], x[0]))
    recipe = recipes.get("epsilon").narrow(limit=1)
    try:
        fill(tmp_path / "x.db", replace(recipe, estimators=("mean", "mine")))
        with Store(tmp_path / "x.db") as store:
            document = build(store)
    finally:
        medbn.estimators.unregister("mine")
    assert list(document.series) == ["BatchNorm", "Mine"]
    assert document.series["Mine"] == "the first image"
    with Store(tmp_path / "x.db") as store:  # where it is not registered, a report calls it by its name
        assert list(build(store).series) == ["BatchNorm", "mine"]
