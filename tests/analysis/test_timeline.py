from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import medbn
from medbn import analysis, attacks
from medbn.analysis.timeline import serve_stream

from .conftest import state_values

pytestmark = pytest.mark.slow  # the first test attacks batches

MALICIOUS = slice(6, 10)


def make(method, **options):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4)).eval()
    return medbn.adapt(model, method, "mean", **options)


def make_stream(attacked):
    """Batches whose labels are what TeBN predicts without attack."""
    generator, reference = torch.Generator().manual_seed(3), make("tebn")
    for each in attacked:
        images = torch.rand(10, 1, 6, 6, generator=generator)
        yield images, reference(images).argmax(dim=1), each


ATTACK = attacks.DIA(attacks.Indiscriminate(), steps=20, step_size=0.1)


def test_errors_without_attack_are_those_of_the_adapter_alone():
    served = make("sema")
    expected = [int((served(x).argmax(1) != y)[:6].sum()) for x, y, _ in make_stream([False] * 3)]
    assert serve_stream(make("sema"), make_stream([False] * 3), ATTACK, MALICIOUS) == expected


def test_attacked_batches_are_those_marked_and_poison_stays_where_the_method_remembers():
    pattern = [False, True, False, False]
    clean = {m: serve_stream(make(m), make_stream([False] * 4), ATTACK, MALICIOUS) for m in ("tebn", "source")}
    attacked = {m: serve_stream(make(m), make_stream(pattern), ATTACK, MALICIOUS) for m in ("tebn", "source")}
    assert attacked["source"] == clean["source"]
    assert clean["tebn"] == [0, 0, 0, 0]
    assert attacked["tebn"][1] > 0
    assert [attacked["tebn"][k] for k in (0, 2, 3)] == [0, 0, 0]
    tta = make("sema")
    serve_stream(tta, make_stream(pattern), ATTACK, MALICIOUS)
    untouched = make("sema")
    serve_stream(untouched, make_stream([False] * 4), ATTACK, MALICIOUS)
    assert state_values(tta) != state_values(untouched)


@pytest.fixture(scope="module")
def numbers(experiment):
    settings = replace(experiment.settings, corruptions=("fog", "contrast"), estimators=("mean", "median"))
    return analysis.measure("timeline", analysis.Experiment(settings))


def test_the_stream_goes_through_the_corruptions_with_one_attack_in_each(experiment, numbers):
    rows = numbers.select(method="tebn", estimator="median")
    assert [(row["corruption"], row["attacked"]) for row in rows] == [
        (name, attacked) for name in ("fog", "contrast") for attacked in (False, False, True, False)
    ]
    for row in rows:
        if not row["attacked"]:  # what TeBN keeps between batches is nothing
            cell = experiment.cell("median", corruption=row["corruption"])
            images, labels = experiment.batch(cell, row["batch"])
            wrong = (experiment.adapter(cell)(images).argmax(dim=1) != labels)[:32]
            assert (row["wrong"], row["benign"]) == (int(wrong.sum()), 32)
            assert row["error"] == pytest.approx(row["wrong"] / 32, rel=1e-5)


def test_the_panel_has_a_line_per_method_and_shaded_attacks(numbers):
    figure_class = pytest.importorskip("matplotlib.figure").Figure
    figure = figure_class()
    analysis.draw(numbers, figure, analysis.THEMES["light"])
    (axis,) = figure.axes
    lines = [line for line in axis.lines if len(line.get_xdata()) == 8]
    assert len(lines) == 5
    assert all(np.isfinite(line.get_ydata()).all() for line in lines)
    assert len(axis.patches) == 2
    assert [text.get_text() for text in axis.texts] == ["fog", "contrast"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["Source", "TeBN, BatchNorm", "TeBN, MedBN", "TENT, BatchNorm", "Past, MedBN"]
