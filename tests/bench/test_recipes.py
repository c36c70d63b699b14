"""Recipes: the paper's settings, narrowing, smoke forms that run, TOML files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from medbn import bench, report
from medbn.bench import Attack, Setting, published, recipes
from medbn.bench.time_estimate import estimate_seconds, format_duration, shortest_time
from medbn.data import corruptions


def test_every_classification_table_of_the_paper_has_a_recipe():
    shown = {name for recipe in recipes.available() for name in recipes.get(recipe).published}
    only_cifar10 = {"malicious-targeted-cifar10", "batch-size-targeted-cifar10"}  # tables 5 and 6: parts of 9 and 11
    assert shown | only_cifar10 == set(published.tables())


@pytest.mark.parametrize("name", recipes.available())
def test_recipes_are_those_of_their_published_tables(name):
    recipe = recipes.get(name)
    assert recipe.name == name
    assert recipe.about.endswith(".")
    cells = list(recipe.cells())
    assert len(cells) == len(set(map(repr, cells)))
    for published_name in recipe.published:
        for row in published.get(published_name).rows:
            if row.estimator not in recipe.estimators or row.objective == "none":
                continue
            wanted = row.settings
            found = [
                cell
                for cell in cells
                if cell.setting.dataset == row.dataset
                and (cell.method, cell.estimator) == (row.method, row.estimator)
                and cell.attack.objective == row.objective
                and cell.setting.batch_size == wanted.get("batch_size")
                and cell.setting.malicious == wanted.get("malicious", cell.setting.malicious)
                and cell.attack.steps == wanted["steps"]
                and cell.attack.step_size == pytest.approx(wanted["step_size"])
                and (row.corruption in (None, cell.corruption))
            ]
            assert found, row


def test_the_protocol_of_the_paper():
    recipe = recipes.get("targeted-instant")
    cell = next(recipe.cells())
    assert (cell.setting.batch_size, cell.setting.malicious, cell.setting.severity) == (200, 40, 5)
    attack = cell.attack.build(0)
    assert (attack.steps, attack.step_size, attack.epsilon, attack.knowledge) == (100, 1 / 255, 1.0, "white")
    assert recipe.corruptions == corruptions.NAMES
    assert "eta" in recipe.methods
    assert "eata" in recipes.get("cumulative").methods
    assert recipes.get("cumulative").scenario == "cumulative"


@pytest.mark.parametrize("name", recipes.available())
def test_smoke_forms_run_and_report(name, tmp_path):
    recipe = recipes.get(name)
    smoke = recipe.smoke()
    assert set(smoke.methods) == set(recipe.methods)
    assert set(smoke.estimators) == set(recipe.estimators)
    assert smoke.scenario == recipe.scenario
    assert {a.objective for a in smoke.attacks} == {a.objective for a in recipe.attacks}
    bench.run(smoke, tmp_path / "smoke.db")
    with bench.Store(tmp_path / "smoke.db") as store:
        cells = store.cells()
        assert len(cells) == len(list(smoke.cells()))
        for stored in cells:
            for batch in stored.batches:
                assert 0 <= batch.get("wrong", batch.get("wrong_clean")) <= batch["images"]
        page = report.FORMATS.get("html").write(report.build(store))
    assert smoke.name in page
    assert len(page) < 3_000_000


def test_a_mean_is_attacked_once_and_the_source_model_measured_once():
    cells = list(recipes.get("worst-case").cells())
    assert {c.attack.gradient for c in cells if c.estimator == "mean"} == {"exact"}
    assert {c.attack.gradient for c in cells if c.estimator == "median"} == {"exact", "straight_through", "smooth"}
    sources = [c for c in recipes.get("no-attack").cells() if c.method == "source" and c.corruption == "fog"]
    assert len({(c.setting, c.estimator) for c in sources}) == 3  # three datasets


def test_narrowing(tiny):
    recipe = recipes.get("targeted-instant").narrow(
        data=["cifar10-c"], methods=["tebn"], estimators=["median"], limit=2, batches=4, seeds=(1, 2)
    )
    cells = list(recipe.cells())
    assert len(cells) == 2 * 2
    assert {cell.corruption for cell in cells} == set(corruptions.NAMES[:2])
    assert {cell.seed for cell in cells} == {1, 2}
    assert recipe.batches == 4
    assert recipe.narrow(weights="w.safetensors").settings[0].weights == "w.safetensors"
    for wrong, message in [
        ({"data": ["cifar11"]}, "Available: cifar10-c"),
        ({"methods": ["tint"]}, "Did you mean 'tent'"),
        ({"estimators": ["medium"]}, "Did you mean 'median'"),
        ({"corruptions": ["frog"]}, "Did you mean 'fog'"),
        ({"batches": 0}, "at least 1"),
        ({"limit": 0}, "at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            recipe.narrow(**wrong)
    with pytest.raises(ValueError, match="one model only"):
        recipes.get("targeted-instant").narrow(weights="x")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Attack("goal"), "unknown objective"),
        (lambda: Attack(gradient="exakt"), "Did you mean 'exact'"),
        (lambda: Attack(steps=-1), "steps"),
        (lambda: Setting("digits", "resnet-small", malicious=200), "fewer than the batch"),
        (lambda: replace(recipes.get("demo"), scenario="instantly"), "Did you mean 'instant'"),
        (lambda: replace(recipes.get("demo"), methods=()), "has no methods"),
        (lambda: replace(recipes.get("demo"), seeds=(0, -1)), "from 0 on, got -1"),
    ],
)
def test_wrong_descriptions(build, message):
    with pytest.raises(ValueError, match=message):
        build()


TOML = """
data = "digits"
model = "resnet-small"
weights = "shipped"
batch_size = 40
malicious = 8
methods = ["tent"]
estimators = ["median"]
corruptions = ["fog"]
batches = 1
frost = "synthetic"

