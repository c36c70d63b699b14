"""Downloads, from a real server on this machine that fails in chosen ways."""

from __future__ import annotations

import errno
import hashlib
import io
import logging
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from medbn.data import Archive, DownloadError, resume
from medbn.data.download import download

from .server import CONTENT, Request, Server

pooch = pytest.importorskip("pooch")

PART, NOTE = ".data.tar.part", ".data.tar.part.json"
DATE = "Sat, 01 Jan 2022 00:00:00 GMT"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server() as server:
        yield server


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "downloads"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def download_400_000_bytes(server, folder):
    """Leave the first 400,000 bytes behind, as a process that gave up does."""
    server.failures = [{"bytes": 400_000}, {"status": 503}]
    with pytest.raises(DownloadError):
        download(server.archive(), folder, attempts=1, pause=0)
    server.log.clear()


def test_a_file_is_downloaded_once_and_nothing_else_is_left(server, folder):
    path = download(server.archive(), folder)
    assert path == folder / "data.tar"
    assert path.read_bytes() == CONTENT
    assert download(server.archive(), folder) == path
    assert names(folder) == ["data.tar"]
    assert server.log == [Request(None, None, 200, len(CONTENT))]


def test_a_damaged_file_is_replaced(server, folder):
    folder.mkdir()
    (folder / "data.tar").write_bytes(b"damaged")
    assert download(server.archive(), folder).read_bytes() == CONTENT


def test_a_wrong_checksum_keeps_nothing(server, folder):
    archive = server.archive(content=b"something else")
    with pytest.raises(DownloadError) as error:
        download(archive, folder)
    for word in (server.url, archive.checksum, hashlib.md5(CONTENT).hexdigest()):
        assert word in str(error.value)
    assert names(folder) == []


def test_a_wrong_checksum_does_not_replace_an_existing_file(server, folder):
    folder.mkdir()
    (folder / "data.tar").write_bytes(b"put here by hand")
    with pytest.raises(DownloadError, match="md5"):
        download(server.archive(content=b"something else"), folder)
    assert names(folder) == ["data.tar"]
    assert (folder / "data.tar").read_bytes() == b"put here by hand"


def test_an_upper_case_checksum_is_the_same(server, folder):
    archive = Archive(server.url, hashlib.md5(CONTENT).hexdigest().upper(), "data.tar")
    assert download(archive, folder).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("etag", "modified", "condition"),
    [('"one"', DATE, '"one"'), ('W/"one"', DATE, DATE), (None, None, None)],
    ids=["etag", "weak etag", "no validator"],
)
def test_a_broken_connection_is_continued(server, folder, etag, modified, condition):
    server.etag, server.modified = etag, modified
    server.failures = [{"bytes": 300_000}, {"bytes": 300_000}]
    assert download(server.archive(), folder, attempts=1, pause=0).read_bytes() == CONTENT
    assert [request.range for request in server.log] == [None, "bytes=300000-", "bytes=600000-"]
    assert [request.if_range for request in server.log] == [None, condition, condition]
    assert sum(request.sent for request in server.log) == len(CONTENT)
    assert names(folder) == ["data.tar"]


def test_a_connection_that_stays_silent_is_continued(server, folder, monkeypatch):
    monkeypatch.setattr(resume, "_TIMEOUT", 0.1)
    server.failures = [{"bytes": 300_000, "stall": True}]
    assert download(server.archive(), folder, pause=0).read_bytes() == CONTENT
    assert [request.range for request in server.log] == [None, "bytes=300000-"]


def test_after_the_last_attempt_the_part_is_kept_for_the_next_call(server, folder):
    server.failures = [{"bytes": 400_000}, *[{"bytes": 0}] * 3]
    with pytest.raises(DownloadError, match=r"400,000 of 1,000,003.* 3 attempts"):
        download(server.archive(), folder, attempts=3, pause=0)
    assert len(server.log) == 4
    assert names(folder) == [PART, NOTE]
    assert (folder / PART).read_bytes() == CONTENT[:400_000]
    server.log.clear()
    assert download(server.archive(), folder).read_bytes() == CONTENT
    assert server.log == [Request("bytes=400000-", '"one"', 206, len(CONTENT) - 400_000)]
    assert names(folder) == ["data.tar"]


def test_pauses_double_until_new_bytes_arrive(server, folder, monkeypatch):
    pauses = []
    monkeypatch.setattr(resume.time, "sleep", pauses.append)
    server.failures = [{"bytes": 0}, {"status": 502}, {"bytes": 10}, {"bytes": 0}, {"status": 429}]
    assert download(server.archive(), folder, attempts=3, pause=1.5).read_bytes() == CONTENT
    assert pauses == [3, 6, 1.5, 3, 6]


def test_an_address_that_refuses_connections(folder):
    with pytest.raises(DownloadError, match="2 attempts"):
        download(Archive("http://127.0.0.1:1/data.tar", "0" * 32, "data.tar"), folder, attempts=2, pause=0)


