"""Emitters of simple instructions, one function each, in the order of the nodes.

`PLAIN` lists them; `BodyWriter` emits instructions that contain others, and returns.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from attrs import define

from gyrator_ir.host import nodes as h
from gyrator_wrapper_cpp.calls import CallWriter
from gyrator_wrapper_cpp.errors import refusal
from gyrator_wrapper_cpp.text import comment, device, dtype, quoted

_EAGER_NEGATION = frozenset({"", "aten", "prims", "gyrator"})
"""Namespaces of ops that never return real tensors with the negative bit. The caller of a program
resolves that of parameters."""
Lines = list[str]


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


# Inputs and symbols ---------------------------------------------------------------------------


def bind_size(w: Frame, i: h.BindSize) -> Lines:
    """`f.s_s0 = f.t_x.size(0);`"""
    method = "stride" if i.stride else "size"
    return [f"f.s_{i.symbol.name} = {w.at(i.tensor)}.{method}({i.dim});"]


def bind_parameter(w: Frame, i: h.BindParameter) -> Lines:
    """`f.s_s0 = gy::int_of(f.v_n, "n");`"""
    return [f"f.s_{i.symbol.name} = gy::int_of({w.at(i.name)}, {quoted(i.name)});"]


def define_symbol(w: Frame, i: h.DefineSymbol) -> Lines:
    """`f.s_s3 = 2LL*f.s_s0;`"""
    return [f"f.s_{i.symbol.name} = {w.size(i.expr)};"]


def bind_constant(w: Frame, i: h.BindConstant) -> Lines:
    """`f.t_w = gy::Tensor::borrowed(f.context->constants[0]);`"""
    handle = f"f.context->constants[{w.constants[i.key]}]"
    return [f"{w.at(i.name)} = gy::Tensor::borrowed({handle});"]


# Checks ---------------------------------------------------------------------------------------


def conform(w: Frame, i: h.Conform) -> Lines:
    """`gy::conform(f.t_x, {sizes}, {strides}, dtype, device, gy::ALL, true, "x", "mm");`"""
    pending = i.dtype.is_complex or i.what.partition(".")[0] not in _EAGER_NEGATION
    where = f"{dtype(i.dtype)}, {device(i.device)}, gy::{i.mend.name}"
    rest = f"{'true' if pending else 'false'}, {quoted(i.tensor)}, {quoted(i.what)}"
    return [f"gy::conform({w.at(i.tensor)}, {w.shape(i)}, {where}, {rest});"]


def separate(w: Frame, i: h.Separate) -> Lines:
    """`gy::separate({&f.t_b}, {&f.t_x});`"""
    tensors, others = (
        ", ".join(f"&{w.at(n)}" for n in dict.fromkeys(names)) for names in (i.tensors, i.others)
    )
    return [f"gy::separate({{{tensors}}}, {{{others}}});"]


def assert_no_nan(w: Frame, i: h.AssertNoNan) -> Lines:
    """`gy::assert_finite(f.context, f.t_x, "x", "what");`"""
    at = f"{w.at(i.tensor)}, {quoted(i.tensor)}"
    return [f"gy::assert_finite(f.context, {at}, {quoted(i.what)});"]


def assert_true(w: Frame, i: h.AssertTrue) -> Lines:
    """`if (!(condition)) gy::fail(...)`."""
    message = quoted(i.message)
    return [f'if (!({w.size(i.condition)})) gy::fail(GY_RUNTIME_ERROR, "%s", {message});']


# Memory ---------------------------------------------------------------------------------------


def allocate(w: Frame, i: h.Allocate) -> Lines:
    """`f.t_b = gy::allocate({sizes}, {strides}, dtype, device);`"""
    where = f"{dtype(i.dtype)}, {device(i.device)}"
    return [f"{w.at(i.name)} = gy::allocate({w.shape(i)}, {where});"]


def allocate_pool(w: Frame, i: h.AllocatePool) -> Lines:
    """`f.t_pool = gy::bytes(count, device);`"""
    return [f"{w.at(i.name)} = gy::bytes({w.size(i.bytes)}, {device(i.device)});"]


def allocate_from_pool(w: Frame, i: h.AllocateFromPool) -> Lines:
    """`f.t_b = gy::placed(f.t_pool, offset, dtype, {sizes}, {strides});`"""
    at = f"{w.at(i.pool)}, {w.size(i.offset)}, {dtype(i.dtype)}"
    return [f"{w.at(i.name)} = gy::placed({at}, {w.shape(i)});"]


def free(w: Frame, i: h.Free) -> Lines:
    """`f.t_b.reset();`"""
    text = f"{w.at(i.name)}.reset();"
    return [text] if w.calls.kinds.holds(i.name) else []


def reuse(w: Frame, i: h.Reuse) -> Lines:
    """`f.t_b = gy::reuse(f.t_a, dtype, {sizes}, {strides});`, or a move of the same layout."""
    if w.calls.layouts.same(i):
        return [f"{w.at(i.name)} = static_cast<gy::Tensor&&>({w.at(i.source)});"]
    of = f"{w.at(i.source)}, {dtype(i.dtype)}"
    return [f"{w.at(i.name)} = gy::reuse({of}, {w.shape(i)});"]


def view(w: Frame, i: h.View) -> Lines:
    """`f.t_v = gy::view(f.t_x, dtype, {sizes}, {strides}, offset);`"""
    of = f"{w.at(i.source)}, {dtype(i.dtype)}"
    return [f"{w.at(i.name)} = gy::view({of}, {w.shape(i)}, {w.size(i.offset)});"]


# Work -----------------------------------------------------------------------------------------


def launch(w: Frame, i: h.Launch) -> Lines:
    """`gy::launch(f.context, 0, {&tensors}, {sizes});`"""
    tensors = ", ".join(f"&{w.at(t)}" for t in i.tensors)
    sizes = w.calls.size.ints(i.sizes)
    call = f"gy::launch(f.context, {w.kernels[i.kernel]}, {{{tensors}}}, {sizes});"
    return [f"{call}  // {i.kernel}"]


def tma_descriptor(w: Frame, i: h.TmaDescriptor) -> Lines:
    """`f.d_d.set(f.t_x, {shape}, {block}, element_bytes, stable);`"""
    if not len(i.shape) == len(i.block) <= 8:
        raise refusal("GY-WCPP-005", f"the descriptor {i.name!r} has over 8 dimensions")
    ints = w.calls.size.ints
    stable = "true" if i.stable else "false"
    args = f"{ints(i.shape)}, {ints(i.block)}, {w.size(i.element_bytes)}, {stable}"
    return [f"{w.at(i.name)}.set({w.at(i.tensor)}, {args});"]


def copy(w: Frame, i: h.Copy) -> Lines:
    """`gy::copy(f.t_to, f.t_from, non_blocking);`"""
    blocking = "true" if i.non_blocking else "false"
    return [f"gy::copy({w.at(i.destination)}, {w.at(i.source)}, {blocking});"]


def read_scalar(w: Frame, i: h.ReadScalar) -> Lines:
    """`f.s_u0 = gy::read_scalar(f.t_x);`"""
    return [f"f.s_{i.symbol.name} = gy::read_scalar({w.at(i.tensor)});"]


def collective_finish(w: Frame, i: h.CollectiveFinish) -> Lines:
    """`_c10d_functional::wait_tensor` on the tensor, which is also the result."""
    pushed = f"c.push(gy::tensor({w.at(i.tensor)}));"
    return [f'{{ gy::Call<1> c; {pushed} c.call("_c10d_functional::wait_tensor", "", "T"); }}']


PLAIN: Mapping[type, Callable[[Frame, Any], Lines]] = MappingProxyType({
    h.BindSize: bind_size, h.BindParameter: bind_parameter, h.DefineSymbol: define_symbol,
    h.BindConstant: bind_constant, h.Conform: conform, h.Separate: separate,
    h.AssertNoNan: assert_no_nan, h.AssertTrue: assert_true, h.Allocate: allocate,
    h.AllocatePool: allocate_pool, h.AllocateFromPool: allocate_from_pool, h.Free: free,
    h.Reuse: reuse, h.View: view, h.Launch: launch, h.TmaDescriptor: tma_descriptor, h.Copy: copy,
    h.ReadScalar: read_scalar, h.CollectiveFinish: collective_finish,
    h.ExternCall: lambda w, i: w.calls.extern(i),
    h.TritonLaunch: lambda w, i: w.calls.user_kernel(i),
    h.CollectiveStart: lambda w, i: w.calls.collective(i),
    h.CallProgram: lambda w, i: w.calls.program(w.runners[i.program], i),
    h.CallPartition: lambda w, i: w.calls.program(w.runners[i.program], i),
    h.Comment: lambda w, i: comment(i.text),
})  # fmt: skip
"""The emitter function of each simple instruction."""
