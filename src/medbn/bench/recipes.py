"""The named experiments: every table of the paper, and ours.

A recipe is a function that returns a Recipe, under ``@register("name")``; its docstring is what reports say about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .cell import CONTINUAL, UNCORRUPTED, Attack, Setting
from .recipe import DEFENCES, DIGITS, INSTANT, SCENES, Recipe
from .recipe_registry import available, get, register, unregister

__all__ = ["available", "get", "register", "unregister"]

CUMULATIVE = tuple("eata" if method == "eta" else method for method in INSTANT)
CIFAR10 = Setting("cifar10-c", "resnet26", clean="cifar10", preset="cifar10")
CIFAR100 = Setting("cifar100-c", "resnet26", clean="cifar100", preset="cifar100")
IMAGENET = Setting("imagenet-c", "resnet50", clean="imagenet", preset="imagenet", malicious=20)
THREE = (CIFAR10, CIFAR100, IMAGENET)
TARGETED, INDISCRIMINATE = Attack("targeted"), Attack("indiscriminate")
GRADIENTS = ("exact", "straight_through", "smooth")
DEMO_STEPS = 40
SEGMENTATION_DEMO_STEPS, SEGMENTATION_DEMO_BATCHES = 12, 16
DEMO_CORRUPTIONS = ("snow", "fog", "contrast")


@register("targeted-instant")
def targeted_instant() -> Recipe:
    """Table 1: one image is to be predicted as another class, each batch is attacked from a clean state."""
    return Recipe(settings=THREE, attacks=(TARGETED,), published=("targeted-instant",))


@register("indiscriminate-instant")
def indiscriminate_instant() -> Recipe:
    """Table 2: all benign images are to be misclassified, each batch is attacked from a clean state."""
    return Recipe(settings=THREE, attacks=(INDISCRIMINATE,), published=("indiscriminate-instant",))


@register("cumulative")
def cumulative() -> Recipe:
    """Table 3: both attacks, and the poison stays."""
    return Recipe(
        settings=(CIFAR10,),
        methods=CUMULATIVE,
        attacks=(TARGETED, INDISCRIMINATE),
        scenario="cumulative",
        published=("cumulative",),
    )


@register("targeted-instant-per-corruption")
def targeted_instant_per_corruption() -> Recipe:
    """Table 15: table 1 for each corruption."""
    return Recipe(
        settings=THREE,
        attacks=(TARGETED,),
        published=("targeted-instant-per-corruption",),
        axis="corruption",
    )


@register("indiscriminate-instant-per-corruption")
def indiscriminate_instant_per_corruption() -> Recipe:
    """Table 16: table 2 for each corruption."""
    return Recipe(
        settings=THREE,
        attacks=(INDISCRIMINATE,),
        published=("indiscriminate-instant-per-corruption",),
        axis="corruption",
    )


@register("targeted-cumulative-per-corruption")
def targeted_cumulative_per_corruption() -> Recipe:
    """Table 17: the targeted half of table 3 for each corruption."""
    return Recipe(
        settings=THREE,
        methods=CUMULATIVE,
        attacks=(TARGETED,),
        scenario="cumulative",
        published=("targeted-cumulative-per-corruption",),
        axis="corruption",
    )


@register("indiscriminate-cumulative-per-corruption")
def indiscriminate_cumulative_per_corruption() -> Recipe:
    """Table 18: the indiscriminate half of table 3 for each corruption."""
    return Recipe(
        settings=THREE,
        methods=CUMULATIVE,
        attacks=(INDISCRIMINATE,),
        scenario="cumulative",
        published=("indiscriminate-cumulative-per-corruption",),
        axis="corruption",
    )


@register("no-attack")
def no_attack() -> Recipe:
    """Table 19: the error without any attack, un-adapted model included."""
    return Recipe(
        settings=tuple(replace(setting, malicious=0) for setting in THREE),
        methods=("source", *INSTANT),
        published=("no-attack",),
    )


def _malicious(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    return tuple(replace(setting, malicious=count) for setting in settings for count in (10, 20, 40, 60, 80))


def _batch_sizes(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    sizes = ((200, 40), (128, 26), (64, 13), (32, 6), (16, 3))
    return tuple(replace(s, batch_size=size, malicious=count) for s in settings for size, count in sizes)


@register("malicious-targeted")
def malicious_targeted() -> Recipe:
    """Tables 5 and 9: 10 to 80 malicious images of 200, targeted."""
    return Recipe(
        settings=_malicious((CIFAR10, CIFAR100)),
        methods=("tebn",),
        attacks=(TARGETED,),
        published=("malicious-targeted",),
        axis="malicious",
    )


@register("malicious-indiscriminate")
def malicious_indiscriminate() -> Recipe:
    """Table 10: 10 to 80 malicious images of 200, indiscriminate."""
    return Recipe(
        settings=_malicious((CIFAR10, CIFAR100)),
        methods=("tebn",),
        attacks=(INDISCRIMINATE,),
        published=("malicious-indiscriminate",),
        axis="malicious",
    )


@register("batch-size-targeted")
def batch_size_targeted() -> Recipe:
    """Tables 6 and 11: batches of 200 to 16 with 20 % malicious images, targeted."""
    return Recipe(
        settings=_batch_sizes((CIFAR10, CIFAR100)),
        methods=("tebn",),
        attacks=(TARGETED,),
        published=("batch-size-targeted",),
        axis="batch_size",
    )


@register("batch-size-indiscriminate")
def batch_size_indiscriminate() -> Recipe:
    """Table 12: batches of 200 to 16 with 20 % malicious images, indiscriminate."""
    return Recipe(
        settings=_batch_sizes((CIFAR10, CIFAR100)),
        methods=("tebn",),
        attacks=(INDISCRIMINATE,),
        published=("batch-size-indiscriminate",),
        axis="batch_size",
    )


@register("knowledge")
def knowledge() -> Recipe:
    """Table 7: an attacker who knows the adapted model, only the source model, or about the median."""
    return Recipe(
        settings=(CIFAR10,),
        methods=("tent",),
        attacks=(TARGETED, replace(TARGETED, knowledge="semi"), replace(TARGETED, alignment=1.0)),
        published=("knowledge",),
        axis="knowledge",
    )


@register("architectures")
def architectures() -> Recipe:
    """Table 8: WideResNet-28-10 on CIFAR-10-C and ResNeXt-29 on CIFAR-100-C."""
    return Recipe(
        settings=(replace(CIFAR10, model="wide-resnet-28-10"), replace(CIFAR100, model="resnext29")),
        attacks=(TARGETED, INDISCRIMINATE),
        published=("architectures",),
    )


@register("mad")
def mad() -> Recipe:
    """Table 13: the median absolute deviation in place of the variance."""
    return Recipe(
        settings=THREE,
        methods=("tebn",),
        estimators=(*DEFENCES, "mad", "mad_scaled"),
        attacks=(TARGETED, INDISCRIMINATE),
        published=("mad",),
    )


@register("epsilon")
def epsilon() -> Recipe:
    """Table 14: malicious images that stay within 8/255 of real ones."""
    return Recipe(
        settings=(CIFAR10,),
        methods=("tebn",),
        attacks=(replace(TARGETED, epsilon=8 / 255), TARGETED),
        published=("epsilon",),
        axis="epsilon",
    )


@register("worst-case")
def worst_case() -> Recipe:
    """Ours: every estimator against exact, straight-through and smooth gradients, and the worst of them."""
    kinds = tuple(Attack(o, gradient=g) for o in ("targeted", "indiscriminate") for g in GRADIENTS)
    return Recipe(
        settings=THREE,
        methods=("tebn", "tent"),
        estimators=("mean", "median", "mad", "mad_scaled", "image_median"),
        attacks=kinds,
        axis="gradient",
    )


@register("frontier")
def frontier() -> Recipe:
    """Ours: robust estimators mixed with the training statistics, under attacks with the same three gradients."""
    kinds = tuple(Attack("targeted", gradient=gradient) for gradient in GRADIENTS)
    priors = ("0.3", "0.5", "0.6", "0.7", "0.8")
    mixed = tuple(f"image_median@{prior}" for prior in priors)
    return Recipe(
        settings=(CIFAR10,),
        methods=("tebn",),
        estimators=(*DEFENCES, "mean@0.6", "median@0.6", *mixed),
        attacks=kinds,
        axis="gradient",
    )


@register("memory")
def memory() -> Recipe:
    """Ours: moving averages in which a batch has little weight, or none while it is served, after ten batches."""
    return Recipe(
        settings=(CIFAR10,),
        methods=("sema", "past"),
        warm_up=10,
        attacks=tuple(Attack("targeted", gradient=gradient) for gradient in GRADIENTS),
        options={"sema": {"momentum": 0.05, "counted": True}},
        axis="gradient",
    )


@register("without-batchnorm")
def without_batchnorm() -> Recipe:
    """Ours: a vision transformer, whose images are normalised one by one, attacked through what methods learn."""
    return Recipe(
        settings=(replace(CIFAR10, model="vit-small"),),
        methods=("source", "tent", "eta", "sar", "deyo", "roid"),
        estimators=("mean",),
        attacks=tuple(Attack(objective, unroll=1) for objective in ("targeted", "indiscriminate")),
    )


NEWER = ("cotta", "rotta", "deyo", "roid", "note", "lame", "alpha_bn")
"""Methods that people use and the paper does not have."""
STREAM = replace(CIFAR10, malicious=0, per_corruption=2000)


@register("every-method")
def every_method() -> Recipe:
    """Ours: methods that the paper does not have, under both attacks, with the same three gradients."""
    kinds = tuple(Attack(o, gradient=g) for o in ("targeted", "indiscriminate") for g in GRADIENTS)
    return Recipe(settings=(CIFAR10,), methods=NEWER, attacks=kinds, axis="gradient")


@register("every-method-no-attack")
def every_method_no_attack() -> Recipe:
    """Ours: the error of the same methods without attack, from the source model on each corruption."""
    return Recipe(settings=(replace(CIFAR10, malicious=0),), methods=NEWER)


@register("every-method-continual")
def every_method_continual() -> Recipe:
    """Ours: the same on one stream of all corruptions, with nothing reset between them."""
    return Recipe(
        settings=(STREAM,), methods=("source", "tebn", "tent", "eata", "sar", *NEWER), corruptions=(CONTINUAL,)
    )


@register("every-method-sorted")
def every_method_sorted() -> Recipe:
    """Ours: methods for streams that are sorted by label on such streams, from the source model on each corruption."""
    methods = ("source", "tebn", "roid", "rotta", "note", "lame")
    return Recipe(settings=(replace(STREAM, by_label=True),), methods=methods)


OWNED = replace(CIFAR10, model="wide-resnet-28-10", malicious=0, owned=0.5, per_corruption=2000)
"""One stream of all corruptions, every second batch of which is the attacker's; the model is RTTDP's architecture."""
OF_HER_OWN = Attack(
    "notch_high_entropy",
    steps=40,
    step_size=0.01,
    epsilon=0.3,
    knowledge="grey",
    gradient="straight_through",
    start="random",
)
"""RTTDP's attack. The gradient is a mean's in its code too; the penalty that keeps features near is left out."""
LEARNERS = ("tent", "eata", "sar")


@register("owned-batches")
def owned_batches() -> Recipe:
    """RTTDP: every second batch is the attacker's, who sees her own images and answers alone; the poison stays."""
    return Recipe(
        settings=(OWNED,),
        methods=("tebn", *LEARNERS, "past"),
        attacks=(OF_HER_OWN, replace(OF_HER_OWN, objective="balanced_low_entropy")),
        scenario="interleaved",
        corruptions=(CONTINUAL,),
        predict="before",
    )


