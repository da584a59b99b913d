"""Higher-order ops: branches, loops and repeated regions become subprograms."""

from typing import Any

import torch
from attrs import define, field
from torch.fx import GraphModule, Node

from gyrator_ir.expr.sympy_bridge import cond_from_sympy
from gyrator_ir.loop.nodes import CallOp, CondOp, LoopProgram, WhileOp
from gyrator_lowering import flex_attention
from gyrator_lowering.builder.node import BY_PYTORCH
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.extern import argument
from gyrator_lowering.steps import Around, Lower, lower_steps


@define
class Regions:
    """The subprograms of one program; a graph module that occurs twice is lowered once."""

    b: LoopBuilder
    lower: Lower
    stem: str = "region"
    """With what names begin; a region inside of a region has a name of its own."""
    programs: dict[tuple[int, Around | None], LoopProgram] = field(factory=dict)

    def call(self, node: Node, args: list[Any]) -> Any:
        """Lower a call of a higher-order op.

        Raises:
            UnsupportedError: GY-LOWER-001, for an op that is none of `cond`, `while_loop`,
                `while_loop_stack_output`, `scan`, `map_impl` and
                `invoke_subgraph`; GY-LOWER-011, where a region returns something but tensors.
        """
        name = getattr(node.target, "__name__", str(node.target))
        places = node.args
        if name in flex_attention.NAMES:
            return flex_attention.lower_call(self.b, self.lower, args)
        match name:
            case "cond":
                predicate, _, _, operands = args
                then, otherwise = self._region(places[1], args[1]), self._region(places[2], args[2])
                results = self._results(node)
                given = (
                    predicate.ref
                    if isinstance(predicate, TensorValue)
                    else cond_from_sympy(_fake(places[0]).node.expr)
                )
                self.b.operations.append(
                    CondOp(
                        self.b.op_name(),
                        given,
                        then,
                        otherwise,
                        self._arguments(operands),
                        tuple(r.buffer for r in results),
                        self.b.origin,
                    )
                )
                return results
            case "scan" | "map_impl":
                return lower_steps(
                    self.b, node, args, lambda around: self._region(places[0], args[0], around)
                )
            case "while_loop" | "while_loop_stack_output":
                _, _, carried, invariants = args
                condition = self._region(places[0], args[0])
                body = self._region(places[1], args[1])
                results = self._results(node)
                self.b.operations.append(
                    WhileOp(
                        self.b.op_name(),
                        condition,
                        body,
                        self._arguments(carried),
                        self._arguments(invariants),
                        tuple(r.buffer for r in results),
                        name == "while_loop_stack_output",
                        self.b.origin,
                    )
                )
                return results
            case "invoke_subgraph":
                region = self._region(places[0], args[0])
                results = self._results(node)
                self.b.operations.append(
                    CallOp(
                        self.b.op_name(),
                        region,
                        self._arguments(args[2:]),
                        tuple(r.buffer for r in results),
                        self.b.origin,
                    )
                )
                return results
        raise self.b.unsupported(
            "GY-LOWER-001",
            f"{name} is not an op of the dispatcher",
            help=BY_PYTORCH,
        )

    def _arguments(self, operands: Any) -> tuple[Any, ...]:
        return tuple(argument(self.b, operand) for operand in operands)

    def _region(self, place: Any, module: Any, around: Around | None = None) -> str:
        if not isinstance(module, GraphModule):
            raise self.b.unsupported("GY-LOWER-001", f"{place} is no graph")
        known = id(module), around
        found = self.programs.get(known)
        if found is None:
            key = str(place.target) if isinstance(place, Node) else str(place)
            name = f"{self.stem}{len(self.programs)}"
            found = self.programs[known] = self.lower(module, name, f"{key}.", around)
        return found.name

    def _results(self, node: Node) -> tuple[TensorValue, ...]:
        fakes = node.meta["val"]
        if not isinstance(fakes, (tuple, list)) or not all(
            isinstance(fake, torch.Tensor) for fake in fakes
        ):
            raise self.b.unsupported(
                "GY-LOWER-011",
                f"{node.target} returns something that is not a tensor",
                help=BY_PYTORCH,
            )
        return tuple(self.b.buffer(self.b.exact_spec(fake)) for fake in fakes)


def _fake(place: Any) -> Any:
    return place.meta["val"] if isinstance(place, Node) else place
