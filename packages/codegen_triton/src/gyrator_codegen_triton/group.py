"""Emission of kernels that share a launch as one `@triton.jit` function."""

from collections.abc import Sequence
from itertools import chain

from gyrator_codegen import Names, Writer
from gyrator_codegen_triton.code import LENGTHS, Code
from gyrator_codegen_triton.index import TritonPrinter
from gyrator_codegen_triton.kernel import blocks_in, code_of, emit_body, lengths_of
from gyrator_codegen_triton.source import RESERVED, function, source_of, with_options
from gyrator_ir.define import define
from gyrator_ir.expr import ZERO, Const, Expr, ShapeFacts, Sym, minimum, subs
from gyrator_ir.kernel.nodes import KernelGroup
from gyrator_ir.provenance import Origin
from gyrator_ir.source import Configuration, KernelSource
from gyrator_ir.target import Target
from gyrator_ir.tile.loops import extent_of
from gyrator_ir.tile.nodes import TiledGroup, TiledKernel
from gyrator_ir.types import DType


def emit_group(
    tiled: TiledGroup, facts: ShapeFacts, origins: Sequence[Origin], target: Target, symbol: str
) -> KernelSource:
    """Return a group as self-contained source.

    The programs are divided among the members: at most `programs` for each, which then process
    several blocks in turn, or with 0, one per block. A program selects its tensors among those of
    `selected` members at a time. Different kernels are functions of their own, which a program
    branches to; the names of their block lengths end in the kernel's number.
    """
    if len(tiled.kernels) == 1:
        (kernel,) = tiled.kernels
        launched = KernelGroup(tiled.name, tiled.device, (kernel.kernel,), tiled.members)
        code = code_of(kernel, target, symbol, Writer("    "))
        with function(launched, symbol, code, lengths_of(code), origins):
            _members(code, launched, tiled, "tl.program_id(0)")
        ranked = with_options(kernel, kernel.kernel.statements)
        programs = _programs(code, tiled, len(tiled.members))
        source, _ = source_of(launched, symbol, code, facts, ranked, programs)
        return source
    return _Kinds.of(tiled, origins, target, symbol).source(facts)


def _programs(code: Code, tiled: TiledGroup, members: int) -> Expr:
    """Return the number of programs for the members of one kernel."""
    count = blocks_in(code)
    return (minimum(count, Const(tiled.programs)) if tiled.programs else count) * members


def _blocks(code: Code, names: Names, lengths: Sequence[str]) -> str:
    """Return the number of a kernel's blocks as text, over these names of block lengths."""
    show, blocks = TritonPrinter(code.plain, lambda s: names.stable(s.name)), code.blocks
    if code.kernel.totals:
        return show(blocks_in(code))
    dimensions = (blocks.first, blocks.second) if blocks.tiles else (blocks.first,)
    counts = (
        f"(({show(extent_of(axes))}) + {length} - 1) // {length}"
        for axes, length in zip(dimensions, lengths, strict=False)
    )
    return " * ".join(f"({count})" for count in counts)


def _members(code: Code, group: KernelGroup, tiled: TiledGroup, program: str) -> None:
    """Emit the work of a program on the blocks of one of several members."""
    w, most = code.writer, tiled.programs
    w.line(f"blocks = {_blocks(code, code.names, code.lengths)}")
    w.line(f"programs = tl.minimum(blocks, {most})" if most else "programs = blocks")
    w.line(f"member = {program} // programs")
    _select_member(code, group, tiled.selected)
    first = f"{program} % programs"
    if not most:
        emit_body(code, f"({first})")
        return
    with w.block(f"for block in range({first}, blocks, programs):", end=""):
        emit_body(code, "block")


def _select_member(code: Code, group: KernelGroup, selected: int) -> None:
    """Emit the selection of a member's buffers, for groups of members by the bits of its index.

    Branches skip the instructions of other groups, because fetching code that runs once dominates.
    The branches are sequential: compilers would merge branches with a common end into one block and
    load all buffers before it.
    """
    w, count = code.writer, len(group.members)
    for bit in range(selected.bit_length() - 1):
        w.line(f"bit{bit} = (member >> {bit}) % 2 == 1")
    for start in range(0, count, selected):
        members = range(start, min(start + selected, count))
        if start == 0:
            _select_buffers(code, group, members)
            continue
        with w.block(f"if member // {selected} == {start // selected}:", end=""):
            _select_buffers(code, group, members)


