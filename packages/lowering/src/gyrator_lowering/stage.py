"""The lowering stage: an FX graph in, a Loop IR program out."""

import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from attrs import evolve, field
from torch._functorch._aot_autograd.descriptors import DifferentiableAOTOutput, GradAOTOutput
from torch.fx import GraphModule, Node

from gyrator_ir.checks import takes
from gyrator_ir.deadline import NEVER, Deadline
from gyrator_ir.define import define
from gyrator_ir.diagnostics import Diagnostic, RefusedError, UnsupportedError
from gyrator_ir.expr import Expr
from gyrator_ir.loop.nodes import (
    Buffer,
    Constant,
    Input,
    Literal,
    LoopProgram,
    OpaqueInput,
    Output,
    SizeInput,
    TensorInput,
    TensorRef,
)
from gyrator_ir.target import Target
from gyrator_ir.types import DType
from gyrator_lowering.builder.node import BY_PYTORCH
from gyrator_lowering.builder.program import LoopBuilder, each
from gyrator_lowering.builder.scalars import SymbolicScalars
from gyrator_lowering.builder.trace import ScalarValue
from gyrator_lowering.builder.values import OPAQUE, TensorValue
from gyrator_lowering.default import default_table
from gyrator_lowering.folding import PACKED
from gyrator_lowering.higher_order.control import Regions
from gyrator_lowering.higher_order.functionalized import BufferViews, WrappedOps, is_token
from gyrator_lowering.higher_order.steps import STEP, LoopContext
from gyrator_lowering.ops import REPORT, Ops
from gyrator_lowering.options import LoweringOptions
from gyrator_lowering.table import LoweringTable
from gyrator_lowering.torch_bridge.dtypes import FROM_TORCH
from gyrator_lowering.torch_bridge.facts import facts_of
from gyrator_lowering.torch_bridge.origins import Locator
from gyrator_lowering.torch_bridge.symbols import Symbols
from gyrator_lowering.user_kernels.launches import Launches, is_launch


def lower(
    gm: GraphModule,
    options: LoweringOptions,
    targets: Mapping[str, Target],
    table: LoweringTable | None = None,
    deadline: Deadline = NEVER,
) -> LoopProgram:
    """Lower an AOTAutograd graph of aten ops to Loop IR.

    Args:
        gm: a graph whose nodes carry `meta["val"]`: fake tensors, with static or symbolic sizes.
        options: the options of lowering.
        targets: a target for each device type that occurs in the graph.
        table: the lowering rules; `default_table()` by default.
        deadline: the time by which lowering must finish.

    Raises:
        RefusedError: if nodes cannot be lowered: with a `GY-LOWER-...` diagnostic for each of them,
            so that the caller can run those in PyTorch and compile the rest; or, if the deadline
            passes, with GY-COMPILE-003 for the node that was being lowered.
    """
    takes("lower", gm, GraphModule)
    takes("lower", options, LoweringOptions)
    takes("lower", targets, Mapping)
    rules = default_table() if table is None else table
    return _Lowering.of(gm, options, targets, rules, deadline).run()


