"""The toy's processor: runs programs of its assembly language, each instruction at all points.

A line is `register verb operands...`; `kernel name` begins a program. Registers hold arrays that
broadcast over the points (`axis`) and, where a value is folded, over the inner positions (`inner`).
"""

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = {
    "f64": np.dtype(np.float64), "f32": np.dtype(np.float32), "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16), "i64": np.dtype(np.int64), "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16), "i8": np.dtype(np.int8), "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}  # fmt: skip
EXACT: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative,
    "abs": np.abs, "maximum": np.maximum, "minimum": np.minimum, "sqrt": np.sqrt,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint, "eq": np.equal,
    "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "isnan": np.isnan, "isinf": np.isinf, "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor, "bit_not": np.invert,
    "floordiv": np.floor_divide, "mod": np.mod, "where": np.where,
}  # fmt: skip
WIDE: dict[str, Any] = {
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "sin": np.sin,
    "cos": np.cos, "tanh": np.tanh, "pow": np.power, "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip
"""Computed in float64, rounded once."""
FOLDS: dict[str, Any] = {
    "sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "any": np.any, "all": np.all,
    "argmin": np.argmin, "argmax": np.argmax, "xor": np.bitwise_xor.reduce,
}  # fmt: skip


class Machine:
    """One run of a kernel."""

    def __init__(self, buffers: Any, sizes: Any) -> None:
        self.buffers, self.sizes = buffers, sizes
        self.registers: dict[str, Any] = {}
        self.memory: dict[str, tuple[Any, int]] = {}
        """A flat array and 0, or for scratch the elements of one point."""
        self.points: list[int] = []
        self.inner: list[int] = []
        self.space: list[int] = []
        """Extents of the stage that is running."""

    def run(self, text: str) -> int:
        """Run a program; 0, or the code of the `bind` that failed."""
        with np.errstate(all="ignore"):
            for line in text.splitlines():
                name, verb, *operands = line.split()
                if code := self.step(name, verb, operands):
                    return code
        return 0

    def step(self, name: str, verb: str, operands: list[str]) -> int:
        """Run one instruction."""
        r = self.registers
        match verb, *operands:
            case "size", k:
                r[name] = np.int64(self.sizes[int(k)])
            case "const", kind, value:
                number = int(value) if kind[0] in "iu" else float.fromhex(value)
                r[name] = np.asarray(number).astype(DTYPES[kind])
            case ("axis" | "inner") as level, position, rank, extent:
                shape = [1] * int(rank)
                shape[int(position)] = n = max(0, int(r[extent]))
                r[name] = np.arange(n).reshape(shape)
                (self.points if level == "axis" else self.inner).append(n)
            case "parameter", k, kind:
                self.memory[name] = flat(self.buffers[int(k)], DTYPES[kind]), 0
            case "local", kind, extent:
                count = int(np.prod(self.points)) * int(r[extent])
                self.memory[name] = np.zeros(count, DTYPES[kind]), int(r[extent])
            case "stage", level:
                ones = [1] * len(self.inner)
                self.space = self.points + (self.inner if level == "inner" else ones)
            case "load", buffer, address, mask:
                memory, where, valid = self.place(buffer, r[address], mask)
                zero = np.zeros((), memory.dtype)
                r[name] = np.where(valid, memory[where], zero) if where.size else zero
            case "store", buffer, address, value, mask:
                memory, where, valid = self.place(buffer, r[address], mask)
                memory[where[valid]] = np.broadcast_to(r[value], where.shape)[valid]
            case "bind", value, size, wrap, code, mask:
                found = np.asarray(r[value], np.int64)
                found = np.where((found < 0) & (wrap == "wrap"), found + r[size], found)
                valid = np.asarray(mask == "-" or r[mask])
                outside = valid & ((found < 0) | (found >= r[size]))
                if code != "0" and np.prod(self.space) and np.any(outside):
                    return int(code)
                r[name] = np.where(valid, found, 0)
            case "cast", kind, value:
                r[name] = np.asarray(r[value]).astype(DTYPES[kind])
            case "fold", fold, kind, *values:
                r.update(zip(name.split(","), self.fold(fold, DTYPES[kind], values), strict=True))
            case _:
                op, _, kind = verb.partition(".")
                given = [r[v] for v in operands]
                if op in WIDE:
                    wide = WIDE[op](*(np.asarray(g, np.float64) for g in given))
                    r[name] = np.asarray(wide).astype(DTYPES[kind])
                else:
                    r[name] = np.asarray(EXACT[op](*given))
        return 0

    def place(self, buffer: str, address: Any, mask: str) -> tuple[Any, Any, Any]:
        """Return a buffer's memory, where each point looks in it, and which points do."""
        memory, share = self.memory[buffer]
        if share:
            points = np.arange(np.prod(self.points), dtype=np.int64)
            address = address + share * points.reshape(self.points + [1] * len(self.inner))
        where = np.broadcast_to(np.asarray(address, np.int64), self.space)
        valid = np.broadcast_to(np.asarray(mask == "-" or self.registers[mask]), self.space)
        return memory, np.where(valid, where, 0), valid

    def fold(self, fold: str, dtype: Any, values: list[str]) -> list[Any]:
        """Fold values over the inner positions, in float64 where they are floats."""
        whole = [np.broadcast_to(self.registers[v], self.space) for v in values]
        rows = [w.reshape(*self.points, int(np.prod(self.inner))) for w in whole]
        if dtype.kind not in "biu":
            rows = [row.astype(np.float64) for row in rows]
        x = rows[0]
        match fold:
            case "dot":
                found = [np.sum(x * rows[1], -1)]
            case "welford":
                mean = np.mean(x, -1)
                count = np.full(mean.shape, float(x.shape[-1]))
                found = [mean, np.sum(np.square(x - mean[..., None]), -1), count]
            case "online_softmax":
                top = np.max(x, -1, initial=-np.inf)
                found = [top, np.sum(np.exp(x - top[..., None]), -1)]
            case "argmin" | "argmax" if not x.shape[-1]:
                found = [np.zeros(x.shape[:-1], np.int64)]
            case _:
                identity = {"min": np.inf, "max": -np.inf}.get(fold)
                extra = {} if identity is None or x.shape[-1] else {"initial": identity}
                found = [FOLDS[fold](x, -1, **extra)]
        shape = self.points + [1] * len(self.inner)
        dtype = np.dtype(np.int64) if fold[:3] == "arg" else dtype
        return [np.asarray(f).astype(dtype).reshape(shape) for f in found]


def flat(address: int | None, dtype: Any) -> Any:
    """Return memory from an address on as a flat array. Its end is not known to a kernel."""
    bytes_ = (ctypes.c_uint8 * (1 << 40)).from_address(address or 1 << 12)
    return np.ctypeslib.as_array(bytes_).view(dtype)
