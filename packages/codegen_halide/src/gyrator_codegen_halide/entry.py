"""Emission of a kernel's C function, which calls Halide's function with buffer descriptors."""

from collections.abc import Iterator, Sequence

from gyrator_codegen import Writer, index_check
from gyrator_codegen_halide.kernel import KernelText
from gyrator_codegen_halide.ops import STORAGE
from gyrator_ir.expr import ZERO, CPrinter, Expr, linear, product_of
from gyrator_ir.kernel.reach import accessed_extent
from gyrator_ir.modes import Failure
from gyrator_ir.source import KernelCheck
from gyrator_ir.types import DType

TOO_LARGE = 1 << 20
"""Status of a launch with more elements than Halide's coordinates support."""

_PRINTER = CPrinter(floor_div="gy_div", floor_mod="gy_mod", suffix="LL")
_FLAT = [("gy_most", "1")]
"""Extent and stride of memory that is addressed linearly."""


def checks_of(text: KernelText) -> tuple[KernelCheck, ...]:
    """Return the checks of a kernel, by code."""
    checks = (index_check(n, s.check) for n, (_, s) in enumerate(text.values.checks, 1))
    large = "GY-HALIDE-004: a tensor of 2^31 or more elements, beyond Halide's coordinates"
    return (*checks, KernelCheck(TOO_LARGE, Failure.RUNTIME, large))


def write_entry(text: KernelText, symbol: str, w: Writer) -> None:
    """Emit the C function `symbol`."""
    kernel, values, index = text.kernel, text.values, _PRINTER
    outputs = [s.buffer for stores in values.dense.values() for s in stores] + list(values.flat)
    outputs += ["failed"] if values.checks else []
    types = ["void *"] + ["gy_buffer *"] * len(text.inputs) + ["gy_i64"] * len(kernel.sizes)
    types += ["gy_buffer *"] * len(outputs)
    w.line(f'extern "C" int {symbol}_halide({", ".join(types)});')
    with w.block(f'extern "C" gy_i64 {symbol}(void *const *buffers, const gy_i64 *sizes) {{'):
        w.lines(*(f"const gy_i64 {s.name} = sizes[{k}];" for k, s in enumerate(kernel.sizes)))
        w.lines(*(f"void *{b.name}_host = buffers[{k}];" for k, b in enumerate(kernel.parameters)))
        extents = [a.extent for a in (*kernel.axes, *kernel.inner)]
        reached = [accessed_extent(kernel, b) for b in kernel.parameters]
        limits = [e for e in (*reached, *extents) if e is not None and e.free_symbols]
        if limits:
            tests = " || ".join(f"{index(e)} > gy_most" for e in dict.fromkeys(limits))
            w.line(f"if ({tests}) return {TOO_LARGE};")
        w.line("gy_i32 failed = 0;")
        arguments = [*_inputs(text, w), *(s.name for s in kernel.sizes), *_outputs(text, w)]
        if values.checks:
            arguments.append(_view(w, "failed", "&failed", DType.I32, [("1", "1")]))
        threads, shared = text.tiled.threads, "false"
        if threads is not None and threads.loops:
            shared = f"{index(product_of(extents))} >= {threads.grain}"
        w.line("static int threads;")
        w.line(f"void *context = {shared} ? &threads : nullptr;")
        w.line(f"const int status = {symbol}_halide({', '.join(['context', *arguments])});")
        w.line(f"return status ? {TOO_LARGE} : failed;")


def _inputs(text: KernelText, w: Writer) -> Iterator[str]:
    """Yield the descriptors of the inputs, and copy those that the kernel may overwrite."""
    for b in (b for b in text.kernel.parameters if b.name in text.inputs):
        host = f"{b.name}_host"
        if text.values.copied and text.kernel.writes:
            elements = accessed_extent(text.kernel, b)
            assert elements is not None, "refused"
            meets = " || ".join(f"{b.name}_host == {x}_host" for x in text.kernel.writes)
            size = _PRINTER(elements * b.dtype.size)
            w.line(f"gy_copy {b.name}_copy;")
            w.line(f"void *{b.name}_at = {b.name}_copy.of({host}, {size}, {meets});")
            host = f"{b.name}_at"
        yield _view(w, f"{b.name}_in", host, b.dtype, _FLAT)


def _outputs(text: KernelText, w: Writer) -> Iterator[str]:
    """Yield the descriptors of the outputs, in the order of the pipeline's outputs."""
    values = text.values
    for level, stores in values.dense.items():
        for s in stores:
            split = linear(s.index, values.coordinates(level))
            assert split is not None
            dims = [(_PRINTER(values.extents[x]), _PRINTER(d)) for x, d in text.shape(level, s)]
            name, dtype = s.buffer, values.types[s.buffer]
            yield _view(w, f"{name}_out", f"{name}_host", dtype, dims, split[1])
    for name in values.flat:
        yield _view(w, f"{name}_out", f"{name}_host", values.types[name], _FLAT)


def _view(
    w: Writer,
    name: str,
    host: str,
    dtype: DType,
    dims: Sequence[tuple[str, str]],
    offset: Expr = ZERO,
) -> str:
    """Emit a buffer descriptor and return its address."""
    rows = ", ".join(f"{{0, (gy_i32)({extent}), (gy_i32)({stride}), 0}}" for extent, stride in dims)
    place = f"{host}, {_PRINTER(offset)}, {dtype.size}, {STORAGE[dtype]}, {name}_dim, {len(dims)}"
    w.line(f"gy_dim {name}_dim[] = {{{rows}}};")
    w.line(f"gy_buffer {name}_view = gy_view({place});")
    return f"&{name}_view"
