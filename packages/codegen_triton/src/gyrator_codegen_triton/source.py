"""The source around a kernel's body: origins and parameters."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from gyrator_codegen import Names, Writer, write_origins
from gyrator_codegen_triton.dtypes import pointer
from gyrator_codegen_triton.prelude import HELPER_NAMES, preamble
from gyrator_ir.body.nodes import Bind
from gyrator_ir.body.rewrite import AnyStatement
from gyrator_ir.expr import Expr, ShapeFacts, Sym, subs
from gyrator_ir.kernel.nodes import Launchable, Numerics
from gyrator_ir.provenance import Origin
from gyrator_ir.source import Configuration, KernelArgument, KernelSource
from gyrator_ir.tile.nodes import TiledKernel, TiledTemplate, Wait

RESERVED = HELPER_NAMES | frozenset(
    "and as assert async await break class continue def del elif else except finally for from "
    "global if import in is lambda nonlocal not or pass raise return try while with yield True "
    "False None triton tl libdevice XBLOCK RBLOCK x r x_mask r_mask points extent start range "
    "x_fours r_fours pair pair_mask first float int bool min max num_warps num_stages num_ctas "
    "grid warmup".split()
)
"""Names that generated names must not shadow."""

ALIGNMENT = 16
"""Usual alignment of pointers in bytes, and the divisor of sizes, that vector accesses need."""


class EmittedText(Protocol):
    """The state of a kernel being emitted."""

    writer: Writer
    names: Names
    wide: bool
    """Whether indices have 64 bits."""


@contextmanager
def function(
    launched: Launchable,
    symbol: str,
    code: EmittedText,
    blocks: Iterable[str],
    origins: Sequence[Origin],
    numbers: Sequence[str] = (),
) -> Iterator[None]:
    """Emit a function, whose body the `with` body emits. `blocks` are the names of block lengths,
    `numbers` those of parameters besides tensors and sizes."""
    parameters = [code.names.stable(b.name) for b in launched.parameters]
    sizes = [code.names.stable(s.name) for s in launched.sizes]
    lengths = [f"{b}: tl.constexpr" for b in blocks]
    code.writer.line("@triton.jit")
    head = f"def {symbol}({', '.join([*parameters, *sizes, *numbers, *lengths])}):"
    with code.writer.block(head, end=""):
        write_origins(code.writer, launched.origins, origins)
        if code.wide:
            code.writer.lines(*(f"{s} = tl.cast({s}, tl.int64)" for s in sizes))
        yield


def write_wait(writer: Writer, wait: Wait | None) -> None:
    """Emit the wait for the previous launch, and the permission for the next one to start."""
    if wait is None:
        return
    lines = ("tl.extra.cuda.gdc_wait()", "tl.extra.cuda.gdc_launch_dependents()")
    writer.lines(*(reversed(lines) if wait.releasing else lines))


def source_of(
    kernel: Launchable,
    symbol: str,
    code: EmittedText,
    facts: ShapeFacts,
    candidates: tuple[Configuration, ...],
    programs: Expr,
) -> tuple[KernelSource, str]:
    """Return the emitted kernel as self-contained source, and the function's text alone.

    `programs` is the number of programs, over the kernel's sizes and the blocks of a candidate.
    """
    text = code.writer.text
    head = preamble(text)
    skipped = head.count("\n")
    source = KernelSource(
        kernel=kernel.name,
        symbol=symbol,
        text=head + text,
        source_map=tuple((line + skipped, row) for line, row in code.writer.source_map),
        candidates=candidates,
        arguments=_arguments(kernel, code, facts),
        grid=(subs(programs, {s: Sym(code.names.stable(s.name)) for s in kernel.sizes}),),
    )
    return source, text


def blocks_over(length: Expr, block: str) -> Expr:
    """Return the number of blocks that cover a length, for the block length named `block`."""
    size = Sym(block)
    return (length + size - 1) // size


def with_options(
    tiled: TiledKernel | TiledTemplate, body: Iterable[AnyStatement]
) -> tuple[Configuration, ...]:
    """Return the candidates of a kernel with the compiler options that its results require.

    `enable_fp_fusion` is 0 if each product that is added must round; `debug` is 1 if the body
    checks indices.
    """
    options: list[tuple[str, int]] = []
    if isinstance(tiled, TiledKernel):
        if "num_stages" not in {c.name for c in tiled.choices}:
            options.append(("num_stages", 1))
        fused = any(r.fused for r in tiled.reductions)
        if not fused and tiled.kernel.numerics is not Numerics.FAST:
            options.append(("enable_fp_fusion", 0))
    if any(isinstance(s, Bind) and s.check for s in body):
        options += [("debug", 1), ("sanitize_overflow", 0)]
    return tuple(Configuration((*c.values, *options)) for c in tiled.candidates)


def _arguments(
    kernel: Launchable, code: EmittedText, facts: ShapeFacts
) -> tuple[KernelArgument, ...]:
    """Return the types of the function's parameters, and their likely divisors."""
    buffers = (
        KernelArgument(code.names.stable(b.name), pointer(b.dtype), ALIGNMENT)
        for b in kernel.parameters
    )
    integer = "i64" if code.wide else "i32"
    numbers = (
        KernelArgument(
            code.names.stable(s.name), integer, 1 if (facts.hint(s) or 1) % ALIGNMENT else ALIGNMENT
        )
        for s in kernel.sizes
    )
    return (*buffers, *numbers)
