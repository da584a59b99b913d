"""Lowering of branches, loops and repeated regions to subprograms."""

from types import NoneType
from typing import Any

import torch
from attrs import evolve, field
from torch.fx import GraphModule, Node

from gyrator_ir.define import define
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import Expr, Sym, SymKind
from gyrator_ir.expr.sympy_bridge import cond_from_sympy
from gyrator_ir.loop.nodes import CallOp, CondOp, LoopProgram, TensorRef, WhileOp
from gyrator_lowering.builder.assumed import require
from gyrator_lowering.builder.node import BY_PYTORCH
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.higher_order import flex_attention
from gyrator_lowering.higher_order.steps import LoopContext, Lower, lower_steps
from gyrator_lowering.rules.extern import argument, produced
from gyrator_lowering.torch_bridge.graphs import fake_of


@define
class Regions:
    """The subprograms of one program; a graph module that occurs twice is lowered once."""

    b: LoopBuilder
    lower: Lower
    stem: str = "region"
    """The prefix of their names; each region has its own for the regions nested in it."""
    programs: dict[tuple[int, LoopContext | None], LoopProgram] = field(factory=dict)

    def call(self, node: Node, args: list[Any]) -> Any:
        """Lower a call of a higher-order op.

        Raises:
            UnsupportedError: GY-LOWER-001 for ops other than `cond`, `while_loop`,
                `while_loop_stack_output`, `scan`, `map_impl` and `invoke_subgraph`; GY-LOWER-011 if
                a region returns something that is not a tensor.
        """
        name = getattr(node.target, "__name__", str(node.target))
        if name in flex_attention.NAMES:
            return flex_attention.lower_call(self.b, self.lower, args)
        match name:
            case "cond":
                return self._cond(node, args)
            case "scan" | "map_impl":
                return lower_steps(
                    self.b, node, args, lambda loop: self._region(node.args[0], args[0], loop)
                )
            case "while_loop" | "while_loop_stack_output":
                return self._while(node, args, stacked=name == "while_loop_stack_output")
            case "invoke_subgraph":
                return self._invoke(node, args)
        raise self.b.unsupported(
            "GY-LOWER-001", f"{name} is not an op of the dispatcher", help=BY_PYTORCH
        )

    def _cond(self, node: Node, args: list[Any]) -> tuple[TensorValue, ...]:
        graphs, (predicate, _, _, operands) = node.args, args
        then, otherwise = self._region(graphs[1], args[1]), self._region(graphs[2], args[2])
        required: list[tuple[Sym, Expr]] = []
        results, outputs = self._results(node, required)
        condition = (
            predicate.ref
            if isinstance(predicate, TensorValue)
            else cond_from_sympy(fake_of(graphs[0]).node.expr)
        )
        name, inputs = self.b.op_name(), self._arguments(operands)
        call = CondOp(name, condition, then, otherwise, inputs, outputs, self.b.origin)
        self._append(call, required)
        return results

    def _while(self, node: Node, args: list[Any], stacked: bool) -> tuple[TensorValue, ...]:
        graphs, (_, _, carried, invariants) = node.args, args
        condition, body = self._region(graphs[0], args[0]), self._region(graphs[1], args[1])
        required: list[tuple[Sym, Expr]] = []
        results, outputs = self._results(node, required)
        name = self.b.op_name()
        state, others = self._arguments(carried), self._arguments(invariants)
        loop = WhileOp(name, condition, body, state, others, outputs, stacked, self.b.origin)
        self._append(loop, required)
        return results

    def _invoke(self, node: Node, args: list[Any]) -> tuple[Any, ...]:
        region = self._region(node.args[0], args[0])
        required: list[tuple[Sym, Expr]] = []
        results, outputs = self._call_results(node, required)
        name, inputs = self.b.op_name(), self._arguments(args[2:])
        self._append(CallOp(name, region, inputs, outputs, self.b.origin), required)
        return results

    def _arguments(self, operands: Any) -> tuple[Any, ...]:
        return tuple(argument(self.b, operand) for operand in operands)

    def _region(self, graph: Any, module: Any, loop: LoopContext | None = None) -> str:
        if not isinstance(module, GraphModule):
            raise self.b.unsupported("GY-LOWER-001", f"{graph} is not a graph")
        cache_key = id(module), loop
        program = self.programs.get(cache_key)
        if program is None:
            key = str(graph.target) if isinstance(graph, Node) else str(graph)
            name = f"{self.stem}{len(self.programs)}"
            whole = self.lower(module, name, f"{key}.", loop)
            tensors = tuple(o for o in whole.outputs if isinstance(o, TensorRef))
            program = self.programs[cache_key] = evolve(whole, outputs=tensors)
        return program.name

    def _results(
        self, node: Node, required: list[tuple[Sym, Expr]]
    ) -> tuple[tuple[TensorValue, ...], tuple[str, ...]]:
        """Return the results of an op and their buffers. Adds sizes to compare once they exist to
        `required`."""
        fakes = node.meta["val"]
        if not isinstance(fakes, (tuple, list)) or not all(
            isinstance(fake, torch.Tensor) for fake in fakes
        ):
            raise self._no_tensor(node)
        results = tuple(self._result(fake, required) for fake in fakes)
        return results, tuple(r.buffer for r in results)

    def _result(self, fake: torch.Tensor, required: list[tuple[Sym, Expr]]) -> TensorValue:
        spec = self.b.exact_spec(fake)
        return evolve(produced(self.b, fake, spec, required), shape=spec.shape)

    def _append(
        self, operation: CondOp | WhileOp | CallOp, required: list[tuple[Sym, Expr]]
    ) -> None:
        self.b.operations.append(operation)
        for symbol, size in required:
            require(self.b, symbol, size)

    def _call_results(
        self, node: Node, required: list[tuple[Sym, Expr]]
    ) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        """Return the results of a repeated region: tensors, and sizes that are known outside of
        it, which its program does not return; and the tensors' buffers."""
        fakes = node.meta["val"]
        if not isinstance(fakes, (tuple, list)):
            raise self._no_tensor(node)
        results: list[Any] = []
        for fake in fakes:
            if isinstance(fake, torch.Tensor):
                results.append(self._result(fake, required))
            elif isinstance(fake, torch.SymInt):
                results.append(self.b.symbols.size(fake))
            elif isinstance(fake, (int, NoneType)):
                results.append(fake)
            else:
                raise self._no_tensor(node)
        symbols = {s for size in results if isinstance(size, Expr) for s in size.free_symbols}
        if any(s.kind is SymKind.UNBACKED for s in symbols - self.b.bound_symbols):
            raise self._no_tensor(node)
        return tuple(results), tuple(r.buffer for r in results if isinstance(r, TensorValue))

    def _no_tensor(self, node: Node) -> UnsupportedError:
        message = f"{node.target} returns something that is not a tensor"
        return self.b.unsupported("GY-LOWER-011", message, help=BY_PYTORCH)
