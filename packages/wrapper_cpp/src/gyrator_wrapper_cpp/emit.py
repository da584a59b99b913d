"""One method an instruction. `BodyWriter.WRITERS` lists them; a test holds it complete."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar

from attrs import define, field

from gyrator_ir.expr import Cond
from gyrator_ir.host import nodes as h
from gyrator_ir.host.walk import bound, freed
from gyrator_wrapper_cpp.calls import CallWriter
from gyrator_wrapper_cpp.errors import refusal
from gyrator_wrapper_cpp.kinds import Kind, leaves
from gyrator_wrapper_cpp.text import comment, device, dtype, quoted
from gyrator_wrapper_cpp.units import Function

PART = 120
"""Lines in a function, more or less: longer sequences are cut into functions."""

_KNOWN = frozenset({"", "aten", "prims", "gyrator"})
"""Namespaces of ops that give no real numbers whose negation is still to be done. Whoever calls a
program sees to that of parameters."""
Lines = list[str]


@define
class BodyWriter:
    """Writes sequences of instructions of one program, on its frame `f`."""

    calls: CallWriter
    name: str
    """A prefix of the program's functions."""
    kernels: Mapping[str, int]
    constants: Mapping[str, int]
    runners: Mapping[str, str]
    """The function that runs each subprogram."""
    functions: list[Function] = field(factory=list)
    """The functions that sequences were cut into, before the ones that call them."""
    parts: int = 0

    def sequence(self, instructions: Iterable[h.Instruction], before: Iterable[str] = ()) -> Lines:
        """Write instructions in order; cut into calls of functions when there are many lines.

        Lines in `before` come first.
        """
        groups: list[Lines] = [[]]
        pieces = chain.from_iterable(self._pieces(i) for i in instructions)
        for lines in chain(([line] for line in before), pieces):
            if groups[-1] and len(groups[-1]) + len(lines) > PART:
                groups.append([])
            groups[-1].extend(lines)
        if len(groups) == 1:
            return groups[0]
        return [self._function(lines) for lines in groups]

    def _pieces(self, i: h.Instruction) -> Iterator[Lines]:
        """Yield what must stay together of an instruction's lines."""
        if isinstance(i, h.Return):
            yield from self._outputs(i)
        else:
            yield self.WRITERS[type(i)](self, i)

    def _function(self, lines: Lines) -> str:
        function = f"{self.name}_part{self.parts}"
        self.parts += 1
        self.functions.append(Function(function, f"{self.name}_frame& f", tuple(lines)))
        return f"{function}(f);"

    def at(self, name: str) -> str:
        """Write the member for a name."""
        return f"f.{self.calls.kinds.member(name)}"

    def size(self, node: Any) -> str:
        """Write a size."""
        return self.calls.size(node)

    def _shape(self, i: Any) -> str:
        return f"{self.calls.size.ints(i.shape)}, {self.calls.size.ints(i.strides)}"

    # Inputs and symbols

    def bind_size(self, i: h.BindSize) -> Lines:
        """`f.s_s0 = f.t_x.size(0);`"""
        method = "stride" if i.stride else "size"
        return [f"f.s_{i.symbol.name} = {self.at(i.tensor)}.{method}({i.dim});"]

    def bind_parameter(self, i: h.BindParameter) -> Lines:
        """`f.s_s0 = gy::int_of(f.v_n, "n");`"""
        return [f"f.s_{i.symbol.name} = gy::int_of({self.at(i.name)}, {quoted(i.name)});"]

    def define_symbol(self, i: h.DefineSymbol) -> Lines:
        """`f.s_s3 = 2LL*f.s_s0;`"""
        return [f"f.s_{i.symbol.name} = {self.size(i.expr)};"]

    def bind_constant(self, i: h.BindConstant) -> Lines:
        """`f.t_w = gy::Tensor::borrowed(f.context->constants[0]);`"""
        handle = f"f.context->constants[{self.constants[i.key]}]"
        return [f"{self.at(i.name)} = gy::Tensor::borrowed({handle});"]

    # Checks

    def conform(self, i: h.Conform) -> Lines:
        """`gy::conform(f.t_x, {sizes}, {strides}, dtype, device, gy::ALL, true, "x", "mm");`"""
        pending = i.dtype.is_complex or i.what.partition(".")[0] not in _KNOWN
        where = f"{dtype(i.dtype)}, {device(i.device)}, gy::{i.mend.name}"
        rest = f"{'true' if pending else 'false'}, {quoted(i.tensor)}, {quoted(i.what)}"
        return [f"gy::conform({self.at(i.tensor)}, {self._shape(i)}, {where}, {rest});"]

    def separate(self, i: h.Separate) -> Lines:
        """`gy::separate({&f.t_b}, {&f.t_x});`"""
        tensors, others = (
            ", ".join(f"&{self.at(n)}" for n in dict.fromkeys(names))
            for names in (i.tensors, i.others)
        )
        return [f"gy::separate({{{tensors}}}, {{{others}}});"]

    def assert_no_nan(self, i: h.AssertNoNan) -> Lines:
        """`gy::assert_finite(f.context, f.t_x, "x", "what");`"""
        at = f"{self.at(i.tensor)}, {quoted(i.tensor)}"
        return [f"gy::assert_finite(f.context, {at}, {quoted(i.what)});"]

    def assert_true(self, i: h.AssertTrue) -> Lines:
        """`if (!(condition)) gy::fail(...)`."""
        message = quoted(i.message)
        return [f'if (!({self.size(i.condition)})) gy::fail(GY_RUNTIME_ERROR, "%s", {message});']

    # Memory

    def allocate(self, i: h.Allocate) -> Lines:
        """`f.t_b = gy::allocate({sizes}, {strides}, dtype, device);`"""
        where = f"{dtype(i.dtype)}, {device(i.device)}"
        return [f"{self.at(i.name)} = gy::allocate({self._shape(i)}, {where});"]

    def allocate_pool(self, i: h.AllocatePool) -> Lines:
        """`f.t_pool = gy::bytes(count, device);`"""
        return [f"{self.at(i.name)} = gy::bytes({self.size(i.bytes)}, {device(i.device)});"]

    def allocate_from_pool(self, i: h.AllocateFromPool) -> Lines:
        """`f.t_b = gy::placed(f.t_pool, offset, dtype, {sizes}, {strides});`"""
        at = f"{self.at(i.pool)}, {self.size(i.offset)}, {dtype(i.dtype)}"
        return [f"{self.at(i.name)} = gy::placed({at}, {self._shape(i)});"]

    def free(self, i: h.Free) -> Lines:
        """`f.t_b.reset();`"""
        text = f"{self.at(i.name)}.reset();"
        return [text] if self.calls.kinds.holds(i.name) else []

    def reuse(self, i: h.Reuse) -> Lines:
        """`f.t_b = gy::reuse(f.t_a, dtype, {sizes}, {strides});`, or a move of the same layout."""
        if self.calls.layouts.same(i):
            return [f"{self.at(i.name)} = static_cast<gy::Tensor&&>({self.at(i.source)});"]
        of = f"{self.at(i.source)}, {dtype(i.dtype)}"
        return [f"{self.at(i.name)} = gy::reuse({of}, {self._shape(i)});"]

    def view(self, i: h.View) -> Lines:
        """`f.t_v = gy::view(f.t_x, dtype, {sizes}, {strides}, offset);`"""
        of = f"{self.at(i.source)}, {dtype(i.dtype)}"
        return [f"{self.at(i.name)} = gy::view({of}, {self._shape(i)}, {self.size(i.offset)});"]

    # Work

    def launch(self, i: h.Launch) -> Lines:
        """`gy::launch(f.context, 0, {&tensors}, {sizes});`"""
        tensors = ", ".join(f"&{self.at(t)}" for t in i.tensors)
        sizes = self.calls.size.ints(i.sizes)
        call = f"gy::launch(f.context, {self.kernels[i.kernel]}, {{{tensors}}}, {sizes});"
        return [f"{call}  // {i.kernel}"]

    def extern_call(self, i: h.ExternCall) -> Lines:
        """A call through the dispatcher."""
        return self.calls.extern(i)

    def tma_descriptor(self, i: h.TmaDescriptor) -> Lines:
        """`f.d_d.set(f.t_x, {shape}, {block}, element_bytes, stable);`"""
        if not len(i.shape) == len(i.block) <= 8:
            raise refusal("GY-WCPP-005", f"the descriptor {i.name!r} has over 8 dimensions")
        ints = self.calls.size.ints
        stable = "true" if i.stable else "false"
        args = f"{ints(i.shape)}, {ints(i.block)}, {self.size(i.element_bytes)}, {stable}"
        return [f"{self.at(i.name)}.set({self.at(i.tensor)}, {args});"]

    def triton_launch(self, i: h.TritonLaunch) -> Lines:
        """A call of the hook `launch_user`."""
        return self.calls.user_kernel(i)

    def copy(self, i: h.Copy) -> Lines:
        """`gy::copy(f.t_to, f.t_from, non_blocking);`"""
        blocking = "true" if i.non_blocking else "false"
        return [f"gy::copy({self.at(i.destination)}, {self.at(i.source)}, {blocking});"]

    def read_scalar(self, i: h.ReadScalar) -> Lines:
        """`f.s_u0 = gy::read_scalar(f.t_x);`"""
        return [f"f.s_{i.symbol.name} = gy::read_scalar({self.at(i.tensor)});"]

    def collective_start(self, i: h.CollectiveStart) -> Lines:
        """A call through the dispatcher."""
        return self.calls.collective(i)

    def collective_finish(self, i: h.CollectiveFinish) -> Lines:
        """`_c10d_functional::wait_tensor` on the tensor, which is its result too."""
        pushed = f"c.push(gy::tensor({self.at(i.tensor)}));"
        return [f'{{ gy::Call<1> c; {pushed} c.call("_c10d_functional::wait_tensor", "", "T"); }}']

    # Structure

    def with_device(self, i: h.WithDevice) -> Lines:
        """A block with a device guard; the CPU needs none."""
        guard = [] if i.device.is_host else [f"gy::DeviceGuard guard({device(i.device)});"]
        return block(guard + self.sequence(i.body))

    def profile_range(self, i: h.ProfileRange) -> Lines:
        """A block with a range of the profiler."""
        return block([f"gy::ProfileRange range({quoted(i.label)});", *self.sequence(i.body)])

    def branch(self, i: h.Branch) -> Lines:
        """`if (...) { ... } else { ... }`, each with its results."""
        if isinstance(i.condition, Cond):
            test = self.size(i.condition)
        else:
            test = f"gy::truth({self.at(i.condition.name)})"
        then = self._arm(i.then, i.then_values, i.results)
        otherwise = self._arm(i.otherwise, i.otherwise_values, i.results)
        return [f"if ({test}) {{", *indented(then), "} else {", *indented(otherwise), "}"]

    def _arm(
        self, body: tuple[h.Instruction, ...], values: tuple[str, ...], results: tuple[str, ...]
    ) -> Lines:
        lines = self.sequence(body)
        inside = frozenset(bound(body))
        for k, (name, value) in enumerate(zip(results, values, strict=True)):
            moved = value in inside and value not in values[k + 1 :]
            lines.append(f"{self.at(name)} = {self._given(value, moved)};")
        return lines + self._drop(n for n in bound(body) if n not in freed(body) | set(values))

    def loop(self, i: h.Loop) -> Lines:
        """`for (;;) { condition; if (!test) break; body; next }`."""
        lines = self._begin(i)
        if i.stacked:
            lines += [f"gy::List rows{k}(8);" for k in range(len(i.carried))]
            lines.append("bool ran = false;")
        body = self.sequence(i.condition)
        tested = [n for n in bound(i.condition) if n not in freed(i.condition)]
        body.append(f"bool again = gy::truth({self.at(i.test)});")
        body.append("if (!again) {")
        body.extend(indented([*self._drop(tested), "break;"]))
        body.append("}")
        body.extend(self.sequence(i.body))
        body.extend(self._go_on(i, tested))
        if i.stacked:
            added = (f"rows{k}.add(gy::tensor({self.at(c)}));" for k, c in enumerate(i.carried))
            body.extend((*added, "ran = true;"))
        lines += ["for (;;) {", *indented(body), "}"]
        return block(lines + self._stack(i)) if i.stacked else lines + self._end(i)

    def _stack(self, i: h.Loop) -> Lines:
        """Write a call of `aten::stack` for each result of a loop."""
        lines: Lines = []
        for k, (result, carried) in enumerate(zip(i.results, i.carried, strict=True)):
            pushed = f"c.push(rows{k}.take()).push(gy::integer(0));"
            lines += [
                f"if (!ran) rows{k}.add(gy::tensor({self.at(carried)}));",
                f'{{ gy::Call<2> c; {pushed} c.call("aten::stack", "", "T"); '
                f"{self.at(result)} = c.tensor(0); }}",
                *self._drop([carried]),
            ]
        return lines

    def repeat(self, i: h.Repeat) -> Lines:
        """`for (f.s_s0 = 0; f.s_s0 < count; ++f.s_s0) { body; next }`."""
        step = f"f.s_{i.symbol.name}"
        body = [*self.sequence(i.body), *self._go_on(i, ())]
        count = f"const int64_t count = {self.size(i.count)};"
        head = f"for ({step} = 0; {step} < count; ++{step}) {{"
        return [*self._begin(i), *block([count, head, *indented(body), "}"]), *self._end(i)]

    def _begin(self, i: h.Loop | h.Repeat) -> Lines:
        """Write what the carried names are at first."""
        return [
            f"{self.at(c)} = {self._given(v, False)};"
            for c, v in zip(i.carried, i.initial, strict=True)
        ]

    def _go_on(self, i: h.Loop | h.Repeat, tested: Sequence[str]) -> Lines:
        """Write the end of a loop's body: the next carried names; all else is dropped."""
        lines: Lines = []
        inside = frozenset((*bound(i.body), *i.carried, *tested))
        for k, value in enumerate(i.next):
            moved = value in inside and value not in i.next[k + 1 :]
            lines.append(f"auto next{k} = {self._given(value, moved)};")
        move = "static_cast<decltype(next{0})&&>(next{0})"
        lines.extend(f"{self.at(c)} = {move.format(k)};" for k, c in enumerate(i.carried))
        gone = freed(i.body) | set(i.next)
        return lines + self._drop(n for n in (*tested, *bound(i.body)) if n not in gone)

    def _end(self, i: h.Loop | h.Repeat) -> Lines:
        """Write what the results of a loop are."""
        return [
            f"{self.at(r)} = {self._given(c, True)};"
            for r, c in zip(i.results, i.carried, strict=True)
        ]

    def _given(self, name: str, moved: bool) -> str:
        """Write the value of a name for another name; `moved` when it is not needed any more."""
        kind = self.calls.kinds[name]
        if kind is Kind.VALUE:
            return self.at(name)
        if kind is not Kind.TENSOR:
            raise refusal("GY-WCPP-005", f"a {kind.name.lower()} is a result of a body")
        return (
            f"static_cast<gy::Tensor&&>({self.at(name)})" if moved else f"{self.at(name)}.share()"
        )

    def _drop(self, gone: Iterable[str]) -> Lines:
        """Write what drops names; values and symbols hold nothing."""
        kinds = self.calls.kinds
        return [f"{self.at(n)}.reset();" for n in gone if kinds.holds(n)]

    def call_program(self, i: h.CallProgram | h.CallPartition) -> Lines:
        """A call of the function that runs the subprogram."""
        return self.calls.program(self.runners[i.program], i)

    def comment(self, i: h.Comment) -> Lines:
        """A comment line for every line of the text."""
        return comment(i.text)

    def returns(self, i: h.Return) -> Lines:
        """`f.out[0] = gy::value_tensor(f.t_b.release());`"""
        return [line for lines in self._outputs(i) for line in lines]

    def _outputs(self, i: h.Return) -> Iterator[Lines]:
        values = tuple(leaves(i.values))
        last = {value: k for k, value in enumerate(values)}
        for k, value in enumerate(values):
            yield self.calls.output(k, value, last=last[value] == k)

    WRITERS: ClassVar[Mapping[type, Callable[["BodyWriter", Any], Lines]]] = MappingProxyType({
        h.BindSize: bind_size, h.BindParameter: bind_parameter, h.DefineSymbol: define_symbol,
        h.BindConstant: bind_constant, h.Conform: conform, h.Separate: separate,
        h.AssertNoNan: assert_no_nan, h.AssertTrue: assert_true, h.Allocate: allocate,
        h.AllocatePool: allocate_pool, h.AllocateFromPool: allocate_from_pool, h.Free: free,
        h.Reuse: reuse, h.View: view, h.Launch: launch, h.ExternCall: extern_call,
        h.TmaDescriptor: tma_descriptor, h.TritonLaunch: triton_launch, h.Copy: copy,
        h.ReadScalar: read_scalar, h.CollectiveStart: collective_start,
        h.CollectiveFinish: collective_finish, h.WithDevice: with_device,
        h.ProfileRange: profile_range, h.Branch: branch, h.Loop: loop,
        h.Repeat: repeat,
        h.CallProgram: call_program, h.CallPartition: call_program, h.Comment: comment,
        h.Return: returns,
    })  # fmt: skip


def indented(lines: Iterable[str]) -> Lines:
    """Write lines one level deeper."""
    return [f"  {line}" for line in lines]


def block(lines: Iterable[str]) -> Lines:
    """Write lines in braces."""
    return ["{", *indented(lines), "}"]
