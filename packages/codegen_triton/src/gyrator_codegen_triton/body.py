"""Emission of straight-line statements: loads, ops, checked indices and stores."""

from collections.abc import Callable

from gyrator_codegen.positions import pair_offset
from gyrator_codegen_triton.code import Code, Value
from gyrator_codegen_triton.dtypes import TYPES, cast, literal
from gyrator_codegen_triton.ops import APPROXIMATE, BY_RECIPROCAL, EMITTERS
from gyrator_ir.body.nodes import Bind, Const, IndexValue, Let, Load, Store, StoreMode
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.types import DType


def statements(code: Code, number: int, write: Callable[[KernelStatement], None]) -> None:
    """Emit the statements of stage `number` with `write`, and barriers between them. A load of a
    value that is already in registers reuses it."""
    for place, s in enumerate(code.kernel.stages[number].body):
        if place:
            barrier(code, number, place)
        first = code.reuses.get((number, place))
        if isinstance(s, Load) and first is not None:
            code.values[s.name] = code.read[first]
            continue
        if not (isinstance(s, Load) and s.name in code.tiled.early):
            write(s)
        if isinstance(s, Load):
            code.read[number, place] = code.values[s.name]
        elif isinstance(s, Store):
            code.read[number, place] = code.values[s.value]


def barrier(code: Code, number: int, place: int = 0) -> None:
    """Emit the barrier before a statement or stage, if there is one."""
    if (number, place) in code.barriers:
        code.writer.line("tl.debug_barrier()")


def statement(code: Code, s: KernelStatement) -> None:
    """Emit a statement other than a reduction, scan or sort."""
    match s:
        case Load():
            _load(code, s)
        case Let(name, op) if name in code.tiled.fours:
            _random_fours(code, s)
        case Let(name, op, args, dtype):
            operands = [code.values[a] for a in args]
            types = tuple(v.dtype for v in operands)
            emit = EMITTERS[op]
            if name in code.tiled.approximate:
                emit = APPROXIMATE[op]
            elif name in code.tiled.reciprocals:
                emit = BY_RECIPROCAL
            if op == "cast":
                text = cast(operands[0].text, types[0], dtype, code.converted)
            else:
                text = emit([v.text for v in operands], types, dtype)
            code.define(name, text, dtype, *_dimensions(*operands))
        case Const(name, value, dtype):
            code.define(name, constant(code, value, dtype), dtype, False, False)
        case IndexValue(name, e, dtype):
            code.positions[name] = e
            at = code.index(e)
            text = at.text if at.text.isidentifier() else f"({at.text})"
            if code.scalar(e):
                text = f"tl.full({code.block(False, False)}, {at.text}, {code.index_type})"
            code.define(name, cast(text, at.dtype, dtype), dtype, at.x, at.r)
        case Bind():
            _bind(code, s)
        case Store():
            _store(code, s)


def _random_fours(code: Code, s: Let) -> None:
    """Emit random numbers with consecutive counters, generated four at a time."""
    seed, position = code.values[s.args[0]], code.positions[s.args[1]]
    at, first = code.index(position), code.fours(position)
    text = f"gy_four_{s.op}({seed.text}, {atom(first)}.to(tl.int64))"
    code.define(s.name, text, s.dtype, at.x, at.r)


def constant(code: Code, value: bool | int | float, dtype: DType) -> str:
    """Return a constant as a block of one element."""
    shape = code.block(False, False)
    if dtype.is_narrow_float:
        return cast(f"tl.full({shape}, {literal(value, DType.F32)}, tl.float32)", DType.F32, dtype)
    text = literal(value, dtype)
    if text == "-0.0":  # Triton fills a constant that equals 0 as +0
        return f"tl.full({shape}, 0.0, {TYPES[dtype]}) * -1.0"
    return f"tl.full({shape}, {text}, {TYPES[dtype]})"


def _dimensions(*values: Value | None) -> tuple[bool, bool]:
    """Return along which dimensions any of these values varies."""
    present = [v for v in values if v is not None]
    return any(v.x for v in present), any(v.r for v in present)


