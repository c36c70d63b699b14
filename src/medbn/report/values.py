"""Numbers and texts as a reader sees them, in every format."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from .document import Measure, Value

_CODE = re.compile(r"(`[^`\n]+`)")


def finite_number(value: Value) -> float | None:
    """Return the finite number in ``value``, to sort and compare by; None for text, empty cells, NaN and infinities."""
    bare = value.value if isinstance(value, Measure) else value
    if bare is None or isinstance(bare, str | bool):
        return None
    return float(bare) if math.isfinite(bare) else None


def interval_ends(measure: Measure) -> tuple[float, float] | None:
    """Return the ends of a measure's interval, or None unless both are finite."""
    low, high = finite_number(measure.low), finite_number(measure.high)
    return None if low is None or high is None else (low, high)


def format_percent(value: float) -> str:
    """Return a per cent with one decimal and a true minus sign; never a negative zero."""
    text = f"{value:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", "−")


def decimal_places(column: Sequence[Value]) -> int | None:
    """Return how many decimals the fractions of a column get, so that they align; None leaves each its own."""
    fractions = [
        abs(number) for value in column if not isinstance(value, int) and (number := finite_number(value)) is not None
    ]
    if any(isinstance(value, Measure) for value in column):
        return 1
    if all(number == int(number) for number in fractions):
        return 0
    largest = max(fractions)
    return None if largest < 0.1 else 3 if largest < 1 else 2 if largest < 10 else 1


def format_value(value: Value, decimals: int | None = None) -> str:
    """Return a value without its interval; "" for None and NaN.

    Measures have one decimal (``38.1``), other fractions ``decimals``, or else at most four digits.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    bare = value.value if isinstance(value, Measure) else value
    if bare is None or math.isnan(bare):
        return ""
    if math.isinf(bare):
        return "∞" if bare > 0 else "−∞"
    if isinstance(value, Measure):
        return format_percent(value.value)
    if decimals is not None and not isinstance(bare, int):
        return f"{bare:.{decimals}f}".replace("-", "−")
    # The g format alone would write 12345.6 as 1.235e+04.
    text = f"{bare:.0f}" if isinstance(bare, int) or abs(bare) >= 1000 else f"{bare:.4g}"
    return text.replace("-", "−")


def format_interval(measure: Measure) -> str:
    """Return an interval as ``36.0–40.2``, or "" without one. "to" replaces the dash beside a minus sign."""
    ends = interval_ends(measure)
    if ends is None:
        return ""
    return (" to " if min(ends) < 0 else "–").join(format_percent(end) for end in ends)


def format_count(count: int) -> str:
    """Return the number of batches or targets behind a measure as it is written in a cell."""
    return f"n = {count}"


def format_full(value: Value, decimals: int | None = None, count: int | None = None) -> str:
    """Return a value with its interval and the number of its batches, in brackets.

    The number of batches is there where ``count`` is given, or where there is no interval.
    """
    interval = format_interval(value) if isinstance(value, Measure) else ""
    if isinstance(value, Measure) and not interval and count is None:
        count = value.count
    details = "; ".join(filter(None, [interval, "" if count is None else format_count(count)]))
    return f"{format_value(value, decimals) or '–'} ({details})" if details else format_value(value, decimals)


def tooltip(measure: Measure) -> str:
    """Return the text that a page shows when the pointer is on a measure."""
    interval = format_interval(measure)
    size = "" if measure.count is None else format_count(measure.count)
    return "; ".join(filter(None, [measure.note, f"95 % interval {interval}" if interval else "", size]))


def code_spans(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a text, each with whether it is code, which is written between backticks."""
    for piece in _CODE.split(text):
        if piece:
            yield (piece[1:-1], True) if _CODE.fullmatch(piece) else (piece, False)


def split_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, which blank lines separate."""
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
