"""The tables of docs/results/owned-batches.md."""

from __future__ import annotations

from _stored import METHODS, NAMES, THREE, Rows, difference, error, percent, pick, table
from medbn import bench
from medbn.bench import Results

DIGITS = "owned-digits-cpu"
CRAFTED, REPLAYED = "owned-batches", "owned-batches-replay"
NHE, BLE = "notch_high_entropy", "balanced_low_entropy"
ALL = {**METHODS, "past": "`past`"}
KINDS = {"": "as published", "-bounded-batch": "bounded, statistics of the batch", "-bounded-past": "bounded"}


def _attacked(method: str, estimator: str, kind: str = "") -> list[Results]:
    """Return the results under the three attacks."""
    crafted = (pick(CRAFTED + kind, DIGITS, o, method=method, estimator=estimator) for o in (NHE, BLE))
    return [*crafted, pick(REPLAYED + kind, DIGITS, method=method, estimator=estimator)]


def _errors(results: list[Results]) -> list[str]:
    without = percent(results[0].error("wrong_without"))
    return [without, *map(error, results), str(len(results[0].batches))]


HEADER = ["without attack", "NHE", "BLE", "replay", "benign batches (n)"]


@table("owned-digits")
def owned_digits() -> Rows:
    """Return the error on benign batches without and with each attacker, as methods were published."""
    rows = [["", "", *HEADER]]
    for method in ("tent", "eta", "past"):
        rows += [[ALL[method], NAMES[e], *_errors(_attacked(method, e))] for e in THREE]
    for estimator in THREE:  # replay has no TeBN, which keeps nothing
        crafted = [pick(CRAFTED, DIGITS, o, method="tebn", estimator=estimator) for o in (NHE, BLE)]
        without, *under, count = _errors(crafted)
        rows.append([ALL["tebn"], NAMES[estimator], without, *under, without, count])
    return rows


@table("owned-digits-rate")
def owned_digits_rate() -> Rows:
    """Return the same with the methods' own rate of learning."""
    rows = [["rate 0.001", "", "without attack", "NHE", "BLE", "added by NHE", "benign batches (n)"]]
    for method in ("tent", "eta"):
        results = [pick(f"{CRAFTED}-default-rate", DIGITS, o, method=method, estimator="mean") for o in (NHE, BLE)]
        without, *under, count = _errors(results)
        rows.append([ALL[method], NAMES["mean"], without, *under, _added(results[0]), count])
    return rows


@table("owned-digits-bounded")
def owned_digits_bounded() -> Rows:
    """Return the same for methods with bounded influence."""
    rows = [["", "", "influence", *HEADER]]
    for method in ("tent", "eta"):
        for estimator in THREE:
            for kind, words in KINDS.items():
                rows.append([ALL[method], NAMES[estimator], words, *_errors(_attacked(method, estimator, kind))])
    return rows


@table("owned-digits-differences")
def owned_digits_differences() -> Rows:
    """Return what bounded influence costs, and what each attacker adds with and without it."""
    rows = [["", "", "influence", "cost without attack", "added by NHE", "added by BLE", "added by replay"]]
    for method in ("tent", "eta"):
        for estimator in THREE:
            plain = _attacked(method, estimator)[0]
            for kind, words in KINDS.items():
                results = _attacked(method, estimator, kind)
                cost = difference(plain, results[0], which="wrong_without") if kind else "–"
                rows.append([ALL[method], NAMES[estimator], words, cost, *map(_added, results)])
    return rows


def _added(results: Results) -> str:
    """Return how much higher the error is than on the same batches without attack."""
    without, attacked = ([b[name] / b["benign"] for b in results.batches] for name in ("wrong_without", "wrong"))
    return percent(bench.intervals.paired_difference(without, attacked), signed=True)
