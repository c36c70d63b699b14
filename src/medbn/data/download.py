"""Download an archive and verify its checksum.

The archives have gigabytes and their public hosts drop connections. pooch stores and verifies files but restarts a
broken download from zero, so it gets a downloader that continues by HTTP ``Range`` (``resume``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

from .disk_errors import DownloadError, explain_disk_errors
from .resume import ResumingDownloader

Progress = Callable[[int, int | None], object]
"""Called with the bytes so far, and the bytes in all if the server says how many."""


@dataclass(frozen=True)
class Archive:
    """An archive on the web, identified by its checksum.

    Args:
        url: its address, http or https.
        checksum: its md5 or sha256, 32 or 64 hexadecimal digits.
        filename: the name under which it is stored.
        size: its approximate size in bytes, for display and for the check of free space where the server gives none.
        folder: the folder that it is extracted to, below the data folder.
        inside: the folder within the archive that becomes ``folder``; None for the whole archive.
    """

    url: str
    checksum: str
    filename: str
    size: int | None = None
    folder: str = ""
    inside: str | None = None

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise ValueError(f"expected an http or https address, got {self.url!r}.")
        if not re.fullmatch(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{64}", self.checksum):
            raise ValueError(f"expected an md5 or sha256, 32 or 64 hexadecimal digits, got {self.checksum!r}.")
        if self.filename in ("", ".", "..") or re.search(r"[/\\]", self.filename):
            raise ValueError(f"expected a file name without folders, got {self.filename!r}.")

    @property
    def algorithm(self) -> str:
        """The name of the checksum: "md5" or "sha256"."""
        return "md5" if len(self.checksum) == 32 else "sha256"


def download(
    archive: Archive, folder: Path, *, progress: Progress | None = None, attempts: int = 5, pause: float = 1.0
) -> Path:
    """Download an archive unless ``folder`` already holds it, verify it, and return its path.

    A download that stops (dropped, full disk, Ctrl-C) leaves ``.{filename}.part``, from which the next call continues.
    After a wrong checksum, nothing that was downloaded is kept.

    Args:
        archive: what to download.
        folder: where to store it; created if its parent exists.
        progress: called as ``progress(done, total)`` while bytes arrive; ``done`` decreases when the server makes the
            download start over.
        attempts: how many attempts in a row may fail to bring a new byte before the download fails.
        pause: seconds to wait after a broken connection; doubled after each attempt that brings no new byte.
    """
    if attempts < 1 or pause < 0:
        raise ValueError(f"expected attempts >= 1 and pause >= 0, got attempts={attempts} and pause={pause}.")
    try:
        pooch = import_module("pooch")
    except ImportError as error:
        raise ImportError("downloads need pooch: pip install 'medbn[bench]'") from error
    folder = Path(folder).expanduser().absolute()
    with explain_disk_errors(folder), _only_warnings(pooch.get_logger()):
        folder.mkdir(exist_ok=True)
        while True:
            downloader = ResumingDownloader(
                folder / f".{archive.filename}.part",
                size=archive.size,
                progress=progress,
                attempts=attempts,
                pause=pause,
            )
            try:
                path = Path(
                    pooch.retrieve(
                        archive.url,
                        known_hash=f"{archive.algorithm}:{archive.checksum}",
                        fname=archive.filename,
                        path=folder,
                        downloader=downloader,
                    )
                )
            except ValueError as error:
                actual = re.search(r"got (?:\w+:)?([0-9a-f]{32,64})", str(error))
                if actual is None:
                    raise
                downloader.discard()
                if downloader.continued:  # the earlier run's bytes may be damaged; the server is not to blame yet
                    continue
                raise DownloadError(
                    f"{archive.url} is not the expected file: expected {archive.algorithm} {archive.checksum}, got"
                    f" {actual[1]}. Nothing was kept. Try again later or from another network; if the error stays, the"
                    " file behind the address has changed: do not use it, and report it."
                ) from error
            with suppress(OSError):  # the file is verified; a leftover part does no harm
                downloader.discard()
            return path


@contextmanager
def _only_warnings(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
