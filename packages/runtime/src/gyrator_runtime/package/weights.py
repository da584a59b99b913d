"""Weights as a safetensors file, written in a fixed order and memory-mapped.

The format is https://huggingface.co/docs/safetensors: a length of 8 bytes, a JSON header, and the
tensors without gaps. Tensors whose size is a multiple of 64 bytes come first, so that each of them
is aligned to 64 bytes; the header is padded accordingly.
"""

import hashlib
import json
import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import torch

from gyrator_runtime.package.archive import ALIGNMENT, Raw
from gyrator_runtime.package.errors import PackageError, no_package, wrong_weight

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
        "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
        "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
        "BOOL": torch.bool, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
    }
)  # fmt: skip
"""PyTorch dtypes by their names in safetensors."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH = struct.Struct("<Q")
_MAX_HEADER = 100 << 20
_PART = 1 << 24


def packed(tensors: Mapping[str, torch.Tensor]) -> Raw:
    """Return tensors as a member of an archive.

    Raises:
        PackageError: GY-PACKAGE-008, for a dtype that safetensors lacks or a tensor that is not
            strided.
    """
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.dtype not in _NAMES:
            raise wrong_weight(name, f"{tensor.dtype}, {tensor.layout} cannot be stored")
    ordered = sorted(
        tensors.items(), key=lambda t: (t[1].nbytes % ALIGNMENT != 0, -t[1].itemsize, t[0])
    )
    header: dict[str, Any] = {}
    at = 0
    for name, tensor in ordered:
        offsets = [at, at + tensor.nbytes]
        header[name] = {
            "dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets
        }  # fmt: skip
        at = offsets[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + _LENGTH.size) % ALIGNMENT)
    head = _LENGTH.pack(len(text)) + text

    def write(file: IO[bytes]) -> None:
        file.write(head)
        for _, tensor in ordered:
            data = _bytes(tensor)
            for start in range(0, len(data), _PART):
                file.write(data[start : start + _PART])

    digest = hashlib.sha256()
    write(_Digest(digest))  # type: ignore[arg-type]  # only `write` is called
    return Raw(len(head) + at, digest.hexdigest(), write)


def digest_of(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of a tensor's elements."""
    return hashlib.sha256(_bytes(tensor)).hexdigest()


class _Digest:
    def __init__(self, digest: "hashlib._Hash") -> None:
        self.write = digest.update


def _bytes(tensor: torch.Tensor) -> memoryview:
    plain = tensor.detach().contiguous().flatten().resolve_conj().resolve_neg()
    if not plain.numel():
        return memoryview(b"")
    array: Any = plain.view(torch.uint8).numpy()
    return memoryview(array)


def mapped(path: Path, file: IO[bytes], start: int, size: int) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file embedded at an offset in another file.

    They are mapped copy-on-write: processes share the memory, and writes are private. The file may
    be closed and removed, but must not be modified.

    Raises:
        PackageError: GY-PACKAGE-001, when the data are not a safetensors file.
    """
    try:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        (length,) = _LENGTH.unpack_from(memory, start)
        if not 0 <= length <= min(size - _LENGTH.size, _MAX_HEADER):
            raise ValueError(f"its header claims {length} bytes")
        begin = start + _LENGTH.size + length
        header = json.loads(memory[start + _LENGTH.size : begin])
        room = start + size - begin
        rows = {n: row for n, row in header.items() if n != "__metadata__"}
        return {name: _tensor(memory, begin, room, row) for name, row in rows.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError, struct.error) as error:
        raise no_package(path, f"its weights cannot be read ({error})") from error


def _tensor(memory: mmap.mmap, begin: int, room: int, row: Mapping[str, Any]) -> torch.Tensor:
    dtype, shape = DTYPES[row["dtype"]], [int(n) for n in row["shape"]]
    first, last = row["data_offsets"]
    count = math.prod(shape)
    inside = 0 <= first <= last <= room and min(shape, default=0) >= 0
    if not inside or last - first != count * dtype.itemsize:
        raise ValueError(f"a tensor of {row} ends beyond the file")
    if not count:
        return torch.empty(shape, dtype=dtype)
    if (begin + first) % dtype.itemsize == 0:
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=begin + first)
        return flat if len(shape) == 1 else flat.view(shape)
    plain = torch.frombuffer(memory, dtype=torch.uint8, count=last - first, offset=begin + first)
    return plain.clone().view(dtype).view(shape)  # unaligned, in files of other writers


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, mapped; see `mapped`."""
    path = Path(path)
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        if size < _LENGTH.size:
            raise no_package(path, "it is too short for weights")
        return mapped(path, file, 0, size)


__all__ = ["DTYPES", "PackageError", "digest_of", "mapped", "packed", "read_weights"]
