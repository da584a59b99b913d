"""Calls of ATen by schema, for ops without a rule and for the work of libraries."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve
from torch.utils.flop_counter import flop_registry

from gyrator_ir.expr import Const, Expr, Sym, SymKind
from gyrator_ir.loop.nodes import Arg, Extern, ListArg, Literal, ScalarRead
from gyrator_ir.types import DType
from gyrator_lowering.builder.assumed import assumed, assumed_size, require
from gyrator_lowering.builder.node import BY_PYTORCH
from gyrator_lowering.builder.program import LoopBuilder, each
from gyrator_lowering.builder.trace import ScalarValue
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.table import Rule, TableBuilder
from gyrator_lowering.torch_bridge.dtypes import type_arg
from gyrator_lowering.torch_bridge.schema import OpInfo, info_of

_UNCOUNTED = """
    _int_mm _scaled_mm_v2 _grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2 _weight_int8pack_mm
    _weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int4pack_mm_with_scales_and_zeros
    _dyn_quant_matmul_4bit mv addmv dot vdot linear linear_backward matmul addbmm _addmm_activation
    _trilinear _scaled_dot_product_attention_math _scaled_dot_product_fused_attention_overrideable
    _scaled_dot_product_fused_attention_overrideable_backward
    _scaled_dot_product_flash_attention_for_cpu scaled_dot_product_attention
    _scaled_dot_product_flash_attention_for_cpu_backward
    _cudnn_rnn miopen_rnn mkldnn_rnn_layer mkldnn_rnn_layer_backward
""".split()
_LIBRARY_WORK = frozenset([
    *map(str, flop_registry), *(f"aten.{op}" for op in _UNCOUNTED), "gyrator.lstm_layer",
])  # fmt: skip
"""Ops whose operations torch counts, and others for which it does not."""
_INDEXED = ("aten.index.", "aten.index_put")
MASKS = (DType.BOOL, DType.U8)
"""Dtypes of index tensors that are masks."""
LIBRARY = "library"
"""The reason of calls of dense products, convolutions and attention."""


def argument(b: LoopBuilder, value: Any) -> Arg:
    """Return an argument of a call.

    Raises:
        UnsupportedError: GY-LOWER-004, for a value that calls cannot take.
    """
    if isinstance(value, TensorValue):
        return value.ref
    if type(value) is Const:
        return Literal(value.value)
    if isinstance(value, Expr):
        return value
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return Literal(value)
    if isinstance(value, (list, tuple)):
        return ListArg(tuple(argument(b, item) for item in value))
    if (named_type := type_arg(value)) is not None:
        return named_type
    kind = "a symbolic float" if isinstance(value, ScalarValue) else type(value).__name__
    raise b.unsupported(
        "GY-LOWER-004",
        f"{b.node.target} takes {kind} as an argument, which calls cannot take",
        help="PyTorch runs the op; report the op if it should not",
    )


def by_name(b: LoopBuilder, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that the current node passes, by their names in its schema."""
    return {**dict(zip(info_of(b.node.target).arguments, args, strict=False)), **kwargs}


def call_of(
    b: LoopBuilder, args: Sequence[Any], kwargs: dict[str, Any], results: tuple[str | None, ...]
) -> Extern:
    """Return the current node as a library call with these result buffers."""
    info = info_of(b.node.target)
    return Extern(
        b.op_name(),
        info.name,
        tuple(argument(b, x) for x in args),
        tuple((key, argument(b, x)) for key, x in kwargs.items()),
        results,
        reason=LIBRARY,
        origins=b.origin,
        uncaptured=info.uncaptured,
    )


def call(
    b: LoopBuilder,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    reason: str,
    out: str | None = None,
    out_names: tuple[str, ...] = (),
) -> Any:
    """Emit the current node as a call by its schema, and return its results."""
    info = info_of(b.node.target)
    fakes = b.node.meta.get("val")
    fakes = (fakes,) if info.returns == 1 else tuple(fakes or ())
    values = emit(b, info, args, kwargs, fakes, b.used_results, reason, out, out_names)
    return values[0] if info.returns == 1 else values


