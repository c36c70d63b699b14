"""Downloads and archives, against a real server on this machine that misbehaves as told."""

import errno
import hashlib
import io
import logging
import os
import random
import re
import shutil
import sys
import tarfile
import threading
from collections import namedtuple
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from medbn.data import Archive, DownloadError, resume
from medbn.data.download import download
from medbn.data.extract import extract

pooch = pytest.importorskip("pooch")

CONTENT = random.Random(0).randbytes(1_000_003)
Request = namedtuple("Request", "range if_range status sent")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        host = self.server.host
        host.resume.set()
        act = host.script.pop(0) if host.script else {}
        span, condition = self.headers["Range"], self.headers["If-Range"]
        body, status = host.content, act.get("status", 200)
        start = int(re.fullmatch(r"bytes=(\d+)-", span)[1]) if span else 0
        extra = dict(act.get("headers", {}))
        if status != 200:
            body = b"an error page"
        elif span and host.ranges and condition in (None, host.etag, host.modified):
            if start >= len(body):
                status, extra["Content-Range"], body = 416, f"bytes */{len(body)}", b""
            else:
                shift = act.get("shift", 0)
                extra["Content-Range"] = f"bytes {start + shift}-{len(body) - 1}/{len(body)}"
                status, body = 206, body[start + shift :]
        sent = body[: act.get("bytes", len(body))]
        host.log.append(Request(span, condition, status, len(sent)))
        self.close_connection = True
        with suppress(ConnectionError):
            self.send_response(status)
            for name, value in {"ETag": host.etag, "Last-Modified": host.modified, **extra}.items():
                if value:
                    self.send_header(name, value)
            if host.length == "told":
                self.send_header("Content-Length", str(len(body)))
            elif host.length == "chunked":
                self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Connection", "close")
            self.end_headers()
            if host.length == "chunked":
                self.wfile.write(b"%x\r\n%s\r\n" % (len(sent), sent))
                if len(sent) == len(body):
                    self.wfile.write(b"0\r\n\r\n")
            else:
                self.wfile.write(sent)
            if act.get("stall"):
                self.wfile.flush()
                host.resume.clear()
                host.resume.wait(10)


class Host:
    """A server of one file; ``script`` says what goes wrong with which request, ``log`` what was asked and sent."""

    def __init__(self):
        self.content, self.etag, self.modified, self.ranges, self.length = CONTENT, '"one"', None, True, "told"
        self.script, self.log, self.resume = [], [], threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = False
        self.server.host = self
        self.url = f"http://127.0.0.1:{self.server.server_port}/data.tar"

    def archive(self, content=None, **options):
        md5 = hashlib.md5(self.content if content is None else content).hexdigest()
        return Archive(self.url, md5, "data.tar", **options)


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    host = Host()
    thread = threading.Thread(target=host.server.serve_forever, kwargs={"poll_interval": 0.005})
    thread.start()
    yield host
    host.resume.set()
    host.server.shutdown()
    thread.join()
    host.server.server_close()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "downloads"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def half(host, folder):
    """Leave the first 400 000 bytes behind, as a run that gave up does."""
    host.script = [{"bytes": 400_000}, {"status": 503}]
    with pytest.raises(DownloadError):
        download(host.archive(), folder, attempts=1, pause=0)
    host.log.clear()


def test_a_file_arrives_verified_and_alone(host, folder):
    path = download(host.archive(), folder)
    assert path == folder / "data.tar"
    assert path.read_bytes() == CONTENT
    assert names(folder) == ["data.tar"]
    assert host.log == [Request(None, None, 200, len(CONTENT))]


def test_what_is_there_is_not_fetched_again(host, folder):
    first = download(host.archive(), folder)
    assert download(host.archive(), folder) == first
    assert len(host.log) == 1


