"""A figure of the user's own is listed, measured, kept in a store and drawn, with nothing edited."""

from __future__ import annotations

from dataclasses import replace

import pytest

from medbn import analysis, cli
from medbn.bench import Store


@pytest.fixture
def own():
    """A registered figure, and how often it was measured."""
    measured = []

    def measure(experiment):
        measured.append(experiment)
        return analysis.Numbers("own", experiment.settings.describe(), [{"x": 1, "y": 2.0}])

    analysis.register(
        "own",
        analysis.Figure(
            title="a line of one's own",
            paper="ours",
            measure=measure,
            draw=lambda numbers, canvas, theme: canvas.subplots().plot([row["y"] for row in numbers.rows]),
            caption=analysis.describe,
            size=lambda numbers, theme: (3.0, 2.0),
        ),
    )
    yield measured
    analysis.unregister("own")


def test_an_own_figure_is_listed_and_measured_once(own, settings, tmp_path, capsys):
    assert cli.main(["figure", "list"]) == 0
    assert "a line of one's own" in capsys.readouterr().out
    with Store(tmp_path / "s.db") as store:
        first = analysis.measure("own", analysis.Experiment(settings, store=store))
        assert analysis.measure("own", analysis.Experiment(settings, store=store)) == first
        assert len(own) == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", analysis.FORMATS)
def test_an_own_figure_is_drawn(own, settings, form):
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    numbers = analysis.measure("own", analysis.Experiment(settings))
    with_caption, without = (analysis.render(numbers, form, caption=caption) for caption in (True, False))
    assert len(with_caption) > len(without) > 500


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in analysis.available() if analysis.get(name).on_data])
def test_every_part_of_a_figure_is_reported_to_its_end_also_where_it_is_stored(settings, tmp_path, name):
    if name == "tsne":
        pytest.importorskip("sklearn")
    setting, attack = replace(settings.setting, batch_size=10, malicious=2), analysis.attack_of(1)
    settings = replace(settings, setting=setting, attack=attack, estimators=("mean", "median"), batches=2)
    finished = []

    def on_step(what, done, steps):
        assert 0 <= done <= steps
        finished.extend([what] * (done == steps))

    with Store(tmp_path / "s.db") as store:
        for _ in range(2):
            finished.clear()
            experiment = analysis.Experiment(settings, store=store, on_step=on_step)
            numbers = analysis.get(name).measure(experiment)
            analysis.complete(numbers, on_step)
            assert len(finished) == analysis.get(name).parts(experiment.settings)


def test_digits_are_measured_in_little_and_other_data_as_in_the_paper():
    assert analysis.PAPER_STEPS == 100
    for name in analysis.available():
        attack = analysis.default_settings(name).attack
        assert attack.steps <= 20
        assert attack.steps * attack.step_size == pytest.approx(100 / 255)
    sizes = {data: analysis.known_setting(data) for data in ("digits", "cifar10-c")}
    assert (sizes["cifar10-c"].malicious, sizes["cifar10-c"].batch_size) == (40, 200)
    assert (sizes["digits"].malicious, sizes["digits"].batch_size) == (20, 100)


def test_captions_say_data_sizes_model_and_attack(settings):
    numbers = analysis.Numbers("own", settings_described := analysis.Experiment(settings).settings.describe(), [])
    caption = analysis.describe(numbers)
    for value in ("data", "model", "batch_size", "malicious", "steps", "objective", "method"):
        assert str(settings_described[value]) in caption
    assert "ε = 1 and 8/255" in caption


def test_a_figure_of_one_corruption_says_the_one_that_is_shown(settings):
    described = replace(settings, corruptions=("fog", "contrast")).describe()
    caption = analysis.describe(analysis.Numbers("own", described, []))
    assert "fog of severity 5" in caption
    assert "corruptions" not in caption


def test_every_figure_says_what_it_shows():
    numbers = {analysis.get(name).paper for name in analysis.available()}
    assert {"1", "4, 8, 9", "5, 6, 7", "10"} <= numbers
