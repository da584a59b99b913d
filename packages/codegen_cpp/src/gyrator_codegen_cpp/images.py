"""Emission of convolutions of images as C++, and of the functions that they apply to sums."""

from collections.abc import Iterator, Sequence

from gyrator_codegen_cpp.body import run
from gyrator_codegen_cpp.convolution import convolution_body, convolution_unsupported
from gyrator_codegen_cpp.depthwise import depthwise_body, depthwise_unsupported
from gyrator_codegen_cpp.prelude import Isa
from gyrator_codegen_cpp.scope import Frame, Scope, Value
from gyrator_ir.expr import Sym
from gyrator_ir.kernel.nodes import Kernel, Level, Stage, TemplateKernel
from gyrator_ir.loop.nodes import TemplateKind
from gyrator_ir.source import KernelSource
from gyrator_ir.tile.nodes import TiledKernel
from gyrator_ir.types import DType

IMAGE_KINDS = (TemplateKind.CONVOLUTION, TemplateKind.DEPTHWISE)
"""The templates of convolutions."""
_INLINE_STATEMENTS = 5
"""The most statements of a formula that each register of a tile repeats."""
_NAME = "gy_after"
"""How the names of the functions of formulas begin."""


def image_kernel_unsupported(kernel: TemplateKernel, isa: Isa) -> str:
    """Return why there is no kernel for a convolution, or an empty string."""
    if kernel.kind is TemplateKind.DEPTHWISE:
        return depthwise_unsupported(kernel, isa)
    return convolution_unsupported(kernel, isa)


def emit_convolutions(
    kernels: Sequence[TemplateKernel], cores: int, isa: Isa
) -> Iterator[list[KernelSource]]:
    """Yield the kernels of convolutions, in as many units as there are cores. Equal ones share a
    function, and those with equal tiles are neighbours, to be compiled once."""
    alike: dict[tuple[str, str, str], list[TemplateKernel]] = {}
    functions: dict[str, str] = {}
    for kernel in kernels:
        text = _function(kernel, isa)
        after = functions.setdefault(text, f"{_NAME}{len(functions)}")
        alike.setdefault((after, *_body(kernel, after, cores, isa)), []).append(kernel)
    texts = {name: text.replace(_NAME, name, 1) for text, name in functions.items()}
    bodies = sorted(alike)
    count = min(cores, len(bodies))
    for n in range(count):
        own = bodies[n * len(bodies) // count : (n + 1) * len(bodies) // count]
        unit: list[KernelSource] = []
        seen: set[str] = set()
        for key in own:
            after, _, body = key
            head = "" if after in seen else texts[after]
            seen.add(after)
            unit += _sources(head, body, alike[key])
        yield unit


def _function(kernel: TemplateKernel, isa: Isa) -> str:
    """Return the text of a function that applies a kernel's formula to a vector."""
    (formula,) = kernel.formulas
    (name,) = formula.parameters
    stub = Kernel(kernel.name, kernel.device, (), (), (Stage(Level.OUTER, formula.body),))
    frame = Frame(TiledKernel(stub, ()), isa)
    scope = Scope(frame, Sym("i0"), env={name: Value("x", DType.F32, varying=True)})
    long = len(formula.body) > _INLINE_STATEMENTS
    head = "static __attribute__((noinline))" if long else "GY_FN"
    with frame.writer.block(f"{head} vf32 {_NAME}(vf32 x) {{"):
        run(scope, formula.body)
        scope.line(f"return {scope.operand(formula.result, True)};")
    return frame.writer.text


def _sources(head: str, body: str, kernels: Sequence[TemplateKernel]) -> Iterator[KernelSource]:
    """Yield the functions of kernels with the same body, which the first one has. `head` is before
    that one."""
    first = f"gy_k_{kernels[0].name}"
    for kernel in kernels:
        symbol = f"gy_k_{kernel.name}"
        own = body if symbol == first else f"return {first}(buffers, sizes);"
        signature = f'extern "C" si64 {symbol}(void *const *buffers, const si64 *sizes)'
        before = head if symbol == first else ""
        yield KernelSource(kernel.name, symbol, f"{before}{signature} {{\n{own}\n}}\n")


def _body(kernel: TemplateKernel, after: str, cores: int, isa: Isa) -> tuple[str, str]:
    if kernel.kind is TemplateKind.DEPTHWISE:
        return depthwise_body(kernel, after, cores, isa)
    return convolution_body(kernel, after, cores, isa)
