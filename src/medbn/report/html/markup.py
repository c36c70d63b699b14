"""Text and elements as escaped markup, and the templates of this folder."""

from __future__ import annotations

import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ..values import code_spans, split_paragraphs

# Characters that HTML and XML forbid, but the path of a store or the name of a model may have.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def render(template: str, **values: object) -> Markup:
    """Return a template of this folder, filled in. Values are escaped unless they are Markup already."""
    return Markup(_environment().get_template(template).render(**values))


@cache
def _environment() -> Environment:
    loader = PackageLoader("medbn.report.html")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"chip": chip, "inline": inline, "paragraphs": split_paragraphs}
    return environment


def inline(text: str) -> Markup:
    """Return a line of text, with the text between backticks as code."""
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(piece) if is_code else escape(piece) for piece, is_code in code_spans(text))


def breakable(text: str) -> Markup:
    """Return a line of text that may break after underscores, so that ``gaussian_noise`` fits a narrow column."""
    return inline(text).replace("_", Markup("_<wbr>"))


def chip(colour: tuple[int, int, int]) -> Markup:
    """Return a small field of a colour, for a legend. Only numbers are written, so that no text becomes markup."""
    red, green, blue = (int(channel) for channel in colour)
    return element("i", "", class_="chip", style=f"background:rgb({red} {green} {blue})")


def element(tag: str, *children: str, **attributes: str | int | float | None) -> Markup:
    """Return an element; its children and the values of its attributes are escaped unless they are Markup.

    Args:
        tag: the name of the element.
        children: what it contains.
        attributes: ``class_`` is written as ``class`` and ``aria_hidden`` as ``aria-hidden``. Floats are coordinates,
            which get one decimal; None leaves an attribute out.

    >>> element("text", "a < b", class_="tick", x=1.25, text_anchor="end")
    Markup('<text class="tick" x="1.2" text-anchor="end">a &lt; b</text>')
    """
    start = Markup("<") + tag
    for name, value in attributes.items():
        if value is not None:
            text = f"{value:.1f}" if isinstance(value, float) else value
            start += Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), text)
    if not children:
        return start + Markup("/>")
    return start + Markup(">") + Markup("").join(children) + Markup("</{}>").format(tag)


def replace_forbidden(page: str) -> str:
    """Return a page with U+FFFD for the control characters that HTML forbids."""
    return _FORBIDDEN.sub("\ufffd", page)


def slug(text: str, used: set[str]) -> str:
    """Return an identifier for ``text`` that is not in ``used``, and add it to ``used``."""
    base = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"
    name, number = base, 2
    while name in used:
        name, number = f"{base}-{number}", number + 1
    used.add(name)
    return name
