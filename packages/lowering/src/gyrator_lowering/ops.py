"""One call of an op: by a rule, as a view, or as a call of ATen."""

from functools import partial
from itertools import islice
from typing import Any

import torch
from attrs import define, field

from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.expr import Const, Expr
from gyrator_ir.loop.nodes import Extern, TypeArg
from gyrator_ir.modes import Numerics
from gyrator_ir.target import Capabilities
from gyrator_ir.types import BYTE_FLOATS, DType
from gyrator_lowering.bitwise import other_bits
from gyrator_lowering.builder.capabilities import complete, missing, touched
from gyrator_lowering.builder.empty import with_checks
from gyrator_lowering.builder.node import BY_PYTORCH
from gyrator_lowering.builder.program import LoopBuilder, each
from gyrator_lowering.builder.slices import SLICES, bind_symbols
from gyrator_lowering.builder.values import Spec, TensorValue, contiguous_strides
from gyrator_lowering.rules.extern import LIBRARY, call, is_library_work
from gyrator_lowering.table import FallbackToAten, LoweringTable, Rule
from gyrator_lowering.torch_bridge.dtypes import FROM_TORCH, device_of
from gyrator_lowering.torch_bridge.facts import facts_of
from gyrator_lowering.torch_bridge.schema import OpInfo, info_of, out_form


