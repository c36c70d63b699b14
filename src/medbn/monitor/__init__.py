"""Watch an adapter while it serves: signals per batch, alarms with a stated false-alarm rate, actions, exporters.

    tta = medbn.adapt(model, method="tent")
    monitor = medbn.Monitor(tta, on_alarm="rollback", exporters=[medbn.monitor.JSONLines("stream.jsonl")])
    logits = tta(images)                        # as before

``docs/deploying.md`` says what the signals and alarms mean.
"""

from . import signals
from .batch import Batch
from .collect import choose_layers
from .exporters import JSONLines, OpenTelemetry, Prometheus
from .martingale import Martingale
from .moments import Moments, reduce_layer
from .monitor import Exporter, Monitor
from .record import Alarm, Reader, Record, is_stream, read
from .watch import Watch

__all__ = [
    "Alarm",
    "Batch",
    "Exporter",
    "JSONLines",
    "Martingale",
    "Moments",
    "Monitor",
    "OpenTelemetry",
    "Prometheus",
    "Reader",
    "Record",
    "Watch",
    "choose_layers",
    "is_stream",
    "read",
    "reduce_layer",
    "signals",
]
