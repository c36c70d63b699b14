"""Exporters take the record of each batch to other systems."""

from .json_lines import JSONLines

__all__ = ["JSONLines"]
