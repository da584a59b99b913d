"""Built kernels as bytes: what a program's cache entry holds for one unit."""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, frozen

from gyrator_runtime.triton.compile import Facts, Job, parse_job

Expression = tuple[tuple[str, int], ...]
"""A postfix program over a kernel's sizes, as `SizeProgram` has them."""


@frozen(kw_only=True)
class Binary:
    """A kernel, built: machine code, how to launch it, and what it was built from."""

    symbol: str
    job: Job
    facts: Facts
    grid: tuple[Expression, ...]
    """Programs along each dimension, of the kernel's sizes."""
    code: bytes


def pack(binaries: Sequence[Binary]) -> bytes:
    """Return binaries as one block of bytes."""
    rows: list[dict[str, Any]] = []
    at = 0
    for b in binaries:
        rows.append(
            {
                "symbol": b.symbol,
                "job": b.job.as_json(),
                "facts": asdict(b.facts),
                "grid": b.grid,
                "at": at,
                "length": len(b.code),
            }
        )
        at += len(b.code)
    index = json.dumps(rows, sort_keys=True).encode()
    return struct.pack("<q", len(index)) + index + b"".join(b.code for b in binaries)


def unpack(data: bytes) -> Mapping[str, Binary]:
    """Return what `pack` packed, by symbol."""
    (length,) = struct.unpack_from("<q", data)
    start = 8 + length
    return {
        row["symbol"]: Binary(
            symbol=row["symbol"],
            job=parse_job(row["job"]),
            facts=Facts(**row["facts"]),
            grid=tuple(tuple((str(n), int(v)) for n, v in e) for e in row["grid"]),
            code=data[start + row["at"] : start + row["at"] + row["length"]],
        )
        for row in json.loads(data[8:start])
    }