@register("owned-batches-replay")
def owned_batches_replay() -> Recipe:
    """R.I.P.: every second batch is the attacker's, who sends again what was misread, without any gradient."""
    return replace(
        owned_batches(),
        attacks=(Attack("indiscriminate", steps=0, start="clean"),),
        scenario="replay",
    )


@register("owned-batches-transfer")
def owned_batches_transfer() -> Recipe:
    """TePA: every second batch is the attacker's, who raises the entropy of a model of another architecture."""
    attack = replace(OF_HER_OWN, objective="entropy", knowledge="transfer", gradient="exact", model="resnet26")
    return replace(owned_batches(), attacks=(attack,))


PRIORS = (*DEFENCES, "mean@0.6", "median@0.6", "image_median@0.6")
STREETS = Setting(
    "synthia",
    "deeplabv3plus-resnet50",
    clean="cityscapes",
    preset="imagenet",
    batch_size=3,
    malicious=1,
    size=(304, 512),
)
"""A model that was trained on Cityscapes sees rendered streets. The paper's is a ResNet-101; it does not say the size
of the images. SYNTHIA's have 760 × 1280 pixels, and these have the width at which we train."""
PIXEL, PIXELS = Attack("targeted_pixel"), Attack("indiscriminate_segmentation")


@register("segmentation-targeted")
def segmentation_targeted() -> Recipe:
    """Table 4: one pixel is to be predicted as another class; exact gradients as in the paper, and stronger ones."""
    return Recipe(
        settings=(STREETS,),
        methods=("tebn",),
        estimators=PRIORS,
        attacks=tuple(replace(PIXEL, gradient=gradient) for gradient in GRADIENTS),
        corruptions=(UNCORRUPTED,),
        published=("segmentation",),
        axis="gradient",
    )


