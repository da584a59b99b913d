"""Emission of sequences of instructions, and of instructions that contain them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import assert_never

from attrs import field

from gyrator_ir.define import define
from gyrator_ir.expr import Cond
from gyrator_ir.host import nodes as h
from gyrator_ir.host.walk import bound, freed
from gyrator_wrapper_cpp.errors import refusal
from gyrator_wrapper_cpp.instructions import Compound, Frame, Lines
from gyrator_wrapper_cpp.kinds import Kind, leaves
from gyrator_wrapper_cpp.text import device, quoted
from gyrator_wrapper_cpp.units import Function

PART = 120
"""Approximate number of lines of a function: longer sequences are split into functions."""


@define
class BodyWriter(Frame):
    """Emits the instruction sequences of one program, and the instructions that contain
    sequences."""

    functions: list[Function] = field(factory=list)
    """The functions that sequences were split into, before their callers."""
    parts: int = 0

    def sequence(self, instructions: Iterable[h.Instruction], before: Iterable[str] = ()) -> Lines:
        """Emit instructions in order, split into calls of functions if there are many lines.

        The lines of `before` come first.
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
        """Yield the lines of an instruction in groups that must not be split."""
        if isinstance(i, h.Return):
            yield from self._outputs(i)
        else:
            yield self.instruction(i)

    def _function(self, lines: Lines) -> str:
        function = f"{self.name}_part{self.parts}"
        self.parts += 1
        self.functions.append(Function(function, f"{self.name}_frame& f", tuple(lines)))
        return f"{function}(f);"

    def compound(self, i: Compound) -> Lines:
        """Return the lines of an instruction that contains others, or returns."""
        match i:
            case h.WithDevice():  # the CPU needs no guard
                guard = [] if i.device.is_host else [f"gy::DeviceGuard guard({device(i.device)});"]
                return block(guard + self.sequence(i.body))
            case h.ProfileRange():
                return block(
                    [f"gy::ProfileRange range({quoted(i.label)});", *self.sequence(i.body)]
                )
            case h.Branch():
                return self._branch(i)
            case h.Loop():
                return self._loop(i)
            case h.Repeat():
                return self._repeat(i)
            case h.Return():
                return list(chain.from_iterable(self._outputs(i)))
            case _:
                assert_never(i)

    def _branch(self, i: h.Branch) -> Lines:
        """`if (...) { ... } else { ... }`, each with the assignment of the results."""
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
            lines.append(f"{self.at(name)} = {self._assigned(value, moved)};")
        return lines + self._drop(n for n in bound(body) if n not in freed(body) | set(values))

    def _loop(self, i: h.Loop) -> Lines:
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
        body.extend(self._next_iteration(i, tested))
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

    def _repeat(self, i: h.Repeat) -> Lines:
        """`for (f.s_s0 = 0; f.s_s0 < count; ++f.s_s0) { body; next }`."""
        step = f"f.s_{i.symbol.name}"
        body = [*self.sequence(i.body), *self._next_iteration(i, ())]
        count = f"const int64_t count = {self.size(i.count)};"
        head = f"for ({step} = 0; {step} < count; ++{step}) {{"
        return [*self._begin(i), *block([count, head, *indented(body), "}"]), *self._end(i)]

    def _begin(self, i: h.Loop | h.Repeat) -> Lines:
        """Emit the initial values of the carried names."""
        return [
            f"{self.at(c)} = {self._assigned(v, False)};"
            for c, v in zip(i.carried, i.initial, strict=True)
        ]

    def _next_iteration(self, i: h.Loop | h.Repeat, tested: Sequence[str]) -> Lines:
        """Emit the end of a loop's body: update the carried names, and drop all others."""
        lines: Lines = []
        inside = frozenset((*bound(i.body), *i.carried, *tested))
        for k, value in enumerate(i.next):
            moved = value in inside and value not in i.next[k + 1 :]
            lines.append(f"auto next{k} = {self._assigned(value, moved)};")
        move = "static_cast<decltype(next{0})&&>(next{0})"
        lines.extend(f"{self.at(c)} = {move.format(k)};" for k, c in enumerate(i.carried))
        consumed = freed(i.body) | set(i.next)
        return lines + self._drop(n for n in (*tested, *bound(i.body)) if n not in consumed)

    def _end(self, i: h.Loop | h.Repeat) -> Lines:
        """Emit the results of a loop."""
        return [
            f"{self.at(r)} = {self._assigned(c, True)};"
            for r, c in zip(i.results, i.carried, strict=True)
        ]

    def _assigned(self, name: str, moved: bool) -> str:
        """Format the value of a name for assignment to another name; `moved` if it is not used
        again."""
        kind = self.calls.kinds[name]
        if kind is Kind.VALUE:
            return self.at(name)
        if kind is not Kind.TENSOR:
            raise refusal("GY-WCPP-005", f"a {kind.name.lower()} is a result of a body")
        return (
            f"static_cast<gy::Tensor&&>({self.at(name)})" if moved else f"{self.at(name)}.share()"
        )

    def _drop(self, names: Iterable[str]) -> Lines:
        """Emit the release of names; values and symbols own nothing."""
        kinds = self.calls.kinds
        return [f"{self.at(n)}.reset();" for n in names if kinds.holds(n)]

    def _outputs(self, i: h.Return) -> Iterator[Lines]:
        """Yield `f.out[0] = gy::value_tensor(f.t_b.release());` for each result."""
        values = tuple(leaves(i.values))
        last = {value: k for k, value in enumerate(values)}
        for k, value in enumerate(values):
            yield self.calls.output(k, value, last=last[value] == k)


def indented(lines: Iterable[str]) -> Lines:
    """Indent lines by one level."""
    return [f"  {line}" for line in lines]


def block(lines: Iterable[str]) -> Lines:
    """Put lines in braces."""
    return ["{", *indented(lines), "}"]
