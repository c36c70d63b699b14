"""Text as HTML: everything that comes from a document passes through here."""

from __future__ import annotations

import html
import re

from . import values
from .document import Measure

# Neither HTML nor XML can hold these; a store's path or a model's name may.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def escape(text: str) -> str:
    """Text for element content and for attributes in double quotes."""
    return html.escape(_FORBIDDEN.sub("\ufffd", text))


def inline(text: str) -> str:
    """A line of text, with what stands between backticks as code."""
    return "".join(f"<code>{escape(piece)}</code>" if code else escape(piece) for piece, code in values.spans(text))


def heading(text: str) -> str:
    """A name that may break after its underscores, so that ``gaussian_noise`` fits a narrow column."""
    return inline(text).replace("_", "_<wbr>")


def paragraphs(text: str, kind: str = "") -> str:
    """A text as paragraphs of one class."""
    attribute = f' class="{kind}"' if kind else ""
    return "\n".join(f"<p{attribute}>{inline(part)}</p>" for part in values.paragraphs(text))


def attribute(name: str, text: str) -> str:
    """`` name="text"``, or nothing for an empty text."""
    return f' {name}="{escape(text)}"' if text else ""


def measure(value: Measure, count: int | None = None) -> str:
    """A measure: its number, and small under it its interval, and its count where one is given."""
    ends = values.interval(value)
    small = f'<span class="interval">{escape(ends)}</span>' if ends else ""
    small += "" if count is None else f'<span class="count">{values.counted(count)}</span>'
    return f'<span class="number">{escape(values.shown(value))}</span>{small}'


def slug(text: str, used: set[str]) -> str:
    """An identifier for ``text`` that is not in ``used`` yet, and now is."""
    base = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"
    name, again = base, 2
    while name in used:
        name, again = f"{base}-{again}", again + 1
    used.add(name)
    return name
