"""`elide-roundings`: remove casts to a narrow float and back."""

from typing import ClassVar

from attrs import evolve

from gyrator_ir.body.nodes import Const, IndexValue, Let, Statement
from gyrator_ir.body.rewrite import live, renamed
from gyrator_ir.define import frozen
from gyrator_ir.loop.nodes import LoopOperation, LoopProgram, Reduction, Scan, Sort
from gyrator_ir.loop.uses import collective_of
from gyrator_ir.types import DType
from gyrator_scheduler.passes.rewriting import each_loop, with_collective


@frozen
class ElideRoundings:
    """Replace `cast f32 -> bf16 -> f32`, and every such pair of float types, by the value itself.
    This changes results and runs only with `numerics="fast"`."""

    name: ClassVar[str] = "elide-roundings"

    def run(self, program: LoopProgram) -> LoopProgram:
        """Return the program with fewer roundings."""
        return each_loop(program, _elided)


def _elided(op: LoopOperation) -> LoopOperation:
    names: dict[str, str] = {}
    types: dict[str, DType] = {}
    rounded: dict[str, str] = {}
    body: list[Statement] = []
    for s in op.body:
        s = renamed(s, names, {}) if names else s
        match s:
            case Let(name, "cast", (arg,), dtype):
                types[name] = dtype
                wide = types.get(arg)
                if arg in rounded and types.get(rounded[arg]) is dtype:
                    names[name] = rounded[arg]
                elif wide in (DType.F32, DType.F64) and dtype in (DType.F16, DType.BF16):
                    rounded[name] = arg
            case Let(name, _, _, dtype) | Const(name, _, dtype) | IndexValue(name, _, dtype):
                types[name] = dtype
        body.append(s)
    if not names:
        return op
    if isinstance(op, (Reduction, Scan, Sort)):
        step = collective_of(op)
        step = evolve(step, args=tuple(names.get(a, a) for a in step.args))
        return with_collective(op, live(body, step.args), step, op.stores)
    return evolve(op, body=live(body))
