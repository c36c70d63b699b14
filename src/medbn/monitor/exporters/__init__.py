"""Exporters take the record of each batch to other systems."""

from .json_lines import JSONLines
from .opentelemetry import OpenTelemetry
from .prometheus import Prometheus

__all__ = ["JSONLines", "OpenTelemetry", "Prometheus"]
