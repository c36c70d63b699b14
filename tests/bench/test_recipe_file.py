"""Recipes in TOML files: what they say, and errors that name the file and the mistake."""

from __future__ import annotations

import sys

import pytest

from medbn import bench
from medbn.bench import recipes, user_modules
from medbn.cli import main

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


def test_a_file_gives_a_recipe_with_its_name(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(TOML)
    recipe = recipes.get(str(file))
    assert recipe.name == "mine"
    (cell,) = recipe.cells()
    assert (cell.setting.batch_size, cell.attack.steps, cell.options) == (40, 1, {"lr": 0.01})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("batches = 1", "batches = ", "TOML"),
        ("methods", "metods", "methods"),
        ("steps", "stepz", "steps"),
        ('["tent"]', '"tent"', "methods.*list"),
        ('data = "digits"', "", "data"),
        ("[[attacks]]", "[[attack]]", "attacks"),
        (TOML, "settings = 3", "tables"),
        ("lr =", "rl =", "rl"),
        ("batches = 1", "batches = 1.5", "batches.*whole"),
        ("batches = 1", "batches = true", "batches.*whole"),
        ("malicious = 8", "malicious = 4.5", "malicious.*whole"),
        ("[options.tent]\nlr = 0.01", "[options]\ntent = 3", "options.*tables"),
        ("batch_size = 40", 'batch_size = "40"', "batch_size.*whole"),
    ],
)
def test_a_mistake_is_named_with_its_file(old, new, message, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(TOML.replace(old, new))
    with pytest.raises(ValueError, match=message) as error:
        recipes.get(str(file))
    assert "mine.toml" in str(error.value)


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"nothing\.toml"):
        recipes.get("nothing.toml")


NETS = """
from medbn import models

def build(classes, channels):
    return models.get("resnet-small", classes=classes, channels=channels)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return a function that writes a recipe file for a model; nothing that it imports stays."""
    monkeypatch.setattr(user_modules, "_files", {})
    monkeypatch.setattr(user_modules, "_imported", [])

    def write(model: str) -> str:
        file = tmp_path / "mine.toml"
        file.write_text(TOML.replace('"resnet-small"', f'"{model}"').replace('weights = "shipped"', ""))
        return str(file)

    yield write
    for name in ("own_nets", "own_package"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("model", ["os:abort", "json.tool:main", "../x:f", ".x:f", "nowhere:f"])
def test_a_recipe_file_calls_no_function_that_the_user_has_not_named(own, model):
    with pytest.raises(ValueError, match="--import"):
        recipes.get(own(model))


def test_nothing_is_imported_from_the_current_folder(own, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "own_nets.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="--import"):
        recipes.get(own("own_nets:build"))
    assert main(["run", own("own_nets:build"), "--import", "own_nets"]) == 2


@pytest.mark.parametrize(
    ("name", "jobs"),
    [("own_nets.py", 1), ("own_nets/__init__.py", 1), pytest.param("own_nets.py", 2, marks=pytest.mark.slow)],
)
def test_a_file_beside_the_recipe_is_used(own, name, jobs, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(NETS)
    recipe = recipes.get(own("own_nets:build"))
    assert str(tmp_path) not in sys.path
    place = bench.Place()
    executor = bench.InProcess(place) if jobs == 1 else bench.Processes(place, jobs)
    assert bench.run(recipe, tmp_path / "x.db", executor=executor)


def test_a_named_module_is_used(own, tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "own_package.py").write_text(NETS)
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(ValueError, match="--import own_package"):
        recipes.get(own("own_package:build"))
    assert recipes.get(own("own_package:build"), imports=["own_package"]).settings[0].model == "own_package:build"


def test_a_file_beside_the_recipe_does_not_hide_an_installed_module(own, tmp_path):
    (tmp_path / "json.py").write_text(NETS)
    with pytest.raises(ValueError, match=r"json\.py.*rename"):
        recipes.get(own("json:build"))
