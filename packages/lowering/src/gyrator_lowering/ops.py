"""Lowering of one op call: by a rule, as a view, or as a call of ATen."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from attrs import field

from gyrator_ir.define import define
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import Const, Expr, contiguous_strides
from gyrator_ir.loop.nodes import Extern, TypeArg
from gyrator_ir.modes import Numerics
from gyrator_ir.target import Capabilities
from gyrator_ir.types import BYTE_FLOATS, HOST, DType
from gyrator_ir.user_code import blamed, is_ours
from gyrator_lowering.bitwise import why_not_bitwise
from gyrator_lowering.builder.capabilities import accessed_buffers, is_complete, missing_capability
from gyrator_lowering.builder.empty import with_checks
from gyrator_lowering.builder.node import BY_PYTORCH
from gyrator_lowering.builder.program import LoopBuilder, each
from gyrator_lowering.builder.slices import SLICES, bind_symbols
from gyrator_lowering.builder.values import Spec, TensorValue
from gyrator_lowering.rules.exact import EXACT_RULES, WIDE_RULES
from gyrator_lowering.rules.extern import LIBRARY, call, is_library_work
from gyrator_lowering.table import FallbackToAten, LoweringTable, Rule
from gyrator_lowering.torch_bridge.dtypes import FROM_TORCH, device_of, extremes, is_in_range
from gyrator_lowering.torch_bridge.facts import facts_of
from gyrator_lowering.torch_bridge.schema import OpInfo, info_of, out_form


@define
class Ops:
    """Lowers the op calls of one graph with the rules of a table."""

    b: LoopBuilder
    table: LoweringTable
    _rules: dict[tuple[str, bool], Rule | None] = field(factory=dict)

    def lower(self, op: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Lower the builder's current node, a call of `op`, and return its value."""
        info = info_of(op)
        fakes = [f for f in each(self.b.node.meta.get("val")) if isinstance(f, torch.Tensor)]
        leaves = list(each((args, kwargs)))
        is_complex = _any_complex(fakes, leaves)
        rule = self._rule(info, is_complex)
        if info.name == "aten._conj.default" and isinstance(args[0], (int, float, complex)):
            return args[0].conjugate()
        if rule is None and info.is_view:
            return self._view(info, args)
        if rule is None:
            library = is_complex and is_library_work(info.name)
            why = f"{info.name} has no rule{' for complex' if is_complex else ''}"
            return self._call(op, args, kwargs, LIBRARY if library else why)
        tensors = [v for v in leaves if isinstance(v, TensorValue)]
        types = dict.fromkeys([(v.dtype, v.device.type) for v in tensors])
        reason = self._why_call(info, args, kwargs, fakes, types)
        if not reason:
            args = self._truncated(info, args)
            exact = self._exact_rule(info)
            tried = [(rule, False)] if exact is None else [(exact, True), (rule, False)]
            for candidate, has_atens_bits in tried:
                result, reason = self._by_rule(info, candidate, has_atens_bits, args, kwargs)
                if not reason:
                    return result
        return self._call(op, args, kwargs, reason)

    def _by_rule(
        self,
        info: OpInfo,
        rule: Rule,
        has_atens_bits: bool,
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> tuple[Any, str]:
        """Return a rule's result, or why the rule cannot be used and nothing was emitted."""
        mark = self.b.mark()
        self.b.reads_empty_view = False
        try:
            result = rule(
                self.b,
                *[self._readable(a) for a in args],
                **{k: self._readable(v) for k, v in kwargs.items()},
            )
            self._check_results(result, self.b.node.meta.get("val"))
            emitted = self.b.operations[mark[1] :]
            self.b.operations[mark[1] :] = with_checks(emitted, partial(facts_of, self.b.symbols))
            if lack := self._missing_capability(mark):
                reason = f"the device's kernels lack {lack}"
            elif self._is_mixed(mark):
                reason = "its tensors are on several devices"
            elif self.b.reads_empty_view:
                reason = "it reads elements of an empty tensor"
            elif not has_atens_bits and (other := self._other_bits(info, mark)):
                reason = f"kernels compute {other} with other bits than ATen"
            else:
                return result, ""
        except FallbackToAten:
            reason = f"{info.name} has no rule for these arguments"
        except UnsupportedError:
            raise
        except Exception as error:  # a rule that fails costs speed, never a result
            failed = f"the rule of {info.name} failed: {blamed(error, rule)}"
            help = REPORT if is_ours(rule) else _CORRECT
            if self.b.options.strict:
                raise self.b.unsupported("GY-LOWER-030", failed, help=help) from error
            reason = f"GY-LOWER-030: {failed}"
        self.b.rewind(mark)
        return None, reason

    def _check_results(self, result: Any, fake: Any) -> None:
        """Raise TypeError unless tensors that a rule returns have the shapes and dtypes of the
        current node's results."""
        if isinstance(fake, list | tuple):
            if not isinstance(result, list | tuple) or len(result) != len(fake):
                raise TypeError(f"it returned {_described(result)} for {len(fake)} results")
            for item, expected in zip(result, fake, strict=True):
                if item is not None:  # a result that nothing reads
                    self._check_results(item, expected)
        elif isinstance(fake, torch.Tensor):
            dtype, shape = self.b.dtype_of(fake), self.b.symbols.sizes(fake.shape)
            fits = isinstance(result, TensorValue) and result.dtype is dtype
            if not (fits and _may_equal(result.shape, shape)):
                expected = _form(dtype, shape)
                raise TypeError(f"it returned {_described(result)}, but the op returns {expected}")

    def _exact_rule(self, info: OpInfo) -> Rule | None:
        """In bitwise mode, return the rule that has the bits of the device's ATen, if there is
        one."""
        if self.b.options.numerics is not Numerics.BITWISE:
            return None
        first = next(iter(each(self.b.node.meta.get("val"))), None)
        if not isinstance(first, torch.Tensor):
            return None
        target = self.b.targets.get(first.device.type)
        if target is None:
            return None
        name, bits = info.name.rpartition(".")[0], target.capabilities.aten_bits
        if f"{name}:16" in bits:
            return WIDE_RULES.get(info.name)
        return EXACT_RULES.get(info.name) if name in bits else None

    def _call(
        self, op: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any], reason: str
    ) -> Any:
        """Call ATen. In bitwise mode, where calls are many, results go into buffers of the program,
        which is faster."""
        fakes = [f for f in each(self.b.node.meta.get("val")) if isinstance(f, torch.Tensor)]
        form = None
        is_bitwise = self.b.options.numerics is Numerics.BITWISE
        if fakes and is_bitwise and (op not in _WRITES_ROWS or fakes[0].is_contiguous()):
            form = out_form(op, fakes[0].device.type)
        if form is None:
            return call(self.b, args, kwargs, reason)
        return call(self.b, args, kwargs, reason, form.name, form.arguments)

    def _is_mixed(self, mark: tuple[int, int]) -> bool:
        """Return whether an operation since `mark` is a kernel that would access several
        devices."""
        nodes = (self.b.node, *self.b.node.all_input_nodes)
        fakes = each([n.meta.get("val") for n in nodes])
        if len({f.device for f in fakes if isinstance(f, torch.Tensor)}) < 2:
            return False
        return any(
            len({self.b.devices[name] for name in accessed_buffers(operation)}) > 1
            for operation in self.b.operations[mark[1] :]
        )

    def _missing_capability(self, mark: tuple[int, int]) -> str:
        """Return a capability that operations since `mark` need and their device's kernels lack."""
        limited = {
            device: target.capabilities
            for device, target in self.b.targets.items()
            if not is_complete(target.capabilities)
        }
        if not limited:
            return ""
        buffers, operations = mark
        new_buffers = islice(self.b.buffers.values(), buffers, None)
        created = {b.name: b.device.type for b in new_buffers}

        def capabilities_of(name: str) -> Capabilities | None:
            external = self.b.external.get(name)
            return limited.get(created.get(name, "") if external is None else external.device.type)

        return missing_capability(self.b.operations[operations:], capabilities_of)

    def _other_bits(self, info: OpInfo, mark: tuple[int, int]) -> str:
        """In bitwise mode, return why the operations since `mark` may give other bits than ATen."""
        if self.b.options.numerics is not Numerics.BITWISE:
            return ""
        return why_not_bitwise(info.name, self.b.operations[mark[1] :])

    def _rule(self, info: OpInfo, complex: bool) -> Rule | None:
        key = (info.name, complex)
        if key not in self._rules:
            self._rules[key] = self.table.find(*key)
        return self._rules[key]

    def _view(self, info: OpInfo, args: list[Any]) -> Any:
        fake = self.b.node.meta["val"]
        if info.returns == 1:
            fake = (fake,)
        sources = [position for position in info.views if position is not None]
        if info.name in SLICES and any(isinstance(a, Expr) for a in args[2:]):
            base: Any = self.b.node.args[0]
            bind_symbols(self.b, info.name, args, base.meta["val"], fake[0])
        if info.name == "aten.select.int":
            self._check_index(*args)
        views = tuple(
            self.b.views(args[source], source, result)
            for source, result in zip(sources, fake, strict=True)
        )
        return views[0] if info.returns == 1 else views

    def _check_index(self, x: TensorValue, dim: int, index: Any) -> None:
        """Refuse a `select` that is out of range, which some fake kernels accept."""
        size = x.shape[dim]
        if not isinstance(size, Const) or not isinstance(index, int):
            return
        if not -size.value <= index < size.value:
            message = f"index {index} is out of range for an axis of {size.value} elements"
            raise self.b.unsupported("GY-LOWER-006", message, help=BY_PYTORCH)

    def _why_call(
        self,
        info: OpInfo,
        args: list[Any],
        kwargs: dict[str, Any],
        fakes: list[torch.Tensor],
        types: Iterable[tuple[DType, str]],
    ) -> str:
        """Return why a node that has a rule must be a call of ATen, or an empty string. `fakes`
        are its results, and `types` are the dtypes of its arguments with their device types."""
        if (why := self.b.options.called.get(self.b.node.name)) is not None:
            return why
        if info.name in self.b.options.extern_ops:
            return f"{info.name} is among the options' extern_ops"
        if kwargs.get("pin_memory"):
            return "page-locked memory is ATen's to allocate"
        if self._overflows(info, args, kwargs):
            return "a number does not fit the dtype of the result"
        moves = info.name.split(".")[1] in _MOVES_BYTES
        for fake in fakes:
            dtype = FROM_TORCH.get(fake.dtype)
            if dtype is None or not self._computes(dtype, fake.device.type, moves):
                return f"kernels on {fake.device.type} do not compute on {fake.dtype}"
        for dtype, device in types:
            if not self._computes(dtype, device, moves):
                return f"kernels on {device} do not compute on {dtype}"
        return ""

    def _overflows(self, info: OpInfo, args: list[Any], kwargs: dict[str, Any]) -> bool:
        """Return whether eager raises because a number overflows the dtype it is converted to, or
        may raise because a tensor's number does. On other devices than the host, whose calls would
        wait for that number, it wraps around."""
        name, fake = info.name.split(".")[1], self.b.node.meta.get("val")
        if not isinstance(fake, torch.Tensor):
            return False
        numbers = args if name in _CONVERTS_NUMBERS else []
        filling = args[-1] if name in _CONVERTS_TENSORS and fake.device.type == HOST else None
        if isinstance(filling, TensorValue):
            numbers = extremes(filling.dtype)
        if name in ("add", "sub", "rsub"):
            numbers = [kwargs.get("alpha")]
        return any(type(n) in (int, float) and not is_in_range(n, fake.dtype) for n in numbers)

    def _truncated(self, info: OpInfo, args: list[Any]) -> list[Any]:
        """Return the arguments with floats as integers, if the op stores them as such."""
        fake = self.b.node.meta.get("val")
        if info.name.split(".")[1] not in _CONVERTS_NUMBERS or not isinstance(fake, torch.Tensor):
            return args
        if fake.dtype is torch.bool or fake.dtype.is_floating_point or fake.dtype.is_complex:
            return args
        return [int(a) if isinstance(a, float) else a for a in args]

    def _computes(self, dtype: DType, device: str, moves: bool) -> bool:
        target = self.b.targets.get(device)
        if dtype in BYTE_FLOATS and not moves:
            return False
        return target is not None and dtype.part in target.capabilities.dtypes

    def _readable(self, value: Any) -> Any:
        """Return an argument as kernels can read it: with its stored element size, on one
        device."""
        if isinstance(value, TensorValue):
            is_readable = value.dtype.part.size == value.stored.size
            return self._moved(value) if is_readable else self._materialized(value)
        if isinstance(value, list):
            return [self._readable(item) for item in value]
        return value

    def _moved(self, value: TensorValue) -> TensorValue:
        """Return 0-d tensors and indices on the device of the results, where eager moves them
        too."""
        if self.b.node.target in _MOVES:
            return value
        fakes = (f for f in each(self.b.node.meta.get("val")) if isinstance(f, torch.Tensor))
        devices = {device_of(f.device) for f in fakes}
        if len(devices) != 1 or value.device in devices:
            return value
        if value.shape and not str(self.b.node.target).startswith(_INDEXED):
            return value
        return self.b.to_device(value, devices.pop())

    def _materialized(self, value: TensorValue) -> TensorValue:
        """Copy a view whose element size differs from the stored one to a buffer of its own
        dtype."""
        spec = Spec(value.dtype, value.device, value.shape, contiguous_strides(value.shape))
        result = self.b.buffer(spec)
        self.b.operations.append(
            Extern(
                self.b.op_name(),
                "aten.clone.default",
                (value.ref,),
                (("memory_format", TypeArg("memory_format", "contiguous_format")),),
                (result.buffer,),
                reason="kernels read elements of the stored size only",
                origins=self.b.origin,
            )
        )
        return result