def test_a_server_without_ranges_starts_over_until_the_attempts_are_used_up(server, folder):
    server.ranges = False
    server.failures = [{"bytes": 300_000}]
    assert download(server.archive(), folder, pause=0).read_bytes() == CONTENT
    assert [(request.range, request.status) for request in server.log] == [(None, 200), ("bytes=300000-", 200)]
    shutil.rmtree(folder)
    server.failures = [{"bytes": 300_000}] * 50
    with pytest.raises(DownloadError, match="2 attempts"):
        download(server.archive(), folder, attempts=2, pause=0)
    assert len(server.log) == 2 + 3


@pytest.mark.parametrize("length", ["none", "chunked"])
def test_a_server_that_does_not_say_the_length(server, folder, length):
    server.length = length
    calls = []
    assert download(server.archive(), folder, progress=lambda *call: calls.append(call)).read_bytes() == CONTENT
    assert calls[0] == (0, None)
    assert calls[-1] == (len(CONTENT), len(CONTENT))


def test_a_chunked_response_that_breaks_off_is_continued(server, folder):
    server.length = "chunked"
    server.failures = [{"bytes": 0, "status": 500}, {"bytes": 300_000}]
    assert download(server.archive(), folder, pause=0, attempts=2).read_bytes() == CONTENT
    assert [request.range for request in server.log] == [None, None, "bytes=300000-"]


def test_a_file_that_changed_on_the_server_starts_over(server, folder):
    download_400_000_bytes(server, folder)
    server.content, server.etag = CONTENT[::-1], '"two"'
    assert download(server.archive(), folder).read_bytes() == CONTENT[::-1]
    assert server.log == [Request("bytes=400000-", '"one"', 200, len(CONTENT))]


def test_a_file_of_another_length_starts_over_without_a_validator_too(server, folder):
    server.etag = None
    download_400_000_bytes(server, folder)
    server.content = CONTENT[:-1]
    assert download(server.archive(), folder).read_bytes() == CONTENT[:-1]
    assert [request.range for request in server.log] == ["bytes=400000-", None]


def test_another_address_starts_over(server, folder):
    download_400_000_bytes(server, folder)
    server.url += "?mirror"
    assert download(server.archive(), folder).read_bytes() == CONTENT
    assert [request.range for request in server.log] == [None]


@pytest.mark.parametrize("note", [None, "[]", "{}", "nonsense"])
def test_a_part_of_unknown_origin_starts_over(server, folder, note):
    folder.mkdir()
    (folder / PART).write_bytes(CONTENT[:10])
    if note is not None:
        (folder / NOTE).write_text(note)
    assert download(server.archive(), folder).read_bytes() == CONTENT
    assert [request.range for request in server.log] == [None]
    assert names(folder) == ["data.tar"]


@pytest.mark.parametrize("excess", [0, 1000])
def test_a_part_that_is_too_long_starts_over(server, folder, excess):
    download_400_000_bytes(server, folder)
    (folder / PART).write_bytes(bytes(len(CONTENT) + excess))
    note = folder / NOTE
    note.write_text(re.sub(r'"total": \d+', '"total": null', note.read_text()))
    assert download(server.archive(), folder, attempts=1).read_bytes() == CONTENT
    assert [request.status for request in server.log] == [416, 200]


def test_a_partial_response_that_starts_elsewhere_is_not_used(server, folder):
    download_400_000_bytes(server, folder)
    server.failures = [{"shift": 5}]
    assert download(server.archive(), folder, attempts=1).read_bytes() == CONTENT
    assert [request.range for request in server.log] == ["bytes=400000-", None]


def test_a_damaged_part_is_downloaded_again(server, folder):
    download_400_000_bytes(server, folder)
    (folder / PART).write_bytes(bytes(400_000))
    assert download(server.archive(), folder).read_bytes() == CONTENT
    assert [request.range for request in server.log] == ["bytes=400000-", None]


@pytest.mark.parametrize("status", [403, 404])
def test_a_final_status_is_not_tried_again(server, folder, status):
    server.failures = [{"status": status}] * 9
    with pytest.raises(DownloadError, match=f"{re.escape(server.url)}.*{status}"):
        download(server.archive(), folder, pause=0)
    assert len(server.log) == 1
    assert names(folder) == []


@pytest.mark.parametrize("status", [503, 429])
def test_a_temporary_status_is_tried_again(server, folder, status):
    server.failures = [{"status": status}] * 2
    assert download(server.archive(), folder, pause=0).read_bytes() == CONTENT
    assert [request.status for request in server.log] == [status, status, 200]


def test_a_redirection_is_followed_with_the_range(server, folder):
    download_400_000_bytes(server, folder)
    server.failures = [{"status": 302, "headers": {"Location": "/elsewhere"}}]
    assert download(server.archive(), folder).read_bytes() == CONTENT
    assert [request.range for request in server.log] == ["bytes=400000-"] * 2


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/data.tar"])
def test_a_redirection_to_another_scheme_is_refused(server, folder, target):
    server.failures = [{"status": 302, "headers": {"Location": target}}] * 2
    with pytest.raises(DownloadError):
        download(server.archive(), folder, attempts=2, pause=0)
    assert names(folder) == []


