"""The stage from Wrapper IR to the text of a Python host program."""

from gyrator_ir.checks import takes
from gyrator_ir.content import content_hash
from gyrator_ir.define import frozen
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.walk import constants_used, kernels_used, programs
from gyrator_ir.source import Program
from gyrator_wrapper_python.emit import Writer, runtime_name
from gyrator_wrapper_python.text import Lines

__all__ = ["PythonWrapper"]


@frozen
class PythonWrapper:
    """The `WrapperBackend` for Python: a function for the program and for each subprogram.

    The text is for reading: programs run as a plan of the same instructions. The text can also be
    run, on a runtime `rt` whose methods implement the instructions:

        def program_main(rt, x, s0):
            b0 = rt.allocate((s0, 8), (8, 1), 'f32', 'cpu')
            rt.launch('k0_relu', (x, b0), (s0,))
            return (b0,)
    """

    name: str = "python"

    @property
    def content_hash(self) -> str:
        """A digest of this package's source, including the sibling packages that it imports."""
        return content_hash("gyrator_wrapper_python")

    def emit(self, program: HostProgram) -> Program:
        """Emit `program` and its subprograms."""
        takes("emit", program, HostProgram)
        out = Lines()
        out.add(f'"""Host program {program.name}. It runs as a plan of the same instructions."""')
        for part in {p.name: p for p in programs(program)}.values():
            rt = runtime_name(part)
            parameters = ", ".join((rt, *(p.name for p in part.parameters)))
            out.add("")
            out.add("")
            Writer(out, rt).block(f"def {function_name(part)}({parameters}):", part.instructions)
        return Program(
            language="python",
            text=out.text(),
            entry=function_name(program),
            kernels=kernels_used(program),
            constants=constants_used(program),
        )


def function_name(program: HostProgram) -> str:
    """Return the name of a program's function in the text."""
    return f"program_{program.name}"
