"""The tables of docs/results/segmentation.md."""

from __future__ import annotations

import torch

from _stored import GRADIENTS, NOTHING, SAME, THREE, Rows, name_of, percent, pick, table
from medbn import bench
from medbn.bench import Interval, Results

STREETS, SCENES = "segmentation-streets-h200", "segmentation-scenes-cpu"
WITH = "TeBN with"


def _n(results: Results) -> str:
    return str(len(results.batches))


def _without(results: Results) -> list[torch.Tensor]:
    return [torch.tensor(batch["confusion_without"]) for batch in results.batches]


def _matrices(results: Results) -> list[torch.Tensor]:
    return [torch.tensor(batch["confusion"]) for batch in results.batches]


def _change(first: list[torch.Tensor], second: list[torch.Tensor]) -> str:
    interval = bench.intervals.paired_confusion(first, second, bench.intervals.mean_iou)
    return percent(interval, signed=True)


def _each(recipe: str, estimator: str) -> tuple[list[Results], Results]:
    """Return the results under each gradient, one for a mean, and under the worst of them."""
    results = pick(recipe, STREETS, estimator=estimator)
    if estimator == "mean":
        return [results], results
    return [pick(recipe, STREETS, estimator=estimator, gradient=gradient) for gradient in GRADIENTS], results.hardest()


def _columns(recipe: str, estimator: str, measure: str) -> list[str]:
    """Return the measure under the three gradients and their worst; n where not all of them have as many batches."""
    each, worst = _each(recipe, estimator)
    most = max(len(results.batches) for results in each)

    def text(results: Results) -> str:
        interval: Interval | None = getattr(results, measure)()
        return percent(interval) + ("" if len(results.batches) == most else f"; n = {_n(results)}")

    same = [SAME, SAME] if len(each) == 1 else []
    return [*(text(results) for results in each), *same, text(worst), str(most)]


@table("streets-targeted")
def streets_targeted() -> Rows:
    """Return how many targeted pixels are hit under each gradient."""
    rows = [
        [
            WITH,
            "exact, as in the paper",
            "straight-through",
            "smooth",
            "worst of three",
            "predicted so without attack",
            "pixels (n)",
        ]
    ]
    for estimator in THREE:
        *columns, count = _columns("carla-targeted", estimator, "success")
        (first, *_), _ = _each("carla-targeted", estimator)
        already = f"{sum(batch['already'] for batch in first.batches)} of {_n(first)}"
        rows.append([name_of(estimator), *columns, already, count])
    return rows


@table("streets-indiscriminate")
def streets_indiscriminate() -> Rows:
    """Return the mean IoU of the benign images without and under the indiscriminate attack."""
    rows = [
        [
            WITH,
            "without attack",
            "exact, as in the paper",
            "straight-through",
            "smooth",
            "worst of three",
            "change by the worst",
            "batches (n)",
        ]
    ]
    for estimator in THREE:
        *columns, count = _columns("carla-indiscriminate", estimator, "mean_iou")
        _, worst = _each("carla-indiscriminate", estimator)
        change = _change(_without(worst), _matrices(worst))
        rows.append([name_of(estimator), percent(worst.mean_iou("wrong_without")), *columns, change, count])
    return rows


@table("streets-no-attack")
def streets_no_attack() -> Rows:
    """Return the mean IoU without attack, the difference to the un-adapted model, and the pixel accuracy."""
    rows = [["", "mean IoU", "difference to no adaptation", "pixel accuracy", "batches (n)"]]
    source = pick("carla-no-attack", STREETS, method="source")
    rows.append(
        ["no adaptation (Source)", percent(source.mean_iou()), NOTHING, percent(source.pixel_accuracy()), _n(source)]
    )
    for estimator in (*THREE, *(f"{one}@0.6" for one in THREE)):
        results = pick("carla-no-attack", STREETS, method="tebn", estimator=estimator)
        change = _change(_matrices(source), _matrices(results))
        rows.append(
            [
                f"{WITH} {name_of(estimator)}",
                percent(results.mean_iou()),
                change,
                percent(results.pixel_accuracy()),
                _n(results),
            ]
        )
    return rows


@table("streets-paper")
def streets_paper() -> Rows:
    """Return the paper's table 4 beside ours."""
    rows = [
        [
            "",
            "targets hit: paper",
            "here, exact",
            "here, worst of three",
            "mean IoU under attack: paper",
            "here, exact",
            "here, worst of three",
        ]
    ]
    printed = bench.published.get("segmentation")
    for estimator in THREE[:2]:
        row = [name_of(estimator)]
        for recipe, objective, measure in (
            ("carla-targeted", "targeted_pixel", "success"),
            ("carla-indiscriminate", "indiscriminate_segmentation", "mean_iou"),
        ):
            exact, *_, worst, _count = _columns(recipe, estimator, measure)
            row += [str(printed.lookup(estimator=estimator, objective=objective)), exact, worst]
        rows.append(row)
    return rows


@table("scenes")
def scenes() -> Rows:
    """Return both attacks of the demo on embedded scenes: exact gradients, and the worse of two."""
    rows = [
        [
            WITH,
            "mean IoU without attack",
            "targets hit, exact",
            "worst of two",
            "mean IoU under attack, exact",
            "worst of two",
        ]
    ]
    for estimator in THREE:
        row = [name_of(estimator)]
        for objective, measure in (("targeted_pixel", "success"), ("indiscriminate_segmentation", "mean_iou")):
            results = pick("demo-segmentation", SCENES, objective=objective, estimator=estimator)
            exact = results.select(lambda cell: cell.attack.gradient == "exact")
            worst = exact if estimator == "mean" else results.hardest()
            if len(row) == 1:
                row.append(percent(exact.mean_iou("wrong_without")))
            row += [percent(getattr(each, measure)()) for each in (exact, worst)]
        rows.append(row)
    return rows
