"""Where the labels beside the points of a figure are placed."""

from __future__ import annotations

from collections.abc import Sequence

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""

LETTER = 6.7
"""About the width of a letter in figures, in pixels."""

_PLACES = (
    (10.0, -8.0, "start"),
    (10.0, 16.0, "start"),
    (-10.0, -8.0, "end"),
    (-10.0, 16.0, "end"),
    (12.0, 4.0, "start"),
    (-12.0, 4.0, "end"),
    (0.0, -14.0, "middle"),
    (0.0, 22.0, "middle"),
)
"""Offsets from a point to its label, with the anchor of the text, in the order in which they are tried."""


def overlap(a: Box, b: Box) -> float:
    """Return the area that two boxes share."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def place_labels(
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    limits: Box,
    lines: Sequence[Box] = (),
    blocked: Sequence[Box] = (),
) -> list[tuple[float, float, str] | None]:
    """Return for each point the place of its label: x, y and the anchor of the text; None where there is no room.

    Of eight places round its point, a label takes the one that covers least of the lines, among those that cover no
    mark, no other label and no blocked box. A label without a place is not drawn; the table of the figure has it.

    Args:
        points: in pixels.
        texts: the labels, one for each point.
        limits: the box that labels stay inside of.
        lines: boxes of intervals and other lines.
        blocked: boxes of other texts.
    """
    marks = [(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    used: list[Box] = list(blocked)
    placed: list[tuple[float, float, str] | None] = []
    for (x, y), text in zip(points, texts, strict=True):
        width = LETTER * len(text)
        choices: list[tuple[float, float, float, str, Box]] = []
        for order, (dx, dy, anchor) in enumerate(_PLACES):
            start = x + dx - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
            box = (start, y + dy - 11, start + width, y + dy + 4)
            if any(overlap(box, other) for other in (*marks, *used)) or not _inside(box, limits):
                continue
            choices.append((sum(overlap(box, line) for line in lines) + order, x + dx, y + dy, anchor, box))
        if choices:
            _, at_x, at_y, anchor, box = min(choices)
            used.append(box)
            placed.append((at_x, at_y, anchor))
        else:
            placed.append(None)
    return placed


def _inside(box: Box, limits: Box) -> bool:
    return box[0] >= limits[0] and box[1] >= limits[1] and box[2] <= limits[2] and box[3] <= limits[3]
