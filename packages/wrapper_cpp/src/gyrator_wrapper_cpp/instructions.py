"""Emission of simple instructions; `BodyWriter` emits those that contain others, and returns."""

from collections.abc import Mapping
from typing import Any

from gyrator_ir.define import define
from gyrator_ir.host import nodes as h
from gyrator_wrapper_cpp.calls import CallWriter
from gyrator_wrapper_cpp.errors import refusal
from gyrator_wrapper_cpp.text import comment, device, dtype, quoted

_EAGER_NEGATION = frozenset({"", "aten", "prims", "gyrator"})
"""Namespaces of ops that never return real tensors with the negative bit. The caller of a program
resolves that of parameters."""
Lines = list[str]
Compound = h.WithDevice | h.ProfileRange | h.Branch | h.Loop | h.Repeat | h.Return
"""Instructions that `BodyWriter` emits."""


@define
class Frame:
    """The names of one program as members of its frame `f`."""

    calls: CallWriter
    name: str
    """The prefix of the program's functions."""
    kernels: Mapping[str, int]
    constants: Mapping[str, int]
    runners: Mapping[str, str]
    """The function that runs each subprogram."""

    def at(self, name: str) -> str:
        """Format the frame member of a name."""
        return f"f.{self.calls.kinds.member(name)}"

    def size(self, node: Any) -> str:
        """Format a size."""
        return self.calls.size(node)

    def shape(self, i: Any) -> str:
        """Format the sizes and strides of an instruction."""
        return f"{self.calls.size.ints(i.shape)}, {self.calls.size.ints(i.strides)}"

    def compound(self, i: Compound) -> Lines:
        """Emit an instruction that contains others, or returns."""
        raise NotImplementedError

    def instruction(self, i: h.Instruction) -> Lines:
        """Return the lines of an instruction."""
        at, size, calls = self.at, self.size, self.calls
        match i:
            case h.BindSize():
                method = "stride" if i.stride else "size"
                return [f"f.s_{i.symbol.name} = {at(i.tensor)}.{method}({i.dim});"]
            case h.BindParameter():
                return [f"f.s_{i.symbol.name} = gy::int_of({at(i.name)}, {quoted(i.name)});"]
            case h.DefineSymbol():
                return [f"f.s_{i.symbol.name} = {size(i.expr)};"]
            case h.BindConstant():
                handle = f"f.context->constants[{self.constants[i.key]}]"
                return [f"{at(i.name)} = gy::Tensor::borrowed({handle});"]
            case h.Conform():
                return [self._conform(i)]
            case h.Separate():
                tensors, others = (
                    ", ".join(f"&{at(n)}" for n in dict.fromkeys(names))
                    for names in (i.tensors, i.others)
                )
                return [f"gy::separate({{{tensors}}}, {{{others}}});"]
            case h.AssertNoNan():
                what = f"{at(i.tensor)}, {quoted(i.tensor)}, {quoted(i.what)}"
                return [f"gy::assert_finite(f.context, {what});"]
            case h.AssertTrue():
                failure = f'gy::fail(GY_{i.error.name}_ERROR, "%s", {quoted(i.message)});'
                return [f"if (!({size(i.condition)})) {failure}"]
            case h.Allocate():
                where = f"{dtype(i.dtype)}, {device(i.device)}"
                return [f"{at(i.name)} = gy::allocate({self.shape(i)}, {where});"]
            case h.AllocatePool():
                return [f"{at(i.name)} = gy::bytes({size(i.bytes)}, {device(i.device)});"]
            case h.AllocateFromPool():
                place = f"{at(i.pool)}, {size(i.offset)}, {dtype(i.dtype)}"
                return [f"{at(i.name)} = gy::placed({place}, {self.shape(i)});"]
            case h.Free():
                reset = f"{at(i.name)}.reset();"
                return [reset] if calls.kinds.holds(i.name) else []
            case h.Reuse():
                if calls.layouts.same(i):
                    return [f"{at(i.name)} = static_cast<gy::Tensor&&>({at(i.source)});"]
                source = f"{at(i.source)}, {dtype(i.dtype)}"
                return [f"{at(i.name)} = gy::reuse({source}, {self.shape(i)});"]
            case h.View():
                source = f"{at(i.source)}, {dtype(i.dtype)}"
                return [f"{at(i.name)} = gy::view({source}, {self.shape(i)}, {size(i.offset)});"]
            case h.Launch():
                return [self._launch(i)]
            case h.ExternCall():
                return calls.extern(i)
            case h.TmaDescriptor():
                return [self._tma_descriptor(i)]
            case h.TritonLaunch():
                return calls.user_kernel(i)
            case h.Copy():
                blocking = "true" if i.non_blocking else "false"
                return [f"gy::copy({at(i.destination)}, {at(i.source)}, {blocking});"]
            case h.ReadScalar():
                return [f"f.s_{i.symbol.name} = gy::read_scalar({at(i.tensor)});"]
            case h.CollectiveStart():
                return calls.collective(i)
            case h.CollectiveFinish():
                wait = 'c.call("_c10d_functional::wait_tensor", "", "T");'
                return [f"{{ gy::Call<1> c; c.push(gy::tensor({at(i.tensor)})); {wait} }}"]
            case h.CallProgram() | h.CallPartition():
                return calls.program(self.runners[i.program], i)
            case h.Comment():
                return comment(i.text)
            case _:
                return self.compound(i)

    def _conform(self, i: h.Conform) -> str:
        pending = i.dtype.is_complex or i.what.partition(".")[0] not in _EAGER_NEGATION
        where = f"{dtype(i.dtype)}, {device(i.device)}, gy::{i.mend.name}"
        rest = f"{'true' if pending else 'false'}, {quoted(i.tensor)}, {quoted(i.what)}"
        return f"gy::conform({self.at(i.tensor)}, {self.shape(i)}, {where}, {rest});"

    def _launch(self, i: h.Launch) -> str:
        tensors = ", ".join(f"&{self.at(t)}" for t in i.tensors)
        sizes = self.calls.size.ints(i.sizes)
        call = f"gy::launch(f.context, {self.kernels[i.kernel]}, {{{tensors}}}, {sizes});"
        return f"{call}  // {i.kernel}"

    def _tma_descriptor(self, i: h.TmaDescriptor) -> str:
        if not len(i.shape) == len(i.block) <= 8:
            raise refusal("GY-WCPP-005", f"the descriptor {i.name!r} has over 8 dimensions")
        ints = self.calls.size.ints
        stable = "true" if i.stable else "false"
        args = f"{ints(i.shape)}, {ints(i.block)}, {self.size(i.element_bytes)}, {stable}"
        return f"{self.at(i.name)}.set({self.at(i.tensor)}, {args});"
