"""Recipes in TOML files: what they say, and errors that name the file and the mistake."""

from __future__ import annotations

import pytest

from medbn.bench import recipes

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
        ("batches = 1", "batches = 1.5", "batches.*int"),
        ("batches = 1", "batches = true", "batches.*int"),
        ("malicious = 8", "malicious = 4.5", "malicious.*int"),
        ("[options.tent]\nlr = 0.01", "[options]\ntent = 3", "options.*tables"),
        ("batch_size = 40", 'batch_size = "40"', "batch_size.*int"),
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
