"""The file format of packages: a zip archive whose bytes depend only on its members.

`Raw` members, such as the weights, are stored uncompressed at a multiple of `ALIGNMENT` bytes, for
memory mapping and fast loading; the other members are deflated.
"""

import hashlib
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from gyrator_ir.define import frozen

ALIGNMENT = 64
_EPOCH = (1980, 1, 1, 0, 0, 0)
_LOCAL = struct.Struct("<4s5H3L2H")
_PADDING = struct.Struct("<HH")
_PADDING_ID = 0xD935
"""The customary extra field for the alignment of members."""
_ZIP64_EXTRA = 20
_CHUNK = 1 << 20
_SEED = 1 << 20
"""Size up to which any member may inflate, regardless of the size of the file."""


@frozen
class Raw:
    """A member that is written in parts and not compressed."""

    size: int
    sha256: str
    write: Callable[[IO[bytes]], None]

    @classmethod
    def of(cls, data: bytes) -> "Raw":
        """Return a raw member with these bytes."""

        def write(file: IO[bytes]) -> None:
            file.write(data)

        return cls(len(data), hashlib.sha256(data).hexdigest(), write)


def write_archive(path: Path, members: Mapping[str, bytes | Raw]) -> None:
    """Write an archive atomically, with the members in order. An OSError names `path`."""
    path = Path(path)
    work = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(work, "wb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                for name, data in members.items():
                    _write(archive, file, name, data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(work, path)
    except OSError as error:
        if str(error.filename) != str(work):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        work.unlink(missing_ok=True)


def _write(archive: zipfile.ZipFile, file: IO[bytes], name: str, data: bytes | Raw) -> None:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system, info.external_attr = 3, 0o644 << 16  # the same on every machine
    if isinstance(data, bytes):
        info.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(info, data, compresslevel=9)
        return
    start = file.tell() + _LOCAL.size + len(name.encode()) + _ZIP64_EXTRA + _PADDING.size
    padding = -start % ALIGNMENT
    info.extra = _PADDING.pack(_PADDING_ID, padding) + bytes(padding)
    info.file_size = data.size
    with archive.open(info, "w", force_zip64=True) as member:
        data.write(member)


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(_CHUNK):
            digest.update(part)
    return digest.hexdigest()


class BrokenArchiveError(ValueError):
    """A file is not a complete zip archive."""


class Archive:
    """An archive open for reading. BrokenArchiveError if it is not an archive."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = file.seek(0, io.SEEK_END)
        try:
            self._zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, ValueError, struct.error, NotImplementedError) as error:
            raise BrokenArchiveError(str(error)) from error
        self._infos = {info.filename: info for info in self._zip.infolist()}

    @property
    def names(self) -> frozenset[str]:
        """Names of the members."""
        return frozenset(self._infos)

    def read(self, name: str) -> bytes:
        """Return a member's contents. BrokenArchiveError if it is missing or damaged."""
        info = self._info(name)
        if info.file_size > _SEED + 1024 * self._size:
            raise BrokenArchiveError(f"{name} claims to have {info.file_size} bytes")
        # `ZipFile.read` would take as long as all other steps of loading a small package.
        self._file.seek(self._start(info))
        data = self._file.read(info.compress_size)
        if info.compress_type == zipfile.ZIP_DEFLATED:
            try:
                inflated = zlib.decompressobj(-zlib.MAX_WBITS)
                data = inflated.decompress(data, info.file_size + 1)
            except zlib.error as error:
                raise BrokenArchiveError(f"{name}: {error}") from error
        elif info.compress_type != zipfile.ZIP_STORED:
            raise BrokenArchiveError(f"{name} is neither deflated nor stored")
        if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
            raise BrokenArchiveError(f"{name} is damaged")
        return data

    def offset_and_size(self, name: str) -> tuple[int, int]:
        """Return the offset and size in the file of a member that is not compressed."""
        info = self._info(name)
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise BrokenArchiveError(f"{name} is compressed")
        return self._start(info), info.file_size

    def _start(self, info: zipfile.ZipInfo) -> int:
        """Return the offset of a member's data in the file, and check that it is complete."""
        name = info.filename
        if info.header_offset < 0:
            raise BrokenArchiveError(f"{name} begins before the file")
        self._file.seek(info.header_offset)
        head = self._file.read(_LOCAL.size)
        if len(head) < _LOCAL.size or head[:4] != b"PK\3\4":
            raise BrokenArchiveError(f"{name} has no header")
        *_, name_size, extra_size = _LOCAL.unpack(head)
        start: int = info.header_offset + _LOCAL.size + name_size + extra_size
        if start + info.compress_size > self._size:
            raise BrokenArchiveError(f"{name} ends beyond the file")
        return start

    def _info(self, name: str) -> zipfile.ZipInfo:
        if name not in self._infos:
            raise BrokenArchiveError(f"it has no {name}")
        return self._infos[name]
