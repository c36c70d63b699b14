"""OpenTelemetry: the last record as instruments of a meter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..record import Record
from .labels import KINDS, import_extra, split_name

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


class OpenTelemetry:
    """Records every batch with ``opentelemetry-api``: ``pip install medbn[opentelemetry]``.

    The instruments are those of ``Prometheus`` with dots: gauges ``medbn.signal``, ``medbn.evidence``,
    ``medbn.evidence_threshold`` and ``medbn.paused``, counters ``medbn.batches``, ``medbn.images`` and
    ``medbn.alarms``. Signals, evidence and alarms have the attributes ``signal`` and ``layer``. Where they go is up to
    the provider of the program, which needs ``opentelemetry-sdk`` or another one; without any they go nowhere.

    Args:
        provider: of meters; by default the program's own.
        attributes: that everything recorded gets, such as ``{"replica": "3"}``.
    """

    def __init__(self, provider: MeterProvider | None = None, *, attributes: dict[str, str] | None = None) -> None:
        metrics: Any = import_extra("opentelemetry.metrics", "opentelemetry")
        meter = metrics.get_meter("medbn", meter_provider=provider)
        self._attributes = dict(attributes or {})
        gauges, counters = ("signal", "evidence", "evidence_threshold", "paused"), ("batches", "images", "alarms")
        self._gauges = {name: meter.create_gauge(f"medbn.{name}", description=KINDS[name]) for name in gauges}
        self._counters = {name: meter.create_counter(f"medbn.{name}", description=KINDS[name]) for name in counters}

    def export(self, record: Record) -> None:
        """Record a batch."""
        own = self._attributes
        for name, value in record.signals.items():
            self._gauges["signal"].set(value, {**own, **split_name(name)})
        for name, value in record.evidence.items():
            self._gauges["evidence"].set(value, {**own, **split_name(name)})
        for alarm in record.alarms:
            self._counters["alarms"].add(1, {**own, **split_name(alarm.signal)})
        self._gauges["evidence_threshold"].set(record.threshold, own)
        self._gauges["paused"].set(int(record.state == "paused"), own)
        self._counters["batches"].add(1, own)
        self._counters["images"].add(record.signals.get("images", 0), own)

    def close(self) -> None:
        """Do nothing: the provider is the program's."""
