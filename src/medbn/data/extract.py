"""Extract a downloaded archive completely or not at all."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from .._errors import one_line
from .disk_errors import DownloadError, explain_disk_errors

_LARGEST_RATIO = 20
_SMALLEST_LIMIT = 100_000_000
_LARGEST_HEADER = 2**20
_EXTENDED_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


def extract(archive_path: Path, target: Path, *, inside: str | None = None) -> None:
    """Extract a tar archive, compressed or not, to a new folder.

    Args:
        archive_path: the archive. A member that would be written outside ``target`` makes it an error.
        target: the folder to create; its parent must exist.
        inside: the folder within the archive that becomes ``target``; by default the whole archive does.

    An archive whose contents are much larger than itself is an error: images hardly compress, and a few kilobytes can
    fill a disk.
    """
    if not hasattr(tarfile, "data_filter"):
        raise DownloadError(
            "this Python cannot extract safely (tarfile has no data filter): update to 3.10.12, 3.11.4 or later."
        )
    if os.path.lexists(target):
        raise DownloadError(f"cannot extract {archive_path}: {target} already exists; remove it to extract again.")
    scratch = target.with_name(f".{target.name}.extracting")
    with explain_disk_errors(target.parent):
        if scratch.exists():  # from a process that was killed
            shutil.rmtree(scratch)
        scratch.mkdir()
    try:
        _extract_members(archive_path, scratch)
        source = scratch / inside if inside else scratch
        if not source.is_dir():
            contents = ", ".join(sorted(path.name for path in scratch.iterdir())) or "nothing"
            raise DownloadError(f"{archive_path} has no folder {inside!r}; it holds: {contents}.")
        with explain_disk_errors(target.parent):
            os.replace(source, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class _BoundedHeader(tarfile.TarInfo):
    """A member's header, which tarfile reads into memory whole where it is an extended one."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: Any, errors: str) -> Any:
        """Return the header in a block of 512 bytes."""
        member = super().frombuf(buf, encoding, errors)
        if member.type in _EXTENDED_HEADERS and member.size > _LARGEST_HEADER:
            raise tarfile.ReadError(f"it has a header of {member.size} bytes")
        return member


def _extract_members(archive_path: Path, folder: Path) -> None:
    try:
        file = archive_path.open("rb")
    except OSError as error:
        raise DownloadError(f"cannot read {archive_path}: {error}.") from error
    with file, explain_disk_errors(folder.parent):
        try:
            limit = max(_SMALLEST_LIMIT, _LARGEST_RATIO * archive_path.stat().st_size)
            total = 0
            with tarfile.open(fileobj=file, tarinfo=_BoundedHeader) as tar:
                # One by one, because extractall reads a compressed archive twice.
                for member in tar:
                    total += tarfile.BLOCKSIZE + member.size
                    if total > limit:
                        raise tarfile.ReadError(f"its contents are larger than {limit} bytes")
                    tar.extract(member, folder, filter=_check_member)
                # tarfile accepts an archive that is cut off between two members; a complete one ends with zeros.
                assert tar.fileobj is not None
                tar.fileobj.seek(tar.offset)
                if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                    raise tarfile.ReadError("it is cut off")
        except Exception as error:  # damaged data raises errors of many types
            if isinstance(error, OSError) and error.errno is not None:  # a disk error; gzip's own have no number
                raise
            raise DownloadError(
                f"cannot extract {archive_path}: {one_line(error)}. Nothing was extracted."
                " The archive is damaged or unsafe: delete it and download it again."
            ) from error


def _check_member(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    # tarfile's data filter makes absolute names relative; a dataset's archive has none, so it is not what it should be.
    if PurePosixPath(member.name).is_absolute() or PureWindowsPath(member.name).anchor:
        raise tarfile.AbsolutePathError(member)
    return tarfile.data_filter(member, path)
