"""What tests read from a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medbn import bench

TIMES = ("attack_s", "adapt_s", "shared")


def stored_metrics(path: str | Path) -> dict[str, list[dict[str, Any]]]:
    """Return the metrics of all batches by the keys of their cells, without times."""
    with bench.Store(path) as store:
        return {c.key: [{k: v for k, v in b.items() if k not in TIMES} for b in c.batches] for c in store.cells()}