@define
class _Lowering:
    """The state of one run of `lower`: the graph, the values of its nodes, and the program so
    far."""

    gm: GraphModule
    b: LoopBuilder
    table: LoweringTable
    deadline: Deadline
    env: dict[Node, Any] = field(factory=dict)
    inputs: list[Input] = field(factory=list)
    constants: dict[str, tuple[Constant, TensorValue]] = field(factory=dict)
    refused: dict[str, Diagnostic] = field(factory=dict)
    """The nodes that cannot be lowered, by name, with the reason."""
    prefix: str = ""
    """The path of this graph from the root module, with a trailing dot."""
    loop: LoopContext | None = None
    """The loop that this graph is the body of, if any."""
    scalars: SymbolicScalars = field(init=False)
    regions: Regions = field(init=False)
    wrapped: WrappedOps = field(init=False)
    launches: Launches = field(init=False)
    ops: Ops = field(init=False)

    @classmethod
    def of(
        cls,
        gm: GraphModule,
        options: LoweringOptions,
        targets: Mapping[str, Target],
        table: LoweringTable,
        deadline: Deadline,
    ) -> "_Lowering":
        symbols = Symbols()
        builder = LoopBuilder(
            options,
            dict(targets),
            symbols=symbols,
            bound_symbols=symbols.bound_symbols,
            locate=Locator().origin,
        )
        return cls(gm, builder, table, deadline)

    def __attrs_post_init__(self) -> None:
        self.scalars = SymbolicScalars(self.b, self.env)
        self.regions = Regions(self.b, self._region)
        self.wrapped = WrappedOps(self.b, BufferViews(self.env))
        self.launches = Launches(self.b, self.wrapped)
        self.ops = Ops(self.b, self.table)

    def _region(
        self, gm: GraphModule, name: str, path: str, loop: LoopContext | None
    ) -> LoopProgram:
        """Lower a graph nested in this one to a program of its own."""
        b = self.b
        options = evolve(b.options, name=name)
        inner = _Lowering.of(gm, options, b.targets, self.table, self.deadline)
        inner.prefix = self.prefix + path
        inner.loop = loop
        if loop is not None:
            inner.b.bound_symbols |= {STEP, *loop.sizes}
        inner.regions.stem = f"{name}_region"
        return inner.run()

    def run(self) -> LoopProgram:
        outputs: tuple[Output, ...] = ()
        failure: Exception | None = None
        last: Node | None = None
        for node in self.gm.graph.nodes:
            if last is not None and self.deadline.past:
                self.refused[last.name] = self.deadline.late(f"lowering {node.name}")
                break
            last = node if node.op == "call_function" else last
            self.b.begin(node)
            mark = self.b.mark()
            try:
                if node.op == "output":
                    outputs = self._outputs(node)
                else:
                    self.env[node] = self._node(node)
                self.b.join(mark[1], outputs)
                if node.op != "placeholder" and self.b.symbols.pending:
                    self.scalars.compute(mark[1], self.inputs)
            except Exception as error:
                self.refused[node.name] = self._refusal(error)
                failure = failure or error
                self.b.rewind(mark)
                self.env[node] = OPAQUE
                with suppress(UnsupportedError):
                    self.env[node] = self._stand_in(node.name, node.meta.get("val"))
                self.b.symbols.pending.clear()
        if self.refused:
            raise RefusedError(self.refused) from failure
        b = self.b
        facts = facts_of(b.symbols)
        if self.loop is not None:
            facts = facts.with_range(STEP, 0, self.loop.count - 1)
        return LoopProgram(
            name=b.options.name,
            inputs=tuple(self.inputs),
            constants=tuple(constant for constant, _ in self.constants.values()),
            buffers=tuple(b.buffers.values()),
            operations=tuple(b.operations),
            outputs=outputs,
            facts=facts,
            origins=tuple(b.origins),
            subprograms=tuple(self.regions.programs.values()),
            user_kernels=tuple(self.launches.kernels.values()),
        )

    def _refusal(self, error: Exception) -> Diagnostic:
        """Return the diagnostic for the current node. Lowering continues, to find all nodes it
        refuses."""
        if isinstance(error, UnsupportedError):
            return error.diagnostic
        failed = f"lowering {self.b.node.target} failed: {type(error).__name__}: {error}"
        return self.b.unsupported("GY-LOWER-030", failed, help=REPORT).diagnostic

    def _stand_in(self, name: str, fake: Any) -> Any:
        """Return a placeholder value for the result of a node that PyTorch computes, for its
        users."""
        if isinstance(fake, torch.Tensor):
            if not self._is_supported(fake):
                return OPAQUE
            return self._existing(self.b.reserve(_identifier(name)), fake)[1]
        if isinstance(fake, (list, tuple)):
            return [self._stand_in(name, item) for item in fake]
        if isinstance(fake, (torch.SymFloat, torch.SymBool)):
            dtype = DType.BOOL if isinstance(fake, torch.SymBool) else DType.F64
            return ScalarValue(dtype, lambda ops: ops.const(0, dtype))
        if isinstance(fake, (int, torch.SymInt)) and not isinstance(fake, bool):
            size = self.b.symbols.size(fake)
            self.b.bound_symbols |= size.free_symbols
            return size
        return OPAQUE if fake is not None else None

    def _is_supported(self, fake: torch.Tensor) -> bool:
        """Return whether a program can hold a tensor of this dtype, layout and device."""
        is_supported = fake.dtype in FROM_TORCH and fake.layout is torch.strided
        return is_supported and fake.device.type in self.b.targets

    def _node(self, node: Node) -> Any:
        for fake in each(node.meta.get("val")) if node.op == "call_function" else ():
            if isinstance(fake, torch.Tensor) and fake.device.type not in self.b.targets:
                raise self.b.unsupported(
                    "GY-TARGET-003",
                    f"no target for device type {fake.device.type!r}",
                    help="`gyrator doctor` shows which targets are installed",
                )
        match node.op:
            case "placeholder":
                return self._placeholder(node)
            case "get_attr":
                return self._attribute(node)
            case "call_function":
                return self._call(node)
        raise self.b.unsupported(
            "GY-LOWER-001",
            f"an FX node of kind {node.op!r} in a graph of aten ops",
            help="pass a graph that AOTAutograd or make_fx traced",
        )

    # Inputs and outputs ---------------------------------------------------------------------

    def _placeholder(self, node: Node) -> Any:
        fake = node.meta.get("val")
        if self.loop is not None:
            stepped = self.loop.input_for(self.b, node, len(self.inputs))
            if stepped is not None:
                self.inputs.append(stepped[0])
                return stepped[1]
        name = self.b.reserve(_identifier(node.name))
        if isinstance(fake, torch.Tensor) and not is_token(node) and self._is_supported(fake):
            with suppress(UnsupportedError):  # sizes that cannot be expressed: an opaque input
                buffer, value = self._existing(name, fake)
                self.inputs.append(TensorInput(buffer, bool(node.meta.get(PACKED))))
                return value
        if isinstance(fake, (int, torch.SymInt)) and not isinstance(fake, bool):
            size = self.b.symbols.size(fake)
            self.b.bound_symbols |= size.free_symbols
            self.inputs.append(SizeInput(size, name))
            return size
        if isinstance(fake, (torch.SymFloat, torch.SymBool)):
            raise self.b.unsupported(
                "GY-LOWER-008",
                f"the input {name} is a run-time {type(fake).__name__}",
                help="pass it to the graph as a 0-d tensor",
            )
        self.inputs.append(OpaqueInput(name))
        if isinstance(fake, torch.Tensor):
            return None if is_token(node) else OPAQUE
        return fake

    def _existing(self, name: str, fake: torch.Tensor) -> tuple[Buffer, TensorValue]:
        """Return the buffer and the view of a tensor that exists before the program runs."""
        return self.b.existing(name, self.b.exact_spec(fake))

    def _attribute(self, node: Node) -> Any:
        key = str(node.target)
        value = operator.attrgetter(key)(self.gm)
        if not isinstance(value, torch.Tensor):
            return value
        if not self._is_supported(value):
            node.meta.setdefault("val", value)
            return OPAQUE
        if key not in self.constants:
            name = self.b.reserve(_identifier(node.name))
            buffer, view = self._existing(name, value)
            self.constants[key] = (Constant(buffer, self.prefix + key), view)
        node.meta.setdefault("val", value)
        return self.constants[key][1]

    def _outputs(self, node: Node) -> tuple[Output, ...]:
        (results,) = node.args
        items: Any = results if isinstance(results, (list, tuple)) else (results,)
        if self.loop is not None:
            values = [self.env.get(item, item) for item in items]
            inputs, outputs = self.loop.finish(self.b, self.inputs, values)
            self.inputs = [*inputs]
            return outputs
        return self._apart(node, items, [self._output(self.env.get(item, item)) for item in items])

    @staticmethod
    def _apart(node: Node, items: Sequence[Any], outputs: list[Output]) -> tuple[Output, ...]:
        """Return the outputs, where each result of the forward pass is an object of its own if it
        is another node than those before: AOTAutograd marks objects as not differentiable, such as
        `y.detach()`, but not `y`. Saved tensors are no results, and gradients of one view stay one
        object: autograd takes those that nobody else holds as they are."""
        twins: dict[Output, dict[Node, int]] = {}
        described = zip(items, outputs, node.meta.get("desc", ()), strict=False)
        for k, (item, out, kind) in enumerate(described):
            is_result = isinstance(kind, DifferentiableAOTOutput)
            if is_result and not isinstance(kind, GradAOTOutput) and isinstance(out, TensorRef):
                known = twins.setdefault(out, {})
                outputs[k] = evolve(out, twin=known.setdefault(item, len(known)))
        return tuple(outputs)

    def _output(self, value: Any) -> Output:
        if isinstance(value, TensorValue):
            return value.ref
        if isinstance(value, Expr):
            return value
        if value is None or isinstance(value, (bool, int, float, complex, str)):
            return Literal(value)
        raise self.b.unsupported(
            "GY-LOWER-007", f"the graph returns a {type(value).__name__}", help=BY_PYTORCH
        )

    # Calls ----------------------------------------------------------------------------------

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Node):
            operand = self.env[value]
            if operand is OPAQUE:
                raise self.b.unsupported(
                    "GY-LOWER-004",
                    f"{self.b.node.target} takes {value.name}, which a program cannot hold",
                    help=BY_PYTORCH,
                )
            return operand
        if isinstance(value, (list, tuple)):
            return [self._argument(item) for item in value]
        if isinstance(value, dict):
            return {key: self._argument(item) for key, item in value.items()}
        return value

    def _call(self, node: Node) -> Any:
        target = node.target
        if target is operator.getitem:
            source, index = node.args
            return self.env[source][index]  # type: ignore[index]
        fake = node.meta.get("val")
        if isinstance(target, torch._ops.OpOverload):
            if target in _FACTS:
                return None
            if target is torch.ops.aten._assert_scalar.default:
                return self.scalars.assertion(node)
            if _is_size(fake) and not self.scalars.reads(target, fake):
                return self.scalars.scalar(node, fake)
            return self._op(node, target)
        if _is_size(fake):
            if target in (operator.floordiv, operator.mod):
                self.scalars.division(node)
            return self.scalars.scalar(node, fake)
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self._higher_order(node, target)
        raise self.b.unsupported(
            "GY-LOWER-001", f"{target} is not an op of the dispatcher", help=BY_PYTORCH
        )

    def _higher_order(self, node: Node, target: torch._ops.HigherOrderOperator) -> Any:
        args = [self._argument(a) for a in node.args]
        kwargs = {k: self._argument(v) for k, v in node.kwargs.items()}
        if is_launch(target):
            return self.launches.call(node, kwargs)
        match target.__name__:
            case "with_effects":
                return self.wrapped.with_effects(node, args, kwargs)
            case "auto_functionalized":
                return self.wrapped.auto_functionalized(node, args[0], kwargs)
            case "auto_functionalized_v2":
                return self.wrapped.auto_functionalized_v2(node, args[0], kwargs)
        return self.regions.call(node, args)

    def _op(self, node: Node, op: torch._ops.OpOverload) -> Any:
        args = [self._argument(a) for a in node.args]
        kwargs = {k: self._argument(v) for k, v in node.kwargs.items()}
        return self.ops.lower(op, args, kwargs)


_FACTS = frozenset(
    {
        torch.ops.aten.sym_constrain_range.default,
        torch.ops.aten.sym_constrain_range_for_size.default,
        torch.ops.aten._assert_tensor_metadata.default,
    }
)
"""Ops that only give the frontend information and compute nothing."""


def _is_size(fake: Any) -> bool:
    return isinstance(fake, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def _identifier(name: str) -> str:
    return name if name.isidentifier() else "x" + "".join(c if c.isalnum() else "_" for c in name)
