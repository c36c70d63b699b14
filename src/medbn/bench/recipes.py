"""The named experiments: every classification table of the paper, and ours.

A recipe is a function under ``@recipe`` that returns the fields of a Recipe; ``medbn run`` takes its name with hyphens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .._errors import unknown_name
from .cell import Attack, Setting
from .recipe import DEFENCES, DIGITS, INSTANT, Recipe
from .recipe_file import read

CUMULATIVE = ("tebn", "tent", "eata", "sar", "sotta", "sema", "mdia")
CIFAR10 = Setting("cifar10-c", "resnet26", clean="cifar10", preset="cifar10")
CIFAR100 = Setting("cifar100-c", "resnet26", clean="cifar100", preset="cifar100")
IMAGENET = Setting("imagenet-c", "torchvision:resnet50", weights="default", preset="imagenet", malicious=20)
THREE = (CIFAR10, CIFAR100, IMAGENET)
TARGETED, INDISCRIMINATE = Attack("targeted"), Attack("indiscriminate")
GRADIENTS = ("exact", "straight_through", "smooth")
DEMO_STEPS = 40
DEMO_CORRUPTIONS = ("snow", "fog", "contrast")

_recipes: dict[str, Callable[[], Recipe]] = {}


def recipe(function: Callable[[], dict[str, Any]]) -> Callable[[], Recipe]:
    """Register a function that returns a recipe's fields, under its own name and with its docstring."""
    name = function.__name__.replace("_", "-")

    def make() -> Recipe:
        return Recipe(name=name, about=(function.__doc__ or "").strip(), **function())

    _recipes[name] = make
    return make


def available() -> list[str]:
    """The names that ``get`` accepts, in the order of the paper."""
    return list(_recipes)


def get(name: str) -> Recipe:
    """A recipe by its name, or by the path of a TOML file."""
    if name in _recipes:
        return _recipes[name]()
    if name.endswith(".toml"):
        return read(name)
    raise unknown_name("recipe (or give a .toml file)", name, _recipes)


@recipe
def targeted_instant() -> dict[str, Any]:
    """Table 1: one image's prediction is the target, each batch is attacked from a clean state."""
    return {"settings": THREE, "attacks": (TARGETED,), "published": ("targeted-instant",)}


@recipe
def indiscriminate_instant() -> dict[str, Any]:
    """Table 2: everybody's predictions are the target, each batch is attacked from a clean state."""
    return {"settings": THREE, "attacks": (INDISCRIMINATE,), "published": ("indiscriminate-instant",)}


@recipe
def cumulative() -> dict[str, Any]:
    """Table 3: both attacks, and the poison stays."""
    return {
        "settings": (CIFAR10,),
        "methods": CUMULATIVE,
        "attacks": (TARGETED, INDISCRIMINATE),
        "scenario": "cumulative",
        "published": ("cumulative",),
    }


@recipe
def targeted_instant_per_corruption() -> dict[str, Any]:
    """Table 15: table 1 for each corruption."""
    return {
        "settings": THREE,
        "attacks": (TARGETED,),
        "published": ("targeted-instant-per-corruption",),
        "axis": "corruption",
    }


@recipe
def indiscriminate_instant_per_corruption() -> dict[str, Any]:
    """Table 16: table 2 for each corruption."""
    return {
        "settings": THREE,
        "attacks": (INDISCRIMINATE,),
        "published": ("indiscriminate-instant-per-corruption",),
        "axis": "corruption",
    }


@recipe
def targeted_cumulative_per_corruption() -> dict[str, Any]:
    """Table 17: the targeted half of table 3 for each corruption."""
    return {
        "settings": THREE,
        "methods": CUMULATIVE,
        "attacks": (TARGETED,),
        "scenario": "cumulative",
        "published": ("targeted-cumulative-per-corruption",),
        "axis": "corruption",
    }


@recipe
def indiscriminate_cumulative_per_corruption() -> dict[str, Any]:
    """Table 18: the indiscriminate half of table 3 for each corruption."""
    return {
        "settings": THREE,
        "methods": CUMULATIVE,
        "attacks": (INDISCRIMINATE,),
        "scenario": "cumulative",
        "published": ("indiscriminate-cumulative-per-corruption",),
        "axis": "corruption",
    }


@recipe
def no_attack() -> dict[str, Any]:
    """Table 19: the error without any attack, un-adapted model included."""
    return {
        "settings": tuple(replace(setting, malicious=0) for setting in THREE),
        "methods": ("source", *INSTANT),
        "published": ("no-attack",),
    }


