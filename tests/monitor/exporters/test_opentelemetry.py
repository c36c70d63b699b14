"""Against the real SDK with its reader in memory."""

import sys

import pytest

import medbn

from .records import RECORDS

sdk = pytest.importorskip("opentelemetry.sdk.metrics")


def test_a_reader_in_memory_reads_the_last_record():
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = sdk.MeterProvider(metric_readers=[reader])
    exporter = medbn.monitor.OpenTelemetry(provider, attributes={"replica": "3"})
    for record in RECORDS:
        exporter.export(record)
    exporter.close()
    values = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            assert scope.scope.name == "medbn"
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    assert point.attributes["replica"] == "3"
                    key = (metric.name, point.attributes.get("signal"), point.attributes.get("layer"))
                    values[key] = point.value
    provider.shutdown()
    assert values["medbn.signal", "pressure", "layer1.bn"] == 2.0
    assert values["medbn.evidence", "entropy", ""] == 4.5
    assert values["medbn.evidence_threshold", None, None] == 3.5
    assert values["medbn.paused", None, None] == 1
    assert values["medbn.batches", None, None] == 3
    assert values["medbn.images", None, None] == 40
    assert values["medbn.alarms", "pressure", "layer1.bn"] == 1


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(ImportError, match=r"medbn\[opentelemetry\]"):
        medbn.monitor.OpenTelemetry()
