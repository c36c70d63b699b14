import pytest

import medbn
from medbn.attacks import DIA, Indiscriminate, Targeted


@pytest.mark.parametrize("name", medbn.attacks.available())
def test_ready_made_attacks_take_an_objective_and_options(name):
    assert medbn.attacks.get(name).objective == Targeted()
    assert medbn.attacks.get(name, Indiscriminate(), steps=1).objective == Indiscriminate()


def test_options_override_what_the_name_sets():
    assert medbn.attacks.get("adaptive") == DIA(alignment=1.0)
    assert medbn.attacks.get("adaptive", alignment=2.0) == DIA(alignment=2.0)


def test_an_unknown_name_lists_the_others():
    with pytest.raises(ValueError, match=r"'dai'.*'dia'"):
        medbn.attacks.get("dai")
