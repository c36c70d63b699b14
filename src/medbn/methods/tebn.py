"""TeBN: test-time normalisation (Nado et al., 2020; Schneider et al., 2020). Eq. 2-3 of the MedBN paper."""

from __future__ import annotations

from typing import ClassVar

from ._registry import register
from .base import Adapter


@register("tebn")
class TeBN(Adapter):
    """Normalises every batch with its own statistics; learns nothing and keeps nothing."""

    surrogate_from_policies: ClassVar[bool] = True
