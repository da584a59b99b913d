"""A fixed corpus of kernels: every op, every reduction both ways, softmax, norms, indirection."""

from triton_build import kernel

from gyrator_ir.body.nodes import (
    Bind,
    Const,
    IndexValue,
    Let,
    Load,
    Reduce,
    ReduceKind,
    ScanKind,
    ScanStep,
    SortStep,
    Store,
    StoreMode,
)
from gyrator_ir.body.ops import OPS, Typing, result_dtype
from gyrator_ir.expr import Sym, expr
from gyrator_ir.kernel.nodes import Local
from gyrator_ir.types import DType
from gyrator_testing.kernels.write import (
    BOOL,
    F32,
    F64,
    I0,
    I1,
    I2,
    I32,
    I64,
    R0,
    R1,
    S0,
    S1,
    inner,
    outer,
)

I3, R2, T0 = Sym("i3"), Sym("r2"), Sym("t0")
RESULTS = {ReduceKind.WELFORD: 3, ReduceKind.ONLINE_SOFTMAX: 2}
POSITIONS = (ReduceKind.ARGMIN, ReduceKind.ARGMAX)


def rows(name, m, n, kind, dtype=F32):
    """Reduce x[i, r] along r into y0, y1, ..."""
    names = tuple(f"f{k}" for k in range(RESULTS.get(kind, 1)))
    loads = [Load("a", "x", expr(n) * I0 + R0)]
    if kind is ReduceKind.DOT:
        loads.append(Load("b", "w", R0))
    args = ("a", "b")[: len(loads)]
    return kernel(
        name, [(I0, m)], [(R0, n)],
        [
            inner(*loads, Reduce(names, kind, args, dtype)),
            outer(*(Store(f"y{k}", I0, f) for k, f in enumerate(names))),
        ],
        {"x": dtype, "w": dtype} | {f"y{k}": I64 if kind in POSITIONS else dtype for k in range(3)},
    )  # fmt: skip


def softmax(name, m, n, into="z", dtype=F32):
    at = expr(n) * I0 + R0
    load = [Load("a", "x", at), Let("b", "cast", ("a",), F32)]
    return kernel(
        name, [(I0, m)], [(R0, n)],
        [
            inner(*load, Reduce(("m", "s"), ReduceKind.ONLINE_SOFTMAX, ("b",), F32)),
            inner(
                *load, Let("c", "sub", ("b", "m"), F32), Let("d", "exp", ("c",), F32),
                Let("e", "div", ("d", "s"), F32), Let("f", "cast", ("e",), dtype),
                Store(into, at, "f"),
            ),
        ],
        {"x": dtype, into: dtype},
    )  # fmt: skip


def layer_norm(name, m, n):
    at = expr(n) * I0 + R0
    return kernel(
        name, [(I0, m)], [(R0, n)],
        [
            inner(Load("a", "x", at), Reduce(("u", "v", "k"), ReduceKind.WELFORD, ("a",), F32)),
            outer(Let("w", "div", ("v", "k"), F32), Const("e", 1e-5, F32),
                  Let("q", "add", ("w", "e"), F32), Let("s", "rsqrt", ("q",), F32),
                  Store("scale", I0, "s")),
            inner(Load("b", "x", at), Let("c", "sub", ("b", "u"), F32),
                  Let("d", "mul", ("c", "s"), F32), Store("z", at, "d")),
        ],
    )  # fmt: skip


def summed_columns(name, units, m, n, dtype=F32, batches=1):
    """Rows divided by their sums, in `units` parts of `batches` times `m` rows; and for each part,
    the sums of its columns and those of their products with a vector."""
    at = ((expr(batches) * I0 + I1) * expr(m) + I2) * expr(n) + R0
    load = [Load("a", "x", at), Let("b", "cast", ("a",), F32)]
    part = expr(n) * I0 + R0
    return kernel(
        name, [(I0, units), (I1, batches), (I2, m)], [(R0, n)],
        [
            inner(*load, Load("v", "w", R0), Let("c", "mul", ("b", "v"), F32),
                  Store("sums", part, "c", StoreMode.TOTAL),
                  Reduce(("s",), ReduceKind.SUM, ("b",), F32)),
            inner(*load, Let("d", "div", ("b", "s"), F32), Let("e", "cast", ("d",), dtype),
                  Store("z", at, "e"), Store("plain", part, "b", StoreMode.TOTAL)),
        ],
        {"x": dtype, "z": dtype},
    )  # fmt: skip


