"""The error of downloads and archives, which says what to do about a full or read-only disk."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DownloadError(RuntimeError):
    """A file could not be downloaded, verified or extracted; the message says what to do."""


@contextmanager
def explain_disk_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a DownloadError that says what to do.

    Only for blocks in which network errors are caught: those are OSErrors too.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(
                f"the disk is full while writing to {folder} ({error.strerror}). Free some space, or choose another"
                " folder, and run the same command again: a download continues."
            ) from error
        raise DownloadError(
            f"cannot write to {folder}: {str(error).rstrip('.')}. Choose a folder that you may write to and"
            " whose parent exists."
        ) from error