def test_a_damaged_file_is_replaced(host, folder):
    folder.mkdir()
    (folder / "data.tar").write_bytes(b"damaged")
    assert download(host.archive(), folder).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(host, folder):
    archive = host.archive(content=b"something else")
    with pytest.raises(DownloadError) as caught:
        download(archive, folder)
    for word in (host.url, archive.md5, hashlib.md5(CONTENT).hexdigest(), "Try again"):
        assert word in str(caught.value)
    assert names(folder) == []


def test_a_wrong_checksum_does_not_touch_what_was_there_before(host, folder):
    folder.mkdir()
    (folder / "data.tar").write_bytes(b"put here by hand")
    with pytest.raises(DownloadError, match="expected md5"):
        download(host.archive(content=b"something else"), folder)
    assert names(folder) == ["data.tar"]
    assert (folder / "data.tar").read_bytes() == b"put here by hand"


def test_an_upper_case_checksum_is_the_same(host, folder):
    archive = Archive(host.url, hashlib.md5(CONTENT).hexdigest().upper(), "data.tar")
    assert download(archive, folder).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("etag", "modified", "sent"),
    [
        ('"one"', "Sat, 01 Jan 2022 00:00:00 GMT", '"one"'),
        ('W/"one"', "Sat, 01 Jan 2022 00:00:00 GMT", "Sat, 01 Jan 2022 00:00:00 GMT"),
        (None, "Sat, 01 Jan 2022 00:00:00 GMT", "Sat, 01 Jan 2022 00:00:00 GMT"),
        (None, None, None),
    ],
)
def test_a_dropped_connection_is_continued(host, folder, etag, modified, sent):
    host.etag, host.modified = etag, modified
    host.script = [{"bytes": 300_000}, {"bytes": 300_000}]
    assert download(host.archive(), folder, attempts=1, pause=0).read_bytes() == CONTENT
    assert [request.range for request in host.log] == [None, "bytes=300000-", "bytes=600000-"]
    assert [request.if_range for request in host.log] == [None, sent, sent]
    assert sum(request.sent for request in host.log) == len(CONTENT)
    assert names(folder) == ["data.tar"]


def test_a_silent_connection_is_continued(host, folder, monkeypatch):
    monkeypatch.setattr(resume, "_TIMEOUT", 0.1)
    host.script = [{"bytes": 300_000, "stall": True}]
    assert download(host.archive(), folder, pause=0).read_bytes() == CONTENT
    assert [request.range for request in host.log] == [None, "bytes=300000-"]


def test_giving_up_keeps_the_part_for_the_next_run(host, folder):
    host.script = [{"bytes": 400_000}, *[{"bytes": 0}] * 3]
    with pytest.raises(DownloadError, match=r"400,000 of 1,000,003 bytes; gave up after 3 .* again to continue"):
        download(host.archive(), folder, attempts=3, pause=0)
    assert len(host.log) == 4
    assert names(folder) == [".data.tar.part", ".data.tar.part.json"]
    assert (folder / ".data.tar.part").read_bytes() == CONTENT[:400_000]
    host.log.clear()
    assert download(host.archive(), folder).read_bytes() == CONTENT
    assert host.log == [Request("bytes=400000-", '"one"', 206, len(CONTENT) - 400_000)]
    assert names(folder) == ["data.tar"]


def test_pauses_grow_while_nothing_comes_and_new_bytes_start_them_anew(host, folder, monkeypatch):
    pauses = []
    monkeypatch.setattr(resume.time, "sleep", pauses.append)
    host.script = [{"bytes": 0}, {"status": 502}, {"bytes": 10}, {"bytes": 0}, {"status": 429}]
    assert download(host.archive(), folder, attempts=3, pause=1.5).read_bytes() == CONTENT
    assert pauses == [3, 6, 1.5, 3, 6]


def test_nobody_listening(host, folder):
    refused = Archive("http://127.0.0.1:1/data.tar", "0" * 32, "data.tar")
    with pytest.raises(DownloadError, match=r"no connection .* gave up after 2 attempts"):
        download(refused, folder, attempts=2, pause=0)


