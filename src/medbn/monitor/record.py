"""What a monitor has to say about a batch, and files of it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1


@dataclass(frozen=True)
class Alarm:
    """An alarm: a signal is no longer exchangeable with its reference."""

    batch: int
    """The batch that raised it, counted from 1."""
    signal: str
    onset: int
    """The batch before which the change probably began."""
    log10_evidence: float
    """The logarithm to base 10 of the capital; see ``medbn.monitor.Martingale``."""
    action: str = ""
    """What the monitor did: ``"paused"``, ``"rolled back to batch 40"``, or nothing."""
    declared_change: bool = False
    """Whether the method itself has declared a change of the images since the onset."""

    def __str__(self) -> str:
        text = f"batch {self.batch}: {self.signal} has changed, probably since batch {self.onset}"
        return text + (f"; {self.action}" if self.action else "")


@dataclass(frozen=True)
class Record:
    """One batch."""

    batch: int
    """Counted from 1."""
    time: float
    """When it was served, in seconds since 1970."""
    state: str
    """``"reference"`` while the reference is collected, then ``"watching"``; ``"paused"`` while nothing adapts."""
    signals: dict[str, float]
    """The value of each signal; NaN where it has none."""
    evidence: dict[str, float] = field(default_factory=dict)
    """The logarithm to base 10 of the capital of each signal that may raise an alarm."""
    threshold: float = math.inf
    """The evidence that raises an alarm."""
    alarms: tuple[Alarm, ...] = ()

    def to_json(self) -> str:
        """Return the record as one line of JSON, in which NaN is null."""
        return json.dumps(_replace_nonfinite(asdict(self)), allow_nan=False)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Record:
        """Return the record that ``to_json`` wrote."""
        signals = {name: math.nan if value is None else float(value) for name, value in values["signals"].items()}
        evidence = {name: float(value) for name, value in values["evidence"].items() if value is not None}
        threshold = math.inf if values["threshold"] is None else float(values["threshold"])
        alarms = tuple(Alarm(**alarm) for alarm in values["alarms"])
        head = (int(values["batch"]), float(values["time"]), str(values["state"]))
        return cls(*head, signals, evidence, threshold, alarms)


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_stream(path: str | Path) -> bool:
    """Return whether a file begins as a monitor's file of JSON lines does."""
    try:
        with open(path, "rb") as file:
            return file.read(16).startswith(b'{"medbn_monitor"')
    except OSError:
        return False


def parse(line: str, where: str) -> Record | None:
    """Return the record in a line; None for the line that begins a stream.

    Args:
        line: a line of a monitor's file.
        where: names the line in error messages.
    """
    try:
        values = json.loads(line)
        if isinstance(values, dict) and "medbn_monitor" in values:
            if values["medbn_monitor"] != FORMAT:
                raise ValueError(
                    f"{where}: this file has format {values['medbn_monitor']}, and this version of medbn reads"
                    f" {FORMAT}."
                )
            return None
        return Record.from_dict(values)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{where}: not a line of a monitor's file ({type(error).__name__}).") from None


class Reader:
    """Reads a file that the exporter JSONLines writes, also while it is written.

    Args:
        path: the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise ValueError(f"there is no file {self.path}; medbn.monitor.JSONLines writes one.")
        if not is_stream(self.path):
            raise ValueError(f"{self.path} is no monitor's file: medbn.monitor.JSONLines writes those.")
        self._position = self._line = 0

    def read(self) -> list[Record]:
        """Return the records since the last call; a last line that is being written is left for the next one."""
        records = []
        with open(self.path, "rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._position += len(line)
                self._line += 1
                record = parse(line.decode(errors="replace"), f"{self.path}, line {self._line}")
                if record is not None:
                    records.append(record)
        return records


def read(path: str | Path) -> list[Record]:
    """Return the records of a file that the exporter JSONLines wrote."""
    return Reader(path).read()
