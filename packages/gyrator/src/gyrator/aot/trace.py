"""Compiling an exported program, and deriving the signature of its entry point."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import torch
from attrs import evolve, field
from torch._guards import TracingContext, tracing
from torch.export.graph_signature import ConstantArgument, InputKind, SymIntArgument
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import Mod

from gyrator.aot.conditions import conditions
from gyrator.aot.freezing import Folded, Freezing, input_index
from gyrator.aot.move import cannot_move, move
from gyrator.engine.engine import Engine
from gyrator.engine.pipeline import Stages
from gyrator.frontend.tracing import unguarded_convolutions
from gyrator.graphs.boundary import plain_boundary
from gyrator.graphs.compiled import CompiledGraph, Phase
from gyrator.reports.records import Stopwatch
from gyrator.store.manifest import ProgramManifest
from gyrator.store.programs import Product, attribute
from gyrator_ir.define import define, frozen
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.types import HOST
from gyrator_lowering.torch_bridge.graphs import graph_results
from gyrator_runtime.build import Library
from gyrator_runtime.package.manifest import (
    Dim,
    Entry,
    Input,
    Output,
    PackedInput,
    Source,
    Symbol,
    Weight,
)

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.export.graph_signature import InputSpec

aten = torch.ops.aten
_WeightKind: TypeAlias = Literal["parameter", "buffer", "constant"]
_WEIGHTS: Mapping[InputKind, _WeightKind] = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}
FOLDED = "folded."
"""The prefix of the names of constants, after the name of their entry point and before a number."""
_NOWHERE = -1
_UNBOUNDED = 1 << 62
"""torch's bounds above this mean that a size is unbounded."""


def unpackable(message: str, help: str = "") -> UnsupportedError:
    """Return the error for a program that packages do not support (GY-AOT-001)."""
    return UnsupportedError.of("GY-AOT-001", message, help=help)


@frozen(eq=False)
class CompiledProgram:
    """A graph compiled for a package."""

    graph: torch.fx.GraphModule
    product: Product
    libraries: tuple[Library, ...]

    @property
    def manifest(self) -> ProgramManifest:
        """The manifest of the program."""
        return self.product.manifest

    def constants(self) -> dict[str, torch.Tensor]:
        """Return the tensors that the graph contains, by their names in the program."""
        tensors = {key: attribute(self.graph, key) for key in self.manifest.constants}
        for key, value in tensors.items():
            if not isinstance(value, torch.Tensor):
                raise unpackable(f"the program contains {key}, a {type(value).__name__}")
        return tensors