def test_a_server_without_ranges_starts_over(host, folder):
    host.ranges = False
    host.script = [{"bytes": 300_000}]
    assert download(host.archive(), folder, pause=0).read_bytes() == CONTENT
    assert [(request.range, request.status) for request in host.log] == [(None, 200), ("bytes=300000-", 200)]


def test_a_server_without_ranges_that_always_drops_is_given_up(host, folder):
    host.ranges = False
    host.script = [{"bytes": 300_000}] * 50
    with pytest.raises(DownloadError, match="gave up after 2 attempts"):
        download(host.archive(), folder, attempts=2, pause=0)
    assert len(host.log) == 3


@pytest.mark.parametrize("length", ["untold", "chunked"])
def test_a_server_that_tells_no_length(host, folder, length):
    host.length = length
    seen = []
    assert download(host.archive(), folder, progress=lambda *now: seen.append(now)).read_bytes() == CONTENT
    assert seen[0] == (0, None)
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_a_dropped_chunked_answer_is_noticed(host, folder):
    host.length = "chunked"
    host.script = [{"bytes": 0, "status": 500}, {"bytes": 300_000}]
    assert download(host.archive(), folder, pause=0, attempts=2).read_bytes() == CONTENT
    assert [request.range for request in host.log] == [None, None, "bytes=300000-"]


def test_a_file_that_changed_meanwhile_starts_over(host, folder):
    half(host, folder)
    host.content, host.etag = CONTENT[::-1], '"two"'
    assert download(host.archive(), folder).read_bytes() == CONTENT[::-1]
    assert host.log == [Request("bytes=400000-", '"one"', 200, len(CONTENT))]


def test_a_file_of_another_length_starts_over_where_there_is_no_validator(host, folder):
    host.etag = None
    half(host, folder)
    host.content = CONTENT[:-1]
    assert download(host.archive(), folder).read_bytes() == CONTENT[:-1]
    assert [request.range for request in host.log] == ["bytes=400000-", None]


def test_another_address_starts_over(host, folder):
    half(host, folder)
    host.url += "?mirror"
    assert download(host.archive(), folder).read_bytes() == CONTENT
    assert [request.range for request in host.log] == [None]


@pytest.mark.parametrize("note", [None, "", "[]", "{}", "nonsense"])
def test_a_part_of_unknown_origin_starts_over(host, folder, note):
    folder.mkdir()
    (folder / ".data.tar.part").write_bytes(CONTENT[:10])
    if note is not None:
        (folder / ".data.tar.part.json").write_text(note)
    assert download(host.archive(), folder).read_bytes() == CONTENT
    assert [request.range for request in host.log] == [None]
    assert names(folder) == ["data.tar"]


@pytest.mark.parametrize("excess", [0, 1000])
def test_416_starts_over(host, folder, excess):
    half(host, folder)
    (folder / ".data.tar.part").write_bytes(bytes(len(CONTENT) + excess))
    note = folder / ".data.tar.part.json"
    note.write_text(re.sub(r'"total": \d+', '"total": null', note.read_text()))
    assert download(host.archive(), folder, attempts=1).read_bytes() == CONTENT
    assert [request.status for request in host.log] == [416, 200]


def test_an_answer_that_starts_elsewhere_is_refused(host, folder):
    half(host, folder)
    host.script = [{"shift": 5}]
    assert download(host.archive(), folder, attempts=1).read_bytes() == CONTENT
    assert [request.range for request in host.log] == ["bytes=400000-", None]


