"""Documents made up for the tests: one like that of a demo, and one with texts and numbers that break renderers."""

from __future__ import annotations

import math
import random
import struct
import zlib
from collections.abc import Iterator

import pytest

from medbn.report.document import (
    Curves,
    Document,
    Facts,
    Gallery,
    Heatmap,
    Measure,
    Picture,
    Point,
    Scatter,
    Section,
    Table,
    Text,
    Timeline,
)

DEFENCES = {
    "BatchNorm": "Mean and variance over the batch, as it is used everywhere.",
    "MedBN": "The paper's defence: the median over all pixels of the batch.",
    "image_median": "Ours: medians over images, because an attacker owns whole images.",
}
NAMES = {"BatchNorm": "mean", "MedBN": "median", "image_median": "image_median"}
CORRUPTIONS = [
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
]
ERRORS = {"BatchNorm": (30.1, 53.0, 53.4), "MedBN": (30.2, 36.1, 45.2), "image_median": (28.9, 28.4, 33.0)}
NASTY = "<script>alert(\"1\")</script> & 'two' | 50% of_it $x^2$ #1 {a} \\b ~ ε × 中 \x00 [*] `code`"


def png(seed: int, side: int = 16) -> bytes:
    """A small RGB image, written by hand so that the tests need no imaging library."""
    dice = random.Random(seed)
    cx, cy, hue = dice.uniform(5, 11), dice.uniform(5, 11), [dice.uniform(0.4, 1) for _ in range(3)]
    lines = b""
    for y in range(side):
        lines += b"\0"
        for x in range(side):
            ring = math.exp(-((math.hypot(x - cx, y - cy) - 4) ** 2) / 2)
            lines += bytes(min(255, int(40 + 190 * ring * h + dice.uniform(0, 20))) for h in hue)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def measured(value: float, width: float = 2.1, count: int = 1600) -> Measure:
    return Measure(value, max(0.0, value - width), min(100.0, value + width), count, "benign images predicted wrongly")


def _heatmap(attack: str, column: int) -> Heatmap:
    dice = random.Random(column)
    rows = [f"{method}, {name}" for method in ("TeBN", "TENT") for name in DEFENCES]
    values = [
        [measured(ERRORS[row.split(", ")[1]][column] * dice.uniform(0.55, 1.45)) for _ in CORRUPTIONS] for row in rows
    ]
    alt = f"Benign error of each method and defence on each of fifteen corruptions, {attack}."
    return Heatmap(
        f"Benign error, {attack}",
        alt,
        rows,
        CORRUPTIONS,
        values,
        caption="The stronger the colour the worse, in per cent.",
    )


