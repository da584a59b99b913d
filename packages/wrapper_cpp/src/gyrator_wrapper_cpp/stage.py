"""The stage from Wrapper IR to the text of a C++ host program."""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType

from attrs import field

from gyrator_ir.checks import takes
from gyrator_ir.content import content_hash
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import Diagnostic, UnsupportedError
from gyrator_ir.host.nodes import BindParameter, HostProgram, Instruction
from gyrator_ir.host.walk import constants_used, kernels_used, unused_parameters
from gyrator_ir.source import Program
from gyrator_wrapper_cpp.calls import CallWriter
from gyrator_wrapper_cpp.emit import BodyWriter
from gyrator_wrapper_cpp.kinds import Kind, Kinds, leaves, returned
from gyrator_wrapper_cpp.layouts import Layouts
from gyrator_wrapper_cpp.schema import Schema, digest_text
from gyrator_wrapper_cpp.text import SizePrinter, quoted
from gyrator_wrapper_cpp.units import ENTRY, Function, Sheet, units

__all__ = ["CppWrapper", "interface", "output_count", "preamble"]

_NO_SCHEMAS: Mapping[str, Schema] = MappingProxyType({})


@frozen
class CppWrapper:
    """The `WrapperBackend` for C++17 on libtorch's C ABI."""

    schemas: Mapping[str, Schema] = _NO_SCHEMAS
    """The schema of each op that programs call, by target (`aten.add.Tensor`);
    `gyrator_wrapper_cpp.schema` parses them."""
    abi: tuple[int, int] = (2, 11)
    """The libtorch version that the text will run with, at least (2, 11)."""
    fallback: bool = False
    """Call ops that the ABI does not support through the hook `call_op` of the context instead of
    refusing them."""
    hooked: frozenset[str] = frozenset()
    """Argument types for which the ABI is not used: `Generator` if opaque parameters are not
    generator handles; `str`, since libtorch 2.13 leaks 48 bytes for each."""
    mixed_results: bool = False
    """Whether the libtorch that runs the text supports results of several types; 2.13 reads their
    types in reverse order."""
    name: str = field(default="cpp", init=False)

    @property
    def content_hash(self) -> str:
        """A digest of this package's source and of the fields above."""
        chosen = f"{self.abi} {self.fallback} {sorted(self.hooked)} {self.mixed_results}"
        parts = (content_hash("gyrator_wrapper_cpp"), chosen, digest_text(self.schemas))
        return sha256("\n".join(parts).encode()).hexdigest()

    def refuses(self, program: HostProgram) -> Diagnostic | None:
        """Return why this program cannot be emitted, or None.

        The README lists the codes. `emit` raises if and only if this method returns a diagnostic.
        """
        try:
            self._sheet(program)
        except UnsupportedError as error:
            return error.diagnostic
        return None

    def emit(self, program: HostProgram) -> Program:
        """Emit `program` and its subprograms as one or more translation units.

        The text excludes the preamble.

        Raises:
            UnsupportedError: with the diagnostic of `refuses`.
        """
        takes("emit", program, HostProgram)
        before = preamble()
        emitted = units(self._sheet(program), before)
        return Program(
            language="c++",
            text="\n".join(unit.text.removeprefix(before).lstrip() for unit in emitted),
            entry=ENTRY,
            kernels=kernels_used(program),
            constants=constants_used(program),
            units=emitted,
        )

    def _sheet(self, program: HostProgram) -> Sheet:
        writer = _Writer(self, _numbers(kernels_used(program)), _numbers(constants_used(program)))
        runner = writer.program(program)
        counts = len(program.parameters), output_count(program)
        return Sheet(program.name, runner, *counts, tuple(writer.frames), tuple(writer.functions))


def preamble() -> str:
    """Return the text before every program: prototypes, the entry's types, and the runtime."""
    data = files("gyrator_wrapper_cpp") / "data"
    return "\n".join((data / name).read_text() for name in ("abi.h", "host.h", "calls.h"))


def interface() -> str:
    """Return the C declarations for callers of the entry (`GyProgramContext` and so on)."""
    return (files("gyrator_wrapper_cpp") / "data" / "abi.h").read_text()


def output_count(program: HostProgram) -> int:
    """Return the number of outputs of the entry: the leaves of the program's results."""
    return sum(1 for _ in leaves(returned(program)))


def _numbers(names: tuple[str, ...]) -> Mapping[str, int]:
    return {name: k for k, name in enumerate(names)}


@frozen
class _Writer:
    """Collects the frames and functions of a program and its subprograms."""

    wrapper: CppWrapper
    kernels: Mapping[str, int]
    constants: Mapping[str, int]
    frames: list[str] = field(factory=list)
    functions: list[Function] = field(factory=list)
    written: list[str] = field(factory=list)

    def program(self, program: HostProgram) -> str:
        """Emit a program after its subprograms, and return the function that runs it."""
        runners = {sub.name: self.program(sub) for sub in program.subprograms}
        name = f"p{len(self.written)}_{program.name}"
        self.written.append(name)
        kinds = Kinds(program)
        size = SizePrinter(program.facts)
        wrapper = self.wrapper
        choices = wrapper.fallback, wrapper.hooked, wrapper.mixed_results
        layouts = Layouts.of(program)
        calls = CallWriter(kinds, size, wrapper.schemas, wrapper.abi, *choices, layouts=layouts)
        writer = BodyWriter(calls, name, self.kernels, self.constants, runners)
        inputs = [_input(k, p.name, kinds) for k, p in enumerate(program.parameters)]
        body = writer.sequence(_needed(program), inputs)
        self.frames.extend(_frame(name, kinds))
        start = [
            f"[[maybe_unused]] {name}_frame f{{}};",
            "f.context = context;",
            "f.in = in;",
            "f.out = out;",
        ]
        parameters = "GyProgramContext* context, GyValue* in, GyValue* out"
        run = Function(f"{name}_run", parameters, (*start, *body))
        self.functions.extend([*writer.functions, run])
        return run.name


def _needed(program: HostProgram) -> Iterator[Instruction]:
    """Yield the instructions of a program but the bindings of integers that nothing uses."""
    unused = unused_parameters(program)
    for i in program.instructions:
        if not (isinstance(i, BindParameter) and i.name in unused):
            yield i


def _frame(name: str, kinds: Kinds) -> Iterator[str]:
    """Yield the lines of a frame's type, with members of the same type grouped."""
    yield f"struct {name}_frame {{"
    yield "  GyProgramContext* context;"
    yield "  GyValue* in;"
    yield "  GyValue* out;"
    line = ""
    for kind, member in kinds.members():
        if line.startswith(f"  {kind} ") and len(line) + len(member) < 150:
            line += f", {member}"
            continue
        if line:
            yield f"{line};"
        line = f"  {kind} {member}"
    if line:
        yield f"{line};"
    yield "};"
    yield ""


def _input(k: int, name: str, kinds: Kinds) -> str:
    member = f"f.{kinds.member(name)}"
    if kinds[name] is Kind.TENSOR:
        return f"{member} = gy::take(f.in[{k}], {quoted(name)});"
    return f"{member} = f.in[{k}];"