def emit(
    b: LoopBuilder,
    info: OpInfo,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    fakes: Sequence[Any],
    used: frozenset[int],
    reason: str,
    out: str | None = None,
    out_names: tuple[str, ...] = (),
    token: TensorValue | None = None,
) -> tuple[Any, ...]:
    """Emit a call of an op by its schema, and return its results, whose specs are those of `fakes`.

    A result that aliases an argument becomes a view of that argument: no storage is ever owned by
    two buffers. A result that is an argument written in place is that argument. Results whose
    indices are not in `used` may stay undefined. A call counts as a write of its `token`, if any,
    so that it is not removed, and calls with the same token stay in order.
    """
    arguments = [*args, *(kwargs.get(name) for name in info.arguments[len(args) :])]
    names: list[Any] = []
    values: list[Any] = []
    required: list[tuple[Sym, Expr]] = []
    for k, fake in enumerate(fakes):
        source = info.results_written[k]
        if source is not None:
            names.append(None)
            values.append(_written(arguments[source]))
        elif (base := info.views[k]) is not None:
            names.append(None)
            values.append(b.views(arguments[base], base, fake))
        else:
            needed = out is not None or info.returns == 1 or k in used
            needed = needed or (isinstance(fake, torch.Tensor) and _binds(b, fake.shape))
            name, value = _result(b, fake, required) if needed else (None, None)
            names.append(name)
            values.append(value)
    if b.options.extern_kernels == "none" and is_library_work(info.name):
        reason = f"GY-LOWER-031: no kernels are generated for this call of {info.name}"
    written = [token, *(t for k in info.writes for t in each(arguments[k]))]
    b.operations.append(
        Extern(
            b.op_name(),
            info.name,
            tuple(argument(b, a) for a in args),
            tuple((name, argument(b, a)) for name, a in kwargs.items()),
            tuple(names),
            out,
            out_names,
            tuple(dict.fromkeys(t.buffer for t in written if isinstance(t, TensorValue))),
            reason,
            b.origin,
            _uncaptured(info, args),
        )
    )
    for symbol, size in required:
        require(b, symbol, size)
    return tuple(values)


def _written(value: Any) -> Any:
    """Return an argument after a call has written it."""
    if isinstance(value, list):
        return [_written(item) for item in value]
    return value.in_memory if isinstance(value, TensorValue) else value


def _uncaptured(info: OpInfo, args: Sequence[Any]) -> str:
    """Return why a call cannot be captured in a device graph; empty if it can.

    For indexing, only masks make the host wait, whatever the op's tags say.
    """
    if not info.name.startswith(_INDEXED):
        return info.uncaptured
    masks = any(isinstance(p, TensorValue) and p.dtype in MASKS for p in args[1])
    return "the host counts the places of a mask" if masks else ""


def is_library_work(op: str) -> bool:
    """Return whether an overload is a dense product, a convolution or attention."""
    return op.rpartition(".")[0] in _LIBRARY_WORK


def new_sizes(b: LoopBuilder, shape: Iterable[Any]) -> set[Sym]:
    """Return the sizes of a result that are known only once it exists."""
    return {
        s
        for s in b.symbols.sizes(shape)
        if isinstance(s, Sym) and s.kind is SymKind.UNBACKED and s not in b.bound_symbols
    }


def _binds(b: LoopBuilder, shape: Sequence[Any]) -> bool:
    """Return whether a result determines sizes that no other result has.

    Of those that nothing uses, an op may return empty tensors instead of what its fake kernel says,
    such as the counts of `unique_consecutive` if they are not asked for.
    """
    value = assumed_size(b, shape)
    return bool(new_sizes(b, shape)) or (value is not None and value not in b.bound_symbols)


