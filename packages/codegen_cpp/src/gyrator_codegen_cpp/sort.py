"""Stages with a sort: gather a row's values and positions, sort them, go on with each."""

from collections.abc import Sequence

from gyrator_codegen_cpp.addresses import hoist
from gyrator_codegen_cpp.body import run
from gyrator_codegen_cpp.dtypes import lane_type
from gyrator_codegen_cpp.loops import nested_loops
from gyrator_codegen_cpp.scope import Scope, Value
from gyrator_ir.body.nodes import Axis, SortStep, Store
from gyrator_ir.body.rewrite import live, used
from gyrator_ir.expr import ONE, Expr
from gyrator_ir.kernel.nodes import KernelStatement
from gyrator_ir.types import DType


def sort_stage(
    scope: Scope, axes: Sequence[Axis], body: Sequence[KernelStatement], position: Expr
) -> None:
    """Write a stage around one `SortStep`, element by element.

    What stands before the sort is computed once for the values to sort, and again, as far as it is
    needed, beside the sorted values.
    """
    at = next(k for k, s in enumerate(body) if isinstance(s, SortStep))
    step, before, after = body[at], list(body[:at]), list(body[at + 1 :])
    assert isinstance(step, SortStep)
    size: Expr = ONE
    for a in axes:
        size = size * a.extent
    take = scope.frame.names.take
    lane = lane_type(step.dtype)
    values, places = take(f"{step.names[0]}_values"), take(f"{step.names[0]}_places")
    with scope.block("{"):
        scope.line(f"const si64 count = {scope.index(size)};")
        for name, element in ((values, f"s{lane}"), (places, "si64")):
            scope.line(f"const gy_scratch {name}_memory(2 * count * (si64)sizeof({element}));")
            scope.line(f"{element} *const {name} = ({element} *){name}_memory.aligned();")

        def gather(inside: Scope) -> None:
            run(inside, before)
            where = inside.index(position)
            inside.line(f"{values}[{where}] = {inside.env[step.args[0]].text};")
            inside.line(f"{places}[{where}] = {where};")

        nested_loops(hoist(scope, before, [a.symbol for a in axes]), axes, gather)
        down = "true" if step.descending else "false"
        scope.line(
            f"gy_sort({values}, {places}, {values} + count, {places} + count, count, {down});"
        )
        again = live(before, [name for s in after for name in used(s)])

        def spread(inside: Scope) -> None:
            where = inside.index(position)
            for name, array, dtype in zip(
                step.names, (values, places), (step.dtype, DType.I64), strict=True
            ):
                inside.env[name] = Value(f"{array}[{where}]", dtype, varying=False)
            run(inside, [s for s in again if not isinstance(s, Store)])
            run(inside, after)

        nested_loops(hoist(scope, after, [a.symbol for a in axes]), axes, spread)