def kept_row(name, m, n, k):
    """A row over two inner axes in a local, and its mean taken from it."""
    at = (expr(m) * R0 + I0) * expr(k) + R1
    row = expr(k) * R0 + R1
    return kernel(
        name, [(I0, m)], [(R0, n), (R1, k)],
        [
            inner(Load("a", "x", at), Let("b", "exp", ("a",), F32), Store("row", row, "b"),
                  Reduce(("u",), ReduceKind.SUM, ("b",), F32)),
            inner(Load("c", "row", row), Let("d", "sub", ("c", "u"), F32), Store("z", at, "d")),
        ],
        locals_=[Local("row", F32, expr(n) * expr(k))],
    )  # fmt: skip


def through_memory(name, m, n):
    """The second stage reads, at the same address, what the first has written."""
    at = expr(n) * I0 + R0
    return kernel(
        name, [(I0, m)], [(R0, n)],
        [
            inner(Load("a", "x", at), Let("b", "neg", ("a",), F32), Store("z", at, "b"),
                  Reduce(("u",), ReduceKind.MAX, ("b",), F32)),
            inner(Load("c", "z", at), Let("d", "sub", ("c", "u"), F32), Store("y", at, "d")),
        ],
    )  # fmt: skip


def gather(name, check=True, wrap=True):
    return kernel(
        name, [(I0, S0)], [],
        [outer(Load("a", "at", I0), Bind(T0, "a", expr(7), wrap, check), Load("b", "x", T0),
               Store("z", I0, "b"))],
        {"at": I64},
    )  # fmt: skip


def histogram(name, dtype, mode):
    return kernel(
        name, [(I0, S0)], [],
        [outer(Load("a", "at", I0), Bind(T0, "a", expr(5)), Load("b", "x", I0),
               Store("z", T0, "b", mode))],
        {"at": I64, "x": dtype, "z": dtype},
    )  # fmt: skip


def scan(name, m, n, kind, reverse=False, dtype=F32):
    """Scan rows of x into y; from their ends, extremes into v and their positions into y."""
    at = expr(n) * I0 + R0
    position = kind in (ScanKind.ARGMIN, ScanKind.ARGMAX)
    both = position and reverse
    step = ScanStep(("v", "b") if both else ("b",), kind, ("a",), dtype, reverse)
    values = [Store("v", at, "v")] if both else []
    return kernel(
        name, [(I0, m)], [(R0, n)],
        [inner(Load("a", "x", at), step, Store("y", at, "b"), *values)],
        {"x": dtype, "y": I64 if position else dtype} | ({"v": dtype} if both else {}),
    )  # fmt: skip


def exponentials(name, m, n, stride, dtype=F32):
    """y[i] = max(x[i, :n]), z[i] = sum(exp(x[i, :n] - y[i])), with rows `stride` elements apart."""
    return kernel(
        name, [(I0, m)], [(R0, n)],
        [inner(Load("a", "x", expr(stride) * I0 + R0), Let("b", "cast", ("a",), F32),
               Reduce(("v", "w"), ReduceKind.ONLINE_SOFTMAX, ("b",), F32)),
         outer(Store("y", I0, "v"), Store("z", I0, "w"))],
        {"x": dtype, "y": F32, "z": F32},
    )  # fmt: skip


def sorted_rows(name, m, n, dtype=F32, descending=False):
    at = expr(n) * I0 + R0
    return kernel(
        name, [(I0, m)], [(R0, n)],
        [inner(Load("a", "x", at), SortStep(("v", "p"), ("a",), dtype, descending),
               Store("y", at, "v"), Store("z", at, "p"))],
        {"x": dtype, "y": dtype, "z": I64},
    )  # fmt: skip


def cast_rows(name, m, n, dtype, target=F32, descending=False):
    """Rows of `dtype` that are sorted as `target`."""
    at = expr(n) * I0 + R0
    return kernel(
        name, [(I0, m)], [(R0, n)],
        [inner(Load("a", "x", at), Let("w", "cast", ("a",), target),
               SortStep(("v", "p"), ("w",), target, descending),
               Store("y", at, "v"), Store("z", at, "p"))],
        {"x": dtype, "y": target, "z": I64},
    )  # fmt: skip


