"""Prometheus: the last record as metrics, and a page from which Prometheus reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..record import Record
from .labels import KINDS, import_extra, split_name

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Prometheus:
    """Keeps metrics of ``prometheus_client`` up to date: ``pip install medbn[prometheus]``.

    ============================  =======  =====================  =================================================
    ``medbn_signal``              gauge    ``signal``, ``layer``  the signals of the last batch
    ``medbn_evidence``            gauge    ``signal``, ``layer``  log10 of the evidence that a signal has changed
    ``medbn_evidence_threshold``  gauge                           the evidence that raises an alarm
    ``medbn_paused``              gauge                           1 while nothing adapts
    ``medbn_batches_total``       counter                         batches that were served
    ``medbn_images_total``        counter                         images that were served
    ``medbn_alarms_total``        counter  ``signal``, ``layer``  alarms
    ============================  =======  =====================  =================================================

    Args:
        port: serve them on this port, 0 for any free one; None not to serve them, where the program does so itself.
        address: on which address; by default to this machine alone.
        registry: of the metrics; by default one of its own with a port, and that of ``prometheus_client`` without.
        labels: names and values that all metrics get, such as ``{"replica": "3"}``.
    """

    def __init__(
        self,
        port: int | None = None,
        *,
        address: str = "127.0.0.1",
        registry: CollectorRegistry | None = None,
        labels: dict[str, str] | None = None,
    ) -> None:
        client: Any = import_extra("prometheus_client", "prometheus")
        if registry is None:
            registry = client.REGISTRY if port is None else client.CollectorRegistry()
        self.registry = registry
        self._labels = dict(labels or {})
        common, both = list(self._labels), [*self._labels, "signal", "layer"]

        def make(kind: Any, name: str, names: list[str]) -> Any:
            return kind(f"medbn_{name}", KINDS[name], names, registry=registry)

        self._signal, self._evidence = (make(client.Gauge, name, both) for name in ("signal", "evidence"))
        self._threshold, self._paused = (make(client.Gauge, name, common) for name in ("evidence_threshold", "paused"))
        self._batches, self._images = (make(client.Counter, name, common) for name in ("batches", "images"))
        self._alarms = make(client.Counter, "alarms", both)
        self._server: Any = None
        if port is not None:
            self._server, self._thread = client.start_http_server(port, addr=address, registry=registry)
        self.port: int | None = None if self._server is None else self._server.server_port
        """The port that serves the metrics."""

    def export(self, record: Record) -> None:
        """Set the metrics to those of a record."""
        for name, value in record.signals.items():
            self._of(self._signal, name).set(value)
        for name, value in record.evidence.items():
            self._of(self._evidence, name).set(value)
        for alarm in record.alarms:
            self._of(self._alarms, alarm.signal).inc()
        self._of(self._threshold).set(record.threshold)
        self._of(self._paused).set(record.state == "paused")
        self._of(self._batches).inc()
        self._of(self._images).inc(record.signals.get("images", 0))

    def close(self) -> None:
        """Stop serving the metrics."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None

    def _of(self, metric: Any, name: str | None = None) -> Any:
        """Return the metric with its labels."""
        values = {**self._labels, **({} if name is None else split_name(name))}
        return metric.labels(**values) if values else metric
