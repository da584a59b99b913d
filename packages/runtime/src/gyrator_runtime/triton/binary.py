"""Serialisation of built kernels, for a program's cache entry."""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, evolve

from gyrator_ir.define import frozen
from gyrator_runtime.triton.compile import Facts, Job, parse_job

Expression = tuple[tuple[str, int], ...]
"""A postfix program over a kernel's sizes, as in `SizeProgram`."""


@frozen(kw_only=True)
class Binary:
    """A built kernel: machine code, launch parameters, and the job that it was built from."""

    symbol: str
    job: Job
    facts: Facts
    grid: tuple[Expression, ...]
    """Number of programs along each dimension, as expressions over the kernel's sizes."""
    code: bytes
    general: "tuple[Facts, bytes] | None" = None
    """The variant for arguments that are not multiples of the job's divisors; None if it is built
    on demand."""


def pack(binaries: Sequence[Binary]) -> bytes:
    """Return binaries as one block of bytes."""
    rows: list[dict[str, Any]] = []
    codes = bytearray()

    def place(facts: Facts, code: bytes) -> dict[str, Any]:
        at = len(codes)
        codes.extend(code)
        return {"facts": asdict(facts), "at": at, "length": len(code)}

    for b in binaries:
        row: dict[str, Any] = {"symbol": b.symbol, "job": b.job.as_json(), "grid": b.grid}
        row |= place(b.facts, b.code)
        if b.general is not None:
            row["general"] = place(*b.general)
        rows.append(row)
    index = json.dumps(rows, sort_keys=True).encode()
    return struct.pack("<q", len(index)) + index + codes


def unpack(data: bytes) -> Mapping[str, Binary]:
    """Return the binaries in the result of `pack`, by symbol."""
    (length,) = struct.unpack_from("<q", data)
    start = 8 + length

    def placed(row: Mapping[str, Any]) -> tuple[Facts, bytes]:
        begin = start + row["at"]
        return Facts(**row["facts"]), data[begin : begin + row["length"]]

    binaries = {}
    for row in json.loads(data[8:start]):
        facts, code = placed(row)
        binaries[row["symbol"]] = Binary(
            symbol=row["symbol"],
            job=parse_job(row["job"]),
            facts=facts,
            grid=tuple(tuple((str(n), int(v)) for n, v in e) for e in row["grid"]),
            code=code,
            general=placed(row["general"]) if "general" in row else None,
        )
    return binaries


def without_text(binary: Binary) -> Binary:
    """Return a binary without the source text that it was built from."""
    return evolve(binary, job=evolve(binary.job, text=""))
