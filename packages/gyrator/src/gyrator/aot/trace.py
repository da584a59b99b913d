"""An exported program to products of the compiler, and to the signature of an entry point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from attrs import evolve, field, fields, frozen
from torch._guards import TracingContext, tracing
from torch.export.graph_signature import ConstantArgument, InputKind, SymIntArgument
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import Mod

from gyrator.aot.move import cannot_move, move
from gyrator.engine.compiled import CompiledGraph, Phase
from gyrator.engine.engine import Engine
from gyrator.engine.pipeline import Stages
from gyrator.frontend.aot import Tracing
from gyrator.frontend.boundary import plain_boundary
from gyrator.reports.records import Stopwatch
from gyrator.store.manifest import ProgramManifest
from gyrator.store.programs import Product, attribute
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.types import HOST
from gyrator_runtime.artifact import Library
from gyrator_runtime.package.manifest import Dim, Entry, Input, Output, Symbol, Weight

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.export.graph_signature import InputSpec

_WEIGHTS: Mapping[InputKind, Literal["parameter", "buffer", "constant"]] = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}
_UNBOUNDED = 1 << 62
"""What torch calls sizes without a bound is above this."""


def unpackable(what: str, help: str = "") -> UnsupportedError:
    """Return the error of what a package cannot do (GY-AOT-001)."""
    return UnsupportedError.of("GY-AOT-001", what, help=help)


@frozen(eq=False)
class Made:
    """What the compiler made of a graph."""

    graph: torch.fx.GraphModule
    product: Product
    libraries: tuple[Library, ...]

    @property
    def manifest(self) -> ProgramManifest:
        """What there is to know about the program."""
        return self.product.manifest

    def constants(self) -> dict[str, torch.Tensor]:
        """Return the tensors that the graph holds, by the program's names of them."""
        found = {key: attribute(self.graph, key) for key in self.manifest.constants}
        for key, value in found.items():
            if not isinstance(value, torch.Tensor):
                raise unpackable(f"the program holds {key}, a {type(value).__name__}")
        return found


@frozen(kw_only=True, eq=False)
class PackageEngine(Engine):
    """A compiler that keeps what it makes, and does not load it: it may be for other machines."""

    ranges: Mapping[Any, Any]
    """What sizes may be, by torch's symbols."""
    names: Sequence[str]
    """Of what the program takes, for its messages."""
    place: torch.device | None = None
    """The device that runs what is written for the host; None where that is the host."""
    environment: Any
    """torch's `ShapeEnv` of the program; None for one of fixed sizes."""
    made: list[Made] = field(factory=list)

    @classmethod
    def of(
        cls,
        engine: Engine,
        program: ExportedProgram,
        environment: Any,
        place: torch.device | None = None,
    ) -> Self:
        """Return one with the settings of another, for an exported program."""
        given = {f.name: getattr(engine, f.name) for f in fields(Engine)} | {"complete": True}
        names = [spec.arg.name for spec in program.graph_signature.input_specs]
        ranges = program.range_constraints
        return cls(**given, ranges=ranges, names=names, environment=environment, place=place)

    def compile(
        self, gm: torch.fx.GraphModule, phase: Phase, watch: Stopwatch | None = None
    ) -> CompiledGraph:
        """Compile a graph and keep what becomes of it; it cannot be called."""
        if plain_boundary(gm) is not None:
            raise unpackable(
                "the program takes or returns floats that are known only when it runs, or returns, "
                "or writes to, a tensor that is conjugated or negated when it is read",
                "return the 0-d tensor, or `x.resolve_conj()`",
            )
        if self.place is not None:
            move(gm, self.place)
        self.check(gm)
        given = gm.graph.find_nodes(op="placeholder")
        for node, name in zip(given[len(given) - len(self.names) :], self.names, strict=True):
            node._rename(name)  # with a number where another node has the name
            node.target = node.name
        with _with_ranges(self.environment, self.ranges):
            product, building = Stages(self).product(gm, phase, watch or self.stopwatch())
        calls = cannot_move(e.target for e in product.manifest.externs) if self.place else ()
        if calls:
            help = f"export it with tensors of {self.place}"
            raise unpackable(f"the program of the CPU calls {', '.join(calls)}", help)
        self.report(product.manifest.externs)
        if product.manifest.user_kernels:
            raise unpackable("the program launches a Triton kernel of the user's")
        libraries = tuple(
            evolve(lib, device=device)
            for device, part in building.items()
            for lib in part.libraries()
        )
        self.made.append(Made(gm, product, libraries))
        return CompiledGraph(_not_here)


def _not_here(args: list[Any]) -> Sequence[Any]:
    raise RuntimeError("a program that was compiled for a package is called from there")


@contextmanager
def _with_ranges(environment: Any, ranges: Mapping[Any, Any]) -> Iterator[None]:
    """Let sizes lie in these ranges for the length of the block."""
    if environment is None:
        yield
        return
    before = dict(environment.var_to_range)
    environment.var_to_range.update({s: r for s, r in ranges.items() if s in before})
    try:
        yield
    finally:
        environment.var_to_range.update(before)


