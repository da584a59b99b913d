"""Wrapper IR in, the text of a Python host program out."""

from attrs import frozen

from gyrator_ir.content import content_hash
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.walk import programs
from gyrator_ir.source import Program
from gyrator_wrapper_python.emit import BodyWriter, constants_used, kernels_used, tail_for
from gyrator_wrapper_python.text import Lines, string


@frozen
class PythonWrapper:
    """The `WrapperBackend` for Python.

    The text defines `build(rt)`. `rt` is a host runtime: it holds the loaded kernels and the
    constants, and its recorders turn the calls in the text into a plan that runs natively. So the
    text is executed once, when a program is loaded, and reads like the program that it records:

        def build(rt):
            p = rt.program('main', ('x', 's0'))
            x, s0 = p.parameters
            b0 = p.allocate((s0, 8), (8, 1), 'f32', 'cpu')
            p.launch('k0_relu', (x, b0), (s0,))
            return p.finish((b0,))
    """

    name: str = "python"

    @property
    def content_hash(self) -> str:
        """A digest of the source of this package, and of what it imports of ours."""
        return content_hash("gyrator_wrapper_python")

    def emit(self, program: HostProgram) -> Program:
        """Write `program` and its subprograms."""
        out = Lines()
        out.add(f'"""Host program {program.name}. `build(rt)` records it on a host runtime."""')
        for part in {p.name: p for p in programs(program)}.values():
            out.add("")
            out.add("")
            _function(part, out, "build" if part is program else f"build_{part.name}")
        return Program(
            language="python",
            text=out.text(),
            entry="build",
            kernels=kernels_used(program),
            constants=constants_used(program),
        )


def _function(program: HostProgram, out: Lines, entry: str) -> None:
    tail = tail_for(program)
    rt, p = f"rt{tail}", f"p{tail}"
    out.add(f"def {entry}({rt}):")
    with out.indent():
        for sub in program.subprograms:
            capture = ', capture="allowed"' if sub.capture is not None else ', capture="never"'
            out.add(f"{rt}.subprogram({string(sub.name)}, build_{sub.name}{capture})")
        names = [parameter.name for parameter in program.parameters]
        listed = "".join(f"{string(n)}, " for n in names)
        out.add(f"{p} = {rt}.program({string(program.name)}, ({listed}))")
        if names:
            out.add(f"{''.join(f'{n}, ' for n in names)}= {p}.parameters")
        BodyWriter(out, p, tail=tail).body(program.instructions)
