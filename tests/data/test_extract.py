"""Archives are extracted completely or not at all, and never outside their folder."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from pathlib import Path

import pytest

from medbn.data import DownloadError
from medbn.data.extract import extract

from .server import CONTENT

SUFFIXES = [".tar", ".tar.gz", ".tar.xz"]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


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


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_with_and_without_the_top_folder(tmp_path, suffix):
    path = pack(tmp_path / f"x{suffix}", *GOOD)
    extract(path, tmp_path / "inner", inside="set")
    extract(path, tmp_path / "whole")
    for top in (tmp_path / "inner", tmp_path / "whole" / "set"):
        assert (top / "a.npy").read_bytes() == b"a" * 5000
        assert (top / "deep" / "b.npy").read_bytes() == CONTENT[:20_000]
    assert names(tmp_path) == ["inner", "whole", f"x{suffix}"]


def test_what_a_killed_process_left_is_removed(tmp_path):
    left = tmp_path / ".set.extracting"
    left.mkdir()
    (left / "old").touch()
    extract(pack(tmp_path / "x.tar", *GOOD), tmp_path / "set")
    assert names(tmp_path) == ["set", "x.tar"]
    assert names(tmp_path / "set") == ["set"]


@pytest.mark.parametrize(
    "unsafe",
    [
        member("/tmp/medbn-unsafe", b"x"),
        member("C:\\unsafe", b"x"),
        member("set/../../unsafe", b"x"),
        member("set/link", type=tarfile.SYMTYPE, linkname="../../unsafe"),
        member("set/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("set/link", type=tarfile.LNKTYPE, linkname="../unsafe"),
        member("set/pipe", type=tarfile.FIFOTYPE),
        member("set/link", type=tarfile.LNKTYPE, linkname="set/missing"),
    ],
    ids=lambda pair: f"{pair[0].name}>{pair[0].linkname}",
)
def test_unsafe_members_are_refused(tmp_path, unsafe):
    parent = tmp_path / "parent"
    parent.mkdir()
    path = pack(tmp_path / "x.tar", *GOOD, unsafe)
    with pytest.raises(DownloadError, match="unsafe"):
        extract(path, parent / "set")
    assert names(parent) == []
    assert names(tmp_path) == ["parent", "x.tar"]
    assert not Path("/tmp/medbn-unsafe").exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_truncated_and_altered_archives_are_refused(tmp_path, suffix):
    path = pack(tmp_path / f"x{suffix}", *GOOD)
    whole = path.read_bytes()
    altered = bytearray(whole)
    altered[6144:6444] = b"\xff" * 300
    # In x.tar the first file's data end at 512 + 512 + 5120 = 6144: there the cut is between two members.
    for damaged in [whole[: min(length, len(whole) - 1000)] for length in (0, 100, 3000, 6144, 20_000)] + [altered]:
        path.write_bytes(damaged)
        with pytest.raises(DownloadError, match="damaged"):
            extract(path, tmp_path / "set")
        assert names(tmp_path) == [path.name]


def test_files_that_are_not_archives_are_refused(tmp_path):
    path = tmp_path / "x.tar"
    path.write_text("<html>not found</html>" * 100)
    with pytest.raises(DownloadError, match="damaged"):
        extract(path, tmp_path / "set")
    with pytest.raises(DownloadError, match=r"missing\.tar"):
        extract(tmp_path / "missing.tar", tmp_path / "set")
    assert names(tmp_path) == ["x.tar"]


def test_a_missing_folder_inside_is_an_error_that_lists_the_contents(tmp_path):
    path = pack(tmp_path / "x.tar", *GOOD)
    with pytest.raises(DownloadError, match=r"'other'.*: set"):
        extract(path, tmp_path / "target", inside="other")
    assert names(tmp_path) == ["x.tar"]


def test_an_existing_folder_is_not_changed(tmp_path):
    path = pack(tmp_path / "x.tar", *GOOD)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine").touch()
    with pytest.raises(DownloadError, match="exists"):
        extract(path, tmp_path / "set")
    assert names(tmp_path / "set") == ["mine"]


def test_a_missing_parent_is_an_error(tmp_path):
    with pytest.raises(DownloadError, match="parent"):
        extract(pack(tmp_path / "x.tar", *GOOD), tmp_path / "deep" / "set")


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = pack(tmp_path / "x.tar", *GOOD)
    monkeypatch.setattr(tarfile, "copyfileobj", full)
    with pytest.raises(DownloadError, match="full"):
        extract(path, tmp_path / "set")
    assert names(tmp_path) == ["x.tar"]


def test_a_python_that_cannot_extract_safely_is_refused(tmp_path, monkeypatch):
    path = pack(tmp_path / "x.tar", *GOOD)
    monkeypatch.delattr(tarfile, "data_filter")
    with pytest.raises(DownloadError, match="Python"):
        extract(path, tmp_path / "set")