[[attacks]]
objective = "targeted"
steps = 1

[options.tent]
lr = 0.01
"""


def test_toml(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(TOML)
    recipe = recipes.get(str(file))
    assert recipe.name == "mine"
    (cell,) = recipe.cells()
    assert (cell.setting.batch_size, cell.attack.steps, cell.options) == (40, 1, {"lr": 0.01})
    bench.run(recipe, tmp_path / "x.db")
    with bench.Store(tmp_path / "x.db") as store:
        assert store.cells()[0].cell["options"] == {"lr": 0.01}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TOML[:40] + '"', "not valid TOML"),
        (TOML.replace("methods", "metods"), "Did you mean 'methods'"),
        (TOML.replace("steps", "stepz"), "Did you mean 'steps'"),
        (TOML.replace('["tent"]', '"tent"'), "methods must be a list"),
        (TOML.replace('data = "digits"', ""), "data must be given"),
        (TOML.replace("[[attacks]]", "[[attack]]"), "Did you mean 'attacks'"),
        ("settings = 3", "must be tables"),
        (TOML.replace("lr =", "rl ="), "unknown option of tent"),
        (TOML.replace("batches = 1", "batches = 1.5"), "batches must be int"),
        (TOML.replace("batches = 1", "batches = true"), "batches must be int"),
        (TOML.replace("malicious = 8", "malicious = 4.5"), "malicious must be int"),
        (TOML.replace("batches = 1", 'axis = "foo"'), "unknown axis"),
        (TOML.replace("batches = 1", 'published = ["nope"]'), "unknown published table"),
        (TOML.replace("batches = 1", 'predict = "later"'), "unknown predict"),
        (TOML.replace("batches = 1", 'preset = "mnist"'), "unknown preset"),
        (TOML.replace("batches = 1", "seeds = [1.5]"), "seeds must be a list of int"),
        (TOML.replace("[options.tent]\nlr = 0.01", "").replace("batches = 1", "options = 3"), "options must be tables"),
        (TOML.replace("batch_size = 40", 'batch_size = "40"'), "batch_size must be int"),
    ],
)
def test_wrong_toml_says_where_and_what(text, message, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        recipes.get(str(file))
    assert "mine.toml" in str(error.value)


def test_methods_are_lower_case_and_named_once(tiny):
    assert replace(tiny, methods=("TENT", "tent", "TeBN")).methods == ("tent", "tebn")


def test_a_toml_file_that_is_not_there():
    with pytest.raises(FileNotFoundError, match="no recipe file"):
        recipes.get("nothing.toml")


def test_estimates_grow_with_the_work(tiny):
    base = estimate_seconds(tiny, 1e9)
    assert estimate_seconds(replace(tiny, batches=1), 1e9) < base
    assert estimate_seconds(replace(tiny, attacks=(replace(tiny.attacks[0], steps=20),)), 1e9) > 3 * base
    assert estimate_seconds(recipes.get("targeted-instant"), 1e12) > 1000 * base / 1000
    assert format_duration(100) == "2 min"


def test_a_busy_moment_is_not_what_is_measured(monkeypatch):
    """Tenths of a second in which another program has the cores."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def work():
        now[0] += 0.006 if now[0] < 0.3 else 0.001

    assert shortest_time(work) == pytest.approx(0.001)
    assert now[0] < 0.6
