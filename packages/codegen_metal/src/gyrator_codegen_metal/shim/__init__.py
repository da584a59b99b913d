"""Metal source compiled as host C++, to run it without a GPU.

`metal_stdlib` implements the part of Metal's standard library that kernels use. A function with the
calling convention of C++ kernels runs each kernel's threadgroups.
"""

from functools import cache
from importlib.resources import files

from attrs import evolve

from gyrator_codegen import Writer
from gyrator_codegen_metal.kernel import LANES, THREADS
from gyrator_ir.expr.printer import CPrinter
from gyrator_ir.source import KernelSource, TranslationUnit

_INCLUDE = "#include <metal_stdlib>\n"


@cache
def header() -> str:
    """Return the text of `metal_stdlib`."""
    return files(__package__).joinpath("metal_stdlib").read_text(encoding="utf-8")


def host_unit(unit: TranslationUnit) -> TranslationUnit:
    """Return a C++ unit that includes the unmodified text of a unit of Metal kernels."""
    w = Writer()
    for source in {s.symbol: s for s in unit.kernels}.values():
        _function(w, source)
    text = unit.text.replace(_INCLUDE, header(), 1) + "\n" + w.text
    return evolve(unit, language="c++", text=text)


def _function(w: Writer, source: KernelSource) -> None:
    """Emit the function that runs a kernel's threadgroups sequentially."""
    numbers = dict(source.candidates[0].values)
    sizes = [a.name for a in source.arguments if a.type.endswith("&")]
    buffers = source.arguments[: len(source.arguments) - len(sizes)]
    arguments = [f"({a.type})buffers[{k}]" for k, a in enumerate(buffers)] + sizes
    arguments += ["&failed"] if source.checks else []
    run = f"{source.symbol}({', '.join([*arguments, 'group', 'thread'])});"
    groups = CPrinter(lambda division: True)(source.grid[0])  # sizes are non-negative
    launch = f"metal_shim::launch<{numbers[THREADS]}, {str(numbers[LANES] > 1).lower()}>"
    head = f'extern "C" int64_t {source.symbol}(void *const *buffers, const int64_t *sizes) {{'
    with w.block(head):
        w.lines(*(f"const long {name} = sizes[{k}];" for k, name in enumerate(sizes)))
        w.lines("atomic_int failed = {0};")
        w.line(f"const auto kernel_of = [&](uint group, uint thread) {{ {run} }};")
        w.line(f"const int64_t fault = {launch}({groups}, kernel_of);")
        w.line("return fault ? fault : failed.value;")