@frozen(eq=False)
class Traced:
    """An exported program, compiled."""

    made: Made
    metadata: Any
    """What AOTAutograd found out (`ViewAndMutationMeta`)."""
    most: Mapping[str, int]
    """The largest sizes that the program is right for, by symbol, where it is for fewer than it
    was exported for."""


def trace(program: ExportedProgram, engine: Engine, place: torch.device | None = None) -> Traced:
    """Compile an exported program.

    Args:
        program: it is not changed.
        engine: the compiler.
        place: the device that runs what is written for the host, if that is not the host.

    Raises:
        UnsupportedError: GY-AOT-001, or what the compiler refuses.
    """
    given = [node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")]
    (results,) = program.graph.output_node().args
    strides = [_strides(r) for r in results]
    mode = next((v.fake_mode for v in given if hasattr(v, "fake_mode")), None)
    environment = None if mode is None else mode.shape_env
    guards = 0 if environment is None else len(environment.guards)
    own = PackageEngine.of(engine, program, environment, place)
    work = Tracing(own, own.options, strides)
    with (
        torch.no_grad(),
        tracing(TracingContext(mode)),
        _with_ranges(environment, _at_least_two(environment)),
    ):
        work.run(program.graph_module, given)
    most = {} if environment is None else most_sizes(environment.guards[guards:])
    (made,) = own.made
    _check_effects(work.metadata)
    return Traced(made, work.metadata, most)


def _at_least_two(environment: Any) -> dict[Any, Any]:
    """Return ranges without 0 and 1, as torch has them when it exports: while it traces, to compare
    a size with either would make the program one for that size alone.

    The program is compiled for all sizes that it is exported for.
    """
    ranges = {} if environment is None else environment.var_to_range
    return {
        symbol: type(bounds)(2, bounds.upper)
        for symbol, bounds in ranges.items()
        if bounds.lower < 2 <= bounds.upper
    }


def _strides(result: Any) -> Any:
    value = result.meta.get("val") if isinstance(result, torch.fx.Node) else None
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return value.stride()
    return None


def most_sizes(guards: Sequence[Any]) -> dict[str, int]:
    """Return up to which sizes guards hold, by symbol.

    UnsupportedError (GY-AOT-001) for a program that is right only for some of the sizes below.
    """
    exprs = [g.expr for g in guards if str(g.expr) != "True"]
    bounds = [(expr, _bounded(expr)) for expr in exprs]
    open_ones = [str(expr) for expr, bound in bounds if bound is None]
    if open_ones:
        raise unpackable(
            f"the program is compiled for sizes with {', '.join(open_ones)} alone",
            "narrow `dynamic_shapes` to such sizes, or make the size static",
        )
    return least_of(dict([bound]) for _, bound in bounds if bound is not None)


def least_of(bounds: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the least of the largest sizes, by symbol."""
    found: dict[str, int] = {}
    for name, most in chain.from_iterable(each.items() for each in bounds):
        found[name] = min(most, found.get(name, most))
    return found


def _bounded(guard: Any) -> tuple[str, int] | None:
    """Return a symbol, and up to which size a guard surely holds, for one that says that a number
    of elements is not too large, as ops with indices of 32 bits have it."""
    symbols, kind = guard.free_symbols, guard.func.__name__
    if len(symbols) != 1 or kind not in ("StrictLessThan", "LessThan"):
        return None
    (symbol,), (left, right) = symbols, guard.args
    most = left.replace(Mod, lambda _, divisor: divisor - 1)  # no remainder is larger
    slope = most.coeff(symbol)
    offset = most - slope * symbol
    linear = slope.is_Integer and offset.is_Integer and right.is_Integer
    if not linear or slope < 1 or any(c < 0 for c in left.as_coefficients_dict().values()):
        return None
    return str(symbol), int((right - offset - (kind == "StrictLessThan")) // slope)


def _check_effects(metadata: Any) -> None:
    for info in metadata.input_info:
        if info.mutates_metadata or info.mutation_type.name == "MUTATED_OUT_GRAPH":
            raise unpackable("the program changes the sizes or the memory of what it is given")


def device_of(program: ExportedProgram) -> torch.device:
    """Return the device whose tensors an exported program works on, or else the host.

    UnsupportedError (GY-AOT-001) where there are several.
    """
    values = pytree.tree_leaves([node.meta.get("val") for node in program.graph.nodes])
    devices = {v.device for v in values if isinstance(v, torch.Tensor) and v.device.type != HOST}
    if len(devices) > 1:
        raise unpackable(f"the program works on {', '.join(sorted(map(str, devices)))}")
    return devices.pop() if devices else torch.device(HOST)


def signature(
    name: str, program: ExportedProgram, traced: Traced, device: torch.device
) -> tuple[Entry, dict[str, torch.Tensor], tuple[Weight, ...]]:
    """Return an entry point without programs, its weights, and what there is to know of them.

    Args:
        name: of the entry point.
        program: the exported program.
        traced: what became of it.
        device: what it runs on.

    Raises:
        UnsupportedError: GY-AOT-001 for an argument that cannot be checked when it is called.
    """
    specs = program.graph_signature.input_specs
    values = {n.name: n.meta.get("val") for n in program.graph.find_nodes(op="placeholder")}
    written = [info.mutates_data for info in traced.metadata.input_info]
    stays = device_of(program) == device
    inputs: list[Input] = []
    tensors: dict[str, torch.Tensor] = {}
    weights: list[Weight] = []
    for spec, writes in zip(specs, written, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(_input(spec, values, writes, stays, device))
        elif spec.kind in _WEIGHTS and spec.target is not None:
            found = _tensor_of(program, spec.target)
            tensors[spec.target] = found
            weights.append(
                Weight(
                    spec.target,
                    _WEIGHTS[spec.kind],
                    spec.target,
                    _dtype(found),
                    tuple(found.shape),
                    tuple(found.stride()),
                    writes,
                    hosted=stays and device.type != HOST and found.device.type == HOST,
                )
            )
        else:
            raise unpackable(f"the program takes {spec.arg.name}, a {spec.kind.name.lower()}")
    _check_shared(tensors, weights)
    if any(spec.kind is InputKind.USER_INPUT for spec in specs[: len(weights)]):
        raise unpackable("the program's weights do not come before its arguments")
    called = program.call_spec
    spec = called.in_spec
    assert spec is not None and called.out_spec is not None
    given, by_name = pytree.tree_unflatten(range(spec.num_leaves), spec)
    module = program.module_call_graph[0].signature
    names = module.forward_arg_names if module is not None else None
    parameters = tuple(names or (*(f"arg{k}" for k in range(len(given))), *by_name))
    entry = Entry(
        name=name,
        weights=tuple(w.name for w in weights),
        inputs=tuple(inputs),
        outputs=_outputs(traced),
        symbols=_symbols(inputs, program.range_constraints, traced.most),
        parameters=parameters,
        positional=len(given),
        keywords=tuple(by_name),
        in_spec=pytree.treespec_dumps(spec),
        out_spec=pytree.treespec_dumps(called.out_spec),
        tokens=len(traced.metadata.tokens),
        programs=(),
    )
    return entry, tensors, tuple(weights)


def _tensor_of(program: ExportedProgram, name: str) -> torch.Tensor:
    found = program.state_dict.get(name)
    if found is None:
        found = program.constants[name]
    if not isinstance(found, torch.Tensor) or found.is_meta:
        raise unpackable(f"the weight {name} is no tensor with data")
    return found.detach()


def _check_shared(tensors: Mapping[str, torch.Tensor], weights: Sequence[Weight]) -> None:
    """Refuse weights that are written through one name and read through another."""
    written = {tensors[w.name].untyped_storage().data_ptr() for w in weights if w.written}
    storages = [t.untyped_storage().data_ptr() for t in tensors.values()]
    if any(storages.count(s) > 1 for s in written):
        raise unpackable("the program writes to a buffer whose memory another weight has, too")


def _input(
    spec: InputSpec, values: Mapping[str, Any], writes: bool, stays: bool, device: torch.device
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
        raise unpackable(f"the argument {name} is no dense tensor, integer or constant")
    return Input(
        name,
        "tensor",
        _dtype(value),
        str(value.device if stays else device),
        tuple(_dim(name, n) for n in value.shape),
        tuple(map(str, value.stride())),
        writes,
    )


def _dim(name: str, size: Any) -> Dim | int:
    """Return a size as it is checked: a number, or a symbol times a number plus another."""
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
    raise unpackable(f"a size of the argument {name} is {expr}, which no single symbol decides")


def _symbols(
    inputs: Sequence[Input], ranges: Mapping[Any, Any], narrower: Mapping[str, int]
) -> tuple[Symbol, ...]:
    by_name = {str(s): r for s, r in ranges.items()}
    names = {d.symbol for i in inputs for d in i.shape if isinstance(d, Dim)}
    found = []
    for name in sorted(names):
        bounds = by_name.get(name)
        least = 0 if bounds is None else _bound(bounds.lower)
        limits = (None if bounds is None else _bound(bounds.upper), narrower.get(name))
        most = min((n for n in limits if n is not None), default=None)
        found.append(Symbol(name, max(least or 0, 0), most))
    return tuple(found)


def _bound(value: Any) -> int | None:
    """Return a bound that is an ordinary integer, else None."""
    if not getattr(value, "is_Integer", isinstance(value, int)) or abs(value) >= _UNBOUNDED:
        return None
    return int(value)


def _outputs(traced: Traced) -> tuple[Output, ...]:
    (results,) = traced.made.graph.graph.output_node().args
    found = []
    given = results[len(traced.metadata.tokens) :]  # type: ignore[index]
    for info, result in zip(traced.metadata.output_info, given, strict=False):  # type: ignore[arg-type]
        value = result.meta.get("val") if isinstance(result, torch.fx.Node) else result
        if info.output_type.name == "is_input":
            found.append(Output("input", place=info.base_idx))
        elif isinstance(value, torch.Tensor):
            shape, strides = map(str, value.shape), map(str, value.stride())
            found.append(Output("tensor", _dtype(value), tuple(shape), tuple(strides)))
        else:
            found.append(Output("value"))
    return tuple(found)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