def test_a_part_that_a_crash_damaged_is_fetched_afresh(host, folder):
    half(host, folder)
    (folder / ".data.tar.part").write_bytes(bytes(400_000))
    assert download(host.archive(), folder).read_bytes() == CONTENT
    assert [request.range for request in host.log] == ["bytes=400000-", None]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_a_refusal_is_final(host, folder, status):
    host.script = [{"status": status}] * 9
    with pytest.raises(DownloadError, match=f"{re.escape(host.url)}.* {status} "):
        download(host.archive(), folder, pause=0)
    assert len(host.log) == 1
    assert names(folder) == []


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_failing_server_is_asked_again(host, folder, status):
    host.script = [{"status": status}] * 2
    assert download(host.archive(), folder, pause=0).read_bytes() == CONTENT
    assert [request.status for request in host.log] == [status, status, 200]


def test_redirections_are_followed_with_the_range(host, folder):
    half(host, folder)
    host.script = [{"status": 302, "headers": {"Location": "/elsewhere"}}]
    assert download(host.archive(), folder).read_bytes() == CONTENT
    assert [request.range for request in host.log] == ["bytes=400000-"] * 2


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/data.tar"])
def test_redirections_lead_nowhere_but_the_web(host, folder, target):
    host.script = [{"status": 302, "headers": {"Location": target}}] * 2
    with pytest.raises(DownloadError):
        download(host.archive(), folder, attempts=2, pause=0)
    assert names(folder) == []


def test_ctrl_c_keeps_the_part(host, folder):
    def interrupt(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(host.archive(), folder, progress=interrupt)
    assert names(folder) == [".data.tar.part", ".data.tar.part.json"]
    kept = (folder / ".data.tar.part").read_bytes()
    assert kept
    assert CONTENT.startswith(kept)
    assert download(host.archive(), folder).read_bytes() == CONTENT
    assert host.log[-1].range == f"bytes={len(kept)}-"


def test_ctrl_c_while_verifying_keeps_everything(host, folder, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pooch.core, "hash_matches", interrupt)
        with pytest.raises(KeyboardInterrupt):
            download(host.archive(), folder)
    assert names(folder) == [".data.tar.part", ".data.tar.part.json"]
    assert download(host.archive(), folder).read_bytes() == CONTENT
    assert len(host.log) == 1


def test_a_file_system_without_links(host, folder, monkeypatch):
    def refuse(*args):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(resume.os, "link", refuse)
    assert download(host.archive(), folder).read_bytes() == CONTENT
    assert names(folder) == ["data.tar"]


def test_progress_never_falls_and_ends_at_the_total(host, folder):
    seen = []
    host.script = [{"bytes": 300_000}, {"status": 500}]
    download(host.archive(), folder, progress=lambda *now: seen.append(now), pause=0)
    counts = [done for done, _ in seen]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert {total for _, total in seen} == {len(CONTENT)}
    assert counts[-1] == len(CONTENT)
    assert len(set(counts)) > 3


def test_pooch_says_nothing_and_keeps_its_own_level(host, folder, capsys):
    pooch.get_logger().setLevel(logging.INFO)
    download(host.archive(), folder)
    assert capsys.readouterr() == ("", "")
    assert pooch.get_logger().level == logging.INFO


@pytest.mark.parametrize(("length", "size"), [("told", None), ("told", 1), ("chunked", len(CONTENT))])
def test_too_little_space_is_said_before_anything_is_written(host, folder, monkeypatch, length, size):
    host.length = length
    monkeypatch.setattr(resume.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, len(CONTENT) - 1))
    with pytest.raises(DownloadError, match=r"1,000,003 bytes are needed, 1,000,002 are free"):
        download(host.archive(size=size), folder)
    assert not (folder / ".data.tar.part").exists()


def test_only_what_is_missing_needs_space(host, folder, monkeypatch):
    half(host, folder)
    monkeypatch.setattr(
        resume.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, len(CONTENT) - 400_000)
    )
    assert download(host.archive(), folder).read_bytes() == CONTENT


