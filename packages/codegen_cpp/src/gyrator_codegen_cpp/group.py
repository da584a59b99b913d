"""Kernels that one launch runs, as one C++ function: threads share out the work of all of them."""

from collections.abc import Sequence

from attrs import evolve

from gyrator_codegen_cpp.kernel import emit_member
from gyrator_codegen_cpp.prelude import Isa
from gyrator_ir.provenance import Origin
from gyrator_ir.source import KernelCheck, KernelSource
from gyrator_ir.tile.nodes import TiledGroup


def emit_group(group: TiledGroup, origins: Sequence[Origin], isa: Isa) -> KernelSource:
    """Write one group."""
    symbol = f"gy_k_{group.name}"
    texts: list[str] = []
    rows: list[str] = []
    checks: list[KernelCheck] = []
    lines = [f'extern "C" si64 {symbol}(void *const *buffers, const si64 *sizes) {{']
    lines.append("  (void)sizes;")
    sizes = sorted({s.name for k in group.kernels for s in k.kernel.sizes})
    position = {name: n for n, name in enumerate(sizes)}
    for place, (tiled, cost) in enumerate(zip(group.kernels, group.costs, strict=True)):
        source = emit_member(tiled, cost, origins, isa)
        texts.append(source.text)
        given = ", ".join(f"sizes[{position[s.name]}]" for s in tiled.kernel.sizes) or "0"
        lines.append(f"  const si64 sizes{place}[] = {{{given}}};")
        one = f"{source.symbol}_part, {source.symbol}_share(sizes{place})"
        rows.append(f"{{{one}, sizes{place}, {len(checks)}}}")
        checks += [evolve(c, code=len(checks) + c.code) for c in source.checks]
    members: list[str] = []
    at = 0
    for number in group.members:
        members.append(f"{{{number}, {at}}}")
        at += len(group.kernels[number].kernel.parameters)
    lines.append(f"  const gy_kind kinds[] = {{{', '.join(rows)}}};")
    lines.append(f"  static const gy_member members[] = {{{', '.join(members)}}};")
    lines.append(f"  return gy_together(kinds, members, {len(members)}, buffers, {group.grain});")
    lines.append("}")
    text = "\n".join([*texts, *lines]) + "\n"
    return KernelSource(group.name, symbol, text, checks=tuple(checks))
