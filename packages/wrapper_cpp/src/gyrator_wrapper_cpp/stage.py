"""Wrapper IR in, the text of a C++ host program out."""

import hashlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from types import MappingProxyType

from attrs import field, frozen

from gyrator_ir.diagnostics import Diagnostic, UnsupportedError
from gyrator_ir.host.nodes import BindConstant, HostProgram, Instruction, Launch
from gyrator_ir.host.walk import walk
from gyrator_ir.source import Program
from gyrator_wrapper_cpp.calls import CallWriter
from gyrator_wrapper_cpp.emit import BodyWriter, indented
from gyrator_wrapper_cpp.kinds import Kind, Kinds, leaves, returned
from gyrator_wrapper_cpp.schema import Schema, digest_text
from gyrator_wrapper_cpp.text import SizePrinter, quoted

ENTRY = "gy_main"
"""`extern "C" int32_t gy_main(GyProgramContext*, GyValue* inputs, GyValue* outputs)`."""
_NO_SCHEMAS: Mapping[str, Schema] = MappingProxyType({})
_SOURCES = (
    "calls.py", "emit.py", "encode.py", "errors.py", "kinds.py", "schema.py", "stage.py",
    "text.py", "data/abi.h", "data/host.h",
)  # fmt: skip


@frozen
class CppWrapper:
    """The `WrapperBackend` for C++17 on libtorch's C ABI.

    Args:
        schemas: the schema of each op that programs call, by target (`aten.add.Tensor`);
            `gyrator_wrapper_cpp.schema` reads them from text.
        abi: the version of libtorch that the text will run with, at least (2, 11).
        fallback: call ops that the ABI can't express through the hook `call_op` of the context,
            and don't refuse them.
    """

    schemas: Mapping[str, Schema] = _NO_SCHEMAS
    abi: tuple[int, int] = (2, 11)
    fallback: bool = False
    name: str = field(default="cpp", init=False)

    @property
    def content_hash(self) -> str:
        """A digest of this package's source and of the choices above."""
        digest = hashlib.sha256()
        for part in _SOURCES:
            digest.update((files("gyrator_wrapper_cpp") / part).read_bytes())
        digest.update(f"{self.abi} {self.fallback}\n{digest_text(self.schemas)}".encode())
        return digest.hexdigest()

    def refuses(self, program: HostProgram) -> Diagnostic | None:
        """Say why this program can't be written, or None.

        The codes are in the README. What is not refused is written: `emit` raises exactly then.
        """
        try:
            self._body(program)
        except UnsupportedError as error:
            return error.diagnostic
        return None

    def emit(self, program: HostProgram) -> Program:
        """Write `program` and its subprograms as one translation unit.

        Raises:
            UnsupportedError: what `refuses` says.
        """
        text = preamble() + "\n" + self._body(program)
        return Program(
            language="c++",
            text=text,
            entry=ENTRY,
            kernels=kernels_used(program),
            constants=constants_used(program),
        )

    def _body(self, program: HostProgram) -> str:
        unit = _Unit(self, _numbers(kernels_used(program)), _numbers(constants_used(program)))
        runner = unit.program(program)
        lines = [
            f"// Host program {program.name}.",
            "#define GY_PART static __attribute__((noinline))",
            "",
            *unit.lines,
            f'extern "C" __attribute__((visibility("default"))) int32_t {ENTRY}(',
            "    GyProgramContext* context, GyValue* inputs, GyValue* outputs) {",
            f"  return gy::enter({runner}, context, inputs, {len(program.parameters)}, outputs, "
            f"{output_count(program)});",
            "}",
        ]
        return "\n".join(lines) + "\n"


def preamble() -> str:
    """Return the text before every program: prototypes, the entry's types, the runtime."""
    data = files("gyrator_wrapper_cpp") / "data"
    return (data / "abi.h").read_text() + "\n" + (data / "host.h").read_text()


def interface() -> str:
    """Return the C declarations that a caller of the entry needs (`GyProgramContext` and so on)."""
    return (files("gyrator_wrapper_cpp") / "data" / "abi.h").read_text()


def output_count(program: HostProgram) -> int:
    """Return how many outputs the entry writes: the leaves of what the program returns."""
    return sum(1 for _ in leaves(returned(program)))


def kernels_used(program: HostProgram) -> tuple[str, ...]:
    """Return the kernels that a program and its subprograms launch, by first use."""
    return tuple(dict.fromkeys(i.kernel for i in _all(program) if isinstance(i, Launch)))


def constants_used(program: HostProgram) -> tuple[str, ...]:
    """Return the keys of the constants that a program and its subprograms bind, by first use."""
    return tuple(dict.fromkeys(i.key for i in _all(program) if isinstance(i, BindConstant)))


def _all(program: HostProgram) -> Iterator[Instruction]:
    for sub in program.subprograms:
        yield from _all(sub)
    yield from walk(program.instructions)


def _numbers(names: tuple[str, ...]) -> Mapping[str, int]:
    return {name: k for k, name in enumerate(names)}


@frozen
class _Unit:
    """A translation unit while it is written."""

    wrapper: CppWrapper
    kernels: Mapping[str, int]
    constants: Mapping[str, int]
    lines: list[str] = field(factory=list)
    written: list[str] = field(factory=list)

    def program(self, program: HostProgram) -> str:
        """Write a program after its subprograms and return the function that runs it."""
        runners = {sub.name: self.program(sub) for sub in program.subprograms}
        name = f"p{len(self.written)}_{program.name}"
        self.written.append(name)
        kinds = Kinds(program)
        size = SizePrinter(program.facts)
        wrapper = self.wrapper
        calls = CallWriter(kinds, size, wrapper.schemas, wrapper.abi, wrapper.fallback)
        writer = BodyWriter(calls, name, self.kernels, self.constants, runners)
        body = writer.sequence(program.instructions)
        self._frame(name, kinds)
        self.lines.extend(writer.functions)
        unused = [] if program.parameters else ["(void)in;"]
        unused += [] if body or program.parameters else ["(void)f;"]
        inputs = [_input(k, p.name, kinds) for k, p in enumerate(program.parameters)]
        head = f"static void {name}_run(GyProgramContext* context, GyValue* in, GyValue* out) {{"
        start = [f"{name}_frame f;", "f.context = context;", "f.out = out;"]
        self.lines.extend([head, *indented([*start, *unused, *inputs, *body]), "}", ""])
        return f"{name}_run"

    def _frame(self, name: str, kinds: Kinds) -> None:
        self.lines.append(f"struct {name}_frame {{")
        self.lines.append("  GyProgramContext* context;")
        self.lines.append("  GyValue* out;")
        zero = {Kind.SYMBOL.type: " = 0", Kind.VALUE.type: " = {}"}
        self.lines.extend(f"  {t} {m}{zero.get(t, '')};" for t, m in kinds.members())
        self.lines.extend(["};", ""])


def _input(k: int, name: str, kinds: Kinds) -> str:
    member = f"f.{kinds.member(name)}"
    if kinds[name] is Kind.TENSOR:
        return f"{member} = gy::take(in[{k}], {quoted(name)});"
    return f"{member} = in[{k}];"
