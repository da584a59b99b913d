"""Printer of Kernel IR. `parse(show(s)) == s` for every schedule that verifies."""

from gyrator_ir.body.print import show_statement
from gyrator_ir.kernel import nodes
from gyrator_ir.kernel.forms import FORMS, KERNEL, TEMPLATE
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Schedule, TemplateKernel
from gyrator_ir.loop.formulas import show_formula
from gyrator_ir.loop.print import show_call
from gyrator_ir.text.forms import show_parts
from gyrator_ir.text.lines import indented
from gyrator_ir.text.program import show_buffer, show_preamble, show_user_kernels
from gyrator_ir.text.scanner import Writer, show_device
from gyrator_ir.text.values import OUTPUTS

__all__ = ["show"]

VERSION = 1
KIND = "kernel.schedule"


def show(schedule: Schedule) -> str:
    """Print a schedule; the same schedule always prints the same bytes."""
    return "\n".join(_schedule(schedule)) + "\n"


def show_kernel(k: nodes.Launchable, writer: Writer) -> list[str]:
    """Print a kernel; the first line is its head."""
    if isinstance(k, TemplateKernel):
        return _template(k, writer)
    if isinstance(k, KernelGroup):
        return _group(k, writer)
    lines = list(map(show_line, k.refusals))
    lines += [f"parameter {show_buffer(p, writer)}" for p in k.parameters]
    lines += [f"local {t.name}: {t.dtype.value}[{writer.expr(t.extent)}]" for t in k.locals]
    for stage in k.stages:
        lines.append(stage.level.value)
        lines += indented([show_statement(s, writer) for s in stage.body])
    return [f"kernel{show_parts(KERNEL, k, writer)}", *indented(lines)]


def _template(k: TemplateKernel, writer: Writer) -> list[str]:
    head = "kernel" + show_parts(TEMPLATE, k, Writer({p.name: p for p in k.parameters}))
    lines = [f"parameter {show_buffer(p, writer)}" for p in k.parameters]
    lines += [line for f in k.formulas for line in show_formula(f)]
    return [head, *indented(lines)]


def _group(k: KernelGroup, writer: Writer) -> list[str]:
    """Print `kernel g0 on cpu together (k0, k0, k1)`, followed by each kernel."""
    members = ", ".join(k.kernels[index].name for index in k.members)
    lines = [line for kernel in k.kernels for line in show_kernel(kernel, writer)]
    return [f"kernel {k.name} on {show_device(k.device)} together ({members})", *indented(lines)]


def show_node(node: nodes.ScheduleNode, writer: Writer) -> list[str]:
    """Print a kernel or a call."""
    return show_kernel(node, writer) if isinstance(node, Kernel) else show_call(node, writer)


def show_line(node: nodes.Refusal | nodes.Lifetime | nodes.Partition | nodes.Together) -> str:
    """Print `life b1 2 to 5 reuses b0`, `partition 0 to 3 on cuda:0` and the like."""
    return FORMS.by_class[type(node)].head(node, Writer())


def _schedule(s: Schedule) -> list[str]:
    writer = Writer({b.name: b for b in s.all_buffers})
    lines = show_preamble(s.origins, s.facts, s.inputs, s.constants, writer)
    lines += [f"buffer {show_buffer(b, writer)}" for b in s.buffers]
    lines += show_user_kernels(s.user_kernels, writer)
    for node in s.nodes:
        lines += show_node(node, writer)
    for part in (s.lifetimes, s.partitions, s.together):
        lines += map(show_line, part)
    lines.append(f"return {OUTPUTS.show(s.outputs, writer)}".rstrip())
    for sub in s.subschedules:
        lines += _schedule(sub)
    return [f"{KIND} {VERSION} @{s.name}", *indented(lines)]
