"""Printer of Tile IR. `parse(show(p)) == p` for every program that verifies."""

from gyrator_ir.kernel.print import show_kernel
from gyrator_ir.text.forms import show_parts
from gyrator_ir.text.lines import indented
from gyrator_ir.text.program import show_facts, show_origin
from gyrator_ir.text.scanner import Writer, show_device
from gyrator_ir.tile.forms import EXPRESSIONS, FORMS, LISTS, LOOPS, NAMED, REPEAT, SHARED
from gyrator_ir.tile.nodes import Repeat, Tiled, TiledGroup, TiledKernel, TiledTemplate, TileProgram
from gyrator_ir.types import DType

__all__ = ["show"]

VERSION = 1
KIND = "tile.program"


def show(program: TileProgram) -> str:
    """Print a program; the same program always prints the same bytes."""
    writer = Writer()
    lines = [show_origin(row, origin) for row, origin in enumerate(program.origins)]
    lines += show_facts(program.facts)
    for kernel in program.kernels:
        lines += show_tiled(kernel, writer)
    return "\n".join([f"{KIND} {VERSION} @{program.name}", *indented(lines)]) + "\n"


def show_tiled(kernel: Tiled, writer: Writer) -> list[str]:
    """Print a line `tile`, followed by the kernel and its decisions, indented."""
    if isinstance(kernel, Repeat):
        return [REPEAT.head(kernel, writer)]
    if isinstance(kernel, TiledGroup):
        members = ", ".join(kernel.kernels[n].kernel.name for n in kernel.members)
        lines = [line for k in kernel.kernels for line in show_tiled(k, writer)]
        head = f"group {kernel.name} on {show_device(kernel.device)} together ({members})"
        head += show_parts(SHARED, kernel, writer)
        return [head, *indented(lines)]
    if isinstance(kernel, TiledTemplate):
        return ["tile", *indented([*show_kernel(kernel.kernel, writer), *_tuned(kernel, writer)])]
    return ["tile", *indented(_kernel(kernel, writer))]


def _tuned(kernel: TiledTemplate, writer: Writer) -> list[str]:
    lines = [line for x in (*kernel.choices, *kernel.candidates) for line in _line(x, writer)]
    return [*lines, *_wait(kernel, writer), *_index(kernel)]


def _wait(kernel: TiledKernel | TiledTemplate, writer: Writer) -> list[str]:
    return [] if kernel.wait is None else _line(kernel.wait, writer)


def _index(kernel: TiledKernel | TiledTemplate) -> list[str]:
    return [] if kernel.index is DType.I64 else [f"index {kernel.index.value}"]


def _kernel(t: TiledKernel, writer: Writer) -> list[str]:
    lines = show_kernel(t.kernel, writer)
    lines += [LOOPS[loop.kind].head(loop, writer) for loop in t.loops]
    if t.threads is not None:
        lines += _line(t.threads, writer)
    if t.contraction is not None:
        lines += _line(t.contraction, writer)
    for name in LISTS:
        for item in getattr(t, name):
            lines += _line(item, writer)
    for name in NAMED:
        names = getattr(t, name)
        if names:
            lines.append(f"{name} ({', '.join(names)})")
    lines += _wait(t, writer)
    lines += _index(t)
    if t.plain:
        lines.append(f"plain {EXPRESSIONS.show(t.plain, writer)}")
    if t.nonempty:
        lines.append("nonempty")
    return lines


def _line(node: object, writer: Writer) -> list[str]:
    return FORMS.by_class[type(node)].show(
        node, writer, lambda items, w: [line for item in items for line in _line(item, w)]
    )
