"""Templates: which of them become kernels, and how those kernels are built."""

from collections.abc import Callable, Iterable, Mapping

from attrs import evolve

from gyrator_ir.diagnostics import Diagnostic, RefusedError
from gyrator_ir.expr import Expr, Sym, SymKind
from gyrator_ir.kernel.nodes import TemplateKernel
from gyrator_ir.loop.formulas import formulas_on, sizes_in
from gyrator_ir.loop.nodes import Buffer, Formula, LoopProgram, Operation, Template, TensorRef
from gyrator_ir.target import Target
from gyrator_scheduler.errors import target_for


def template_kernel(
    node: Template, name: str, buffers: Mapping[str, Buffer]
) -> tuple[TemplateKernel, tuple[str, ...]]:
    """Return the kernel of a template, with parameters `p0`, `p1`, ..., and the buffers to launch
    it with."""
    tensors = (*node.inputs, *node.outputs)
    parameters = tuple(dict.fromkeys(t.buffer for t in tensors))
    names = {buffer: f"p{n}" for n, buffer in enumerate(parameters)}
    kernel = TemplateKernel(
        name=name,
        device=buffers[node.outputs[0].buffer].device,
        kind=node.kind,
        inputs=tuple(evolve(t, buffer=names[t.buffer]) for t in node.inputs),
        outputs=tuple(evolve(t, buffer=names[t.buffer]) for t in node.outputs),
        attributes=node.attributes,
        parameters=tuple(evolve(buffers[b], name=names[b]) for b in parameters),
        sizes=_sizes(tensors, node.formulas),
        origins=node.origins,
        formulas=formulas_on(node.formulas, names),
    )
    return kernel, parameters


def _sizes(tensors: Iterable[TensorRef], formulas: Iterable[Formula]) -> tuple[Sym, ...]:
    layouts: list[Expr] = [e for t in tensors for e in (*t.shape, *t.strides, t.offset)]
    symbols = {s for e in layouts for s in e.free_symbols} | set(sizes_in(formulas))
    sizes = [s for s in symbols if s.kind in (SymKind.SIZE, SymKind.UNBACKED)]
    return tuple(sorted(sizes, key=lambda s: s.name))


def with_fallbacks(program: LoopProgram, refused: Callable[[TemplateKernel], str]) -> LoopProgram:
    """Replace each template for which `refused` returns a reason by its library call, which
    records the reason. Subprograms are included.

    Raises:
        RefusedError: GY-SCHED-023, when a refused template has no library call. The node then runs
            in eager PyTorch.
    """
    subprograms = tuple(with_fallbacks(p, refused) for p in program.subprograms)
    if subprograms != program.subprograms:
        program = evolve(program, subprograms=subprograms)
    if not any(isinstance(op, Template) for op in program.operations):
        return program
    buffers = {b.name: b for b in program.all_buffers}
    operations: list[Operation] = []
    for op in program.operations:
        if isinstance(op, Template):
            reason = refused(template_kernel(op, op.name, buffers)[0])
            if reason:
                if op.fallback is None:
                    raise _refused_error(program, op, reason)
                operations.append(evolve(op.fallback, reason=reason))
                continue
        operations.append(op)
    return evolve(program, operations=tuple(operations))


def _refused_error(program: LoopProgram, op: Template, reason: str) -> RefusedError:
    where = tuple(program.origins[o].node for o in op.origins)
    why = Diagnostic("GY-SCHED-023", f"{op.kind.value}: {reason}", provenance=where)
    return RefusedError(dict.fromkeys(where or (op.name,), why))


def refuses_none(kernel: TemplateKernel) -> str:
    """Return an empty string: by default, no kernel language refuses a template."""
    return ""


def missing_template(kernel: TemplateKernel, targets: Mapping[str, Target]) -> str:
    """Return why the device's target has no kernel for a template, or an empty string.

    Raises:
        SchedulerError: GY-SCHED-001, when the device has no target.
    """
    target = target_for(kernel.device, targets)
    if kernel.kind.value in target.capabilities.templates:
        return ""
    return f"kernels for {kernel.device.type} have no template of {kernel.kind.value}"