def turned(name, m, n, dtype=F32):
    """z[i, j] = x[j, i]."""
    return kernel(
        name, [(I0, m), (I1, n)], [],
        [outer(Load("a", "x", expr(m) * I1 + I0), Store("z", expr(n) * I0 + I1, "a"))],
        {"x": dtype, "z": dtype},
    )  # fmt: skip


def taken_in_turns(name, m, n, dtype=F32):
    """z[i, j, 0] = x[i, j, 0] * c[j], z[i, j, 1] = -x[i, j, 1], as one point of three axes."""
    at = expr(2 * n) * I0 + expr(2) * I1 + I2
    return kernel(
        name, [(I0, m), (I1, n), (I2, 2)], [],
        [outer(
            IndexValue("i", I2, I64), Const("o", 1, I64), Let("p", "lt", ("i", "o"), BOOL),
            Load("a", "x", at), Load("b", "c", I1, "p"), Let("d", "cast", ("a",), F32),
            Let("e", "cast", ("b",), F32), Let("f", "mul", ("d", "e"), F32),
            Let("g", "neg", ("d",), F32), Let("h", "where", ("p", "f", "g"), F32),
            Let("k", "cast", ("h",), dtype), Store("z", at, "k"),
        )],
        {"x": dtype, "c": dtype, "z": dtype},
    )  # fmt: skip


def product(name, m, n, k, left="k,1", right="1,n", batches=0, dtype=F32, total=F32, before=None):
    """z = x @ y + bias, rounded to `dtype`; `left` and `right` say which way the factors lie."""
    m, n, k = expr(m), expr(n), expr(k)
    x = k * I0 + R0 if left == "k,1" else m * R0 + I0
    y = n * R0 + I1 if right == "1,n" else k * I1 + R0
    z = n * I0 + I1
    axes = [(I0, m), (I1, n)]
    if batches:
        x, y, z = x + m * k * I2, y + k * n * I2, z + m * n * I2
        axes = [(I2, batches), *axes]
    body = [Load("a", "x", x), Load("b", "y", y)]
    if before:
        body += [Let("c", before, ("a",), dtype), Let("d", before, ("b",), dtype)]
    else:
        body += [Let("c", "cast", ("a",), total), Let("d", "cast", ("b",), total)]
    after = [
        Load("e", "bias", I1),
        Let("f", "cast", ("e",), total),
        Let("g", "add", ("s", "f"), total),
    ]
    stored = "g"
    if total is not dtype and total is F32:
        after, stored = [*after, Let("h", "cast", ("g",), dtype)], "h"
    return kernel(
        name, axes, [(R0, k)],
        [
            inner(*body, Reduce(("s",), ReduceKind.DOT, ("c", "d"), total)),
            outer(*after, Store("z", z, stored)),
        ],
        {"x": dtype, "y": dtype, "bias": dtype, "z": total if total is I32 else dtype},
    )  # fmt: skip


def convolved(name, batch, channels, side, filters, dtype=F32):
    """A 3 by 3 convolution with a border of zeros; the channels of a point are side by side."""
    at = I1 + R1 - 1, I2 + R2 - 1
    plane = (expr(side) * at[0] + at[1]) * channels + R0
    edge = [Const("low", 0, I64), Const("high", side, I64)]
    for k, place in enumerate(at):
        edge += [
            IndexValue(f"p{k}", place, I64),
            Let(f"l{k}", "ge", (f"p{k}", "low"), BOOL),
            Let(f"h{k}", "lt", (f"p{k}", "high"), BOOL),
            Let(f"m{k}", "bit_and", (f"l{k}", f"h{k}"), BOOL),
        ]
    body = [
        *edge,
        Let("m", "bit_and", ("m0", "m1"), BOOL),
        Load("a", "x", plane + expr(side * side * channels) * I0, "m"),
        Load("b", "w", ((expr(3) * I3 + R1) * 3 + R2) * channels + R0),
        Reduce(("s",), ReduceKind.DOT, ("a", "b"), dtype),
    ]
    place = ((expr(side) * I0 + I1) * side + I2) * filters + I3
    return kernel(
        name, [(I0, batch), (I1, side), (I2, side), (I3, filters)],
        [(R1, 3), (R2, 3), (R0, channels)],
        [inner(*body), outer(Store("z", place, "s"))], {"x": dtype, "w": dtype, "z": dtype},
    )  # fmt: skip


