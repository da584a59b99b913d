"""Seeded arguments for programs, and comparison of their results."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import frozen
from numpy.lib.stride_tricks import as_strided

from gyrator_ir.expr import Expr, ShapeFacts, Sym
from gyrator_ir.host.nodes import BindParameter, BindSize, Conform, HostProgram, Launch
from gyrator_ir.kernel.nodes import Schedule
from gyrator_ir.levels import Program
from gyrator_ir.loop.nodes import Buffer, Constant, LoopProgram, SizeInput, TensorInput
from gyrator_ir.tile.nodes import TileProgram
from gyrator_ir.types import Device, DType
from gyrator_testing.interp.dtypes import DTYPES, NUMPY, Array, cast
from gyrator_testing.interp.externs import DEFAULT, Externs
from gyrator_testing.interp.index import Number, integer
from gyrator_testing.interp.memory import flat, span_of
from gyrator_testing.interp.tile import tiled_kernels
from gyrator_testing.levels import run_program

__all__ = ["Feed", "assert_same_meaning", "feed"]

USUAL_SIZE = 5
"""The value of a size symbol without a hint or a range."""

INTEGERS_BELOW = 3
"""Integer arguments are drawn from [0, 3), so that they are valid indices into most dimensions."""

_TOLERANCE = {DType.F64: 1e-11, DType.F32: 1e-5, DType.F16: 2e-3, DType.BF16: 1.6e-2}


@frozen
class Feed:
    """Arguments of a program, in order, and its constants by key."""

    inputs: tuple[Any, ...]
    constants: dict[str, Array]

    def copy(self) -> "Feed":
        """Return a deep copy of the arguments."""
        return Feed(
            tuple(_copied(i) for i in self.inputs),
            {key: _copied(array) for key, array in self.constants.items()},
        )


def feed(program: Program, seed: int = 0) -> Feed:
    """Return seeded arguments for a program: sizes that satisfy its facts, random numbers.

    A host program does not declare the dtypes of its parameters; they are inferred from its
    launches.

    Raises:
        ValueError: if the parameters of a host program cannot be inferred.
    """
    rng = np.random.default_rng(seed)
    if isinstance(program, HostProgram):
        return _host_feed(program, rng)
    if isinstance(program, TileProgram):
        return _tile_feed(program, rng)
    sizes = sizes_of(program)
    inputs: list[Any] = []
    for i in program.inputs:
        match i:
            case TensorInput(buffer):
                inputs.append(random_array(buffer, sizes, rng))
            case SizeInput(expr):
                inputs.append(integer(expr, sizes))
            case _:
                inputs.append(None)
    return Feed(tuple(inputs), _constants(program.constants, sizes, rng))


def sizes_of(program: LoopProgram | Schedule) -> dict[Sym, Number]:
    """Return a value for every size symbol of the inputs."""
    exprs: list[Expr] = []
    for i in program.inputs:
        if isinstance(i, TensorInput):
            exprs += [*i.buffer.shape, *i.buffer.strides]
        elif isinstance(i, SizeInput):
            exprs.append(i.expr)
    for c in program.constants:
        exprs += [*c.buffer.shape, *c.buffer.strides]
    return {s: size_of(s, program.facts) for e in exprs for s in e.free_symbols}


def size_of(symbol: Sym, facts: ShapeFacts) -> int:
    """Return the hint of a symbol, or a value that its range and divisor allow."""
    hint = facts.hint(symbol)
    if hint is not None:
        return hint
    low, high = facts.bounds(symbol)
    step = dict(facts.divisors).get(symbol, 1)
    value = max(USUAL_SIZE, low or 0)
    if high is not None:
        value = min(value, high)
    return value if value % step == 0 else value - value % step + step


def random_array(buffer: Buffer, sizes: dict[Sym, Number], rng: np.random.Generator) -> Array:
    """Return a random array with the dtype, shape and strides of a buffer."""
    shape = tuple(integer(n, sizes) for n in buffer.shape)
    strides = tuple(integer(s, sizes) for s in buffer.strides)
    flat = random_numbers(buffer.dtype, span_of(shape, strides), rng)
    return as_strided(flat, shape, tuple(s * flat.itemsize for s in strides))


def random_numbers(dtype: DType, count: int, rng: np.random.Generator) -> Array:
    """Return normal floats, integers in [0, 3), or bools."""
    if dtype.is_float:
        return cast(rng.standard_normal(count), dtype)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, count).astype(np.bool_)
    if dtype.is_complex:
        parts = rng.standard_normal(count) + 1j * rng.standard_normal(count)
        return parts.astype(NUMPY[dtype])
    return rng.integers(0, INTEGERS_BELOW, count).astype(NUMPY[dtype])


def assert_same_meaning(
    before: Program, after: Program, seed: int = 0, externs: Externs = DEFAULT
) -> None:
    """Interpret both programs on equal arguments and compare results and mutated arguments.

    Raises:
        AssertionError: they differ, for floats by more than the rounding of a few additions.
    """
    inputs_of_seed = feed(before, seed)
    first, second = inputs_of_seed.copy(), inputs_of_seed.copy()
    expected = run_program(before, first.inputs, first.constants, externs)
    got = run_program(after, second.inputs, second.constants, externs)
    assert_same(got, expected, "output")
    assert_same(second.inputs, first.inputs, "argument")


def assert_same(got: Sequence[Any], expected: Sequence[Any], what: str = "value") -> None:
    """Compare results one by one: type, shape and values.

    Raises:
        AssertionError: names the first result that differs.
    """
    assert len(got) == len(expected), f"{len(got)} {what}s, {len(expected)} were expected"
    for k, (a, b) in enumerate(zip(got, expected, strict=True)):
        if not isinstance(b, np.ndarray):
            assert type(a) is type(b) and (a == b or (a != a and b != b)), (
                f"{what} {k} is {a!r}, not {b!r}"
            )
            continue
        assert a.dtype == b.dtype, f"{what} {k} is {a.dtype}, not {b.dtype}"
        assert a.shape == b.shape, f"{what} {k} has shape {a.shape}, not {b.shape}"
        _assert_close(a, b, f"{what} {k}")


def _assert_close(a: Array, b: Array, what: str) -> None:
    dtype = DTYPES[b.dtype]
    if not (dtype.is_float or dtype.is_complex):
        np.testing.assert_array_equal(a, b, err_msg=what)
        return
    tolerance = _TOLERANCE.get(dtype, 1e-5 if dtype.is_complex else 0.3)
    wide = np.complex128 if dtype.is_complex else np.float64
    x, y = a.astype(wide), b.astype(wide)
    finite = np.abs(y[np.isfinite(y)])
    scale = float(finite.max()) if finite.size else 0.0
    np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * scale, err_msg=what)


def _copied(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    strides = tuple(s // value.itemsize for s in value.strides)
    flat = as_strided(value, (span_of(value.shape, strides),), (value.itemsize,)).copy()
    return as_strided(flat, value.shape, value.strides)


def _constants(
    constants: Sequence[Constant], sizes: dict[Sym, Number], rng: np.random.Generator
) -> dict[str, Array]:
    return {c.key: random_array(c.buffer, sizes, rng) for c in constants}


def _tile_feed(program: TileProgram, rng: np.random.Generator) -> Feed:
    kernels = [tiled.kernel for tiled in tiled_kernels(program)]
    layouts = [e for k in kernels for p in k.parameters for e in (*p.shape, *p.strides)]
    symbols = {s for e in layouts for s in e.free_symbols} | {s for k in kernels for s in k.sizes}
    sizes: dict[Sym, Number] = {s: size_of(s, program.facts) for s in symbols}
    arrays = [random_array(p, sizes, rng) for k in kernels for p in k.parameters]
    named = {s.name: value for s, value in sizes.items()}
    return Feed((named, *(flat(a, "argument") for a in arrays)), {})


def _host_feed(program: HostProgram, rng: np.random.Generator) -> Feed:
    layouts: dict[str, Conform] = {}
    dtypes: dict[str, DType] = {}
    symbols: dict[str, Sym] = {}
    sizes: dict[Sym, Number] = {}
    kernels = {k.name: k for k in program.kernels}
    for i in program.instructions:
        match i:
            case Conform(tensor):
                layouts.setdefault(tensor, i)
            case BindParameter(symbol, name):
                symbols[name] = symbol
                sizes[symbol] = size_of(symbol, program.facts)
            case BindSize(symbol):
                sizes[symbol] = size_of(symbol, program.facts)
            case Launch(kernel, tensors):
                for name, parameter in zip(tensors, kernels[kernel].parameters, strict=True):
                    dtypes.setdefault(name, parameter.dtype)
    inputs: list[Any] = []
    for p in program.parameters:
        if p.kind == "tensor":
            if p.name not in layouts or p.name not in dtypes:
                raise ValueError(f"the layout and type of parameter {p.name!r} are not known")
            where = layouts[p.name]
            buffer = Buffer(p.name, dtypes[p.name], Device("cpu"), where.shape, where.strides)
            inputs.append(random_array(buffer, sizes, rng))
        elif p.kind == "size" and p.name in symbols:
            inputs.append(sizes[symbols[p.name]])
        else:
            inputs.append(None)
    return Feed(tuple(inputs), _constants(program.constants, sizes, rng))