def _malicious(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    return tuple(replace(setting, malicious=count) for setting in settings for count in (10, 20, 40, 60, 80))


def _batch_sizes(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    sizes = ((200, 40), (128, 26), (64, 13), (32, 6), (16, 3))
    return tuple(replace(s, batch_size=size, malicious=count) for s in settings for size, count in sizes)


@recipe
def malicious_targeted() -> dict[str, Any]:
    """Tables 5 and 9: 10 to 80 malicious images of 200, targeted."""
    return {
        "settings": _malicious((CIFAR10, CIFAR100)),
        "methods": ("tebn",),
        "attacks": (TARGETED,),
        "published": ("malicious-targeted",),
        "axis": "malicious",
    }


@recipe
def malicious_indiscriminate() -> dict[str, Any]:
    """Table 10: 10 to 80 malicious images of 200, indiscriminate."""
    return {
        "settings": _malicious((CIFAR10, CIFAR100)),
        "methods": ("tebn",),
        "attacks": (INDISCRIMINATE,),
        "published": ("malicious-indiscriminate",),
        "axis": "malicious",
    }


@recipe
def batch_size_targeted() -> dict[str, Any]:
    """Tables 6 and 11: batches of 200 to 16 with 20 % malicious images, targeted."""
    return {
        "settings": _batch_sizes((CIFAR10, CIFAR100)),
        "methods": ("tebn",),
        "attacks": (TARGETED,),
        "published": ("batch-size-targeted",),
        "axis": "batch_size",
    }


@recipe
def batch_size_indiscriminate() -> dict[str, Any]:
    """Table 12: batches of 200 to 16 with 20 % malicious images, indiscriminate."""
    return {
        "settings": _batch_sizes((CIFAR10, CIFAR100)),
        "methods": ("tebn",),
        "attacks": (INDISCRIMINATE,),
        "published": ("batch-size-indiscriminate",),
        "axis": "batch_size",
    }


@recipe
def knowledge() -> dict[str, Any]:
    """Table 7: an attacker who knows the adapted model, only the source model, or about the median."""
    return {
        "settings": (CIFAR10,),
        "methods": ("tent",),
        "attacks": (TARGETED, replace(TARGETED, knowledge="semi"), replace(TARGETED, alignment=1.0)),
        "published": ("knowledge",),
        "axis": "knowledge",
    }


@recipe
def architectures() -> dict[str, Any]:
    """Table 8: WideResNet-28-10 on CIFAR-10-C and ResNeXt-29 on CIFAR-100-C."""
    return {
        "settings": (replace(CIFAR10, model="wide-resnet-28-10"), replace(CIFAR100, model="resnext29")),
        "attacks": (TARGETED, INDISCRIMINATE),
        "published": ("architectures",),
    }


@recipe
def mad() -> dict[str, Any]:
    """Table 13: the median absolute deviation in place of the variance."""
    return {
        "settings": THREE,
        "methods": ("tebn",),
        "estimators": (*DEFENCES, "mad", "mad_scaled"),
        "attacks": (TARGETED, INDISCRIMINATE),
        "published": ("mad",),
    }


@recipe
def epsilon() -> dict[str, Any]:
    """Table 14: malicious images that stay within 8/255 of real ones."""
    return {
        "settings": (CIFAR10,),
        "methods": ("tebn",),
        "attacks": (replace(TARGETED, epsilon=8 / 255), TARGETED),
        "published": ("epsilon",),
        "axis": "epsilon",
    }


@recipe
def worst_case() -> dict[str, Any]:
    """Ours: every estimator against exact, straight-through and smooth gradients, and the worst of them."""
    kinds = tuple(Attack(o, gradient=g) for o in ("targeted", "indiscriminate") for g in GRADIENTS)
    return {
        "settings": (CIFAR10,),
        "methods": ("tebn", "tent"),
        "estimators": ("mean", "median", "mad", "mad_scaled", "image_median"),
        "attacks": kinds,
        "axis": "gradient",
    }


@recipe
def frontier() -> dict[str, Any]:
    """Ours: robust estimators mixed with the training statistics, under the same three attackers."""
    kinds = tuple(Attack("targeted", gradient=gradient) for gradient in GRADIENTS)
    priors = ("0.3", "0.5", "0.6", "0.7", "0.8")
    mixed = tuple(f"image_median@{prior}" for prior in priors)
    return {
        "settings": (CIFAR10,),
        "methods": ("tebn",),
        "estimators": (*DEFENCES, "mean@0.6", "median@0.6", *mixed),
        "attacks": kinds,
        "axis": "gradient",
    }


@recipe
def memory() -> dict[str, Any]:
    """Ours: moving averages in which a batch has little weight, or none while it is served, after ten batches."""
    return {
        "settings": (CIFAR10,),
        "methods": ("sema", "past"),
        "warm_up": 10,
        "attacks": tuple(Attack("targeted", gradient=gradient) for gradient in GRADIENTS),
        "options": {"sema": {"momentum": 0.05, "counted": True}},
        "axis": "gradient",
    }


@recipe
def demo() -> dict[str, Any]:
    """The embedded default: digits, a small ResNet, plain and straight-through attacks, in a minute on two cores."""
    attack = Attack("indiscriminate", steps=DEMO_STEPS, step_size=2.5 / 255)
    return {
        "settings": (DIGITS,),
        "methods": ("tebn", "tent"),
        "attacks": (attack, replace(attack, gradient="straight_through")),
        "corruptions": DEMO_CORRUPTIONS,
        "batches": 1,
        "axis": "gradient",
    }