def _select_buffers(code: Code, group: KernelGroup, members: range) -> None:
    for b in code.kernel.parameters:
        texts = [code.names.stable(group.parameter(place, b.name)) for place in members]
        bit = 0
        while len(texts) > 1:
            pairs = zip(texts[1::2], texts[::2], strict=False)
            odd = texts[-1:] if len(texts) % 2 else []
            texts = [f"tl.where(bit{bit}, {high}, {low})" for high, low in pairs] + odd
            bit += 1
        code.writer.line(f"{code.names.stable(b.name)} = {texts[0]}")


@define(eq=False)
class _Kinds:
    """The emission of a group of different kernels."""

    tiled: TiledGroup
    origins: Sequence[Origin]
    target: Target
    symbol: str
    writer: Writer
    names: Names
    wide: bool

    @classmethod
    def of(
        cls, tiled: TiledGroup, origins: Sequence[Origin], target: Target, symbol: str
    ) -> "_Kinds":
        names = Names(RESERVED | {symbol, "program", "programs"})
        wide = any(k.index is DType.I64 for k in tiled.kernels)
        return cls(tiled, origins, target, symbol, Writer("    "), names, wide)

    def source(self, facts: ShapeFacts) -> KernelSource:
        """Return the functions of the kernels, and the one that branches to them."""
        tiled, w, most = self.tiled, self.writer, self.tiled.programs
        kernels = tuple(k.kernel for k in tiled.kernels)
        group = KernelGroup(tiled.name, tiled.device, kernels, tiled.members)
        codes = [self._function(n, kernel) for n, kernel in enumerate(tiled.kernels)]
        lengths = [tuple(f"{a}{n}" for a in lengths_of(code)) for n, code in enumerate(codes)]
        total: Expr = ZERO
        with function(group, self.symbol, self, chain.from_iterable(lengths), self.origins):
            w.line("program = tl.program_id(0)")
            for n, (code, own) in enumerate(zip(codes, lengths, strict=True)):
                members = self._members(n)
                count = _blocks(code, self.names, own)
                count = f"tl.minimum({count}, {most})" if most else count
                w.line(f"programs = {f'{count} * {len(members)}' if len(members) > 1 else count}")
                with w.block("if (program >= 0) & (program < programs):", end=""):
                    parameters = code.kernel.parameters
                    tensors = [group.parameter(m, b.name) for m in members for b in parameters]
                    sizes = [s.name for s in code.kernel.sizes]
                    passed = [self.names.stable(x) for x in (*tensors, *sizes)]
                    w.line(f"{self.symbol}_{n}({', '.join([*passed, 'program', *own])})")
                w.line("program -= programs")
                named = {Sym(a): Sym(b) for a, b in zip(code.lengths, own, strict=False)}
                total += subs(_programs(code, tiled, len(members)), named)
        ranked = self._candidates()
        source, _ = source_of(group, self.symbol, self, facts, ranked, total)
        return source

    def _members(self, n: int) -> tuple[int, ...]:
        return tuple(m for m, kernel in enumerate(self.tiled.members) if kernel == n)

    def _function(self, n: int, kernel: TiledKernel) -> Code:
        """Emit the function of a kernel, to be called with the number of one of its programs."""
        symbol, tiled = f"{self.symbol}_{n}", self.tiled
        code = code_of(kernel, self.target, symbol, self.writer)
        program = code.names.take("program")
        members = (0,) * len(self._members(n))
        group = KernelGroup(symbol, tiled.device, (kernel.kernel,), members)
        alone = len(members) == 1 and not tiled.programs
        launched = kernel.kernel if alone else group
        with function(launched, symbol, code, lengths_of(code), (), (program,)):
            if alone:
                emit_body(code, program)
            else:
                _members(code, group, tiled, program)
        self.writer.lines("", "")
        return code

    def _candidates(self) -> tuple[Configuration, ...]:
        """Return the block lengths of all kernels together, and the options that one requires."""
        each = [with_options(k, k.kernel.statements) for k in self.tiled.kernels]
        result: list[Configuration] = []
        for alike in zip(*each, strict=True):
            values: dict[str, int] = {}
            for n, candidate in enumerate(alike):
                for name, value in candidate.values:
                    values[f"{name}{n}" if name in LENGTHS else name] = value
            result.append(Configuration(tuple(values.items())))
        return tuple(result)