def demo() -> Document:
    """What `medbn demo` might write."""
    headline = Table(
        "Error on everybody else's images, in per cent",
        ["Defence", "No attack", "Exact attack", "Straight-through attack"],
        [[name, *(measured(value) for value in line)] for name, line in ERRORS.items()],
        "Five corruptions of digits, 200 images a batch, 40 of them malicious. Under each number its 95 % interval.",
        ["The straight-through attack differentiates as if the median were a mean."],
        best=[(2, 1), (2, 2), (2, 3)],
    )
    methods = Table(
        "By method",
        ["Method", "Defence", "No attack", "Exact attack", "Straight-through attack", "Difference", "Seconds"],
        [
            [method, name, *(measured(v + shift) for v in line), Measure(-line[1] / 9, -6.2, -1.1, 40), 1.5 + shift / 7]
            for method, shift in (("TeBN", 0.0), ("TENT", 1.7))
            for name, line in ERRORS.items()
        ],
        best=[(2, 2), (2, 3), (2, 4), (5, 2), (5, 3), (5, 4)],
        labels=2,
    )
    points = [
        Point(f"{name}, {method}", name, measured(line[0] + shift, 1.1), measured(line[2] + 2 * shift), method)
        for method, shift in (("TeBN", 0.0), ("TENT", 1.4), ("SAR", 2.9))
        for name, line in ERRORS.items()
    ]
    frontier = Scatter(
        "Error without attack against error under attack",
        "Three defences under three methods. image_median has the lowest error on both axes; BatchNorm the highest.",
        "Error without attack, %",
        "Error under the strongest attack, %",
        points,
        caption="A defence on the dotted line is beaten by no other on both axes at once.",
    )
    ablation = Curves(
        "Error against the number of malicious images",
        "With 10 to 80 malicious images of 200 BatchNorm climbs to 76 %, image_median stays below 30 %.",
        "Malicious images of 200",
        "Benign error, %",
        {
            name: [(n, measured(line[0] + (line[1] - line[0]) * n / 40, 2.4)) for n in (10, 20, 40, 60, 80)]
            for name, line in ERRORS.items()
        },
        {"BatchNorm": [(10, 31.4), (20, 39.0), (40, 57.2), (80, 70.9)], "MedBN": [(10, 29.0), (40, 33.1), (80, 40.0)]},
        caption="Shaded: 95 % intervals. Dashed: what the paper printed.",
    )
    paper = Table(
        "Attack success, targeted, instant",
        ["Method", "Defence", "Ours", "Published", "Difference", "Remark"],
        [
            ["TeBN", "BatchNorm", measured(81.3), 83.7, Measure(-2.4, -4.5, -0.3), None],
            ["TeBN", "MedBN", measured(20.7), 19.2, Measure(1.5, -0.6, 3.6), "not significant"],
            ["TENT", "BatchNorm", measured(77.9), 79.0, Measure(-1.1, -3.2, 1.0), None],
            ["TENT", "MedBN", measured(19.0), 18.1, Measure(0.9, -1.2, 3.0), None],
            ["sEMA", "MedBN", None, 11.3, None, "not run"],
        ],
        "CIFAR10-C, ResNet26. Published numbers as printed.",
        ["The appendix shifts the targeted MedBN row by one method: both readings are in `published.json`."],
        labels=2,
    )
    gallery = Gallery(
        "Clean and poisoned",
        [
            ("As they came", [Picture(png(i), f"Digit {i}, clean", f"digit {i}") for i in range(7)]),
            ("Exact attack", [Picture(png(i + 50), f"Digit {i}, poisoned", "moved 0.8") for i in range(7)]),
            ("Straight-through", [Picture(png(i + 90), f"Digit {i}, poisoned", "moved 1.0") for i in range(7)]),
        ],
        "16 × 16 pixels, enlarged without smoothing.",
    )
    classes = {"road": (128, 64, 128), "sky": (70, 130, 180), "car": (0, 0, 142)}
    streets = Gallery(
        "Segmentation",
        [("As they came", [Picture(png(7), "An image"), Picture(png(8), "Its labels", "truth", (0.25, 0.75))])],
        large=True,
        legend=classes,
    )
    classwise = Heatmap(
        "IoU by class",
        "The IoU of each class.",
        list(ERRORS),
        list(classes),
        [[measured(value) for value in line] for line in ERRORS.values()],
        low_is_worse=True,
        colours=classes,
    )
    sections = [
        Section(
            "Which defence holds", [headline, methods], "40 crafted images of 200 double the error of `BatchNorm`."
        ),
        Section(
            "Per corruption",
            [_heatmap("no attack", 0), _heatmap("exact attack", 1), classwise],
            "The damage is nearly the same on all fifteen corruptions.",
        ),
        Section("Frontier", [frontier], "Being safe costs nothing here: the robust defence is also the most accurate."),
        Section("Ablation", [ablation], "How many malicious images it takes."),
        Section("Beside the paper", [paper], "Our numbers and those the paper printed."),
        Section("Examples", [gallery, streets], "What an attacker sends."),
        Section(
            "Repeat it",
            [
                Facts(
                    "What was run",
                    [
                        ("Recipe", "demo"),
                        ("Data", "digits, 16 × 16, five corruptions at severity 5"),
                        ("Model", "small ResNet, 78,000 parameters, sha256 `3f1c9a0d77e2b4115aa0c6f9b1d2e8e4`"),
                        ("Time", "52 s, of which 47 s for the attacks"),
                        ("Machine", "2 CPU cores, torch 2.13.0"),
                    ],
                ),
                Text("The same numbers come out, bit for bit, on the same machine:"),
                Text("medbn run demo --store demo.sqlite --seed 0 --device cpu\nmedbn report demo.sqlite", code=True),
            ],
        ),
    ]
    lead = (
        "A few crafted images in a batch spoil the predictions for everybody else's. With plain BatchNorm the error "
        "rises from 30 % to 53 %; with image_median it stays at 28 %."
    )
    return Document("MedBN test bench: demo", lead, sections, DEFENCES, NAMES)


