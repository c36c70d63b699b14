"""The stream of ``medbn demo changes``."""

import itertools
import math

import pytest

from medbn.cli import _demo_changes, main


@pytest.mark.slow
def test_a_change_is_found_and_followed_and_none_raised_by_a_fifth():
    steps = list(_demo_changes.run_stream("cpu"))
    assert len(steps) == sum(count for count, *_ in _demo_changes.PARTS)
    assert [step.event for step in steps if step.attack == "alarm"] == ["stays"] * 4
    changes = [after for before, after in itertools.pairwise(steps) if before.images != after.images]
    assert [step.event for step in changes] == ["change", "known again", "known again"]
    _, past, detect = changes[0].errors
    assert detect < past / 2
    owned = [number for number, step in enumerate(steps) if step.attack == "owned"]
    assert math.isnan(steps[owned[0]].errors[0])
    assert [steps[owned[0] + i].event for i in (0, 1)] == ["change", "known again"]


@pytest.mark.slow
def test_the_command_prints_a_line_for_each_batch(capsys, monkeypatch):
    monkeypatch.setattr(_demo_changes, "PARTS", ((1, "clear", "none"), (1, "brightness", "none")))
    assert main(["demo", "changes", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["images", "clear", "brightness", "mean"]
    assert main(["demo", "changes", "--device", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
