"""What languages refuse alike."""

from collections.abc import Collection, Iterator

from attrs import frozen

from gyrator_codegen.analysis import element_types, linear_position
from gyrator_ir.body.nodes import Let, Load, Store, StoreMode
from gyrator_ir.diagnostics import Diagnostic
from gyrator_ir.kernel.nodes import Kernel, KernelStatement
from gyrator_ir.target import Target
from gyrator_ir.types import DType

LIBRARY = "leave the operation to its ATen op"
"""What to do with what no kernel can be written for."""


@frozen
class Refusals:
    """What a language says of a kernel that it can't write."""

    kernel: Kernel
    language: str
    """As a sentence begins with."""
    machine: str = ""
    """What follows the types and ops that are lacking: ` on sm_80`."""

    @property
    def place(self) -> str:
        """Where it is."""
        return f"kernel {self.kernel.name}"

    def of(self, code: str, said: str, where: str = "", help: str = LIBRARY) -> Diagnostic:
        """Return one about a name of the kernel, or about all of it."""
        place = f"{where} in {self.place}" if where else self.place
        return Diagnostic(code, said, where=place, help=help)

    def types(self, code: str, known: Collection[DType]) -> Iterator[Diagnostic]:
        """Yield the names whose types are not known."""
        for name, dtype in element_types(self.kernel):
            if dtype not in known:
                said = f"{self.language} kernels do not compute on {dtype.value}{self.machine}"
                yield self.of(code, said, name)

    def ops(self, code: str, known: Collection[str]) -> Iterator[Diagnostic]:
        """Yield the values whose ops are not known."""
        for s in self._statements():
            if isinstance(s, Let) and s.op not in known:
                yield self.op(code, s)

    def op(self, code: str, s: Let, of: str = "") -> Diagnostic:
        """Return one about a value."""
        said = f"{self.language} kernels have no {s.op}{of}{self.machine}"
        return self.of(code, said, s.name)

    def locals(self, code: str) -> Iterator[Diagnostic]:
        """Yield accesses of locals that are not addressed by the linear position."""
        local, position = {t.name for t in self.kernel.locals}, linear_position(self.kernel.inner)
        for s in self._statements():
            if isinstance(s, Load | Store) and s.buffer in local and s.index is not position:
                said = f"local {s.buffer} is not addressed by the position {position!r}"
                help = "give the intermediate result a buffer of its own"
                yield self.of(code, said, help=help)

    def atomics(
        self, code: str, target: Target, lacking: Collection[StoreMode] = ()
    ) -> Iterator[Diagnostic]:
        """Yield stores that combine in a way that is not atomic on the target."""
        types = {b.name: b.dtype for b in self.kernel.parameters}
        for s in self._statements():
            if not isinstance(s, Store) or s.mode is StoreMode.SET or s.buffer not in types:
                continue
            dtype = types[s.buffer]
            if (dtype, s.mode) not in target.capabilities.atomics or s.mode in lacking:
                said = f"no atomic {s.mode.value} of {dtype.value} on {target.arch}"
                yield self.of(code, said, s.buffer)

    def _statements(self) -> Iterator[KernelStatement]:
        return (s for stage in self.kernel.stages for s in stage.body)
