"""Reductions, scans and sorts: what a thread keeps of its elements, and how threads merge it.

What is kept is a structure of support.metal, named as the kind is.
"""

from gyrator_codegen import REDUCTION_OF, identity
from gyrator_codegen_metal.code import Code
from gyrator_codegen_metal.dtypes import TYPES, literal
from gyrator_codegen_metal.ops import EMITTERS
from gyrator_codegen_metal.threads import SIMD, Threads
from gyrator_ir.body.nodes import POSITIONS, Reduce, ReduceKind, ScanKind, ScanStep, SortStep

_NOWHERE = "0x7fffffffffffffffL"
"""A position behind all others."""


def _structure(s: Reduce | ScanStep) -> tuple[str, str]:
    """Return the type that holds what has been taken, and what it holds before the first."""
    kind, scans = s.kind, isinstance(s, ScanStep)
    of = REDUCTION_OF[kind] if isinstance(kind, ScanKind) else kind
    first = [literal(identity(of, s.dtype), s.dtype)]
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
    """Write the declaration of what a thread keeps; return its name."""
    name = code.names.take(f"{s.names[0]}_{word}")
    kind, first = _structure(s)
    code.writer.line(f"{kind} {name} = {first};")
    return name


def take(code: Code, s: Reduce | ScanStep, kept: str) -> None:
    """Write what one element does to what is kept."""
    args = [code.values[a].text for a in s.args]
    if s.kind is ReduceKind.DOT:
        args = [EMITTERS["mul"](args, (s.dtype, s.dtype), s.dtype)]
    if s.kind in POSITIONS:
        args.append("r")
    when = "if (live) " if code.live else ""
    code.writer.line(f"{when}{kept}.take({', '.join(args)});")


def end(code: Code, s: Reduce, kept: str, threads: Threads) -> None:
    """Write how the threads of a point merge what they kept, and name the results."""
    w = code.writer
    if threads.lanes == SIMD:
        w.line(f"{kept} = gy_simd({kept}, lane);")
    elif threads.lanes > SIMD:
        parts, groups = code.names.take(f"{s.names[0]}_parts"), threads.lanes // SIMD
        w.line(f"threadgroup {_structure(s)[0]} {parts}[{groups}];")
        w.line(f"{kept} = gy_group({kept}, {parts}, thread_index, {groups});")
    texts = [f"{kept}.result()"]
    if s.kind is ReduceKind.WELFORD:
        texts = [f"{kept}.{part}.result()" for part in ("mean", "squares")]
        texts.append(f"{TYPES[s.dtype]}({kept}.count)")
    elif s.kind is ReduceKind.ONLINE_SOFTMAX:
        texts = [f"{kept}.top", f"{kept}.total()"]
    for name, text, dtype in zip(s.names, texts, s.types, strict=True):
        code.value(name, text, dtype)


def scan(code: Code, s: ScanStep, kept: str) -> None:
    """Write the running result at an element."""
    own = kept if code.lanes == 1 else start(code, s, "own")
    take(code, s, own)
    if code.lanes > 1:
        code.writer.line(f"{own} = gy_scan({own}, {kept}, lane);")
        code.writer.line(f"{kept} = {own}.from({SIMD - 1});")
    code.value(s.names[0], f"{own}.result()", s.types[0])


def rows(code: Code, s: SortStep) -> tuple[str, str]:
    """Write the declarations of a row's values and positions; return their names."""
    row, place = (code.names.take(f"{n}_row") for n in s.names)
    code.writer.line(f"threadgroup {TYPES[s.dtype]} {row}[{code.lanes}];")
    code.writer.line(f"threadgroup int {place}[{code.lanes}];")
    return row, place


def sort(code: Code, s: SortStep, row: str, place: str) -> None:
    """Write a stable sort of a row that has a thread for each element: each counts those before its
    own."""
    w, word = code.writer, TYPES[s.dtype]
    value, at = code.values[s.args[0]].text, code.names.take(f"{s.names[0]}_at")
    barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    w.lines(f"if (live) {row}[r] = {value};", barrier, f"int {at} = 0;")
    before = "gy_before({1}, {0})" if s.descending else "gy_before({0}, {1})"
    with w.block("for (int other = 0; live && other < extent; other++) {"):
        w.line(f"const {word} rival = {row}[other];")
        same = f"!{before.format(value, 'rival')} && other < r"
        w.line(f"{at} += {before.format('rival', value)} || ({same}) ? 1 : 0;")
    w.line(barrier)
    with w.block("if (live) {"):
        w.lines(f"{row}[{at}] = {value};", f"{place}[{at}] = int(r);")
    w.line(barrier)
    for name, array, dtype in zip(s.names, (row, place), s.types, strict=True):
        code.value(name, f"live ? {TYPES[dtype]}({array}[r]) : {literal(0, dtype)}", dtype)