class Full(io.FileIO):
    def write(self, data):
        if self.tell() > 100_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_full_disk_is_said_and_the_part_kept(host, folder, monkeypatch):
    ordinary = Path.open

    def limited(path, mode="r", *args, **options):
        return io.BufferedWriter(Full(path, "ab")) if mode == "ab" else ordinary(path, mode, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", limited)
        with pytest.raises(DownloadError, match="disk is full"):
            download(host.archive(), folder)
    kept = (folder / ".data.tar.part").read_bytes()
    assert len(kept) > 100_000
    assert download(host.archive(), folder).read_bytes() == CONTENT
    assert host.log[-1].range == f"bytes={len(kept)}-"


def test_a_folder_that_may_not_be_written_to(host, folder, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DownloadError, match=f"cannot write to {re.escape(str(folder))}.*Permission denied"):
        download(host.archive(), folder)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(host, folder):
    folder.mkdir(mode=0o555)
    with pytest.raises(DownloadError, match="cannot write"):
        download(host.archive(), folder)


def test_a_file_in_place_of_the_folder(host, folder):
    folder.write_text("a file")
    with pytest.raises(DownloadError, match="cannot write to"):
        download(host.archive(), folder)
    assert host.log == []


def test_a_folder_whose_parent_is_missing(host, folder):
    with pytest.raises(DownloadError, match=r"cannot write to .*whose parent exists"):
        download(host.archive(), folder / "deep")
    assert host.log == []
    assert not folder.exists()


def test_without_pooch_the_extra_is_named(host, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'medbn[bench]'")):
        download(host.archive(), folder)


@pytest.mark.parametrize(
    ("url", "md5", "filename", "message"),
    [
        ("file:///etc/passwd", "0" * 32, "a", "http"),
        ("ftp://host/a", "0" * 32, "a", "http"),
        ("a.tar", "0" * 32, "a", "http"),
        ("https://host/a", "0" * 31, "a", "32 hexadecimal"),
        ("https://host/a", "0" * 32, "../a", "without folders"),
        ("https://host/a", "0" * 32, "", "without folders"),
    ],
)
def test_an_archive_is_checked(url, md5, filename, message):
    with pytest.raises(ValueError, match=message):
        Archive(url, md5, filename)


def test_attempts_and_pause_are_checked(host, folder):
    with pytest.raises(ValueError, match="attempts >= 1"):
        download(host.archive(), folder, attempts=0)
    with pytest.raises(ValueError, match="pause >= 0"):
        download(host.archive(), folder, pause=-1)


# --- unpack


def member(name, content=b"", **attributes):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, content


def pack(path, *members):
    mode = {".tar": "w", ".gz": "w:gz", ".xz": "w:xz"}[path.suffix]
    with tarfile.open(path, mode) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return path


GOOD = [
    member("set", type=tarfile.DIRTYPE),
    member("set/a.npy", b"a" * 5000),
    member("set/deep/b.npy", CONTENT[:20_000]),
]


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.tar.xz"])
def test_unpack_with_and_without_a_top_folder(tmp_path, name):
    path = pack(tmp_path / name, *GOOD)
    extract(path, tmp_path / "inner", inside="set")
    extract(path, tmp_path / "whole")
    for top in (tmp_path / "inner", tmp_path / "whole" / "set"):
        assert (top / "a.npy").read_bytes() == b"a" * 5000
        assert (top / "deep" / "b.npy").read_bytes() == CONTENT[:20_000]
    assert names(tmp_path) == ["inner", "whole", name]


def test_unpack_clears_what_a_crash_left(tmp_path):
    left = tmp_path / ".set.extracting"
    left.mkdir()
    (left / "old").touch()
    extract(pack(tmp_path / "x.tar", *GOOD), tmp_path / "set")
    assert names(tmp_path) == ["set", "x.tar"]
    assert names(tmp_path / "set") == ["set"]


@pytest.mark.parametrize(
    "bad",
    [
        member("/tmp/medbn-evil", b"x"),
        member("C:\\evil", b"x"),
        member("../evil", b"x"),
        member("set/../../evil", b"x"),
        member("set/link", type=tarfile.SYMTYPE, linkname="../../evil"),
        member("set/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("set/link", type=tarfile.LNKTYPE, linkname="../evil"),
        member("set/pipe", type=tarfile.FIFOTYPE),
        member("set/link", type=tarfile.LNKTYPE, linkname="set/missing"),
    ],
    ids=lambda pair: f"{pair[0].name}>{pair[0].linkname}",
)
def test_unpack_refuses_an_evil_archive(tmp_path, bad):
    room = tmp_path / "room"
    room.mkdir()
    path = pack(tmp_path / "x.tar", *GOOD, bad)
    with pytest.raises(DownloadError, match="damaged or unsafe"):
        extract(path, room / "set")
    assert names(room) == []
    assert names(tmp_path) == ["room", "x.tar"]
    assert not Path("/tmp/medbn-evil").exists()


# In x.tar the first file's data end at 512 + 512 + 5120 = 6144: there a cut falls between two members.
@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.tar.xz"])
@pytest.mark.parametrize("keep", [0, 100, 512, 3000, 6144, 6300, 20_000])
def test_unpack_refuses_a_truncated_archive(tmp_path, name, keep):
    path = pack(tmp_path / name, *GOOD)
    whole = path.read_bytes()
    path.write_bytes(whole[: min(keep, len(whole) - 1000)])
    with pytest.raises(DownloadError, match="damaged or unsafe"):
        extract(path, tmp_path / "set")
    assert names(tmp_path) == [name]


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.tar.xz"])
def test_unpack_refuses_altered_bytes(tmp_path, name):
    path = pack(tmp_path / name, *GOOD)
    altered = bytearray(path.read_bytes())
    altered[6144 : 6144 + 300] = b"\xff" * 300
    path.write_bytes(altered)
    with pytest.raises(DownloadError):
        extract(path, tmp_path / "set")
    assert names(tmp_path) == [name]


def test_unpack_refuses_what_is_no_archive(tmp_path):
    path = tmp_path / "x.tar"
    path.write_text("<html>not found</html>" * 100)
    with pytest.raises(DownloadError, match="damaged"):
        extract(path, tmp_path / "set")
    with pytest.raises(DownloadError, match="cannot read"):
        extract(tmp_path / "missing.tar", tmp_path / "set")
    assert names(tmp_path) == ["x.tar"]


def test_unpack_names_what_there_is_when_the_folder_is_missing(tmp_path):
    path = pack(tmp_path / "x.tar", *GOOD)
    with pytest.raises(DownloadError, match="no folder 'other'; it holds: set"):
        extract(path, tmp_path / "target", inside="other")
    assert names(tmp_path) == ["x.tar"]


def test_unpack_never_overwrites(tmp_path):
    path = pack(tmp_path / "x.tar", *GOOD)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine").touch()
    with pytest.raises(DownloadError, match="already exists"):
        extract(path, tmp_path / "set")
    assert names(tmp_path / "set") == ["mine"]


def test_unpack_into_a_missing_parent(tmp_path):
    with pytest.raises(DownloadError, match="parent exists"):
        extract(pack(tmp_path / "x.tar", *GOOD), tmp_path / "deep" / "set")


def test_unpack_on_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = pack(tmp_path / "x.tar", *GOOD)
    monkeypatch.setattr(tarfile, "copyfileobj", full)
    with pytest.raises(DownloadError, match="disk is full"):
        extract(path, tmp_path / "set")
    assert names(tmp_path) == ["x.tar"]


def test_unpack_needs_a_python_that_can_do_it_safely(tmp_path, monkeypatch):
    path = pack(tmp_path / "x.tar", *GOOD)
    monkeypatch.delattr(tarfile, "data_filter")
    with pytest.raises(DownloadError, match=r"update to 3\.10\.12"):
        extract(path, tmp_path / "set")
