"""Segmentation in the bench: what its cells store, that they continue, and the numbers that follow from them."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
import torch

import medbn
from medbn import bench, data, models
from medbn.bench import SCENES, UNCORRUPTED, Attack, Cell, Recipe, intervals
from medbn.bench.metrics import attacked_metrics, check_metrics, unattacked_metrics, warm_up_metrics
from medbn.confusion import confusion_matrix, mean_iou

from .stored import stored_metrics

pytest.importorskip("PIL")
pytest.importorskip("safetensors")


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """Random weights: what the bench does with a model does not depend on how good it is."""
    path = tmp_path_factory.mktemp("weights") / "random.safetensors"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        models.save(models.get("unet-small", classes=13), path, classes=13)
    return str(path)


@pytest.fixture
def scenes(weights):
    """Two streams of three batches: one pixel of a first image as the target, in scenes without corruption."""
    return Recipe(
        name="scenes",
        about="for tests",
        settings=(replace(SCENES, weights=weights),),
        methods=("tebn",),
        estimators=("mean", "median"),
        attacks=(Attack("targeted_pixel", steps=1, step_size=0.1),),
        corruptions=(UNCORRUPTED,),
        batches=3,
    )


def read(path):
    with bench.Store(path) as store:
        (results,) = bench.results.read(store)
        return results, {result.key: bench.read_strips(store, result.key) for result in results.cells}


def test_numbers_are_those_of_the_library(tmp_path, scenes, weights):
    bench.run(scenes.narrow(estimators=["median"]), tmp_path / "x.db")
    (batches,) = stored_metrics(tmp_path / "x.db").values()
    stream = data.load_segmentation("scenes")
    objective = medbn.attacks.TargetedPixel(classes=stream.scored)
    attack = medbn.attacks.DIA(objective, steps=1, step_size=0.1)
    adapter = medbn.adapt(models.get("unet-small", weights=weights), "tebn", "median")
    outcomes = list(medbn.attacks.instant(adapter, stream.batches(3, limit=3), attack, slice(2, 3)))
    for batch, outcome in zip(batches, outcomes, strict=True):
        row, column = batch["pixel"]
        assert outcome.attacked[0, :, row, column].argmax().item() == batch["target"] or not batch["hit"]
        assert batch["target"] == (outcome.labels[0, row, column].item() + 1) % 13
        assert (batch["hit"], batch["already"]) == (outcome.harm(), outcome.harm_without())
        assert torch.equal(torch.tensor(batch["confusion"]), outcome.confusion(outcome.attacked))
        assert torch.equal(torch.tensor(batch["confusion_without"]), outcome.confusion(outcome.clean))
        assert batch["wrong"] == (outcome.attacked[:2].argmax(1) != outcome.labels[:2]).sum()
        assert batch["wrong_clean"] == (outcome.clean.argmax(1) != outcome.labels).sum()
        assert (batch["images"], batch["benign"]) == (3, 2)
        assert (batch["pixels"], batch["pixels_clean"]) == (2 * 64 * 96, 3 * 64 * 96)
    summary = medbn.attacks.Summary.of(outcomes)
    results, _ = read(tmp_path / "x.db")
    assert results.mean_iou().value == pytest.approx(summary.iou)
    assert results.mean_iou("wrong_without").value == pytest.approx(summary.iou_without)
    assert results.error().value == pytest.approx(summary.error)
    assert results.measure().value == summary.success_rate
    assert results.higher_is_better("wrong_without")
    assert not results.higher_is_better()


@pytest.mark.slow
def test_every_defence_has_the_same_targets(tmp_path, scenes):
    other = Attack("targeted_pixel", steps=1, step_size=0.1, gradient="straight_through")
    bench.run(replace(scenes, attacks=(*scenes.attacks, other)), tmp_path / "x.db")
    first, *others = [[b["pixel"] for b in batches] for batches in stored_metrics(tmp_path / "x.db").values()]
    assert others == [first, first]
    assert len({tuple(pixel) for pixel in first}) == 3
    bench.run(replace(scenes, seeds=(1,), batches=1), tmp_path / "y.db")
    assert stored_metrics(tmp_path / "y.db").keys().isdisjoint(stored_metrics(tmp_path / "x.db"))


def test_a_fixed_target_class_is_an_option_with_a_key_of_its_own(tmp_path, scenes):
    chosen = replace(scenes, attacks=(replace(scenes.attacks[0], target_class=2),), estimators=("mean",))
    bench.run(chosen, tmp_path / "x.db")
    (batches,) = stored_metrics(tmp_path / "x.db").values()
    assert {batch["target"] for batch in batches} == {2}
    cell, other = next(scenes.cells()), next(chosen.cells())
    assert cell.key("d", "w") != other.key("d", "w")
    assert Cell.from_dict(other.to_dict()) == other
    with pytest.raises(ValueError, match="target_class"):
        Attack("targeted", target_class=2).check()


@pytest.mark.parametrize("method", ["tebn", pytest.param("tent", marks=pytest.mark.slow)])
def test_streams_continue_with_the_same_bits(tmp_path, scenes, method):
    recipe = scenes.narrow(methods=[method], estimators=["median"])
    bench.run(replace(recipe, batches=1), tmp_path / "x.db")
    bench.run(recipe, tmp_path / "x.db")
    bench.run(recipe, tmp_path / "whole.db")
    assert stored_metrics(tmp_path / "x.db") == stored_metrics(tmp_path / "whole.db")
    (pieces,), (whole,) = (read(tmp_path / name)[1].values() for name in ("x.db", "whole.db"))
    assert pieces == whole
    assert len(whole) == 2


def test_strips_show_what_was_predicted(tmp_path, scenes, weights):
    from PIL import Image

    bench.run(replace(scenes, estimators=("mean",)), tmp_path / "x.db")
    results, strips = read(tmp_path / "x.db")
    (result,) = results.cells
    stream = data.load_segmentation("scenes")
    assert result.facts["classes"] == list(stream.classes)
    assert (result.facts["size"], result.facts["scored"]) == ([64, 96], list(range(13)))
    for number, strip in enumerate(strips[result.key]):
        opened = {name: Image.open(io.BytesIO(file)).convert("RGB") for name, file in strip._asdict().items()}
        image, labels = stream[3 * number]
        _, malicious = stream[3 * number + 2][0], opened["malicious"]
        assert torch.equal(as_tensor(opened["image"]), image)
        assert torch.equal(as_tensor(opened["clean"]), stream[3 * number + 2][0])
        assert not torch.equal(as_tensor(malicious), stream[3 * number + 2][0])
        colours = torch.tensor(result.facts["colours"])
        assert torch.equal(as_tensor(opened["truth"]).long(), colours[labels].permute(2, 0, 1))
    adapter = medbn.adapt(models.get("unet-small", weights=weights), "tebn", "mean")
    logits = adapter(next(stream.batches(3))[0])
    first = Image.open(io.BytesIO(strips[result.key][0].without)).convert("RGB")
    assert torch.equal(as_tensor(first).long(), colours[logits[0].argmax(0)].permute(2, 0, 1))


def test_a_sealed_store_may_leave_out_pictures(tmp_path, scenes):
    bench.run(scenes.narrow(estimators=["mean"], batches=1), tmp_path / "x.db")
    with bench.Store(tmp_path / "x.db") as store:
        store.seal(tmp_path / "all.db")
        store.seal(tmp_path / "numbers.db", pictures=False)
    assert b"\x89PNG" in (tmp_path / "all.db").read_bytes()
    assert b"\x89PNG" not in (tmp_path / "numbers.db").read_bytes()
    assert stored_metrics(tmp_path / "numbers.db") == stored_metrics(tmp_path / "x.db")
    _, strips = read(tmp_path / "numbers.db")
    assert list(strips.values()) == [[]]


def as_tensor(picture) -> torch.Tensor:
    return torch.tensor(list(picture.tobytes()), dtype=torch.uint8).view(*picture.size[::-1], 3).permute(2, 0, 1)


def test_large_pictures_are_shrunk_and_pixels_that_do_not_count_are_black():
    from PIL import Image

    from medbn.bench.pictures import palette_png

    labels = torch.full((128, 600), 1)
    labels[:, 300:] = 255
    picture = Image.open(io.BytesIO(palette_png(labels, [(9, 9, 9), (200, 100, 50)]))).convert("RGB")
    assert picture.size == (256, 55)
    assert picture.getpixel((10, 10)) == (200, 100, 50)
    assert picture.getpixel((250, 10)) == (0, 0, 0)


@pytest.mark.slow
def test_streams_without_attack_and_warm_ups(tmp_path, scenes):
    unattacked = replace(scenes, name="none", attacks=(), estimators=("mean",), methods=("source", "eata"))
    unattacked = replace(unattacked, options={"eata": {"fisher_samples": 6}})
    bench.run(unattacked, tmp_path / "x.db")
    results, _ = read(tmp_path / "x.db")
    assert [len(result.batches) for result in results.cells] == [3, 3]
    assert results.measure().value == results.mean_iou().value > 0
    assert all(batch["already"] in (0, 1) and batch["pixels"] == 3 * 64 * 96 for batch in results.batches)
    warm = replace(scenes, name="warm", warm_up=2, estimators=("mean",))
    bench.run(warm, tmp_path / "warm.db")
    (batches,) = stored_metrics(tmp_path / "warm.db").values()
    assert [set(batch) & {"pixels_clean", "confusion_clean", "hit"} for batch in batches[:2]] == [
        {"pixels_clean", "confusion_clean"}
    ] * 2
    assert batches[2]["hit"] in (0, 1)


def test_an_image_without_labels_has_no_pixel_to_target():
    labels = torch.full((2, 3, 3), 255)
    labels[1] = 1
    metrics = unattacked_metrics(torch.randn(2, 4, 3, 3), labels)
    assert metrics["pixels"] == 9
    assert "already" not in metrics
    assert "already" in unattacked_metrics(torch.randn(2, 4, 3, 3), labels.flip(0))
    assert warm_up_metrics(torch.randn(2, 4, 3, 3), labels)["pixels_clean"] == 9


# --- numbers ---------------------------------------------------------------------------------------------------------


def matrices(count: int, classes: int = 4, seed: int = 0) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    result = []
    for _ in range(count):
        labels = torch.randint(classes - 1, (50,), generator=g)
        right = torch.rand(50, generator=g) < 0.7
        predicted = torch.where(right, labels, torch.randint(classes, (50,), generator=g))
        result.append(confusion_matrix(predicted, labels, classes))
    return result


def test_the_interval_of_a_mean_iou_resamples_batches():
    counts = matrices(12)
    interval = intervals.bootstrap_confusion(counts, intervals.mean_iou)
    assert interval.value == pytest.approx(mean_iou(torch.stack(counts).sum(0)))
    g = torch.Generator().manual_seed(1)
    resampled = torch.tensor(
        [mean_iou(sum(counts[i] for i in torch.randint(12, (12,), generator=g))) for _ in range(2000)]
    ).double()
    low, high = torch.quantile(resampled, torch.tensor([0.025, 0.975]).double()).tolist()
    assert interval.low == pytest.approx(low, abs=0.01)
    assert interval.high == pytest.approx(high, abs=0.01)
    few = intervals.bootstrap_confusion(counts[:4], intervals.mean_iou)
    assert few.value > 0
    assert few.low != few.low


def test_a_paired_difference_is_narrower_than_two_intervals():
    first = matrices(20)
    second = [m + torch.diag(torch.tensor([1, 1, 1, 0])) for m in first]
    interval = intervals.paired_confusion(first, second, intervals.mean_iou)
    expected = mean_iou(sum(second)) - mean_iou(sum(first))
    assert interval.value == pytest.approx(expected)
    assert interval.low < expected < interval.high
    one = intervals.bootstrap_confusion(first, intervals.mean_iou)
    assert interval.high - interval.low < (one.high - one.low) / 4
    same = intervals.paired_confusion(first, first, intervals.mean_iou)
    assert same == (0, 0, 0)


def test_pixel_accuracy_of_several_matrices():
    counts = torch.stack(matrices(3)).double()
    assert intervals.pixel_accuracy(counts).tolist() == [
        pytest.approx((one.trace() / one.sum()).item()) for one in counts
    ]


def batch_of(matrix: torch.Tensor, without: torch.Tensor) -> dict:
    """Metrics of a batch, attacked or not, from its confusion matrices."""
    pixels = int(matrix.sum())
    numbers = {"images": 3, "benign": 2, "pixels": pixels}
    for name, one in (("", matrix), ("_without", without)):
        numbers |= {f"wrong{name}": pixels - int(one.trace()), f"confusion{name}": one.tolist()}
    return numbers


def test_the_worst_attack_is_the_one_with_the_lowest_mean_iou_of_a_batch(scenes):
    exact, smooth = (Attack("indiscriminate_segmentation", gradient=g) for g in ("exact", "smooth"))
    cell = replace(next(iter(scenes.cells())), estimator="median")
    clean, first, second = matrices(6, seed=1), matrices(6, seed=2), matrices(6, seed=3)
    cells = [
        bench.Result("", replace(cell, attack=attack), list(map(batch_of, each, clean)), {})
        for attack, each in ((exact, first), (smooth, second))
    ]
    results = bench.Results({}, [], cells)
    worst = [min(pair, key=mean_iou) for pair in zip(first, second, strict=True)]
    assert {id(one) for one in worst} & {id(one) for one in first}
    assert {id(one) for one in worst} & {id(one) for one in second}
    assert results.worst().value == pytest.approx(mean_iou(sum(worst)))
    assert results.worst().value < results.select(lambda c: c.attack == exact).mean_iou().value
    assert results.higher_is_better()
    # Without attack, a batch counts once, however many attacks were run on it.
    assert torch.equal(results.confusion("wrong_without"), sum(clean))
    assert torch.equal(results.confusion(), sum(first) + sum(second))
    other = bench.Results(
        {}, [], [bench.Result("", replace(cell, attack=exact), list(map(batch_of, second, clean)), {})]
    )
    mine = results.select(lambda c: c.attack == exact)
    assert mine.minus(other).value == pytest.approx(mean_iou(sum(first)) - mean_iou(sum(second)))
    assert mine.minus(other, "wrong_without").value == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"confusion": [[1, 2], [3]]}, "confusion"),
        ({"confusion": [[-1, 1], [0, 0]]}, "confusion"),
        ({"confusion": "x"}, "confusion"),
        ({"wrong": 3}, "wrong"),
        ({"pixels": 7}, "pixels"),
        ({"hit": 2}, "hit"),
    ],
)
def test_damaged_numbers_are_refused(change, message):
    metrics = batch_of(torch.tensor([[3, 1], [1, 4]]), torch.tensor([[4, 0], [1, 4]])) | {"hit": 1}
    check_metrics(metrics, attacked=True)
    with pytest.raises(ValueError, match=message):
        check_metrics(metrics | change, attacked=True)


def test_what_a_batch_counts_when_nothing_has_a_label():
    labels = torch.full((2, 3, 3), 255)
    logits = torch.randn(2, 4, 3, 3)
    objective = medbn.attacks.IndiscriminateSegmentation()
    outcome = medbn.attacks.Outcome(objective, logits, logits, logits, labels, torch.tensor([True, False]))
    metrics = attacked_metrics(outcome)
    assert (metrics["pixels"], metrics["wrong"]) == (0, 0)
    assert bench.error_rate(metrics) == 0.0
    check_metrics(metrics, attacked=True)


# --- recipes ---------------------------------------------------------------------------------------------------------


def test_objectives_must_fit_the_data(tmp_path, scenes, tiny):
    with pytest.raises(ValueError, match=r"scenes.*segmentation.*'targeted'.*targeted_pixel"):
        bench.run(replace(scenes, attacks=(Attack("targeted"),)), tmp_path / "x.db")
    with pytest.raises(ValueError, match=r"digits.*classification.*'targeted_pixel'"):
        bench.run(replace(tiny, attacks=(Attack("targeted_pixel"),)), tmp_path / "x.db")
    assert not (tmp_path / "x.db").exists()


def test_a_path_or_another_dataset_takes_the_place_of_a_dataset(tmp_path, tiny, scenes):
    (setting,) = tiny.narrow(data=["./photos"]).settings
    assert setting == replace(tiny.settings[0], data="./photos")
    two = replace(scenes, settings=(*scenes.settings, replace(scenes.settings[0], batch_size=6, malicious=2)))
    assert [(s.data, s.batch_size, s.malicious) for s in two.narrow(data=["./streets"]).settings] == [
        ("./streets", 3, 1),
        ("./streets", 6, 2),
    ]
    streets = bench.recipes.get("segmentation-targeted")
    assert streets.settings[0].size == (304, 512)
    assert streets.narrow(data=["camvid-dusk"]).settings[0] == replace(
        streets.settings[0], data="camvid-dusk", size=None
    )
    assert streets.narrow(data=["./streets"], size=(256, 512)).settings[0].size == (256, 512)
    assert streets.narrow(data=["scenes"]).settings == (SCENES,)
    with pytest.raises(ValueError, match="scenes"):
        scenes.narrow(data=["digits"])
    with pytest.raises(ValueError, match=r"images/ and labels/"):
        streets.narrow(data=[str(tmp_path)])


def test_a_size_is_of_images_that_can_be_read_at_any(tmp_path, scenes):
    setting = replace(scenes.settings[0], size=[32, 48])
    assert setting.size == (32, 48)
    with pytest.raises(ValueError, match=r"scenes.*size"):
        bench.run(replace(scenes, settings=(setting,)), tmp_path / "x.db")
    for wrong in ([32], [0, 5], "32", [1.5, 2]):
        with pytest.raises(ValueError, match="size"):
            replace(setting, size=wrong)
    cell = next(scenes.cells())
    sized = replace(cell, setting=setting)
    assert sized.key("d", "w") != cell.key("d", "w")
    assert Cell.from_dict(json.loads(json.dumps(sized.to_dict()))) == sized


def test_a_folder_of_pairs_runs(tmp_path, scenes):
    """As a new user would do it: images, labels and a table of classes, read at another size."""
    from PIL import Image

    stream = data.load_segmentation("scenes")
    for kind in ("images", "labels"):
        (tmp_path / "mine" / kind).mkdir(parents=True)
    for number in range(6):
        image, labels = stream[number]
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"mine/images/{number}.png")
        Image.fromarray(labels.byte().numpy()).save(tmp_path / f"mine/labels/{number}.png")
    table = "".join(f'[[classes]]\nname = "{name}"\ncolour = [{n}, 0, 0]\n' for n, name in enumerate(stream.classes))
    (tmp_path / "mine" / "classes.toml").write_text(table)
    recipe = scenes.narrow(data=[str(tmp_path / "mine")], estimators=["mean"], size=(32, 48))
    assert bench.run(recipe, tmp_path / "x.db")
    results, _ = read(tmp_path / "x.db")
    assert [batch["pixels_clean"] for batch in results.batches] == [3 * 32 * 48] * 2
    scored = results.cells[0].facts["scored"]
    assert set(scored) <= {int(label) for number in range(6) for label in stream[number][1].unique()}
    assert len(scored) < 13
    assert {batch["target"] for batch in results.batches} <= set(scored)
    missing = scenes.narrow(data=[str(tmp_path / "none")])
    with pytest.raises(bench.MissingError, match=str(tmp_path / "none")):
        bench.run(missing, tmp_path / "y.db")


def test_an_uncorrupted_cell_is_named_by_its_dataset(scenes):
    cell = next(scenes.cells())
    assert cell.dataset == "scenes"
    assert replace(cell, corruption="fog").dataset == "scenes-c"
    assert "none" not in cell.label
    assert cell.key("d", "w") != replace(cell, corruption="fog").key("d", "w")
