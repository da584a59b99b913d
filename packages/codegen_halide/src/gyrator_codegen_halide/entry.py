"""The C function of a kernel: it describes the buffers to Halide's function, and calls it."""

from collections.abc import Iterator

from gyrator_codegen import Writer
from gyrator_codegen_halide.kernel import KernelText
from gyrator_codegen_halide.ops import STORAGE
from gyrator_codegen_halide.values import reach
from gyrator_ir.body.nodes import Check
from gyrator_ir.expr import CPrinter, linear, product_of
from gyrator_ir.source import Failure, KernelCheck
from gyrator_ir.types import DType

TOO_LARGE = 1 << 20
"""The code of a launch with more elements than Halide's coordinates reach."""


def checks_of(text: KernelText) -> tuple[KernelCheck, ...]:
    """Return what a kernel's codes mean."""
    found = [
        KernelCheck(
            code,
            Failure.RUNTIME if s.check is Check.RUNTIME else Failure.INDEX,
            "index out of range",
        )
        for code, (_, s) in enumerate(text.values.checks, 1)
    ]
    large = "GY-HALIDE-004: a tensor of 2^31 or more elements, beyond Halide's coordinates"
    return (*found, KernelCheck(TOO_LARGE, Failure.RUNTIME, large))


def write_entry(text: KernelText, symbol: str, w: Writer) -> None:
    """Write the C function `symbol`."""
    kernel = text.kernel
    printer = CPrinter(floor_div="gy_div", floor_mod="gy_mod", suffix="LL")
    w.line(_declaration(text, symbol))
    with w.block(f'extern "C" gy_i64 {symbol}(void *const *buffers, const gy_i64 *sizes) {{'):
        for k, size in enumerate(kernel.sizes):
            w.line(f"const gy_i64 {size.name} = sizes[{k}];")
        w.line("(void)sizes;")
        extents = [a.extent for a in (*kernel.axes, *kernel.inner)]
        reached = [reach(kernel, b) for b in kernel.parameters]
        limits = [e for e in (*reached, *extents) if e is not None and e.free_symbols]
        if limits:
            tests = " || ".join(f"{printer(e)} > gy_most" for e in dict.fromkeys(limits))
            w.line(f"if ({tests}) return {TOO_LARGE};")
        arguments = ["context", *_inputs(text, printer, w)]
        arguments += [size.name for size in kernel.sizes]
        arguments += _outputs(text, printer, w)
        threads = text.tiled.threads
        shared = "false"
        if threads is not None and threads.loops:
            shared = f"{printer(product_of(extents))} >= {threads.grain}"
        w.line("static int threads;")
        w.line(f"void *context = {shared} ? &threads : nullptr;")
        w.line(f"const int status = {symbol}_halide({', '.join(arguments)});")
        w.line(f"return status ? {TOO_LARGE} : {'failed' if text.values.checks else '0'};")


def _inputs(text: KernelText, printer: CPrinter, w: Writer) -> Iterator[str]:
    """Describe what is read: copies of what lies where the kernel writes, if that matters."""
    kernel = text.kernel
    place = {b.name: f"buffers[{k}]" for k, b in enumerate(kernel.parameters)}
    for name in text.inputs:
        dtype, host = text.dtypes[name], place[name]
        if text.values.copied and kernel.writes:
            (parameter,) = (b for b in kernel.parameters if b.name == name)
            elements = reach(kernel, parameter)
            assert elements is not None, "refused"
            meets = " || ".join(f"{host} == {place[b]}" for b in kernel.writes)
            size = printer(elements * dtype.size)
            w.line(f"gy_copy {name}_copy;")
            w.line(f"void *{name}_at = {name}_copy.of({host}, {size}, {meets});")
            host = f"{name}_at"
        w.line(f"gy_dim {name}_dim[] = {{{{0, (gy_i32)gy_most, 1, 0}}}};")
        w.line(f"gy_buffer {name}_view = {_view(host, dtype, '0', f'{name}_dim', 1)};")
        yield f"&{name}_view"


def _outputs(text: KernelText, printer: CPrinter, w: Writer) -> Iterator[str]:
    """Describe what is written, in the order of the pipeline's outputs."""
    place = {b.name: f"buffers[{k}]" for k, b in enumerate(text.kernel.parameters)}
    for level, group in text.groups.items():
        for _, s in group:
            rows = text.shape(level, s)
            pairs = [
                f"{{0, (gy_i32)({printer(e)}), (gy_i32)({printer(d)}), 0}}" for _, e, d in rows
            ]
            w.line(f"gy_dim {s.buffer}_to[] = {{{', '.join(pairs)}}};")
            split = linear(s.index, text.values.symbols(level))
            assert split is not None
            dims, offset = f"{s.buffer}_to", printer(split[1])
            view = _view(place[s.buffer], text.dtypes[s.buffer], offset, dims, len(rows))
            w.line(f"gy_buffer {s.buffer}_out = {view};")
            yield f"&{s.buffer}_out"
    for name in text.values.flat:
        w.line(f"gy_dim {name}_to[] = {{{{0, (gy_i32)gy_most, 1, 0}}}};")
        view = _view(place[name], text.dtypes[name], "0", f"{name}_to", 1)
        w.line(f"gy_buffer {name}_out = {view};")
        yield f"&{name}_out"
    if text.values.checks:
        w.line("gy_i32 failed = 0;")
        w.line("gy_dim failed_to[] = {{0, 1, 1, 0}};")
        w.line("gy_buffer failed_out = gy_view(&failed, 0, 4, 0, 32, failed_to, 1);")
        yield "&failed_out"


def _declaration(text: KernelText, symbol: str) -> str:
    """Return the declaration of Halide's function."""
    outputs = sum(map(len, text.groups.values())) + len(text.values.flat) + bool(text.values.checks)
    types = ["void *"] + ["gy_buffer *"] * len(text.inputs)
    types += ["gy_i64"] * len(text.kernel.sizes) + ["gy_buffer *"] * outputs
    return f'extern "C" int {symbol}_halide({", ".join(types)});'


def _view(host: str, dtype: DType, offset: str, dims: str, rank: int) -> str:
    bits = 8 * dtype.size
    return f"gy_view({host}, {offset}, {dtype.size}, {STORAGE[dtype]}, {bits}, {dims}, {rank})"
