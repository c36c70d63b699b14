"""What a file of weights says about its network: options without which the weights mean something else."""

from __future__ import annotations

from ast import literal_eval
from pathlib import Path
from typing import Any

from .weights import metadata

NAMES = ("classes", "channels", "mean", "std", "eps", "stride_in_1x1", "output_stride")
"""The options of models that are read from a file's metadata."""


def saved_settings(path: str | Path) -> dict[str, Any]:
    """Return the options of the model that a ``.safetensors`` file names in its metadata.

    Numbers of one option are separated by commas. ``stride``, in words, is that of a converted Keras network.
    """
    saved = metadata(path)
    settings: dict[str, Any] = {}
    for name in NAMES:
        if name in saved:
            try:
                settings[name] = literal_eval(saved[name])
            except (ValueError, SyntaxError) as error:
                raise ValueError(
                    f"weights {str(path)!r} say {name}={saved[name]!r}, which is no value. Get the file again."
                ) from error
    if "1x1" in saved.get("stride", ""):
        settings.setdefault("stride_in_1x1", True)
    return settings
