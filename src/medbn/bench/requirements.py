"""What a recipe needs on this machine, and for what is missing the command that gets it."""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .. import data, models
from ..attacks import objectives
from ..methods import get as get_method
from .cell import Setting
from .recipe import Recipe


class MissingError(FileNotFoundError):
    """Data or weights are missing; the message says which, and the commands that get them."""


def check_requirements(recipe: Recipe, root: str | Path | None = None) -> None:
    """Raise one MissingError that names everything that the recipe needs and that is missing."""
    check_tasks(recipe)
    missing = recipe_requirements(recipe, root)
    if missing:
        narrow = " Or narrow the recipe with --data." if len({s.data for s in recipe.settings}) > 1 else ""
        raise MissingError(f"recipe {recipe.name!r} needs: {'; '.join(missing)}.{narrow}")


def check_tasks(recipe: Recipe) -> None:
    """Raise a ValueError unless the attacks of a recipe are for the kind of labels that its datasets have."""
    for setting in recipe.settings:
        if _is_folder(setting.data) and not Path(setting.data).is_dir():
            continue  # that it is missing is said elsewhere
        task = data.task_of(setting.data)
        wrong = [attack.objective for attack in recipe.attacks if attack.dense != (task == "segmentation")]
        if wrong:
            fitting = [n for n in objectives.available() if objectives.get(n).dense == (task == "segmentation")]
            raise ValueError(
                f"{setting.data} is a dataset for {task}, and the objective {wrong[0]!r} is not; there are"
                f" {', '.join(fitting)}."
            )
        if setting.size is not None and not takes_size(setting.data):
            raise ValueError(f"the images of {setting.data} cannot be read at another size; leave size out.")


def takes_size(name: str) -> bool:
    """Return whether a dataset is for segmentation, and its images can be read at any height and width."""
    if data.task_of(name) != "segmentation":
        return False
    return _is_folder(name) or "size" in inspect.signature(data.get(name).open).parameters


def recipe_requirements(recipe: Recipe, root: str | Path | None = None) -> list[str]:
    """Return what the recipe needs and is missing, each with the command that gets it."""
    lines = [line for setting in recipe.settings for line in missing_requirements(setting, recipe.methods, root)]
    foreign = dict.fromkeys(attack.model for attack in recipe.attacks if attack.model is not None)
    for setting in recipe.settings:
        for model in foreign:
            lines += missing_requirements(foreign_setting(setting, model), (), root)
    return list(dict.fromkeys(lines))


def foreign_setting(setting: Setting, model: str) -> Setting:
    """Return the setting with an attacker's own model: with its shipped weights or those that training writes."""
    return replace(setting, model=model, weights="shipped" if setting.weights == "shipped" else None)


def missing_requirements(setting: Setting, methods: Sequence[str], root: str | Path | None = None) -> list[str]:
    """Return what a setting needs and is missing, each with the command that gets it.

    Args:
        setting: the data and the model.
        methods: the methods that will run; some need clean images.
        root: the data folder; None for the default of ``medbn.data``.
    """
    lines = []
    need_clean = [method for method in methods if get_method(method).needs_source_images]
    names = [setting.data] + ([setting.clean] if need_clean and setting.clean else [])
    for name in names:
        if _is_folder(name):
            if not Path(name).is_dir():
                lines.append(f"the folder {name}")
        elif not data.get(name).is_present(root):
            lines.append(f"{name} (get it: {data.get(name).how_to_get()})")
    if need_clean and setting.clean is None:
        lines.append(
            f"clean images for {' and '.join(get_method(method).label for method in need_clean)} on {setting.data}"
            f" (give a folder with --clean, or leave {' and '.join(need_clean)} out)"
        )
    weights = weights_path(setting, root)
    if weights not in (None, "shipped", "default") and not Path(weights).is_file():
        lines.append(f"weights {weights}, but there is no such file ({_weights_hint(setting, Path(weights))})")
    return list(dict.fromkeys(lines))


def weights_path(setting: Setting, root: str | Path | None = None) -> str | None:
    """Return the weights of a setting: as given, or the file that ``medbn train`` writes for it.

    None for a user's own model function without weights: it returns a model that has them.
    """
    if setting.weights is not None or is_user_model(setting.model):
        return setting.weights
    name = f"{setting.model.replace(':', '-')}-{Path(setting.clean or setting.data).name}.safetensors"
    return str(data.find_root(root) / "models" / name)


def is_user_model(model: str) -> bool:
    """Return whether a model's name is ``MODULE:FUNCTION``, a function of the user's own."""
    return ":" in model and model.split(":")[0] not in models.LIBRARIES


def _is_folder(name: str) -> bool:
    return "/" in name or os.sep in name


def _weights_hint(setting: Setting, path: Path) -> str:
    """Return how to get the weights of a setting."""
    source = None if _is_folder(setting.data) else data.get(setting.data)
    clean = setting.clean or (source.clean if source and source.corrupted else setting.data)
    named = setting.weights is not None
    fetch = "" if path.stem not in models.WEIGHTS else f"get it: medbn models fetch {path.stem}; or "
    give = "name another file" if named else "give a file with --weights"
    if setting.model not in models.available() or clean is None:
        return fetch + give
    out = path.with_suffix(".safetensors")  # the only format that medbn train writes
    command = shlex.join(["medbn", "train", setting.model, "--data", clean, "--out", str(out)])
    if data.task_of(clean) == "segmentation":
        command += ", with --size and --backbone as docs/data.md recommends"
    use = f", and then name {out}" if out != path else ""
    return f"{fetch}make one: {command}{use}; or {give}"
