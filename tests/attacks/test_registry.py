import pytest
from torch import nn

import medbn
from medbn.attacks import DIA, Indiscriminate, Targeted
from medbn.attacks.objectives import Entropy, NotchHighEntropy

OWN_SIGHT = {"grey_box": {}, "transfer": {"model": nn.Linear(2, 2)}}


@pytest.mark.parametrize("name", medbn.attacks.available())
def test_ready_made_attacks_take_an_objective_and_options(name):
    options = OWN_SIGHT.get(name, {})
    default, other = (NotchHighEntropy(), Entropy()) if name in OWN_SIGHT else (Targeted(), Indiscriminate())
    assert medbn.attacks.get(name, **options).objective == default
    assert medbn.attacks.get(name, other, steps=1, **options).objective == other


def test_options_override_what_the_name_sets():
    assert medbn.attacks.get("adaptive") == DIA(alignment=1.0)
    assert medbn.attacks.get("adaptive", alignment=2.0) == DIA(alignment=2.0)


def test_an_unknown_name_lists_the_others():
    with pytest.raises(ValueError, match=r"'dai'.*'dia'"):
        medbn.attacks.get("dai")
