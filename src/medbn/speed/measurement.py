"""One measurement, the statistics of its ratios, and the kernels that a measurement forces."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from .. import kernels

KERNELS_VARIABLE = "MEDBN_KERNELS"
"""The environment variable that forces a path; see ``medbn.kernels.selected``."""
TORCH = "torch"
"""The path of ``mean``, which is torch's own kernel."""


@dataclass
class Measurement:
    """All times of one candidate in one case, and BatchNorm's times beside them."""

    part: str
    case: dict[str, Any]
    """Shape, layout, direction, method, ..."""
    estimator: str
    path: str
    clock: str
    """``"wall"``: wall-clock time; ``"graph"``: device time of replaying a CUDA graph; ``"bytes"``: memory;
    ``"device"``: how long a GPU works; ``"kernels"``: how many it runs."""
    values: list[float] = field(default_factory=list)
    """The candidate's seconds or bytes."""
    batch_norm: list[float] = field(default_factory=list)
    """BatchNorm's, one beside each of ``values``."""
    note: str = ""
    """Why nothing was measured, if so."""

    @property
    def ratios(self) -> list[float]:
        """The candidate's values divided by BatchNorm's beside them."""
        return [value / base for value, base in zip(self.values, self.batch_norm, strict=True)]

    def to_record(self) -> dict[str, Any]:
        """Return everything as a dict for JSON."""
        record = asdict(self)
        unit = self.clock if self.clock in ("bytes", "kernels") else "seconds"
        numbers = {unit: record.pop("values"), f"batch_norm_{unit}": record.pop("batch_norm"), "ratios": self.ratios}
        rounded = {name: [float(f"{value:.6g}") for value in values] for name, values in numbers.items()}
        return {**record.pop("case"), **record, **rounded}


class Quartiles(NamedTuple):
    """The quartiles of some ratios."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quartiles:
        """Return the quartiles of at least one value.

        >>> Quartiles.of([1.0, 2.0, 3.0, 4.0, 5.0])
        Quartiles(low=2.0, median=3.0, high=4.0)
        """
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        return cls(*statistics.quantiles(values, n=4, method="inclusive"))


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean, which is the average for ratios.

    >>> geometric_mean([0.5, 2.0])
    1.0
    """
    return math.exp(statistics.fmean(math.log(value) for value in values))


class Candidate(NamedTuple):
    """A call to measure, and the path of kernels that it takes."""

    estimator: str
    path: str
    call: Callable[[], object]


def paths(x: Tensor, estimator: str, reference: bool = True) -> list[str]:
    """Return the paths to measure: the one that is selected for ``x``, and with ``reference`` the reference path."""
    if estimator == "mean":
        return [TORCH]
    selected = kernels.selected(x, estimator)
    return list(dict.fromkeys((selected, "reference"))) if reference else [selected]


@contextmanager
def use_path(path: str) -> Iterator[None]:
    """Force the reference path inside a ``with`` block; any other path is selected without being forced."""
    before = os.environ.get(KERNELS_VARIABLE)
    if path == "reference":
        os.environ[KERNELS_VARIABLE] = path
    try:
        yield
    finally:
        if path == "reference":
            os.environ.pop(KERNELS_VARIABLE)
            if before is not None:
                os.environ[KERNELS_VARIABLE] = before
