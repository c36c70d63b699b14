"""The colours of estimators can be told apart, by colour-blind readers too, and on both grounds."""

from itertools import combinations

import numpy as np
import pytest

from medbn import estimators
from medbn._styles import COLOURS, MARKS, estimator_style, estimator_styles

GROUNDS = ("#fcfcfa", "#12161c")
# Severity 1 of Machado et al. (2009): linear RGB as seen with protanopia, deuteranopia and tritanopia.
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# From linear RGB to CIE XYZ, relative to the white of sRGB.
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    share = XYZ @ rgb / XYZ.sum(axis=1)
    x, y, z = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(first: str, second: str) -> float:
    low, high = sorted(float(XYZ[1] @ linear(one)) for one in (first, second))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("ground", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("sight", SIGHTS)
def test_colours_can_be_told_apart(ground, sight):
    seen = [lab(np.clip(np.array(SIGHTS[sight]) @ linear(pair[ground]), 0, 1)) for pair in COLOURS]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 18


@pytest.mark.parametrize("ground", [0, 1], ids=["light", "dark"])
def test_the_three_main_defences_can_be_told_apart_in_grey(ground):
    greys = [lab(linear(pair[ground]))[0] for pair in COLOURS[:3]]
    assert min(abs(a - b) for a, b in combinations(greys, 2)) > 6


@pytest.mark.parametrize("ground", [0, 1], ids=["light", "dark"])
def test_marks_can_be_seen_on_their_ground(ground):
    assert all(contrast(pair[ground], GROUNDS[ground]) >= 3 for pair in COLOURS)


def test_every_estimator_of_the_package_has_a_style_of_its_own():
    assert len(set(estimator_styles(estimators.available()).values())) == len(estimators.available())


def test_a_prior_keeps_the_colour_and_differs_by_its_tenths():
    styles = estimator_styles(["median", *(f"median@0.{tenth}" for tenth in range(1, 10))])
    assert {style.colour for style in styles.values()} == {estimator_style("median").colour}
    assert len(set(styles.values())) == 10
    assert [style.filled for style in styles.values()] == [True] + 9 * [False]


def test_estimators_of_users_share_a_colour_and_differ_in_their_marks():
    styles = estimator_styles(["mean", "mine", "yours"])
    assert styles["mine"].colour == styles["yours"].colour == len(COLOURS) - 1
    assert len({style.mark for style in styles.values()}) == 3
    assert {style.mark for style in styles.values()} <= set(MARKS)


@pytest.mark.parametrize("name", ["median@", "median@x", "median@nan", "median@inf", "", "@1e400"])
def test_any_name_of_a_store_has_a_style(name):
    assert estimator_style(name).mark in MARKS
