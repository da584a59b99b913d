"""Emission of reductions, scans and sorts: the state of each thread, and how threads merge it.

The state is a structure in support.metal named after the kind.
"""

from gyrator_codegen import REDUCTION_OF
from gyrator_codegen_metal.code import Code
from gyrator_codegen_metal.dtypes import TYPES, literal
from gyrator_codegen_metal.ops import EMITTERS
from gyrator_codegen_metal.threads import SIMD, Threads
from gyrator_ir.body.nodes import (
    POSITIONS,
    Reduce,
    ReduceKind,
    ScanKind,
    ScanStep,
    SortStep,
    identity_of,
)

_NOWHERE = "0x7fffffffffffffffL"
"""A position after all others."""


def _structure(s: Reduce | ScanStep) -> tuple[str, str]:
    """Return the type of the state, and its initial value."""
    kind, scans = s.kind, isinstance(s, ScanStep)
    of = REDUCTION_OF[kind] if isinstance(kind, ScanKind) else kind
    first = [literal(identity_of(of, s.dtype), s.dtype)]
    name = "gy_scan_" if kind in POSITIONS and scans else "gy_"
    name += "sum" if kind is ReduceKind.DOT else kind.value
    if kind in POSITIONS:
        first.append("0" if scans else _NOWHERE)
    elif kind is ReduceKind.WELFORD:
        first = ["{0.0f, 0.0f}", "{0.0f, 0.0f}", "0"]
    elif kind is ReduceKind.ONLINE_SOFTMAX:
        first += ["{0.0f, 0.0f}", "0"]
    elif name == "gy_sum" and s.dtype.is_float:
        first.append("0.0f")
    return f"{name}<{TYPES[s.dtype]}>", f"{{{', '.join(first)}}}"


def start(code: Code, s: Reduce | ScanStep, word: str = "kept") -> str:
    """Emit the declaration of a thread's state; return its name."""
    name = code.names.take(f"{s.names[0]}_{word}")
    kind, first = _structure(s)
    code.writer.line(f"{kind} {name} = {first};")
    return name


def take(code: Code, s: Reduce | ScanStep, state: str) -> None:
    """Emit the update of the state by an element."""
    args = [code.values[a].text for a in s.args]
    if s.kind is ReduceKind.DOT:
        args = [EMITTERS["mul"](args, (s.dtype, s.dtype), s.dtype)]
    if s.kind in POSITIONS:
        args.append("r")
    when = "if (live) " if code.live else ""
    code.writer.line(f"{when}{state}.take({', '.join(args)});")


def end(code: Code, s: Reduce, state: str, threads: Threads) -> None:
    """Emit the merging of the states of a point's threads, and define the results."""
    w = code.writer
    if threads.lanes == SIMD:
        w.line(f"{state} = gy_simd({state}, lane);")
    elif threads.lanes > SIMD:
        parts, groups = code.names.take(f"{s.names[0]}_parts"), threads.lanes // SIMD
        w.line(f"threadgroup {_structure(s)[0]} {parts}[{groups}];")
        w.line(f"{state} = gy_group({state}, {parts}, thread_index, {groups});")
    texts = [f"{state}.result()"]
    if s.kind is ReduceKind.WELFORD:
        texts = [f"{state}.{part}.result()" for part in ("mean", "squares")]
        texts.append(f"{TYPES[s.dtype]}({state}.count)")
    elif s.kind is ReduceKind.ONLINE_SOFTMAX:
        texts = [f"{state}.top", f"{state}.total()"]
    for name, text, dtype in zip(s.names, texts, s.types, strict=True):
        code.value(name, text, dtype)


def scan(code: Code, s: ScanStep, state: str) -> None:
    """Emit the scan's results at an element."""
    own = state if code.lanes == 1 else start(code, s, "own")
    take(code, s, own)
    if code.lanes > 1:
        code.writer.line(f"{own} = gy_scan({own}, {state}, lane);")
        code.writer.line(f"{state} = {own}.from({SIMD - 1});")
    texts = (f"{own}.value", f"{own}.result()")[-len(s.names) :]
    for name, text, dtype in zip(s.names, texts, s.types, strict=True):
        code.value(name, text, dtype)


def rows(code: Code, s: SortStep) -> tuple[str, str]:
    """Emit the declarations of a row's values and positions; return their names."""
    row, positions = (code.names.take(f"{n}_row") for n in s.names)
    code.writer.line(f"threadgroup {TYPES[s.dtype]} {row}[{code.lanes}];")
    code.writer.line(f"threadgroup int {positions}[{code.lanes}];")
    return row, positions


def sort(code: Code, s: SortStep, row: str, positions: str) -> None:
    """Emit a stable sort of a row with one thread per element, each of which counts the elements
    before its own."""
    w, word = code.writer, TYPES[s.dtype]
    value, rank = code.values[s.args[0]].text, code.names.take(f"{s.names[0]}_at")
    barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    w.lines(f"if (live) {row}[r] = {value};", barrier, f"int {rank} = 0;")
    before = "gy_before({1}, {0})" if s.descending else "gy_before({0}, {1})"
    with w.block("for (int other = 0; live && other < extent; other++) {"):
        w.line(f"const {word} rival = {row}[other];")
        same = f"!{before.format(value, 'rival')} && other < r"
        w.line(f"{rank} += {before.format('rival', value)} || ({same}) ? 1 : 0;")
    w.line(barrier)
    with w.block("if (live) {"):
        w.lines(f"{row}[{rank}] = {value};", f"{positions}[{rank}] = int(r);")
    w.line(barrier)
    for name, array, dtype in zip(s.names, (row, positions), s.types, strict=True):
        code.value(name, f"live ? {TYPES[dtype]}({array}[r]) : {literal(0, dtype)}", dtype)
