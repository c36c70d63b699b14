"""What the exporters for metrics share: names, what they mean, and imports of extras."""

from __future__ import annotations

import importlib
from typing import Any

KINDS = {
    "signal": "Signals of the last batch",
    "evidence": "Logarithm to base 10 of the evidence that a signal has changed",
    "evidence_threshold": "The evidence that raises an alarm",
    "paused": "1 while the model serves without adapting",
    "batches": "Batches that were served",
    "images": "Images that were served",
    "alarms": "Alarms",
}
"""The metrics, each with what it is."""


def split_name(name: str) -> dict[str, str]:
    """Return a signal's name as labels.

    >>> split_name("pressure/layer1.0.bn1")
    {'signal': 'pressure', 'layer': 'layer1.0.bn1'}
    """
    signal, _, layer = name.partition("/")
    return {"signal": signal, "layer": layer}


def import_extra(module: str, extra: str) -> Any:
    """Import a module; where it is missing, raise an ImportError that names the extra."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(f"this exporter needs {module}: pip install 'medbn[{extra}]'.") from None
