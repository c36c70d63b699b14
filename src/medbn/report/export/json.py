"""A document as JSON: everything in it, every digit of it."""

from __future__ import annotations

import base64
import dataclasses
import json as json_encoder
import math
import operator
from collections.abc import Mapping, Sequence
from typing import SupportsFloat, SupportsIndex

from ..document import Document
from ..formats import register_format


@register_format("json", ".json")
def json(document: Document) -> str:
    """Return a document as JSON; images are their PNG files in base64."""
    content = _encode(document)
    assert isinstance(content, dict)
    return json_encoder.dumps({"format": 1, **content}, ensure_ascii=True, allow_nan=False, indent=1) + "\n"


def _encode(value: object) -> object:
    """Return any value of a document in JSON's types. Objects have a "kind"; NaN and infinities become null."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, SupportsIndex):
        return operator.index(value)
    if isinstance(value, SupportsFloat):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__.lower(), **fields}
    assert isinstance(value, Sequence), value
    return [_encode(item) for item in value]
