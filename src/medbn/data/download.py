"""Obtain an archive, whole and verified, and unpack it: each either happens entirely or leaves nothing that looks done.

The archives are gigabytes from public hosts that drop connections. pooch keeps and verifies files but starts a broken
download from zero, so it is given a downloader that continues by HTTP ``Range``.
"""

from __future__ import annotations

import errno
import http.client
import json
import logging
import os
import re
import shutil
import socket
import ssl
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath, PureWindowsPath
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

Progress = Callable[[int, int | None], object]  # bytes so far; of how many, where the server says so

_BLOCK = 1 << 18
_TIMEOUT = 30.0  # seconds without a byte before a connection counts as dropped
_LONGEST_PAUSE = 60.0
_BUSY = {408, 425, 429}  # besides 5xx, the refusals that pass by themselves


class DownloadError(RuntimeError):
    """A file could not be obtained, verified or unpacked; the message says what to do."""


@dataclass(frozen=True)
class Archive:
    """A file somewhere on the web, pinned by its checksum.

    Args:
        url: where it is; http or https.
        md5: its checksum, 32 hexadecimal digits.
        filename: the name it gets here.
        size: about how many bytes it has; replaces the server's word where that gives none, and is good for display.
    """

    url: str
    md5: str
    filename: str
    size: int | None = None

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise ValueError(f"expected an http or https address, got {self.url!r}.")
        if not re.fullmatch(r"[0-9a-fA-F]{32}", self.md5):
            raise ValueError(f"expected an md5 of 32 hexadecimal digits, got {self.md5!r}.")
        if self.filename in ("", ".", "..") or re.search(r"[/\\]", self.filename):
            raise ValueError(f"expected a file name without folders, got {self.filename!r}.")


def fetch(
    archive: Archive, folder: Path, *, progress: Progress | None = None, attempts: int = 5, pause: float = 1.0
) -> Path:
    """Make sure that ``folder`` holds ``archive``, verified, and return its path. What is there already is not fetched.

    Args:
        archive: what to obtain.
        folder: where to keep it; made if its parent exists.
        progress: called as ``progress(done, total)`` while bytes arrive; ``done`` falls when the server makes us start
            over.
        attempts: how often in a row a connection may break without one new byte before this gives up.
        pause: seconds to wait after a broken connection; doubled with each attempt that brings nothing.

    A download that stops (dropped, full disk, Ctrl-C) leaves ``.{filename}.part``, from which the next call continues.
    A wrong checksum leaves nothing of what was downloaded.
    """
    if attempts < 1 or pause < 0:
        raise ValueError(f"expected attempts >= 1 and pause >= 0, got attempts={attempts} and pause={pause}.")
    try:
        pooch = import_module("pooch")
    except ImportError as error:
        raise ImportError("downloads need pooch: pip install 'medbn[bench]'") from error
    folder = Path(folder).expanduser().absolute()
    with _disk(folder), _quiet(pooch.get_logger()):
        folder.mkdir(exist_ok=True)
        while True:
            resuming = Resuming(
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
                        known_hash=f"md5:{archive.md5}",
                        fname=archive.filename,
                        path=folder,
                        downloader=resuming,
                    )
                )
            except ValueError as error:
                actual = re.search(r"got (?:md5:)?([0-9a-f]{32})", str(error))
                if actual is None:
                    raise
                resuming.discard()
                if resuming.inherited:  # a crash may have damaged what it left: that says nothing about the server
                    continue
                raise DownloadError(
                    f"{archive.url} is not the file it should be: expected md5 {archive.md5}, got {actual[1]}."
                    " Nothing was kept. Try again later or from another network; if it stays so, the file behind the"
                    " address has changed: do not use it, and report it."
                ) from error
            with suppress(OSError):  # verified: a stray part is no reason to fail
                resuming.discard()
            return path


