"""Download over connections that break: continue by HTTP ``Range`` where the last one stopped."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError, URLError

from .disk_errors import DownloadError, explain_disk_errors

_BLOCK = 1 << 18
_TIMEOUT = 30.0  # seconds without a byte after which a connection counts as broken
_LONGEST_PAUSE = 60.0
_TEMPORARY = {408, 425, 429}  # status codes that are worth another attempt, besides 5xx


class _BrokenConnectionError(Exception):
    """A connection that broke and is worth another attempt."""


class ResumingDownloader:
    """A downloader for pooch that continues where an earlier connection, or an earlier process, stopped.

    The bytes so far are in the file ``part``. ``{part}.json`` beside it says which remote file they belong to: its
    address, validator (ETag or Last-Modified) and length.

    Args:
        part: where to collect the bytes.
        size: the approximate size, for the check of free space where the server gives none.
        progress: called as ``progress(done, total)``.
        attempts: how many attempts in a row may fail to bring a new byte.
        pause: seconds to wait after a broken connection; doubled after each attempt that brings no new byte.
    """

    continued: bool
    """Whether the download started from the bytes of an earlier process."""

    def __init__(
        self,
        part: Path,
        *,
        size: int | None = None,
        progress: Callable[[int, int | None], object] | None = None,
        attempts: int = 5,
        pause: float = 1.0,
    ) -> None:
        self.part, self.note = part, part.with_name(f"{part.name}.json")
        self.size, self.progress, self.attempts, self.pause = size, progress, attempts, pause
        self.continued = False
        self._validator: str | None = None
        self._total: int | None = None
        self._opener = _build_opener()

    def __call__(self, url: str, output_file: str, pooch: object = None) -> None:
        """Download ``url`` to ``output_file``, which pooch then verifies."""
        with explain_disk_errors(self.part.parent):
            self._read_note(url)
            furthest, failures = self._done(), 0
            self.continued = furthest > 0
            # The part is already complete if the process was interrupted while it was verified.
            while self._total is None or self._done() != self._total:
                try:
                    self._download_rest(url)
                except _BrokenConnectionError as broken:
                    # Bytes that an earlier attempt had brought do not count: a server without ranges starts over each
                    # time, and would be tried for ever.
                    failures = 0 if self._done() > furthest else failures + 1
                    furthest = max(furthest, self._done())
                    if failures >= self.attempts:
                        raise DownloadError(
                            f"{url}: {broken}; gave up after {failures} attempts without a new byte."
                            f" {self._done():,} bytes are kept: run the same command again to continue."
                        ) from broken
                    time.sleep(min(self.pause * 2**failures, _LONGEST_PAUSE))
            os.unlink(output_file)
            try:
                os.link(self.part, output_file)  # keeps the part if the process is interrupted while pooch verifies
            except OSError:
                os.replace(self.part, output_file)

    def discard(self) -> None:
        """Delete the bytes so far."""
        self.part.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)
        self._validator = self._total = None

    def _done(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _read_note(self, url: str) -> None:
        """Read which remote file the part belongs to; discard a part of another or unknown file."""
        try:
            note = json.loads(self.note.read_text(encoding="utf-8"))
            same, self._validator, self._total = note["url"] == url, note["validator"], note["total"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            same = False
        if not same or not self.part.exists() or (self._total is not None and self._done() > self._total):
            self.discard()

    def _write_note(self, url: str) -> None:
        note = {"url": url, "validator": self._validator, "total": self._total}
        self.note.write_text(json.dumps(note), encoding="utf-8")

    def _download_rest(self, url: str) -> None:
        """Open one connection and append what it delivers, which may be less than what is missing."""
        with self._open(url) as response:
            if response.status != 206:
                self._start_over(url, response)
            done = self._done()
            self._check_free_space(done)
            if self.progress:
                self.progress(done, self._total)
            with self.part.open("ab") as file:
                while self._total is None or done < self._total:
                    block = _read_block(response, _BLOCK if self._total is None else min(_BLOCK, self._total - done))
                    if not block:
                        break
                    file.write(block)
                    done += len(block)
                    if self.progress:
                        self.progress(done, self._total)
        if self._total is None:  # no length: the end of the response is taken as the end, and the checksum is verified
            self._total = done
            self._write_note(url)
            if self.progress:
                self.progress(done, done)
        elif done < self._total:
            raise _BrokenConnectionError(f"the connection closed after {done:,} of {self._total:,} bytes")

    def _start_over(self, url: str, response: http.client.HTTPResponse) -> None:
        """Discard the bytes so far and note which file this response, which has all of it, belongs to."""
        self.discard()
        length, etag = response.headers.get("Content-Length", ""), response.headers.get("ETag", "")
        self._total = int(length) if length.isdecimal() else None
        # A weak ETag does not promise equal bytes, and must not be used to continue (RFC 9110, 13.1.5).
        self._validator = etag if etag.startswith('"') else response.headers.get("Last-Modified")
        self._write_note(url)

    def _check_free_space(self, done: int) -> None:
        missing, free = (self._total or self.size or 0) - done, shutil.disk_usage(self.part.parent).free
        if missing > free:
            raise DownloadError(
                f"not enough space in {self.part.parent}: {missing:,} bytes are needed, {free:,} are free."
                " Free some, or choose another folder."
            )

    def _open(self, url: str) -> http.client.HTTPResponse:
        """Request the missing bytes, or the whole file if the server cannot continue the part."""
        done = self._done()
        headers = {"User-Agent": "medbn", "Accept-Encoding": "identity"}
        if done:
            headers["Range"] = f"bytes={done}-"
            if self._validator:
                headers["If-Range"] = self._validator
        response: http.client.HTTPResponse
        try:
            response = self._opener.open(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
        except HTTPError as error:
            with error:
                if error.code == 416 and done:
                    self.discard()
                    return self._open(url)
                if error.code >= 500 or error.code in _TEMPORARY:
                    raise _BrokenConnectionError(f"the server returned {error.code} {error.reason}") from error
                raise DownloadError(
                    f"{url}: the server returned {error.code} {error.reason}. Check that the address opens in a"
                    " browser; if the file has moved, update medbn."
                ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            if isinstance(reason, ssl.SSLCertVerificationError | http.client.InvalidURL):
                raise DownloadError(f"{url}: {reason}. Nothing was downloaded.") from error
            if isinstance(reason, socket.gaierror):
                raise DownloadError(f"{url}: the host was not found ({reason}). Check the network.") from error
            raise _BrokenConnectionError(f"no connection ({reason})") from error
        if response.status == 206 and not self._continues_part(response, done):
            response.close()
            if not done:
                raise DownloadError(f"{url}: the server sent a part of the file where the whole was requested.")
            self.discard()
            return self._open(url)
        return response

    def _continues_part(self, response: http.client.HTTPResponse, done: int) -> bool:
        """Return whether a partial response starts where the part ends, in a file of the same length."""
        header = response.headers.get("Content-Range", "").strip()
        content_range = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", header)
        if content_range is None or not done or int(content_range[1]) != done:
            return False
        total = int(content_range[2]) + 1 if content_range[3] == "*" else int(content_range[3])
        if self._total is None:
            self._total = total
        return self._total == total


def _build_opener() -> urllib.request.OpenerDirector:
    """Return an opener like urlopen's, but without file: and ftp:, to which a redirection could lead."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _read_block(response: http.client.HTTPResponse, count: int) -> bytes:
    try:
        return response.read1(count)
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenConnectionError(f"the connection broke ({str(error) or type(error).__name__})") from error
