"""Against the real client: what Prometheus would read over loopback, by prometheus_client's own parser."""

import sys
from urllib.request import urlopen

import pytest

import medbn

from .records import RECORDS

client = pytest.importorskip("prometheus_client")


def scrape(port):
    from prometheus_client.parser import text_string_to_metric_families

    text = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(s.name, s.labels.get("signal", ""), s.labels.get("layer", "")): s for s in samples}


def test_a_scrape_over_loopback_reads_the_last_record():
    exporter = medbn.monitor.Prometheus(0, labels={"replica": "3"})
    try:
        for record in RECORDS:
            exporter.export(record)
        samples = scrape(exporter.port)
    finally:
        exporter.close()
    values = {key: sample.value for key, sample in samples.items()}
    assert values["medbn_signal", "pressure", "layer1.bn"] == 2.0
    assert values["medbn_signal", "entropy", ""] == 0.5
    assert values["medbn_evidence", "entropy", ""] == 4.5
    assert values["medbn_evidence_threshold", "", ""] == 3.5
    assert values["medbn_paused", "", ""] == 1
    assert values["medbn_batches_total", "", ""] == 3
    assert values["medbn_images_total", "", ""] == 40
    assert values["medbn_alarms_total", "pressure", "layer1.bn"] == 1
    assert all(sample.labels["replica"] == "3" for sample in samples.values())


def test_without_a_port_the_program_serves_its_own_registry():
    registry = client.CollectorRegistry()
    exporter = medbn.monitor.Prometheus(registry=registry)
    exporter.export(RECORDS[0])
    assert registry.get_sample_value("medbn_signal", {"signal": "pressure", "layer": "layer1.bn"}) == 0.25
    assert exporter.port is None


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"medbn\[prometheus\]"):
        medbn.monitor.Prometheus()