def _mask_of(code: Code, s: Load | Store | Bind) -> Value | None:
    return None if s.mask is None else code.values[s.mask]


def _valid(code: Code, x: bool, r: bool, mask: Value | None) -> str:
    """Return the condition that an element along these dimensions is in bounds and not masked."""
    parts = [f"{letter}_mask" for letter, along in zip(code.letters, (x, r), strict=True) if along]
    return " & ".join(parts if mask is None else [*parts, mask.text])


def _loaded(code: Code, buffer: str, pointer: str, valid: str, eviction: str = "") -> str:
    """Return a load of a buffer's elements, of which those that are not valid are 0; `eviction` is
    Triton's policy for the caches."""
    options = ""
    if valid:
        zero = "False" if _dtype(code, buffer) is DType.BOOL else "0"
        options = f", mask={valid}, other={zero}"
    if eviction:
        options += f', eviction_policy="{eviction}"'
    return f"tl.load({pointer}{options})"


def _load(code: Code, s: Load) -> None:
    mask = _mask_of(code, s)
    if s.buffer in code.rows:
        row = code.rows[s.buffer]
        text = row.text
        if mask is not None:
            text = f"tl.where({mask.text}, {text}, 0).to({TYPES[row.dtype]})"
        code.define(s.name, text, row.dtype, row.x, row.r)
        return
    x, r = _dimensions(code.index(s.index), mask)
    if code.inner and code.blocks.whole and not code.tiled.nonempty:
        r = True  # nothing may be read if there are no elements, for which a loop does not run
    valid = _valid(code, x, r, mask)
    x = x or (code.inner and s.name in code.tiled.replicated)
    eviction = ""
    if code.tiled.streamed and s.name in (*code.tiled.streamed, *code.tiled.replicated):
        eviction = "evict_first" if s.name in code.tiled.streamed else "evict_last"
    text = _loaded(code, s.buffer, _pointer(code, s, x, r), valid, eviction)
    code.define(s.name, text, _dtype(code, s.buffer), x, r)


def load_pair(code: Code, first_load: Load, second_load: Load) -> None:
    """Emit the loads of two neighbours at twice the position of each point as one load."""
    dtype = _dtype(code, first_load.buffer)
    text = _loaded(code, first_load.buffer, _pair_pointer(code, first_load), "pair_mask")
    first, second = (code.names.take(s.name) for s in (first_load, second_load))
    code.writer.line(f"{first}, {second} = tl.split(tl.reshape({text}, [XBLOCK, 2]))")
    for s, word in ((first_load, first), (second_load, second)):
        code.values[s.name] = Value(word, dtype, True, False)


def store_pair(code: Code, first_store: Store, second_store: Store) -> None:
    """Emit the stores of two neighbours at twice the position of each point as one store."""
    values = (code.values[s.value] for s in (first_store, second_store))
    texts = (v.text if v.x else code.full(v.text) for v in values)
    text = f"tl.interleave({', '.join(texts)})"
    code.writer.line(f"tl.store({_pair_pointer(code, first_store)}, {text}, mask=pair_mask)")


def _pair_pointer(code: Code, first: Load | Store) -> str:
    offset = pair_offset(code.tiled, code.form(first.index))
    at = f"({offset} + pair)" if offset else "pair"
    return f"{code.names.stable(first.buffer)} + {at}"


def _pointer(code: Code, s: Load | Store, x: bool, r: bool) -> str:
    """Return the block of pointers along these dimensions."""
    at = code.index(s.index)
    text = at.text if at.text.isidentifier() else f"({at.text})"
    if code.scalar(s.index):
        text = f"tl.full({code.block(x, r)}, {at.text}, {code.index_type})"
    elif (at.x, at.r) != (x, r):
        text = f"tl.broadcast_to({at.text}, {code.block(x, r)})"
    return f"{code.names.stable(s.buffer)} + {text}"


def _dtype(code: Code, buffer: str) -> DType:
    return next(b.dtype for b in code.kernel.parameters if b.name == buffer)


