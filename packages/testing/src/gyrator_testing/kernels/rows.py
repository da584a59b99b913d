"""A kernel for each use of each row of the op table, and operands to run it on."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from attrs import frozen

from gyrator_ir.body.nodes import Let, Load, Statement, Store
from gyrator_ir.body.ops import OPS, Typing, result_dtype
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.types import Device, DType
from gyrator_testing.interp.dtypes import NUMPY, Array, cast
from gyrator_testing.interp.ops import apply
from gyrator_testing.kernels.write import BOOL, CPU, F32, I0, I32, I64, kernel, outer

TYPES = tuple(d for d in NUMPY if not d.is_complex)
"""The dtypes that every emitter supports: all but complex ones."""


@frozen
class Use:
    """A row of the op table on operands of given types."""

    name: str
    """The row's name and a number."""
    op: str
    operands: tuple[DType, ...]
    result: DType

    def kernel(self, count: int, device: Device = CPU) -> Kernel:
        """Return a kernel of that name that maps `x0`, `x1`, ... of `count` elements to `y`."""
        names = [f"a{k}" for k in range(len(self.operands))]
        loads = [Load(a, f"x{k}", I0) for k, a in enumerate(names)]
        value = Let("b", self.op, tuple(names), self.result)
        types = {f"x{k}": t for k, t in enumerate(self.operands)} | {"y": self.result}
        return kernel(
            self.name,
            [(I0, count)],
            [],
            [outer(*loads, value, Store("y", I0, "b"))],
            types,
            device=device,
        )

    def sample(self, count: int, rng: np.random.Generator) -> list[Array]:
        """Return arrays of `count` elements (at least 9) in the domain of the row."""
        return [self._operand(k, count, rng) for k in range(len(self.operands))]

    def meaning(self, operands: list[Array]) -> Array:
        """Return the result of the reference interpreter."""
        return np.asarray(apply(self.op, operands, self.result), NUMPY[self.result])

    def _operand(self, k: int, count: int, rng: np.random.Generator) -> Array:
        dtype = self.operands[k]
        x: Array
        if OPS[self.op].typing is Typing.RANDOM:
            # The key, a counter, and the bounds of `randint`.
            constants = {0: 1234567890123, 2: -7, 3: 1 << 40}
            x = rng.integers(0, 1 << 40, count) if k == 1 else np.full(count, constants[k])
        elif dtype is BOOL:
            x = rng.random(count) < 0.5
        elif dtype.is_int:
            x = self._integers(k, count, rng)
        else:
            x = self._floats(k, count, rng)
        return x if x.dtype == NUMPY[dtype] else np.asarray(cast(x, dtype), NUMPY[dtype])

    def _integers(self, k: int, count: int, rng: np.random.Generator) -> Array:
        dtype = self.operands[k]
        kind, info = NUMPY[dtype], np.iinfo(NUMPY[dtype])
        if self.op in ("shl", "shr") and k == 1:
            low = -3 if info.min < 0 else 0
            return rng.integers(low, 8 * dtype.size + 3, count).astype(kind)
        if self.op == "ldexp":
            return rng.integers(-160, 160, count).astype(kind)
        x = rng.integers(info.min, info.max, count, kind, endpoint=True)
        small = rng.integers(max(info.min, -20), 20, count).astype(kind)
        x = np.where(rng.random(count) < 0.5, x, small)
        x[:2] = info.min, info.max
        if self.op in ("floordiv", "truncdiv", "mod", "rem") and k == 1:
            x[(x == 0) | (x == -1 if info.min < 0 else False)] = 3
        return x

    def _floats(self, k: int, count: int, rng: np.random.Generator) -> Array:
        x: Array = rng.standard_normal(count) * 10.0 ** rng.integers(-4, 4, count)
        if self.op == "cast" and self.result.is_int:
            info = np.iinfo(NUMPY[self.result])
            if self.operands[k].size == 1:  # larger ones become NaN or an infinity
                x = np.clip(x, -200, 200)
            return np.clip(x, max(info.min, -(2**20)), min(info.max, 2**20))
        if self.op in ("acos", "asin", "erfinv"):
            return np.tanh(x)
        if self.op == "atanh":
            return np.tanh(x) * 0.99
        if self.op in ("lgamma", "digamma"):
            return np.abs(x) + 0.1
        if self.op == "pow":
            return np.abs(x) if k == 0 else np.clip(x, -8, 8)
        if self.op == "nextafter":
            x[0] = 0.0
            return x
        x[:7] = 0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0
        if k == 1:
            x[:7] = rng.permutation(x[:7])
        x[7:9] = 2.5, -3.5
        return x


def merged(name: str, group: Iterable[Use], count: int) -> Kernel:
    """Return one kernel that computes all of a group: `U_x0`, `U_x1`, ... of `count` elements to
    `U_y`, for each use of name U."""
    body: list[Statement] = []
    types: dict[str, DType] = {}
    for u in group:
        args = [f"{u.name}_a{k}" for k in range(len(u.operands))]
        body += [Load(a, f"{u.name}_x{k}", I0) for k, a in enumerate(args)]
        body.append(Let(f"{u.name}_b", u.op, tuple(args), u.result))
        body.append(Store(f"{u.name}_y", I0, f"{u.name}_b"))
        types |= {f"{u.name}_x{k}": t for k, t in enumerate(u.operands)}
        types[f"{u.name}_y"] = u.result
    return kernel(name, [(I0, count)], [], [outer(*body)], types)


def run_merged(
    group: Sequence[Use], count: int, run: Callable[[dict[str, Array]], int]
) -> list[tuple[Use, list[Array], Array]]:
    """Run a `merged` kernel on samples; return each use with its operands and its result.

    Args:
        group: the uses.
        count: the number of elements.
        run: runs the kernel in place on arrays by name, and returns its code, which must be 0.
    """
    samples = {u.name: u.sample(count, np.random.default_rng(len(u.name))) for u in group}
    arrays = {f"{name}_x{k}": x for name, xs in samples.items() for k, x in enumerate(xs)}
    arrays |= {f"{u.name}_y": np.zeros(count, NUMPY[u.result]) for u in group}
    assert run(arrays) == 0
    return [(u, samples[u.name], arrays[f"{u.name}_y"]) for u in group]


def uses() -> Iterator[Use]:
    """Yield each use of each row that the table allows on `TYPES`."""
    for op in OPS:
        for number, (operands, result) in enumerate(_signatures(op)):
            yield Use(f"{op}_{number}", op, operands, result)


def _signatures(op: str) -> Iterator[tuple[tuple[DType, ...], DType]]:
    row = OPS[op]
    signatures: list[tuple[tuple[DType, ...], DType]]
    for t in TYPES:
        match row.typing:
            case Typing.SAME:
                signatures = [((t,) * row.arity, t)]
            case Typing.COMPARE:
                signatures = [((t, t), BOOL)]
            case Typing.SELECT:
                signatures = [((BOOL, t, t), t)]
            case Typing.CAST | Typing.BITCAST:
                signatures = [((t,), other) for other in TYPES]
            case Typing.PREDICATE:
                signatures = [((t,), BOOL)]
            case Typing.EXPONENT:
                signatures = [((t, I32), t)]
            case Typing.RANDOM:
                result = I64 if op == "randint" else F32
                signatures = [((I64,) * row.arity, result)] if t is I64 else []
        for operands, result in signatures:
            if result_dtype(op, operands, result) is None:
                yield operands, result