def all_ops(dtype):
    """Every op that takes operands of `dtype`, each stored to a buffer of its own."""
    body, types = [], {"flag": BOOL, "power": I32}
    body += [Load("c", "flag", I0), Load("n", "power", I0)]
    for k in range(4):
        body.append(Load(f"a{k}", f"x{k}", I0))
        types[f"x{k}"] = dtype
    for op, row in OPS.items():
        operands, result = (dtype,) * row.arity, dtype
        args = tuple(f"a{k}" for k in range(row.arity))
        if row.typing in (Typing.COMPARE, Typing.PREDICATE):
            result = BOOL
        elif row.typing is Typing.SELECT:
            operands, args = (BOOL, dtype, dtype), ("c", "a0", "a1")
        elif row.typing is Typing.EXPONENT:
            operands, args = (dtype, I32), ("a0", "n")
        elif row.typing is Typing.RANDOM:
            result = I64 if op == "randint" else F32
        if result_dtype(op, operands, result) is None:
            body += [Let(f"v_{op}", op, args, result), Store(f"y_{op}", I0, f"v_{op}")]
            types[f"y_{op}"] = result
    for other in DType:
        if not other.is_complex:
            body += [
                Let(f"w_{other}", "cast", ("a0",), other),
                Store(f"z_{other}", I0, f"w_{other}"),
            ]
            types[f"z_{other}"] = other
    return kernel(f"all_ops_{dtype.value}", [(I0, 128)], [], [outer(*body)], types)


def products():
    """Products that matrix units compute on every target."""
    yield product("product", 512, 256, 512, dtype=DType.BF16)
    yield product("product_f16", 100, 70, 90, dtype=DType.F16)
    yield product("product_bytes", 128, 128, 128, dtype=DType.I8, total=I32)
    yield product("product_any", S0, S1, Sym("s2"), dtype=DType.BF16)


def corpus():
    """The kernels that are compiled for every target."""
    computed = (F32, F64, DType.BF16, I64, DType.U8, DType.F8E4M3)
    yield from (all_ops(dtype) for dtype in computed)
    for kind in ReduceKind:
        dtype = I32 if kind is ReduceKind.XOR else F32
        dtype = BOOL if kind in (ReduceKind.ANY, ReduceKind.ALL) else dtype
        yield rows(f"rows_any_{kind.value}", S0, S1, kind, dtype)
    for kind in (ScanKind.SUM, ScanKind.ARGMAX, ScanKind.LOGSUMEXP):
        yield scan(f"scan_{kind.value}", 128, 200, kind, kind is not ScanKind.SUM)
    for kind in (ScanKind.SUM, ScanKind.ARGMIN):
        yield scan(f"scan_any_{kind.value}", S0, S1, kind, kind is ScanKind.SUM)
    for dtype in (F32, I64):
        yield sorted_rows(f"sorted_{dtype.value}", 64, 50, dtype, dtype is F32)
    yield softmax("softmax", 512, 1000, dtype=DType.BF16)
    yield softmax("softmax_any", S0, S1)
    yield from (layer_norm("layer_norm", 512, 768), layer_norm("layer_norm_any", S0, S1))
    yield from (kept_row("kept_row", 64, 3, 50), through_memory("through_memory_any", S0, S1))
    yield summed_columns("summed_columns", 16, 32, 768, DType.BF16)
    yield summed_columns("summed_long_columns", 8, 6, 5000)
    yield from products()
    yield product("product_f32", 128, 64, 100)
    yield convolved("convolved", 2, 16, 8, 16)
    yield from (gather("gather"), turned("turned", 512, 512), turned("turned_any", S0, S1))
    yield taken_in_turns("taken_in_turns", 512, 64, DType.BF16)
    for kind in (ReduceKind.ARGMIN, ReduceKind.WELFORD, ReduceKind.ALL):
        yield rows(f"rows_{kind.value}", 128, 300, kind, BOOL if kind is ReduceKind.ALL else F32)
    for dtype in (F32, I64):
        for mode in (StoreMode.ADD, StoreMode.MAX):
            yield histogram(f"histogram_{dtype.value}_{mode.value}", dtype, mode)
