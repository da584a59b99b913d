"""The bodies of the sections into which a kernel's vectors are cut."""

from collections.abc import Collection

from attrs import evolve

from gyrator_codegen.passes.constant_folding import folded
from gyrator_ir.body.nodes import Const, Load, Store
from gyrator_ir.body.rewrite import defined
from gyrator_ir.kernel.nodes import Kernel, KernelStatement
from gyrator_ir.tile.nodes import Section
from gyrator_ir.types import DType


def section_body(
    kernel: Kernel, section: Section, ahead: Collection[str] = ()
) -> tuple[KernelStatement, ...]:
    """Return the statements that run in a section of a kernel with one stage, with its comparisons
    settled and its indices, without those that define values in `ahead`.

    Stores are copies, because the value that a store of the kernel would round may not be defined.
    """
    results = dict.fromkeys(section.true, True) | dict.fromkeys(section.false, False)
    indices = dict(section.indices)
    body = [
        Const(name, results[name], DType.BOOL)
        if (name := next(iter(defined(s)), "")) in results
        else evolve(s, index=indices[name])
        if isinstance(s, Load) and name in indices
        else s
        for s in kernel.statements
    ]
    stored = {s.buffer for s in body if isinstance(s, Store)}
    types = {b.name: b.dtype for b in kernel.parameters}
    return tuple(
        evolve(s) if isinstance(s, Store) else s
        for s in folded(body, stored, types)
        if not {*defined(s)} & {*ahead}
    )