def test_ctrl_c_keeps_the_part(server, folder):
    def interrupt(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(server.archive(), folder, progress=interrupt)
    assert names(folder) == [PART, NOTE]
    kept = (folder / PART).read_bytes()
    assert kept
    assert CONTENT.startswith(kept)
    assert download(server.archive(), folder).read_bytes() == CONTENT
    assert server.log[-1].range == f"bytes={len(kept)}-"


def test_ctrl_c_while_verifying_keeps_everything(server, folder, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pooch.core, "hash_matches", interrupt)
        with pytest.raises(KeyboardInterrupt):
            download(server.archive(), folder)
    assert names(folder) == [PART, NOTE]
    assert download(server.archive(), folder).read_bytes() == CONTENT
    assert len(server.log) == 1


def test_a_file_system_without_links(server, folder, monkeypatch):
    def refuse(*args):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(resume.os, "link", refuse)
    assert download(server.archive(), folder).read_bytes() == CONTENT
    assert names(folder) == ["data.tar"]


def test_progress_increases_to_the_total(server, folder):
    calls = []
    server.failures = [{"bytes": 300_000}, {"status": 500}]
    download(server.archive(), folder, progress=lambda *call: calls.append(call), pause=0)
    counts = [done for done, _ in calls]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, len(CONTENT))
    assert {total for _, total in calls} == {len(CONTENT)}
    assert len(set(counts)) > 3


def test_pooch_prints_nothing_and_keeps_its_log_level(server, folder, capsys):
    pooch.get_logger().setLevel(logging.INFO)
    download(server.archive(), folder)
    assert capsys.readouterr() == ("", "")
    assert pooch.get_logger().level == logging.INFO


def set_free_space(monkeypatch, free):
    monkeypatch.setattr(resume.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, free))


@pytest.mark.parametrize(("length", "size"), [("header", None), ("header", 1), ("chunked", len(CONTENT))])
def test_too_little_space_is_an_error_before_anything_is_written(server, folder, monkeypatch, length, size):
    server.length = length
    set_free_space(monkeypatch, len(CONTENT) - 1)
    with pytest.raises(DownloadError, match=r"1,000,003 .* 1,000,002"):
        download(server.archive(size=size), folder)
    assert not (folder / PART).exists()


def test_only_the_missing_bytes_need_space(server, folder, monkeypatch):
    download_400_000_bytes(server, folder)
    set_free_space(monkeypatch, len(CONTENT) - 400_000)
    assert download(server.archive(), folder).read_bytes() == CONTENT


class FullDisk(io.FileIO):
    def write(self, data):
        if self.tell() > 100_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_full_disk_keeps_the_part(server, folder, monkeypatch):
    open_file = Path.open

    def open_limited(path, mode="r", *args, **options):
        return io.BufferedWriter(FullDisk(path, "ab")) if mode == "ab" else open_file(path, mode, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_limited)
        with pytest.raises(DownloadError, match="full"):
            download(server.archive(), folder)
    kept = (folder / PART).read_bytes()
    assert len(kept) > 100_000
    assert download(server.archive(), folder).read_bytes() == CONTENT
    assert server.log[-1].range == f"bytes={len(kept)}-"


def test_a_folder_that_cannot_be_written_to(server, folder, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DownloadError, match=f"{re.escape(str(folder))}.*Permission denied"):
        download(server.archive(), folder)


def test_a_folder_that_cannot_be_created(server, folder):
    with pytest.raises(DownloadError, match="parent"):
        download(server.archive(), folder / "deep")
    folder.write_text("a file")
    with pytest.raises(DownloadError, match="cannot write"):
        download(server.archive(), folder)
    assert server.log == []


def test_without_pooch_the_error_names_the_extra(server, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"medbn\[bench\]"):
        download(server.archive(), folder)


@pytest.mark.parametrize(
    ("url", "checksum", "filename", "message"),
    [
        ("file:///etc/passwd", "0" * 32, "a", "http"),
        ("a.tar", "0" * 32, "a", "http"),
        ("https://host/a", "0" * 31, "a", "32 or 64 hexadecimal"),
        ("https://host/a", "0" * 33, "a", "32 or 64 hexadecimal"),
        ("https://host/a", "0" * 32, "../a", "file name"),
        ("https://host/a", "0" * 32, "", "file name"),
    ],
)
def test_wrong_archives_are_refused(url, checksum, filename, message):
    with pytest.raises(ValueError, match=message):
        Archive(url, checksum, filename)


def test_wrong_attempts_and_pauses_are_refused(server, folder):
    for wrong in ({"attempts": 0}, {"pause": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            download(server.archive(), folder, **wrong)
