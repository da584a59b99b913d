"""The toy's kernel language: Kernel IR in, lines of assembly out. It implements `KernelBackend`."""

from collections.abc import Mapping, Sequence

from attrs import define, field, frozen

from gyrator_ir import expr as e
from gyrator_ir.body.nodes import (
    Bind,
    Const,
    IndexValue,
    Let,
    Load,
    Reduce,
    ScanStep,
    SortStep,
    Store,
)
from gyrator_ir.body.ops import OPS
from gyrator_ir.content import content_hash
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.kernel.nodes import Kernel, KernelStatement
from gyrator_ir.modes import Failure
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelCheck, KernelSource, TranslationUnit
from gyrator_ir.target import Target
from gyrator_toy.machine import EXACT, WIDE

LACKING = frozenset(OPS).difference(EXACT, WIDE, {"cast"})
"""Rows of the op table that the processor does not have, `erf` among them."""
VERBS: Mapping[type, str] = {
    e.Min: "minimum", e.Max: "maximum", e.And: "bit_and", e.Or: "bit_or", e.Mod: "mod",
    e.FloorDiv: "floordiv", e.Eq: "eq", e.Ne: "ne", e.Lt: "lt", e.Le: "le",
}  # fmt: skip
"""Instructions of index expressions."""
CHECKS = (
    KernelCheck(1, Failure.INDEX, "index out of range"),
    KernelCheck(2, Failure.RUNTIME, "index out of range"),
)


@frozen
class ToyBackend:
    """Writes assembly for the toy's processor."""

    name: str = "toy"

    @property
    def content_hash(self) -> str:
        """A digest of the language's source and the processor's."""
        return content_hash("gyrator_toy")

    def refuses(self, kernel: Kernel, target: Target) -> Diagnostic | None:
        """Refuse what the target's capabilities should have kept away."""
        for s in kernel.statements:
            lacking = isinstance(s, Let) and s.op in LACKING
            if lacking or isinstance(s, ScanStep | SortStep):
                what = f"the toy has no instruction for {s}"
                return Diagnostic("GY-TOY-001", what, where=f"kernel {kernel.name}")
        return None

    def emit(
        self,
        kernels: Sequence[Kernel],
        facts: e.ShapeFacts,
        origins: Sequence[Origin],
        target: Target,
    ) -> tuple[TranslationUnit, ...]:
        """Write each kernel as a unit of its own."""
        units = []
        for kernel in kernels:
            text, symbol = Assembly(kernel).write(), f"toy_{kernel.name}"
            source = KernelSource(kernel.name, symbol, text, CHECKS)
            units.append(TranslationUnit(kernel.name, self.name, text, (source,)))
        return tuple(units)


@define
class Assembly:
    """One kernel being written."""

    kernel: Kernel
    lines: list[str] = field(factory=list)
    count: int = 0

    def write(self) -> str:
        """Return the kernel's lines."""
        k = self.kernel
        for position, symbol in enumerate(k.sizes):
            self.put(symbol.name, f"size {position}")
        axes = [(a, "axis") for a in k.axes] + [(a, "inner") for a in k.inner]
        for position, (axis, level) in enumerate(axes):
            extent = self.index(axis.extent)
            self.put(axis.symbol.name, f"{level} {position} {len(axes)} {extent}")
        for position, p in enumerate(k.parameters):
            self.put(p.name, f"parameter {position} {p.dtype.value}")
        for t in k.locals:
            self.put(t.name, f"local {t.dtype.value} {self.index(t.extent)}")
        for stage in k.stages:
            self.put("-", f"stage {stage.level.value}")
            for s in stage.body:
                self.statement(s)
        return "\n".join(self.lines) + "\n"

    def put(self, name: str, text: str) -> str:
        """Append an instruction; return the register that it writes."""
        self.lines.append(f"{name} {text}")
        return name

    def new(self, text: str) -> str:
        """Append an instruction that writes a register of its own."""
        self.count += 1
        return self.put(f"%{self.count}", text)

    def statement(self, s: KernelStatement) -> None:
        """Write one statement."""
        match s:
            case Load(name, buffer, index, mask):
                self.put(name, f"load {buffer} {self.index(index)} {mask or '-'}")
            case Store(buffer, index, value, _, mask):
                self.put("-", f"store {buffer} {self.index(index)} {value} {mask or '-'}")
            case Const(name, value, dtype):
                number = int(value) if dtype.is_int else float(value).hex()
                self.put(name, f"const {dtype.value} {number}")
            case IndexValue(name, expr, dtype):
                self.put(name, f"cast {dtype.value} {self.index(expr)}")
            case Bind():
                code = 0 if not s.check else 2 if "runtime" in str(s.check) else 1
                wrap = "wrap" if s.wrap else "-"
                size = self.index(s.size)
                self.put(s.symbol.name, f"bind {s.value} {size} {wrap} {code} {s.mask or '-'}")
            case Reduce(names, kind, args, dtype):
                self.put(",".join(names), f"fold {kind.value} {dtype.value} {' '.join(args)}")
            case Let(name, "cast", args, dtype):
                self.put(name, f"cast {dtype.value} {args[0]}")
            case Let(name, op, args, dtype):
                self.put(name, f"{op}.{dtype.value} {' '.join(args)}")

    def index(self, x: e.Expr | e.Cond) -> str:
        """Write an index expression; return its register."""
        match x:
            case e.Sym():
                return x.name
            case e.Const() | e.Bool():
                return self.new(f"const i64 {int(x.value)}")
            case e.Add():
                total = self.new(f"const i64 {x.const}")
                for term, factor in x.terms:
                    scaled = self.chain("mul", (term, e.Const(factor)))
                    total = self.new(f"add.i64 {total} {scaled}")
                return total
            case e.Mul():
                return self.chain("mul", [a for a, power in x.factors for _ in range(power)])
            case e.Where():
                chosen, a, b = self.index(x.cond), self.index(x.a), self.index(x.b)
                return self.new(f"where.i64 {chosen} {a} {b}")
            case e.Min() | e.Max() | e.And() | e.Or():
                return self.chain(VERBS[type(x)], x.args)
            case e.FloorDiv() | e.Mod() | e.Eq() | e.Ne() | e.Lt() | e.Le():
                return self.chain(VERBS[type(x)], (x.a, x.b))
        raise TypeError(f"not an index: {x!r}")

    def chain(self, verb: str, args: Sequence[e.Expr | e.Cond]) -> str:
        """Write `verb` over operands, from the left."""
        first, *rest = map(self.index, args)
        for other in rest:
            first = self.new(f"{verb}.i64 {first} {other}")
        return first