def _may_equal(one: Sequence[Expr], other: Sequence[Expr]) -> bool:
    """Return whether two shapes are equal for some sizes."""
    return len(one) == len(other) and all(
        a is b or not isinstance(a - b, Const) for a, b in zip(one, other, strict=True)
    )


def _described(result: Any) -> str:
    if isinstance(result, TensorValue):
        return _form(result.dtype, result.shape)
    if isinstance(result, list | tuple):
        return f"({', '.join(map(_described, result))})"
    return repr(result)


def _form(dtype: DType, shape: Sequence[Expr]) -> str:
    return f"{dtype.value}[{', '.join(map(str, shape))}]"


def _any_complex(fakes: Iterable[torch.Tensor], values: Iterable[Any]) -> bool:
    """Return whether a result or an argument of a node is complex."""
    return any(fake.is_complex() for fake in fakes) or any(
        value.dtype.is_complex if isinstance(value, TensorValue) else type(value) is complex
        for value in values
    )


REPORT = "this is a bug of Gyrator: please report it"
_CORRECT = "correct the rule, which is not Gyrator's, or remove it from the session's `rules`"
_WRITES_ROWS = (
    torch.ops.aten._log_softmax_backward_data.default,
    torch.ops.aten._softmax_backward_data.default,
)
"""Ops that write wrong elements of a result that is not contiguous, if it is passed to them."""
_INDEXED = ("aten.index.", "aten.index_put.", "aten._unsafe_index", "aten._index_put_impl")
_MOVES_BYTES = frozenset(
    """
    _to_copy convert_element_type clone copy cat stack where full zeros ones fill empty new_zeros
    new_full zeros_like ones_like full_like constant_pad_nd index index_select gather embedding flip
    repeat roll triu tril select_scatter slice_scatter as_strided_scatter index_put index_copy
    scatter _scaled_mm _scaled_mm_v2
    """.split()
)
"""Ops that move or convert values, and scaled products: all that kernels do with 8-bit floats.
Eager supports little more, and refuses the rest with its own errors."""
_CONVERTS_NUMBERS = frozenset(
    """
    full full_like new_full scalar_tensor fill masked_fill index_fill scatter constant_pad_nd clamp
    clamp_min clamp_max hardtanh threshold logit
    """.split()
)
"""Ops that convert numbers to the dtype of their result."""
_CONVERTS_TENSORS = ("masked_fill", "index_fill")
"""Those that convert the number of a 0-d tensor, their last argument, in the same way."""
_MOVES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
