"""The table "every method people use, attacked": its recipes, those whose numbers matter most first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from _pieces import select_attacks, shuffled_recipe
from medbn import bench
from medbn.bench import Recipe

REACHED = ("cotta", "deyo", "roid", "alpha_bn")
"""Methods whose images depend on each other through statistics of their batch.

With RoTTA and NOTE they do not within a pass, and LAME estimates none: one gradient says all."""
COME = {name: {"loss": "come"} for name in ("tent", "eata", "sar", "deyo")}
NEWER = bench.recipes.get("every-method").methods
FIVE = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")
"""One corruption of each kind, and contrast, for streams of digits without attack."""
BESIDE = ("source", "tebn", "tent", "eata", "sar")
"""Methods of which CIFAR-10-C has stored numbers; digits have none."""


def on_cifar10() -> list[Recipe]:
    """Return the recipes on CIFAR-10-C: 2,000 images of each corruption, 30 targets and 15 indiscriminate batches."""
    without = shuffled_recipe("every-method-no-attack", batches=10)
    continual = shuffled_recipe("every-method-continual")
    attacked = shuffled_recipe("every-method", batches=1)
    return [
        without,
        continual,
        *(_with_come(recipe) for recipe in (without, continual)),
        *_attacked(attacked),
        shuffled_recipe("every-method-sorted"),
        *_attacked(_with_come(attacked)),
    ]


def on_digits() -> list[Recipe]:
    """Return the same on the embedded digits, where ten steps are enough and CoTTA averages four augmentations."""

    def small(name: str, **changes: Any) -> Recipe:
        recipe = bench.recipes.get(name)
        (setting,) = recipe.settings
        setting = replace(
            bench.DIGITS,
            batch_size=100,
            malicious=20 if setting.malicious else 0,
            by_label=setting.by_label,
            per_corruption=200 if name == "every-method-continual" else None,
            model="vit-tiny" if setting.model == "vit-small" else bench.DIGITS.model,
        )
        quick = tuple(replace(attack, steps=10, step_size=0.1) for attack in recipe.attacks)
        changes = {"seeds": (1,), "options": {"cotta": {"augmentations": 4}}, **changes}
        return replace(recipe, settings=(setting,), attacks=quick, **changes)

    without = small("every-method-no-attack", corruptions=FIVE, methods=(*BESIDE, *NEWER))
    continual = small("every-method-continual")
    transformer = small("without-batchnorm", batches=1)
    return [
        without,
        continual,
        *_attacked(small("every-method", methods=("tebn", *NEWER), batches=1), ("tebn", *REACHED)),
        small("every-method-sorted", corruptions=FIVE),
        replace(transformer, name="without-batchnorm-no-attack", attacks=(), batches=None, corruptions=FIVE),
        transformer,
        *(_with_come(recipe) for recipe in (without, continual)),
    ]


def _attacked(recipe: Recipe, reached: tuple[str, ...] = REACHED) -> list[Recipe]:
    """Return an attacked recipe in parts: exact gradients first; two seeds of targets, one of other batches.

    Each objective has a name of its own, and its last part all gradients: a report shows what the last run of a name
    could have had.
    """
    each = [
        replace(
            select_attacks(recipe, objective=objective),
            name=f"{recipe.name}-{objective}",
            about=f"{recipe.about.rstrip('.')}; the {objective} attack.",
            seeds=seeds,
        )
        for objective, seeds in (("targeted", (1, 2)), ("indiscriminate", (1,)))
    ]
    others = tuple(name for name in recipe.methods if name in (*reached, *COME))
    exact = [select_attacks(part, gradients=("exact",)) for part in each]
    return [*exact, *(replace(part, methods=others) for part in each)]


def _with_come(recipe: Recipe) -> Recipe:
    """Return a recipe of the methods that minimise an entropy, with COME's in its place."""
    about = f"{recipe.about.rstrip('.')}, where methods minimise COME's entropy."
    name = recipe.name.replace("every-method", "come")
    return replace(recipe, name=name, about=about, methods=tuple(COME), options=COME)