class Resuming:
    """A downloader for pooch that continues where an earlier connection, or an earlier run, stopped.

    Bytes gather in ``part``; ``{part}.json`` beside it says which file they belong to: address, validator (ETag or
    Last-Modified) and length. ``inherited`` tells whether the bytes of an earlier run were used.
    """

    def __init__(
        self,
        part: Path,
        *,
        size: int | None = None,
        progress: Progress | None = None,
        attempts: int = 5,
        pause: float = 1.0,
    ) -> None:
        self.part, self.note = part, part.with_name(f"{part.name}.json")
        self.size, self.progress, self.attempts, self.pause = size, progress, attempts, pause
        self.inherited = False
        self._validator: str | None = None
        self._total: int | None = None
        self._opener = _opener()

    def __call__(self, url: str, output_file: str, pooch: object = None) -> None:
        """Bring ``url`` to ``output_file``; pooch then verifies it."""
        with _disk(self.part.parent):
            self._take_up(url)
            furthest, idle = self._done(), 0
            self.inherited = furthest > 0
            # A part can be complete: interrupted while it was being verified.
            while self._total is None or self._done() != self._total:
                try:
                    self._continue(url)
                except _DroppedError as dropped:
                    # Only bytes never had before count, or a server without ranges could keep us here for ever.
                    idle = 0 if self._done() > furthest else idle + 1
                    furthest = max(furthest, self._done())
                    if idle >= self.attempts:
                        raise DownloadError(
                            f"{url}: {dropped}; given up after {idle} attempts without a new byte."
                            f" {self._done():,} bytes are kept: run the same again to continue."
                        ) from dropped
                    time.sleep(min(self.pause * 2**idle, _LONGEST_PAUSE))
            os.unlink(output_file)
            try:
                os.link(self.part, output_file)  # the part outlives an interruption while pooch verifies
            except OSError:
                os.replace(self.part, output_file)

    def discard(self) -> None:
        """Forget all bytes so far."""
        self.part.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)
        self._validator = self._total = None

    def _done(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _take_up(self, url: str) -> None:
        try:
            note = json.loads(self.note.read_text(encoding="utf-8"))
            known, self._validator, self._total = note["url"] == url, note["validator"], note["total"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            known = False
        if not known or not self.part.exists() or (self._total is not None and self._done() > self._total):
            self.discard()

    def _describe(self, url: str) -> None:
        note = {"url": url, "validator": self._validator, "total": self._total}
        self.note.write_text(json.dumps(note), encoding="utf-8")

    def _continue(self, url: str) -> None:
        """One connection: all that is missing, or as much as it gives before it breaks."""
        with self._open(url) as response:
            if response.status != 206:
                self._begin(url, response)
            done = self._done()
            self._check_room(done)
            if self.progress:
                self.progress(done, self._total)
            with self.part.open("ab") as file:
                while self._total is None or done < self._total:
                    block = _read(response, _BLOCK if self._total is None else min(_BLOCK, self._total - done))
                    if not block:
                        break
                    file.write(block)
                    done += len(block)
                    if self.progress:
                        self.progress(done, self._total)
        if self._total is None:  # the server told no length: its end is the end, and the checksum decides
            self._total = done
            self._describe(url)
            if self.progress:
                self.progress(done, done)
        elif done < self._total:
            raise _DroppedError(f"the connection closed after {done:,} of {self._total:,} bytes")

    def _begin(self, url: str, response: http.client.HTTPResponse) -> None:
        """Start over with this response."""
        self.discard()
        length, etag = response.headers.get("Content-Length", ""), response.headers.get("ETag", "")
        self._total = int(length) if length.isdecimal() else None
        # A weak ETag promises no equal bytes, and servers must not continue by it (RFC 9110, 13.1.5).
        self._validator = etag if etag.startswith('"') else response.headers.get("Last-Modified")
        self._describe(url)

    def _check_room(self, done: int) -> None:
        missing, free = (self._total or self.size or 0) - done, shutil.disk_usage(self.part.parent).free
        if missing > free:
            raise DownloadError(
                f"not enough space in {self.part.parent}: {missing:,} bytes are needed, {free:,} are free."
                " Free some, or choose another folder."
            )

    def _open(self, url: str) -> http.client.HTTPResponse:
        """Ask for what is missing. A server that cannot continue what we have is asked for everything."""
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
                if error.code >= 500 or error.code in _BUSY:
                    raise _DroppedError(f"the server answered {error.code} {error.reason}") from error
                raise DownloadError(
                    f"{url}: the server answered {error.code} {error.reason}. Check that the address opens in a"
                    " browser; if the file has moved, update medbn."
                ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            if isinstance(reason, ssl.SSLCertVerificationError | http.client.InvalidURL):
                raise DownloadError(f"{url}: {reason}. Nothing was downloaded.") from error
            if isinstance(reason, socket.gaierror):
                raise DownloadError(f"{url}: its host is not found ({reason}). Is there a network?") from error
            raise _DroppedError(f"no connection ({reason})") from error
        if response.status == 206 and not self._fits(response, done):
            response.close()
            if not done:
                raise DownloadError(f"{url}: the server sent a part of the file when asked for all of it.")
            self.discard()
            return self._open(url)
        return response

    def _fits(self, response: http.client.HTTPResponse, done: int) -> bool:
        """Whether a partial answer continues exactly what we have."""
        given = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", response.headers.get("Content-Range", "").strip())
        if given is None or not done or int(given[1]) != done:
            return False
        total = int(given[2]) + 1 if given[3] == "*" else int(given[3])
        if self._total is None:
            self._total = total
        return self._total == total


def unpack(archive_path: Path, target: Path, *, inside: str | None = None) -> None:
    """Unpack a tar archive, compressed or not, to the new folder ``target``, entirely or not at all.

    Args:
        archive_path: the archive. Members that would land outside ``target`` make it an error.
        target: the folder to make; its parent exists, it does not.
        inside: the folder within the archive that becomes ``target``; otherwise all of it does.
    """
    if not hasattr(tarfile, "data_filter"):
        raise DownloadError(
            "this Python cannot unpack safely (tarfile has no data filter): update to 3.10.12, 3.11.4 or later."
        )
    if os.path.lexists(target):
        raise DownloadError(f"cannot unpack {archive_path}: {target} exists already; remove it to unpack again.")
    scratch = target.with_name(f".{target.name}.unpacking")
    with _disk(target.parent):
        if scratch.exists():  # left by a crash
            shutil.rmtree(scratch)
        scratch.mkdir()
    try:
        _extract(archive_path, scratch)
        source = scratch / inside if inside else scratch
        if not source.is_dir():
            found = ", ".join(sorted(path.name for path in scratch.iterdir())) or "nothing"
            raise DownloadError(f"{archive_path} has no folder {inside!r}; it holds: {found}.")
        with _disk(target.parent):
            os.replace(source, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _extract(archive_path: Path, scratch: Path) -> None:
    try:
        file = archive_path.open("rb")
    except OSError as error:
        raise DownloadError(f"cannot read {archive_path}: {error}.") from error
    with file, _disk(scratch.parent):
        try:
            with tarfile.open(fileobj=file) as tar:
                # One by one: extractall reads a compressed archive twice.
                for member in tar:
                    tar.extract(member, scratch, filter=_safe)
                # tarfile takes a cut between two members for the end; a whole archive ends with zeros.
                assert tar.fileobj is not None
                tar.fileobj.seek(tar.offset)
                if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                    raise tarfile.ReadError("it ends in the middle")
        except Exception as error:  # damaged data fails in many ways
            if isinstance(error, OSError) and error.errno is not None:  # the disk; gzip's own have no number
                raise
            raise DownloadError(
                f"cannot unpack {archive_path}: {str(error) or type(error).__name__}. Nothing was unpacked."
                " The archive is damaged or unsafe: delete it and fetch it again."
            ) from error


def _safe(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    # The data filter makes absolute names relative; in a dataset they are a sign of something else being wrong.
    if PurePosixPath(member.name).is_absolute() or PureWindowsPath(member.name).anchor:
        raise tarfile.AbsolutePathError(member)
    return tarfile.data_filter(member, path)


class _DroppedError(Exception):
    """A connection that broke and is worth another attempt."""


def _opener() -> urllib.request.OpenerDirector:
    """What urlopen uses, without its file and ftp: a redirection could lead there."""
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


def _read(response: http.client.HTTPResponse, count: int) -> bytes:
    try:
        return response.read1(count)
    except (OSError, http.client.HTTPException) as error:
        raise _DroppedError(f"the connection broke ({str(error) or type(error).__name__})") from error


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """Say what a failure of the disk means; those of the network never come here as an OSError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(
                f"the disk is full while writing to {folder} ({error.strerror}). Free some space, or choose another"
                " folder, and run the same again: a download continues."
            ) from error
        raise DownloadError(
            f"cannot write to {folder}: {str(error).rstrip('.')}. Choose a folder that you may write to and"
            " whose parent exists."
        ) from error


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