@register("segmentation-indiscriminate")
def segmentation_indiscriminate() -> Recipe:
    """Table 4: all pixels of the benign images are to be misclassified; exact gradients, and stronger ones."""
    return Recipe(
        settings=(STREETS,),
        methods=("tebn",),
        estimators=PRIORS,
        attacks=tuple(replace(PIXELS, gradient=gradient) for gradient in GRADIENTS),
        corruptions=(UNCORRUPTED,),
        published=("segmentation",),
        axis="gradient",
    )


@register("segmentation-no-attack")
def segmentation_no_attack() -> Recipe:
    """Table 4, without attack: the mean IoU of every method, un-adapted model included."""
    return Recipe(
        settings=(replace(STREETS, malicious=0),),
        methods=("source", *INSTANT, "eata", "past"),
        corruptions=(UNCORRUPTED,),
        published=("segmentation",),
    )


@register("segmentation-malicious")
def segmentation_malicious() -> Recipe:
    """Ours: one malicious image of three or of six, two of six, and four of twelve; three gradients."""
    sizes = ((3, 1), (6, 1), (6, 2), (12, 4))
    return Recipe(
        settings=tuple(replace(STREETS, batch_size=size, malicious=malicious) for size, malicious in sizes),
        methods=("tebn",),
        attacks=tuple(replace(kind, gradient=gradient) for kind in (PIXEL, PIXELS) for gradient in GRADIENTS),
        corruptions=(UNCORRUPTED,),
        axis="gradient",
    )


@register("demo-segmentation")
def demo_segmentation() -> Recipe:
    """Scenes of digits and a small U-Net under both attacks of table 4, in a minute on two cores."""
    steps = SEGMENTATION_DEMO_STEPS
    attacks = (
        replace(kind, steps=steps, step_size=1 / steps, gradient=gradient)
        for kind in (PIXELS, PIXEL)
        for gradient in ("exact", "straight_through")
    )
    return Recipe(
        settings=(replace(SCENES, severity=3),),
        methods=("tebn",),
        attacks=tuple(attacks),
        corruptions=("brightness",),
        batches=SEGMENTATION_DEMO_BATCHES,
        published=("segmentation",),
        axis="gradient",
    )


@register("demo")
def demo() -> Recipe:
    """Digits and a small ResNet under exact and straight-through attacks, in a minute on two cores."""
    attack = Attack("indiscriminate", steps=DEMO_STEPS, step_size=2.5 / 255)
    return Recipe(
        settings=(DIGITS,),
        methods=("tebn", "tent"),
        attacks=(attack, replace(attack, gradient="straight_through")),
        corruptions=DEMO_CORRUPTIONS,
        batches=1,
        axis="gradient",
    )