@define
class Ops:
    """Lowers the ops of one graph by the rules of a table."""

    b: LoopBuilder
    table: LoweringTable
    _rules: dict[tuple[str, bool], Rule | None] = field(factory=dict)

    def lower(self, op: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Lower the builder's current node, a call of `op`; return what it became."""
        info = info_of(op)
        rule = self._rule(info, self._is_complex(args, kwargs))
        if info.name == "aten._conj.default" and isinstance(args[0], (int, float, complex)):
            return args[0].conjugate()
        if rule is None and info.is_view:
            return self._view(info, args)
        reason = self._why_call(info, rule, args, kwargs)
        if not reason and rule is not None:
            mark = self.b.mark()
            self.b.of_empty = False
            try:
                result = rule(
                    self.b,
                    *[self._ready(a) for a in args],
                    **{k: self._ready(v) for k, v in kwargs.items()},
                )
                made = self.b.operations[mark[1] :]
                self.b.operations[mark[1] :] = with_checks(made, partial(facts_of, self.b.symbols))
                if lack := self._lack(mark):
                    reason = f"the device's kernels lack {lack}"
                elif self._is_mixed(mark):
                    reason = "its tensors lie on several devices"
                elif self.b.of_empty:
                    reason = "it takes elements of a tensor that has none"
                elif other := self._other_bits(info, mark):
                    reason = f"kernels compute {other} with other bits than ATen"
                else:
                    return result
            except FallbackToAten:
                reason = f"{info.name} has no rule for these arguments"
            except UnsupportedError:
                raise
            except Exception as error:  # a rule that fails costs speed, never a result
                failed = f"the rule of {info.name} failed: {type(error).__name__}: {error}"
                if self.b.options.strict:
                    raise self.b.unsupported("GY-LOWER-030", failed, help=REPORT) from error
                reason = f"GY-LOWER-030: {failed}"
            self.b.rewind(mark)
        return self._call(op, args, kwargs, reason)

    def _call(
        self, op: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any], reason: str
    ) -> Any:
        """Call ATen; into memory of the program, which is quicker, where calls are many."""
        fakes = [f for f in each(self.b.node.meta.get("val")) if isinstance(f, torch.Tensor)]
        form = None
        if fakes and self.b.options.numerics is Numerics.BITWISE:
            form = out_form(op, fakes[0].device.type)
        if form is None:
            return call(self.b, args, kwargs, reason)
        return call(self.b, args, kwargs, reason, form.name, form.arguments)

    def _is_mixed(self, mark: tuple[int, int]) -> bool:
        """Whether an operation since `mark` is a kernel that would touch several devices."""
        nodes = (self.b.node, *self.b.node.all_input_nodes)
        fakes = each([n.meta.get("val") for n in nodes])
        if len({f.device for f in fakes if isinstance(f, torch.Tensor)}) < 2:
            return False
        return any(
            len({self.b.devices[name] for name in touched(operation)}) > 1
            for operation in self.b.operations[mark[1] :]
        )

    def _lack(self, mark: tuple[int, int]) -> str:
        """Return what the operations since `mark` need and their device's kernels lack."""
        poor = {
            device: target.capabilities
            for device, target in self.b.targets.items()
            if not complete(target.capabilities)
        }
        if not poor:
            return ""
        buffers, operations = mark
        made = islice(self.b.buffers.values(), buffers, None)
        created = {b.name: b.device.type for b in made}

        def offered(name: str) -> Capabilities | None:
            given = self.b.given.get(name)
            return poor.get(created.get(name, "") if given is None else given.device.type)

        return missing(self.b.operations[operations:], offered)

    def _other_bits(self, info: OpInfo, mark: tuple[int, int]) -> str:
        """Return what of the operations since `mark` may have other bits than ATen's result, where
        that matters."""
        if self.b.options.numerics is not Numerics.BITWISE:
            return ""
        return other_bits(info.name, self.b.operations[mark[1] :])

    def _rule(self, info: OpInfo, complex: bool) -> Rule | None:
        key = (info.name, complex)
        if key not in self._rules:
            self._rules[key] = self.table.find(*key)
        return self._rules[key]

    def _is_complex(self, args: list[Any], kwargs: dict[str, Any]) -> bool:
        """Whether an argument or a result of the current node is complex."""
        for fake in each(self.b.node.meta.get("val")):
            if isinstance(fake, torch.Tensor) and fake.is_complex():
                return True
        return any(
            value.dtype.is_complex if isinstance(value, TensorValue) else type(value) is complex
            for value in each((args, kwargs))
        )

    def _view(self, info: OpInfo, args: list[Any]) -> Any:
        fake = self.b.node.meta["val"]
        if info.returns == 1:
            fake = (fake,)
        places = [place for place in info.views if place is not None]
        if info.name in SLICES and any(isinstance(a, Expr) for a in args[2:]):
            given: Any = self.b.node.args[0]
            bind_symbols(self.b, info.name, args, given.meta["val"], fake[0])
        if info.name == "aten.select.int":
            self._require_place(*args)
        views = tuple(
            self.b.views(args[place], place, one) for place, one in zip(places, fake, strict=True)
        )
        return views[0] if info.returns == 1 else views

    def _require_place(self, x: TensorValue, dim: int, place: Any) -> None:
        """Refuse the selection of a place that there is not, which some fake kernels take."""
        size = x.shape[dim]
        if not isinstance(size, Const) or not isinstance(place, int):
            return
        if not -size.value <= place < size.value:
            message = f"place {place} of an axis of {size.value} elements"
            raise self.b.unsupported("GY-LOWER-006", message, help=BY_PYTORCH)

    def _why_call(
        self, info: OpInfo, rule: Rule | None, args: list[Any], kwargs: dict[str, Any]
    ) -> str:
        """Return why the node must be a call of ATen, or an empty string."""
        if rule is None:
            if not self._is_complex(args, kwargs):
                return f"{info.name} has no rule"
            return LIBRARY if is_library_work(info.name) else f"{info.name} has no rule for complex"
        if (why := self.b.options.called.get(self.b.node.name)) is not None:
            return why
        if info.name in self.b.options.extern_ops:
            return f"{info.name} is among the options' extern_ops"
        if kwargs.get("pin_memory"):
            return "page-locked memory is ATen's to allocate"
        moves = info.name.split(".")[1] in _MOVES_BYTES
        for fake in each(self.b.node.meta.get("val")):
            if isinstance(fake, torch.Tensor):
                dtype = FROM_TORCH.get(fake.dtype)
                if dtype is None or not self._computes(dtype, fake.device.type, moves):
                    return f"kernels on {fake.device.type} do not compute on {fake.dtype}"
        for value in each((args, kwargs)):
            if isinstance(value, TensorValue) and not self._computes(
                value.dtype, value.device.type, moves
            ):
                return f"kernels on {value.device.type} do not compute on {value.dtype}"
        return ""

    def _computes(self, dtype: DType, device: str, moves: bool) -> bool:
        target = self.b.targets.get(device)
        if dtype in BYTE_FLOATS and not moves:
            return False
        return target is not None and dtype.part in target.capabilities.dtypes

    def _ready(self, value: Any) -> Any:
        """Return an argument as kernels can read it: no change of element size, on one device."""
        if isinstance(value, TensorValue):
            return (
                self._moved(value)
                if value.dtype.part.size == value.stored.size
                else (self._materialised(value))
            )
        if isinstance(value, list):
            return [self._ready(item) for item in value]
        return value

    def _moved(self, value: TensorValue) -> TensorValue:
        """Return numbers, and indices, on the device of the results, as eager moves them there."""
        if self.b.node.target in _MOVES:
            return value
        fakes = (f for f in each(self.b.node.meta.get("val")) if isinstance(f, torch.Tensor))
        devices = {device_of(f.device) for f in fakes}
        if len(devices) != 1 or value.device in devices:
            return value
        if value.shape and not str(self.b.node.target).startswith(_INDEXED):
            return value
        return self.b.moved(value, devices.pop())

    def _materialised(self, value: TensorValue) -> TensorValue:
        """Copy a view that reads elements of another size to a buffer of its own type."""
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


REPORT = "this is a bug of Gyrator: please report it"
_INDEXED = ("aten.index.", "aten.index_put.", "aten._unsafe_index", "aten._index_put_impl")
_MOVES_BYTES = frozenset(
    """
    _to_copy convert_element_type clone copy cat stack where full zeros ones fill empty new_zeros
    new_full zeros_like ones_like full_like constant_pad_nd index index_select gather embedding flip
    repeat roll triu tril select_scatter slice_scatter as_strided_scatter index_put index_copy
    scatter _scaled_mm _scaled_mm_v2
    """.split()
)
"""Ops that move or convert values, and products of them: all that kernels do with floats of 8 bits,
as eager does little more, and refuses the rest with errors of its own."""
_MOVES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