def _bind(code: Code, s: Bind) -> None:
    value, size = code.values[s.value], code.index(s.size)
    mask = _mask_of(code, s)
    x, r = _dimensions(value, size, mask)
    index = DType.I64 if code.wide else DType.I32
    # A 64-bit value is checked before it is narrowed.
    kind = DType.I32 if value.dtype is DType.I32 and not code.wide else DType.I64
    text = cast(value.text, value.dtype, kind)
    at = code.let(s.symbol.name, text, kind, x, r)
    if s.wrap:
        wrapped = f"tl.where({at.text} < 0, {at.text} + {atom(size.text)}, {at.text})"
        code.writer.line(f"{at.text} = {wrapped}")
    if mask is not None:
        code.writer.line(f"{at.text} = tl.where({mask.text}, {at.text}, 0)")
    if s.check:
        valid = _valid(code, x, r, mask)
        inside = f"({at.text} >= 0) & ({at.text} < {atom(size.text)})"
        if valid:
            inside = f"({inside}) | ~({valid})"
        code.writer.line(f'tl.device_assert({inside}, "index out of bounds: {s.value}")')
    if index is not kind:
        at = code.let(s.symbol.name, f"{at.text}.to(tl.int32)", index, x, r)
    code.bound[s.symbol] = at


def atom(text: str) -> str:
    """Return an expression in a form that any operator can be applied to."""
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _store(code: Code, s: Store) -> None:
    value, mask = code.values[s.value], _mask_of(code, s)
    if any(t.name == s.buffer for t in code.kernel.locals):
        _store_local(code, s.buffer, value, mask)
        return
    valid, text = _valid(code, True, code.inner, mask), value.text
    if s.mode is StoreMode.TOTAL:
        total = code.totals[s.buffer]
        code.writer.line(f"{total} = tl.where({valid}, {total} + {code.full(text)}, {total})")
        return
    pointer = _pointer(code, s, True, code.inner)
    if (value.x, value.r) != (True, code.inner):
        text = code.full(text)
    if s.mode is StoreMode.SET:
        code.writer.line(f"tl.store({pointer}, {text}, mask={valid})")
    else:
        function = f"tl.atomic_{s.mode.value}"
        if value.dtype.is_float and s.mode is not StoreMode.ADD:
            text = _nan_propagating(
                s.mode, value.dtype, f"tl.load({pointer}, mask={valid}, other=0)", text
            )
        code.writer.line(f'{function}({pointer}, {text}, mask={valid}, sem="relaxed")')


def start_total(code: Code, s: Store) -> None:
    """Emit the accumulators of a sum over points."""
    name = code.totals[s.buffer] = code.names.take(f"{s.buffer}_total")
    code.writer.line(
        f"{name} = tl.zeros({code.block(True, True)}, {TYPES[_dtype(code, s.buffer)]})"
    )


def store_total(code: Code, s: Store) -> None:
    """Emit the store of a sum over points."""
    total = f"tl.sum({code.totals[s.buffer]}, axis=0, keep_dims=True)"
    pointer = _pointer(code, s, False, True)
    code.writer.line(f"tl.store({pointer}, {total}, mask={_valid(code, False, True, None)})")


def _nan_propagating(mode: StoreMode, dtype: DType, old: str, new: str) -> str:
    """Return the operand of a float minimum or maximum, such that NaNs propagate.

    Atomics compare floats as integers: positive NaNs are above all numbers, negative NaNs below. If
    the old or the new value is a NaN, the operand is the NaN at the appropriate end. The first
    program to update an element has seen its initial value, and no other operand replaces a NaN.
    """
    word = "tl.int64" if dtype is DType.F64 else "tl.int32"
    most = (1 << (8 * dtype.size - 1)) - 1
    return f"gy_sticky_nan({old}, {new}, {most if mode is StoreMode.MAX else -1}, {word})"


def _store_local(code: Code, name: str, value: Value, mask: Value | None) -> None:
    if mask is None:
        code.rows[name] = value
        return
    old = code.rows[name].text if name in code.rows else "0"
    text = f"tl.where({mask.text}, {value.text}, {old}).to({TYPES[value.dtype]})"
    code.rows[name] = code.let(name, text, value.dtype, *_dimensions(value, mask))