@frozen(kw_only=True, eq=False)
class PackageEngine(Engine):
    """An engine that collects compiled programs without loading them, since they may be for other
    machines."""

    ranges: Mapping[Any, Any]
    """The ranges of sizes, by torch's symbols."""
    names: Sequence[str]
    """The names of the program's inputs, for its messages."""
    device: torch.device | None = None
    """The device that CPU programs are moved to; None if they run on the CPU."""
    environment: Any
    """torch's `ShapeEnv` of the program; None if its sizes are static."""
    conditions: Mapping[str, torch.SymBool]
    """The conditions between sizes that each call checks, by their text."""
    programs: list[CompiledProgram] = field(factory=list)

    @classmethod
    def of(
        cls,
        engine: Engine,
        program: ExportedProgram,
        environment: Any,
        device: torch.device | None = None,
        conditions: Mapping[str, torch.SymBool] = MappingProxyType({}),
    ) -> Self:
        """Return an engine with the settings of another, for an exported program."""
        names = [spec.arg.name for spec in program.graph_signature.input_specs]
        ranges = program.range_constraints
        return cls(
            context=evolve(engine.context, complete=True),
            packs=engine.packs,
            in_bytes=engine.in_bytes,
            ranges=ranges,
            names=names,
            environment=environment,
            device=device,
            conditions=conditions,
        )

    def compile(
        self, gm: torch.fx.GraphModule, phase: Phase, watch: Stopwatch | None = None
    ) -> CompiledGraph:
        """Compile a graph and store the result; it cannot be called."""
        if plain_boundary(gm) is not None:
            raise unpackable(
                "the program takes or returns symbolic floats, or it returns or writes to a tensor "
                "with the conjugate or negative bit",
                "return the 0-d tensor, or `x.resolve_conj()`",
            )
        if self.device is not None:
            move(gm, self.device)
        self.check(gm)
        for node in gm.graph.find_nodes(op="placeholder"):
            index = input_index(node)
            if index is not None:
                node._rename(self.names[index])  # adds a number if the name is in use
                node.target = node.name
        _insert_assertions(gm.graph, self.conditions)
        with _with_ranges(self.environment, self.ranges):
            watch = watch or self.context.stopwatch()
            product, building = Stages(self.context).product(gm, phase, watch)
        calls = cannot_move(e.target for e in product.manifest.externs) if self.device else ()
        if calls:
            help = f"export it with tensors on {self.device}"
            raise unpackable(f"the program of the CPU calls {', '.join(calls)}", help)
        self.report(product.manifest.externs)
        if product.manifest.user_kernels:
            raise unpackable("the program launches a user's Triton kernel")
        libraries = tuple(
            evolve(lib, device=device)
            for device, part in building.items()
            for lib in part.libraries()
        )
        self.programs.append(CompiledProgram(gm, product, libraries))
        return CompiledGraph(_not_here)


def _insert_assertions(graph: torch.fx.Graph, conditions: Mapping[str, torch.SymBool]) -> None:
    """Check conditions before all else that a graph does."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        for text, condition in conditions.items():
            message = f"the sizes of the arguments do not satisfy {text}"
            check = graph.call_function(aten._assert_scalar.default, (True, message))
            check.update_arg(0, condition)  # `call_function` warns of symbolic arguments


def _not_here(args: list[Any]) -> Sequence[Any]:
    raise RuntimeError("a program that was compiled for a package must be called from the package")


@contextmanager
def _with_ranges(environment: Any, ranges: Mapping[Any, Any]) -> Iterator[None]:
    """Set the ranges of sizes for the duration of the block."""
    if environment is None:
        yield
        return
    before = dict(environment.var_to_range)
    environment.var_to_range.update({s: r for s, r in ranges.items() if s in before})
    try:
        yield
    finally:
        environment.var_to_range.update(before)


@contextmanager
def _without_compound_hints(environment: Any) -> Iterator[None]:
    """Hide the example values of compound sizes, such as `3*s0`, for the duration of the block.

    torch's reader of exported programs adds them, and AOTAutograd rejects them.
    """
    hints = environment.backed_var_to_val
    compound = {size: hint for size, hint in hints.items() if not size.is_Symbol}
    for size in compound:
        del hints[size]
    try:
        yield
    finally:
        hints.update(compound)


@frozen(eq=False)
class Traced:
    """A compiled exported program."""

    program: CompiledProgram
    metadata: Any
    """AOTAutograd's analysis (`ViewAndMutationMeta`)."""
    limits: Mapping[str, int]
    """The maximum sizes for which the program is valid, by symbol, if they are smaller than those
    of the exported program."""
    inputs: tuple[int, ...]
    """Indices of the program's inputs among those of the exported program."""
    folded: Folded | None = None
    """The constants that the program takes after its weights."""


