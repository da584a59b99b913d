"""Kernels that one launch runs, as one C++ function: threads share out the work of all of them."""

from collections.abc import Sequence

from attrs import evolve

from gyrator_codegen_cpp.kernel import emit_member
from gyrator_codegen_cpp.prelude import Isa
from gyrator_codegen_cpp.repeats import firsts
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import KernelGroup
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelCheck, KernelSource
from gyrator_ir.target import Heuristics


def emit_group(
    group: KernelGroup,
    facts: ShapeFacts,
    origins: Sequence[Origin],
    isa: Isa,
    heuristics: Heuristics,
) -> KernelSource:
    """Write one group. Kernels that differ only in names share a function."""
    same = firsts(group.kernels)
    kinds = {n: place for place, n in enumerate(dict.fromkeys(same))}
    symbol = f"gy_k_{group.name}"
    texts: list[str] = []
    rows: list[str] = []
    checks: list[KernelCheck] = []
    lines = [f'extern "C" si64 {symbol}(void *const *buffers, const si64 *sizes) {{']
    lines.append("  (void)sizes;")
    position = {s: n for n, s in enumerate(group.sizes)}
    for first, place in kinds.items():
        kernel = group.kernels[first]
        source = emit_member(kernel, facts, origins, isa, heuristics)
        texts.append(source.text)
        given = ", ".join(f"sizes[{position[s]}]" for s in kernel.sizes) or "0"
        lines.append(f"  const si64 sizes{place}[] = {{{given}}};")
        one = f"{source.symbol}_part, {source.symbol}_share(sizes{place})"
        rows.append(f"{{{one}, sizes{place}, {len(checks)}}}")
        checks += [evolve(c, code=len(checks) + c.code) for c in source.checks]
    members: list[str] = []
    at = 0
    for number in group.members:
        members.append(f"{{{kinds[same[number]]}, {at}}}")
        at += len(group.kernels[number].parameters)
    lines.append(f"  const gy_kind kinds[] = {{{', '.join(rows)}}};")
    lines.append(f"  static const gy_member members[] = {{{', '.join(members)}}};")
    grain = heuristics.parallel_grain if heuristics.cores > 1 else (1 << 62)
    lines.append(f"  return gy_together(kinds, members, {len(members)}, buffers, {grain});")
    lines.append("}")
    text = "\n".join([*texts, *lines]) + "\n"
    return KernelSource(group.name, symbol, text, checks=tuple(checks))
