"""JSON lines: one line of text per batch, in a file that ``medbn monitor`` and ``medbn report`` read."""

from __future__ import annotations

import json
from pathlib import Path

from ..record import FORMAT, Record


class JSONLines:
    """Appends each record to a file as a line of JSON.

    Every line is written at once and at the batch's end, so that readers meanwhile see complete lines. A
    file that exists is continued, unless it is something else.

    Args:
        path: the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        header = json.dumps({"medbn_monitor": FORMAT}) + "\n"
        try:
            self._file = open(self.path, "a+b", buffering=0)  # noqa: SIM115 - it stays open until close()
        except OSError as error:
            raise ValueError(f"cannot write {self.path}: {error.strerror}.") from None
        self._file.seek(0)
        content = self._file.read()
        if content and not content.startswith(b'{"medbn_monitor"'):
            self._file.close()
            raise ValueError(f"{self.path} exists and is no monitor's file; give another name.")
        self._file.truncate(content.rfind(b"\n") + 1)  # a process that was killed may have left half a line
        self._file.write(header.encode())

    def export(self, record: Record) -> None:
        """Append one line."""
        self._file.write((record.to_json() + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