def nasty() -> Document:
    """Every kind of part, with strings, numbers and gaps that break careless renderers."""
    nan, inf = float("nan"), float("inf")
    odd = Measure(nan, nan, inf, 0, NASTY)
    table = Table(
        NASTY,
        [NASTY, "a|b", ""],
        [[NASTY, odd, None], ["short"], ["=1+1", Measure(1 / 3, -inf, 2.0), inf], ["line\nbreak", True, -0.04]],
        NASTY,
        [NASTY],
        [(2, 1)],
    )
    return Document(
        NASTY,
        NASTY + "\n\nSecond paragraph.",
        [
            Section("Tables", [table, Table("No rows", ["a", "b"], []), Table("", [], [])], NASTY),
            Section(
                "Tables",
                [
                    Heatmap(NASTY, NASTY, [NASTY, "b"], ["one", "two"], [[odd, None], [Measure(150.0)]], caption=NASTY),
                    Heatmap("", "", [], [], []),
                    Scatter(
                        NASTY, NASTY, NASTY, NASTY, [Point(NASTY, NASTY, Measure(1.0), Measure(2.0))], caption=NASTY
                    ),
                    Scatter("", "", "", "", [Point("p", "q", odd, Measure(1.0))]),
                    Curves(NASTY, NASTY, NASTY, NASTY, {NASTY: [(1, Measure(5.0, 4.0, 6.0)), (2, odd)], "empty": []}),
                    Curves("", "", "", "", {}, {NASTY: [(nan, 1.0)]}),
                    Timeline(
                        NASTY,
                        NASTY,
                        NASTY,
                        {NASTY: [(1, 1e9), (2, nan)], "flat": [(1, 0.0), (3, 0.0)], "empty": [(1, inf)]},
                        [(1, 2, NASTY)],
                        [(2, NASTY, NASTY), (1, "", NASTY)],
                        NASTY,
                    ),
                    Timeline("", "", "", {}),
                ],
            ),
            Section(NASTY, [Gallery(NASTY, [(NASTY, [Picture(png(0), NASTY, NASTY)]), ("", [])]), Gallery("", [])]),
            Section(
                "中", [Facts(NASTY, [(NASTY, NASTY)]), Facts("", []), Text(NASTY), Text(NASTY + "\n\n```", code=True)]
            ),
            Section("Empty", []),
        ],
        {NASTY: NASTY},
    )


def empty() -> Document:
    """Return a document without anything in it."""
    return Document("", "", [])


BOTH = [pytest.param(demo, id="demo"), pytest.param(nasty, id="nasty")]


def measures(document: Document) -> Iterator[Measure]:
    """Yield every measure of a document, found without the code under test."""
    for section in document.sections:
        for part in section.parts:
            if isinstance(part, Table):
                yield from (value for row in part.rows for value in row if isinstance(value, Measure))
            elif isinstance(part, Heatmap):
                yield from (value for row in part.values for value in row if value is not None)
            elif isinstance(part, Scatter):
                yield from (value for point in part.points for value in (point.x, point.y))
            elif isinstance(part, Curves):
                yield from (value for line in part.series.values() for _, value in line)