def _result(b: LoopBuilder, fake: Any, required: list[tuple[Sym, Expr]]) -> tuple[Any, Any]:
    """Return the name that receives a result, and its value. Adds symbols that the result binds,
    and the values that they must have, to `required`."""
    if fake is None:
        return None, None
    if isinstance(fake, torch.Tensor):
        spec = b.spec(fake)  # some fake kernels return the overlapping strides of an argument
        value = produced(b, fake, spec, required)
        for size in spec.shape:
            if any(
                s.kind is SymKind.UNBACKED and s not in b.bound_symbols for s in size.free_symbols
            ):
                raise b.unsupported(
                    "GY-LOWER-009",
                    f"{b.node.target} returns a tensor of the size {size}, which depends on values "
                    "that nothing before has read",
                    help=BY_PYTORCH,
                )
        return value.buffer, evolve(value, shape=spec.shape)
    if isinstance(fake, (list, tuple)):
        pairs = [_result(b, item, required) for item in fake]
        return tuple(name for name, _ in pairs), [value for _, value in pairs]
    if isinstance(fake, (torch.SymInt, int)) and not isinstance(fake, bool):
        size = b.symbols.size(fake)
        if (known := assumed(b, fake)) is not None:
            return _fresh(b, required, known), size
        if isinstance(size, Sym) and size not in b.bound_symbols:
            b.bound_symbols.add(size)
            return size, size
        return None, size
    raise b.unsupported(
        "GY-LOWER-005",
        f"{b.node.target} returns a {type(fake).__name__}, which a program cannot hold",
        help=BY_PYTORCH,
    )


def produced(
    b: LoopBuilder, fake: torch.Tensor, spec: Spec, required: list[tuple[Sym, Expr]]
) -> TensorValue:
    """Return the buffer that receives a tensor from the current node. Its sizes are symbols where
    torch assumes a value; adds them and the values that they must have to `required`."""
    expected = [assumed(b, size) for size in fake.shape]
    b.bound_symbols.update(new_sizes(b, fake.shape))
    shape = tuple(
        size if value is None else _fresh(b, required, value)
        for size, value in zip(spec.shape, expected, strict=True)
    )
    return b.buffer(evolve(spec, shape=shape))


def _fresh(b: LoopBuilder, required: list[tuple[Sym, Expr]], value: Expr) -> Sym:
    symbol = b.symbols.fresh()
    b.bound_symbols.add(symbol)
    required.append((symbol, value))
    return symbol


def library(out: str | None = None) -> Rule:
    """Return the rule of an op that calls a library, through its out-variant if it has one."""

    def rule(b: LoopBuilder, *args: Any, **kwargs: Any) -> Any:
        names = () if out is None else ("out",)
        return call(b, args, kwargs, LIBRARY, out, names)

    return rule


def left_to_aten(reason: str) -> Rule:
    """Return the rule of an op that is deliberately left to ATen, with the reason."""

    def rule(b: LoopBuilder, *args: Any, **kwargs: Any) -> Any:
        return call(b, args, kwargs, reason)

    return rule


def read_scalar(b: LoopBuilder, x: TensorValue) -> Any:
    """The value of a one-element tensor: an integer waits for the device, a float stays there."""
    fake = b.node.meta["val"]
    size = b.symbols.size(fake) if isinstance(fake, torch.SymInt) else None
    value = assumed(b, fake)
    if value is not None:
        symbol: Expr | None = b.symbols.fresh()
    else:
        symbol = _symbol_of(b, fake) if isinstance(fake, torch.SymBool) else size
    if isinstance(symbol, Sym) and (x.dtype.is_int or x.dtype is DType.BOOL):
        number = x if x.dtype.is_int else b.copy(_only(x), Spec(DType.I64, x.device, (), ()))
        b.bound_symbols.add(symbol)
        b.operations.append(ScalarRead(b.op_name(), number.ref, symbol, b.origin))
        if value is not None:
            require(b, symbol, value)
        if size is not None:
            return size
    saved = b.copy(_only(x), Spec(x.dtype, x.device, (), ()))
    b.scalar_tensors[saved.buffer] = saved
    return ScalarValue(x.dtype, lambda ops: ops.load(saved, ()))


def _only(x: TensorValue) -> TensorValue:
    """Return a tensor of one element without dimensions."""
    return evolve(x, shape=(), strides=())


def _symbol_of(b: LoopBuilder, fake: torch.SymBool) -> Expr | None:
    """Return the integer that stands for a boolean which the current node reads, as conditions and
    sizes may depend on it."""
    symbols: Any = fake.node.expr.free_symbols if b.node.meta.get("unbacked_bindings") else ()
    return next(map(b.symbols.expression, symbols), None)


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    table.rule("aten._local_scalar_dense.default", "aten.item.default")(read_scalar)