def trace(program: ExportedProgram, engine: Engine, device: torch.device | None = None) -> Traced:
    """Compile an exported program.

    Args:
        program: the exported program, which is not modified.
        engine: the compiler. With its option `freezing`, the program takes constants computed from
            the weights that no call writes; those that it `packs` are packed when a package is
            loaded.
        device: the device to move a CPU program to, if any.

    Raises:
        UnsupportedError: GY-AOT-001, or a refusal of the compiler.
    """
    values = [node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")]
    (results,) = program.graph.output_node().args
    strides = [_strides(r) for r in results]
    mode = next((v.fake_mode for v in values if hasattr(v, "fake_mode")), None)
    environment = None if mode is None else mode.shape_env
    guards = 0 if environment is None else len(environment.guards)
    known = _conditions(program)
    own = PackageEngine.of(engine, program, environment, device, known)
    weights = _constant_weights(program) if own.context.options.freezing else {}
    work = Freezing(
        own,
        own.context.options,
        strides,
        frozenset(weights),
        weights=weights,
        count=sum(spec.kind in _WEIGHTS for spec in program.graph_signature.input_specs),
    )
    with torch.no_grad(), tracing(TracingContext(mode)), ExitStack() as stack:
        if mode is not None and environment is not None:
            stack.enter_context(_with_ranges(environment, _at_least_two(environment)))
            stack.enter_context(_without_compound_hints(environment))
            stack.enter_context(unguarded_convolutions(mode))
        work.run(torch.fx.GraphModule(program.graph_module, deepcopy(program.graph)), values)
    checked = {condition.node.expr for condition in known.values()}
    added = [] if environment is None else environment.guards[guards:]
    limits = size_limits([guard for guard in added if guard.expr not in checked])
    (compiled,) = own.programs
    _check_effects(work.metadata)
    indices = map(input_index, compiled.graph.graph.find_nodes(op="placeholder"))
    inputs = tuple(index for index in indices if index is not None)
    return Traced(compiled, work.metadata, limits, inputs, work.folded)


def _conditions(program: ExportedProgram) -> dict[str, torch.SymBool]:
    try:
        return conditions(program)
    except ValueError as error:
        raise unpackable(
            f"packages cannot check that sizes satisfy {error}, as the program requires",
            "narrow `dynamic_shapes` to such sizes, or make the size static",
        ) from error


def _constant_weights(program: ExportedProgram) -> dict[int, torch.Tensor]:
    """Return the weights that no call writes, by input index."""
    written = set(program.graph_signature.buffers_to_mutate.values())
    return {
        index: _tensor_of(program, spec.target)
        for index, spec in enumerate(program.graph_signature.input_specs)
        if spec.kind in _WEIGHTS and spec.target is not None and spec.target not in written
    }


def trace_folding(
    folded: Folded, engine: Engine, program: ExportedProgram, device: torch.device | None = None
) -> CompiledProgram:
    """Compile the computation of a program's constants; `device` is as for `trace`."""
    own = PackageEngine.of(engine, program, None, device)
    with torch.no_grad():
        own.compile(folded.graph(), "inference")
    (compiled,) = own.programs
    return compiled


def _at_least_two(environment: Any) -> dict[Any, Any]:
    """Return ranges without 0 and 1, like torch's export: otherwise comparisons with these values
    would specialise the program to them.

    The program is compiled for all exported sizes.
    """
    return {
        symbol: type(bounds)(2, bounds.upper)
        for symbol, bounds in environment.var_to_range.items()
        if bounds.lower < 2 <= bounds.upper
    }


def _strides(result: Any) -> Any:
    value = result.meta.get("val") if isinstance(result, torch.fx.Node) else None
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return value.stride()
    return None


def size_limits(guards: Sequence[Any]) -> dict[str, int]:
    """Return the maximum sizes for which guards hold, by symbol.

    Raises UnsupportedError (GY-AOT-001) for a program that is valid only for some smaller sizes.
    """
    exprs = [g.expr for g in guards if str(g.expr) != "True"]
    bounds = [(expr, _bounded(expr)) for expr in exprs]
    unbounded = [str(expr) for expr, bound in bounds if bound is None]
    if unbounded:
        raise unpackable(
            f"the program is compiled only for sizes with {', '.join(unbounded)}",
            "narrow `dynamic_shapes` to such sizes, or make the size static",
        )
    return smallest(dict([bound]) for _, bound in bounds if bound is not None)


def smallest(bounds: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the smallest of the maximum sizes, by symbol."""
    limits: dict[str, int] = {}
    for name, limit in chain.from_iterable(each.items() for each in bounds):
        limits[name] = min(limit, limits.get(name, limit))
    return limits


def _bounded(guard: Any) -> tuple[str, int] | None:
    """Return a symbol and the size up to which a guard holds, for guards that limit the number
    of elements, like those of ops with 32-bit indices; None for other guards."""
    symbols, kind = guard.free_symbols, guard.func.__name__
    if len(symbols) != 1 or kind not in ("StrictLessThan", "LessThan"):
        return None
    (symbol,), (left, right) = symbols, guard.args
    upper = left.replace(Mod, lambda _, divisor: divisor - 1)  # the largest remainder
    slope = upper.coeff(symbol)
    offset = upper - slope * symbol
    linear = slope.is_Integer and offset.is_Integer and right.is_Integer
    if not linear or slope < 1 or any(c < 0 for c in left.as_coefficients_dict().values()):
        return None
    return str(symbol), int((right - offset - (kind == "StrictLessThan")) // slope)


def _check_effects(metadata: Any) -> None:
    for info in metadata.input_info:
        if info.mutates_metadata or info.mutation_type.name == "MUTATED_OUT_GRAPH":
            raise unpackable("the program changes the sizes or the storage of an argument")


def device_of(program: ExportedProgram) -> torch.device:
    """Return the device of an exported program's tensors, the CPU if there is no other.

    Raises UnsupportedError (GY-AOT-001) if there are several.
    """
    values = pytree.tree_leaves([node.meta.get("val") for node in program.graph.nodes])
    devices = {v.device for v in values if isinstance(v, torch.Tensor) and v.device.type != HOST}
    if len(devices) > 1:
        raise unpackable(f"the program uses {', '.join(sorted(map(str, devices)))}")
    return devices.pop() if devices else torch.device(HOST)


def signature(
    name: str, program: ExportedProgram, traced: Traced, device: torch.device, at_load: bool = False
) -> tuple[Entry, dict[str, torch.Tensor], tuple[Weight, ...]]:
    """Return an entry point without programs, its weights, and their descriptions.

    Args:
        name: the name of the entry point.
        program: the exported program.
        traced: the compiled program.
        device: the device that it runs on.
        at_load: whether constants are computed from its weights when the package is loaded, instead
            of stored.

    Raises:
        UnsupportedError: GY-AOT-001 for an argument that cannot be checked at run time.
    """
    specs, folded = program.graph_signature.input_specs, traced.folded
    stays = device_of(program) == device
    packed_weights = set() if folded is None else folded.packed_weights
    needed = range(len(specs)) if at_load else {*traced.inputs, *packed_weights}
    weights = _Weights(hosted=stays and device.type != HOST)
    inputs = _inputs(program, traced, weights, needed, None if stays else device)
    _check_shared(weights.tensors, weights.descriptions)
    targets = {k: spec.target for k, spec in enumerate(specs) if spec.kind in _WEIGHTS}
    weight_names = [str(targets[k]) for k in traced.inputs if k in targets]
    if folded is not None and not at_load:
        constants = {f"{name}/{FOLDED}{k}": value for k, value in enumerate(folded.values())}
        for target, constant in constants.items():
            weights.add(target, "constant", constant)
        weight_names += list(constants)[: folded.count - len(folded.packing)]
    called = program.call_spec
    assert called.in_spec is not None and called.out_spec is not None
    arguments, by_name = pytree.tree_unflatten(range(called.in_spec.num_leaves), called.in_spec)
    module = program.module_call_graph[0].signature
    parameters = module.forward_arg_names if module is not None else None
    entry = Entry(
        name=name,
        weights=tuple(weight_names),
        inputs=tuple(inputs),
        outputs=_outputs(traced, len(targets)),
        symbols=_symbols(inputs, program.range_constraints, traced.limits),
        parameters=tuple(parameters or (*(f"arg{k}" for k in range(len(arguments))), *by_name)),
        positional=len(arguments),
        keywords=tuple(by_name),
        in_spec=_spec_text(called.in_spec),
        out_spec=_spec_text(_without_names(called.out_spec)),
        tokens=len(traced.metadata.tokens),
        programs=(),
        packed=() if folded is None else _packed_inputs(name, folded, targets, at_load),
    )
    return entry, weights.tensors, tuple(weights.descriptions)


@define
class _Weights:
    """The weights of an entry point."""

    hosted: bool
    """Whether weights in host memory stay there while others are on the device."""
    tensors: dict[str, torch.Tensor] = field(factory=dict)
    descriptions: list[Weight] = field(factory=list)

    def add(
        self, target: str, kind: _WeightKind, tensor: torch.Tensor, writes: bool = False
    ) -> None:
        self.tensors[target] = tensor
        hosted = self.hosted and tensor.device.type == HOST
        sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
        self.descriptions.append(
            Weight(target, kind, target, _dtype(tensor), sizes, strides, writes, hosted)
        )


def _inputs(
    program: ExportedProgram,
    traced: Traced,
    weights: _Weights,
    needed: Container[int],
    moved: torch.device | None,
) -> list[Input]:
    """Return the arguments, and add the weights at the positions `needed`; `moved` is the device
    that the program's tensors are moved to."""
    specs = program.graph_signature.input_specs
    values = {n.name: n.meta.get("val") for n in program.graph.find_nodes(op="placeholder")}
    inputs: list[Input] = []
    for k, (spec, info) in enumerate(zip(specs, traced.metadata.input_info, strict=True)):
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(_input(spec, values, info.mutates_data, moved))
        elif spec.kind not in _WEIGHTS or spec.target is None:
            raise unpackable(f"the program takes {spec.arg.name}, a {spec.kind.name.lower()}")
        elif inputs:
            raise unpackable("the program's weights do not precede its arguments")
        elif k in needed:
            tensor = _tensor_of(program, spec.target)
            weights.add(spec.target, _WEIGHTS[spec.kind], tensor, info.mutates_data)
    return inputs


def _spec_text(spec: pytree.TreeSpec) -> str:
    """Return a stored structure of arguments or results."""
    try:
        return pytree.treespec_dumps(spec)
    except NotImplementedError as error:
        message = "the arguments or results are in a structure that cannot be stored"
        help = "pass and return tuples, lists and dictionaries, or name the type: "
        raise unpackable(message, f"{help}{error}") from error


def _without_names(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    """Return a structure with tuples in place of what `torch.sort` and the like return, which torch
    does not store."""
    if not spec.num_children:
        return spec
    parts = [_without_names(part) for part in spec.children()]
    if spec.type in torch.return_types.all_return_types:
        return pytree.TreeSpec(tuple, None, parts)
    return pytree.TreeSpec(spec.type, spec.context, parts)


def _packed_inputs(
    entry: str, folded: Folded, weights: Mapping[int, str | None], at_load: bool
) -> tuple[PackedInput, ...]:
    """Return the inputs that are packed when a package is loaded; `weights` are the names of
    exported inputs."""

    def argument(value: Any) -> Any:
        match value:
            case {"input": int(index)}:
                return Source(weight=str(weights[index]))
            case {"step": int(number)}:
                return Source(constant=number) if at_load else Source(f"{entry}/{FOLDED}{number}")
            case list():
                return tuple(value)
        return value

    return tuple(PackedInput(s.op, tuple(map(argument, s.args))) for s in folded.packing)


def _tensor_of(program: ExportedProgram, name: str) -> torch.Tensor:
    tensor = program.state_dict.get(name)
    if tensor is None:
        tensor = program.constants[name]
    if not isinstance(tensor, torch.Tensor) or tensor.is_meta:
        raise unpackable(f"the weight {name} is not a tensor with data")
    return tensor.detach()


def _check_shared(tensors: Mapping[str, torch.Tensor], weights: Sequence[Weight]) -> None:
    """Check that no weight is written through one name and read through another."""
    written = {tensors[w.name].untyped_storage().data_ptr() for w in weights if w.written}
    storages = [t.untyped_storage().data_ptr() for t in tensors.values()]
    if any(storages.count(s) > 1 for s in written):
        raise unpackable(
            "the program writes to a buffer that shares its memory with another weight"
        )


def _input(
    spec: InputSpec, values: Mapping[str, Any], writes: bool, moved: torch.device | None
) -> Input:
    name = spec.arg.name
    value = values.get(name)
    if isinstance(spec.arg, ConstantArgument):
        constant = spec.arg.value
        if constant is not None and type(constant) not in (bool, int, float, str):
            raise unpackable(f"the argument {name} is a {type(constant).__name__}")
        return Input(name, "constant", value=constant)
    if isinstance(spec.arg, SymIntArgument):
        return Input(name, "integer", shape=(_dim(name, value),))
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise unpackable(f"the argument {name} is not a dense tensor, an integer or a constant")
    return Input(
        name,
        "tensor",
        _dtype(value),
        str(moved or value.device),
        tuple(_dim(name, n) for n in value.shape),
        tuple(map(str, value.stride())),
        writes,
    )


def _dim(name: str, size: Any) -> Dim | int:
    """Return a size in the form in which it is checked: a number, or a linear function of a
    symbol."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    expr = size.node.expr
    if expr.is_number:
        return int(expr)
    symbols = sorted(expr.free_symbols, key=str)
    if len(symbols) == 1 and expr.is_polynomial(symbols[0]):
        offset = expr.subs(symbols[0], 0)
        factor = (expr - offset).coeff(symbols[0])
        linear = expr == factor * symbols[0] + offset
        if linear and factor.is_Integer and offset.is_Integer:
            return Dim(str(symbols[0]), int(factor), int(offset))
    raise unpackable(f"a size of the argument {name} is {expr}, which is not linear in one symbol")


def _symbols(
    inputs: Sequence[Input], ranges: Mapping[Any, Any], narrower: Mapping[str, int]
) -> tuple[Symbol, ...]:
    by_name = {str(s): r for s, r in ranges.items()}
    names = {d.symbol for i in inputs for d in i.shape if isinstance(d, Dim)}
    symbols = []
    for name in sorted(names):
        bounds = by_name.get(name)
        lower = 0 if bounds is None else _bound(bounds.lower)
        limits = (None if bounds is None else _bound(bounds.upper), narrower.get(name))
        upper = min((n for n in limits if n is not None), default=None)
        symbols.append(Symbol(name, max(lower or 0, 0), upper))
    return tuple(symbols)


def _bound(value: Any) -> int | None:
    """Return a bound if it is a finite integer, else None."""
    if not getattr(value, "is_Integer", isinstance(value, int)) or abs(value) >= _UNBOUNDED:
        return None
    return int(value)


def _outputs(traced: Traced, weights: int) -> tuple[Output, ...]:
    """Return the results; `weights` is the number of weights of the exported program."""
    folded = traced.folded
    order = [k for k in traced.inputs if k < weights]
    order += [_NOWHERE] * (0 if folded is None else folded.count)
    order += [k for k in traced.inputs if k >= weights]
    outputs = []
    values = graph_results(traced.program.graph)[len(traced.metadata.tokens) :]
    for info, result in zip(traced.metadata.output_info, values, strict=False):
        value = result.meta.get("val") if isinstance(result, torch.fx.Node) else result
        if info.output_type.name == "is_input":
            if info.base_idx not in order:
                raise unpackable("the program returns a weight that it does not read")
            outputs.append(Output("input", place=order.index(info.base_idx)))
        elif isinstance(value, torch.Tensor):
            shape, strides = map(str, value.shape), map(str, value.stride())
            outputs.append(Output("tensor", _dtype(value), tuple(shape), tuple(strides)))
        else:
            outputs.append(Output("value"))
    return tuple(outputs)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
