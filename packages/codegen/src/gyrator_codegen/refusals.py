"""Diagnostics for kernels that a language cannot emit, common to all languages."""

from collections.abc import Collection, Iterator

from gyrator_codegen.analysis import element_types, linear_position
from gyrator_ir.body.nodes import Let, Load, Reduce, ScanStep, SortStep, Store, StoreMode
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.kernel.nodes import Kernel
from gyrator_ir.target import Target
from gyrator_ir.types import DType

LIBRARY = "leave the operation to its ATen op"
"""The help text for an operation that has no kernel."""


@frozen
class Refusals:
    """Creates the diagnostics for a kernel that a language cannot emit."""

    kernel: Kernel
    language: str
    """The language's name, as the first word of a sentence."""
    machine: str = ""
    """Appended to messages about missing types and ops: ` on sm_80`."""

    @property
    def place(self) -> str:
        """The location of all diagnostics."""
        return f"kernel {self.kernel.name}"

    def of(self, code: str, message: str, where: str = "", help: str = LIBRARY) -> Diagnostic:
        """Return a diagnostic about the name `where`, or about the whole kernel."""
        location = f"{where} in {self.place}" if where else self.place
        return Diagnostic(code, message, where=location, help=help)

    def types(self, code: str, supported: Collection[DType]) -> Iterator[Diagnostic]:
        """Yield a diagnostic for each name whose type is not supported."""
        for name, dtype in element_types(self.kernel):
            if dtype not in supported:
                message = f"{self.language} kernels do not compute on {dtype.value}{self.machine}"
                yield self.of(code, message, name)

    def ops(self, code: str, supported: Collection[str]) -> Iterator[Diagnostic]:
        """Yield a diagnostic for each value whose op is not supported."""
        for s in self.kernel.statements:
            if isinstance(s, Let) and s.op not in supported:
                yield self.op(code, s)

    def op(self, code: str, s: Let, of: str = "") -> Diagnostic:
        """Return a diagnostic about the op of a value."""
        message = f"{self.language} kernels have no {s.op}{of}{self.machine}"
        return self.of(code, message, s.name)

    def locals(self, code: str) -> Iterator[Diagnostic]:
        """Yield a diagnostic for each access of a local that is not at the linear inner index."""
        local, position = {t.name for t in self.kernel.locals}, linear_position(self.kernel.inner)
        for s in self.kernel.statements:
            if isinstance(s, Load | Store) and s.buffer in local and s.index is not position:
                message = f"local {s.buffer} is not addressed by the position {position!r}"
                help = "give the intermediate result a buffer of its own"
                yield self.of(code, message, help=help)

    def collectives(self, code: str) -> Iterator[Diagnostic]:
        """Yield a diagnostic for each stage whose collectives cannot share a loop."""
        for stage in self.kernel.stages:
            directions = {s.reverse for s in stage.body if isinstance(s, ScanStep)}
            kinds = [type(s) for s in stage.body if isinstance(s, Reduce | ScanStep | SortStep)]
            if len(directions) > 1 or (SortStep in kinds and len(kinds) > 1):
                message = "one stage scans in both directions, or sorts beside other collectives"
                yield self.of(code, message, help="schedule them as separate stages")

    def tiling(self, code: str, decisions: str, pipeline: str) -> Diagnostic:
        """Return a diagnostic about tiling decisions that the language does not support; those of
        `pipeline` are supported."""
        help = f"tile it with `gyrator_codegen.passes.{pipeline}`"
        return self.of(code, f"{self.language} kernels do not support {decisions}", help=help)

    def atomics(
        self, code: str, target: Target, lacking: Collection[StoreMode] = ()
    ) -> Iterator[Diagnostic]:
        """Yield a diagnostic for each store with a mode that is not atomic on the target."""
        types = {b.name: b.dtype for b in self.kernel.parameters}
        for s in self.kernel.statements:
            if not isinstance(s, Store) or s.mode is StoreMode.SET or s.buffer not in types:
                continue
            dtype = types[s.buffer]
            if (dtype, s.mode) not in target.capabilities.atomics or s.mode in lacking:
                message = f"no atomic {s.mode.value} of {dtype.value} on {target.arch}"
                yield self.of(code, message, s.buffer)
