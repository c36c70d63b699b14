"""The paper's figures: each measured by one function and drawn by another.

from medbn import analysis

    numbers = analysis.measure("shift")                       # on the embedded digits; torch and numpy are enough
    open("shift.csv", "w").write(numbers.to_csv())
    open("shift.svg", "wb").write(analysis.render(numbers))   # needs medbn[figures]
"""

import importlib
import pkgutil

from .cache import stored_numbers
from .captions import describe, epsilon_label
from .experiment import Experiment, one_per_stage, visit_layers
from .numbers import Numbers
from .registry import (
    Figure,
    available,
    choose_layers,
    complete,
    default_settings,
    get,
    measure,
    register,
    unregister,
)
from .render import FORMATS, check_drawing, check_format, contact_sheet, draw, render
from .settings import LAYERS, PAPER_STEPS, Settings, attack_of, check_layers, known_setting
from .theme import THEMES, WIDTHS, Theme, get_theme

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = [
    "FORMATS",
    "LAYERS",
    "PAPER_STEPS",
    "THEMES",
    "WIDTHS",
    "Experiment",
    "Figure",
    "Numbers",
    "Settings",
    "Theme",
    "attack_of",
    "available",
    "check_drawing",
    "check_format",
    "check_layers",
    "choose_layers",
    "complete",
    "contact_sheet",
    "default_settings",
    "describe",
    "draw",
    "epsilon_label",
    "get",
    "get_theme",
    "known_setting",
    "measure",
    "one_per_stage",
    "register",
    "render",
    "stored_numbers",
    "unregister",
    "visit_layers",
]
