"""What stands around a kernel's function: the user's lines, its arguments, and the text's head."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from gyrator_codegen import Names, Writer, write_origins
from gyrator_codegen_triton.dtypes import pointer
from gyrator_codegen_triton.support import preamble
from gyrator_ir.body.nodes import Bind
from gyrator_ir.expr import Expr, ShapeFacts, Sym, subs
from gyrator_ir.kernel.nodes import Launchable, Numerics
from gyrator_ir.provenance import Origin
from gyrator_ir.source import Configuration, KernelArgument, KernelSource
from gyrator_ir.tile.nodes import TiledKernel

ALIGNMENT = 16
"""Bytes that pointers are usually aligned to, and the divisor of sizes that matters: accesses of
whole vectors need both."""


class Written(Protocol):
    """A kernel's text, as far as it is written."""

    writer: Writer
    names: Names
    wide: bool
    """Indices have 64 bits."""


@contextmanager
def function(
    launched: Launchable, symbol: str, code: Written, blocks: str, origins: Sequence[Origin]
) -> Iterator[None]:
    """Write a function, whose body the `with` body writes. `blocks` are names of lengths."""
    parameters = [code.names.stable(b.name) for b in launched.parameters]
    sizes = [code.names.stable(s.name) for s in launched.sizes]
    lengths = [f"{b}: tl.constexpr" for b in blocks.split()]
    code.writer.line("@triton.jit")
    head = f"def {symbol}({', '.join(parameters + sizes + lengths)}):"
    with code.writer.block(head, end=""):
        write_origins(code.writer, launched.origins, origins)
        if code.wide:
            code.writer.lines(*(f"{s} = tl.cast({s}, tl.int64)" for s in sizes))
        yield


def source_of(
    kernel: Launchable,
    symbol: str,
    code: Written,
    facts: ShapeFacts,
    candidates: tuple[Configuration, ...],
    programs: Expr,
) -> tuple[KernelSource, str]:
    """Return the written kernel as a text that runs on its own, and the function alone.

    `programs` says how many run, over the kernel's sizes and the blocks of a candidate.
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
    """Return how many blocks of a candidate's entry cover a length."""
    size = Sym(block)
    return (length + size - 1) // size


def options(tiled: TiledKernel) -> tuple[Configuration, ...]:
    """Return the candidates with the compiler's options without which results would be others.

    `enable_fp_fusion` is 0 where each operation rounds, `debug` is 1 where the kernel checks
    indices.
    """
    kernel = tiled.kernel
    more: list[tuple[str, int]] = []
    if kernel.numerics is not Numerics.FAST:
        more.append(("enable_fp_fusion", 0))
    if any(isinstance(s, Bind) and s.check for stage in kernel.stages for s in stage.body):
        more += [("debug", 1), ("sanitize_overflow", 0)]
    if "num_stages" not in {c.name for c in tiled.choices}:
        more.insert(0, ("num_stages", 1))
    return tuple(Configuration((*c.values, *more)) for c in tiled.candidates)


def _arguments(kernel: Launchable, code: Written, facts: ShapeFacts) -> tuple[KernelArgument, ...]:
    """Return the types of the function's parameters, and what they are likely multiples of."""
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
