"""Records for the tests of exporters."""

from medbn.monitor import Alarm, Record

ALARM = Alarm(3, "pressure/layer1.bn", onset=2, log10_evidence=4.5, action="paused")
SIGNALS = [
    {"images": 16.0, "pressure/layer1.bn": 0.25, "entropy": 1.5},
    {"images": 16.0, "pressure/layer1.bn": 0.5, "entropy": float("nan")},
    {"images": 8.0, "pressure/layer1.bn": 2.0, "entropy": 0.5},
]
RECORDS = [
    Record(1, 1000.0, "reference", SIGNALS[0]),
    Record(2, 1001.5, "watching", SIGNALS[1], {"entropy": -1.0}, 3.5),
    Record(3, 1002.0, "paused", SIGNALS[2], {"entropy": 4.5}, 3.5, (ALARM,)),
]
