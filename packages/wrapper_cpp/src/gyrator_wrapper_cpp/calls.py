"""Emitters of calls (of the dispatcher, hooks and subprograms), and of a program's results."""

from collections.abc import Mapping

from attrs import field

from gyrator_ir.define import define
from gyrator_ir.expr import Expr, Sym
from gyrator_ir.host import nodes as h
from gyrator_ir.loop.nodes import Literal, TypeArg
from gyrator_wrapper_cpp.encode import Encoder, InexpressibleError, matched, return_letters
from gyrator_wrapper_cpp.errors import refusal
from gyrator_wrapper_cpp.kinds import Kind, Kinds, leaves, returned
from gyrator_wrapper_cpp.layouts import Layouts
from gyrator_wrapper_cpp.schema import Argument, Schema
from gyrator_wrapper_cpp.text import SizePrinter, integer, quoted, real

PRODUCTS = frozenset({"aten.mm.out", "aten.bmm.out", "aten.addmm.out", "aten.baddbmm.out"})
"""Operators for which the ABI also has functions without the dispatcher. `out` is the last argument
of each."""
Lines = list[str]
Results = tuple[str | tuple[str, ...] | Sym | None, ...]


@define
class CallWriter:
    """Emits the calls of one program."""

    kinds: Kinds
    size: SizePrinter
    schemas: Mapping[str, Schema]
    abi: tuple[int, int]
    fallback: bool
    hooked: frozenset[str] = frozenset()
    mixed_results: bool = False
    layouts: Layouts = field(kw_only=True)
    encoder: Encoder = field(init=False)

    @encoder.default
    def _encoder(self) -> Encoder:
        return Encoder(self.kinds, self.size, self.abi, self.hooked)

    # Ops

    def extern(self, i: h.ExternCall) -> Lines:
        """Emit a call of an op through the ABI, or through the hook if the ABI does not support
        it and fallback is enabled."""
        target = i.target if i.out is None else i.out
        schema = self.schemas.get(target)
        if schema is None:
            raise refusal("GY-WCPP-001", f"there is no schema for {target}")
        kwargs = dict(i.kwargs)
        if i.out is not None:
            outs = zip(i.out_names, i.results, strict=True)
            kwargs |= {k: h.Ref(r) for k, r in outs if isinstance(r, str)}
        pairs = matched(schema, i.args, kwargs)
        results = i.results if i.out is None else ()
        if len(results) > len(schema.returns):
            raise refusal("GY-WCPP-002", f"{target} returns {len(schema.returns)} results")
        try:
            return self._product(schema, pairs, self._dispatched(schema, pairs, results))
        except InexpressibleError as error:
            if self.fallback:
                return self._product(schema, pairs, self._hooked(schema, pairs, results))
            message = f"the C ABI of torch {'.'.join(map(str, self.abi))} does not support {error}"
            raise refusal("GY-WCPP-003", message, target) from error

    def _product(
        self, schema: Schema, pairs: tuple[tuple[Argument, h.Value], ...], otherwise: Lines
    ) -> Lines:
        """Emit a matrix product: the CPU's own function if possible, else `otherwise`."""
        if schema.target not in PRODUCTS:
            return otherwise
        out = pairs[-1][1]
        on_host = isinstance(out, h.Ref) and self.layouts.host_floats(out.name)
        arguments = ["true" if on_host else "false"]
        for argument, value in (pairs[-1], *pairs[:-1]):
            match value:
                case h.Ref(name) if self.kinds[name] is Kind.TENSOR:
                    arguments.append(f"f.{self.kinds.member(name)}")
                case Literal(int(v)) | Literal(float(v)) if argument.kind == "Scalar":
                    arguments.append(real(float(v)))
                case _:
                    return otherwise
        function = f"aoti_torch_cpu_{schema.op.removeprefix('aten::')}_out"
        call = f"gy::product({function}, {quoted(schema.op)}, {', '.join(arguments)})"
        return [f"if (!{call})", *(f"  {line}" for line in otherwise)]

    def collective(self, i: h.CollectiveStart) -> Lines:
        """Emit the call that starts a collective; its results may be one list."""
        schema = self.schemas.get(i.target)
        listed = schema is not None and schema.returns == ("Tensor[]",)
        return self.extern(
            h.ExternCall(i.target, i.args, (), (i.results,) if listed else i.results)
        )

    def _dispatched(
        self, schema: Schema, pairs: tuple[tuple[Argument, h.Value], ...], results: Results
    ) -> Lines:
        letters = return_letters(schema, self.mixed_results)
        slots = [self.encoder.slot(a.kind, v) for a, v in pairs]
        lines = [f"gy::Call<{max(1, len(slots), len(letters))}> c;"]
        if slots:
            lines.append(f"c{''.join(f'.push({s})' for s in slots)};")
        lines.append(f"c.call({quoted(schema.op)}, {quoted(schema.overload)}, {quoted(letters)});")
        for k, result in enumerate(results):
            lines.extend(self._result(k, result, schema))
        return _block(lines)

    def _result(self, k: int, result: str | tuple[str, ...] | Sym | None, schema: Schema) -> Lines:
        kind = schema.returns[k]
        match result:
            case None:
                return []
            case str() if kind == "Tensor":
                return [f"f.{self.kinds.member(result)} = c.tensor({k});"]
            case tuple() if kind == "Tensor[]":
                into = ", ".join(f"&f.{self.kinds.member(r)}" for r in result)
                return [f"c.list({k}, {{{into}}});"]
            case Sym() if kind in ("int", "SymInt", "bool", "SymBool"):
                return [f"f.s_{result.name} = c.integer({k});"]
        raise refusal("GY-WCPP-002", f"{schema.target} returns a {kind} for {result!r}")

    def _hooked(
        self, schema: Schema, pairs: tuple[tuple[Argument, h.Value], ...], results: Results
    ) -> Lines:
        lines: Lines = []
        arguments = [self.value(v, lines) for _, v in pairs]
        used = [r for r in results if r is not None]
        flat = [r for u in used for r in (u if isinstance(u, tuple) else (u,))]
        letters = ["0" if r is None else "L" if isinstance(r, tuple) else "1" for r in results]
        mask = "".join(letters).ljust(len(schema.returns), "0")
        lines.append(f"const GyValue a[] = {{{', '.join(arguments) or 'gy::value_none()'}}};")
        lines.append(f"gy::Values<{len(flat)}> r;")
        name = f"{quoted(schema.op)}, {quoted(schema.overload)}"
        rest = f"a, {len(arguments)}, {quoted(mask)}, r.at, {len(flat)}"
        lines.append(f"gy::call_op(f.context, {name}, {rest});")
        for k, result in enumerate(flat):
            match result:
                case str():
                    into = f"f.{self.kinds.member(result)}"
                    lines.append(f"{into} = gy::take(r.at[{k}], {quoted(result)});")
                case Sym():
                    value = f"gy::int_of(r.at[{k}], {quoted(result.name)})"
                    lines.append(f"f.s_{result.name} = {value};")
        return _block(lines)

    def user_kernel(self, i: h.TritonLaunch) -> Lines:
        """Emit a call of the hook that launches a user's kernel."""
        lines: Lines = []
        grids: list[str] = []
        for grid in i.grid:
            if not 1 <= len(grid) <= 3:
                raise refusal("GY-WCPP-005", f"a grid of {i.kernel!r} has {len(grid)} dimensions")
            grids.extend([self.size(g) for g in grid] + ["1"] * (3 - len(grid)))
        pairs = (*i.args, *i.constants)
        arguments = [self.value(v, lines) for _, v in pairs]
        lines.append(f"const int64_t g[] = {{{', '.join(grids) or '0'}}};")
        named = ", ".join(quoted(k) for k, _ in pairs)
        lines.append(f"const char* const n[] = {{{named or 'nullptr'}}};")
        lines.append(f"const GyValue a[] = {{{', '.join(arguments) or 'gy::value_none()'}}};")
        counts = f"{len(pairs)}, {len(i.constants)}"
        call = f"{quoted(i.kernel)}, g, {len(i.grid)}, n, a, {counts}"
        lines.append(f"gy::launch_user(f.context, {call});")
        return _block(lines)

    # Programs

    def program(self, runner: str, i: h.CallProgram | h.CallPartition) -> Lines:
        """Emit a call of a subprogram: tensor arguments are moved to it, and results are moved
        back."""
        callee = self.kinds.callee(i.program)
        if len(i.args) != len(callee.parameters):
            raise refusal("GY-WCPP-005", f"{i.program!r} takes {len(callee.parameters)} arguments")
        count = sum(1 for _ in leaves(returned(callee)))
        lines = [f"gy::Values<{len(i.args)}> a;", f"gy::Values<{count}> r;"]
        for k, value in enumerate(i.args):
            if isinstance(value, h.ListValue):
                raise refusal("GY-WCPP-005", f"a list is passed to {i.program!r}")
            lines.append(f"a.at[{k}] = {self.value(value, lines, owned=True)};")
        lines.append(f"{runner}(f.context, a.at, r.at);")
        for k, name in enumerate(i.results):
            into = f"f.{self.kinds.member(name)}"
            tensor = self.kinds[name] is Kind.TENSOR
            result = f"gy::take(r.at[{k}], {quoted(name)})" if tensor else f"r.at[{k}]"
            lines.append(f"{into} = {result};")
        return _block(lines)

    def output(self, k: int, value: h.Value, last: bool) -> Lines:
        """Emit result `k` of a program; `last` says that the value is not used again."""
        if isinstance(value, h.Ref) and self.kinds[value.name] is Kind.TENSOR:
            method = "release" if last else "new_handle"
            member = self.kinds.member(value.name)
            return [f"f.out[{k}] = gy::value_tensor(f.{member}.{method}());"]
        lines: Lines = []
        text = self.value(value, lines, static=True)
        lines.append(f"f.out[{k}] = {text};")
        return lines if len(lines) == 1 else _block(lines)

    # Values

    def value(
        self, value: h.Value, before: Lines, owned: bool = False, static: bool = False
    ) -> str:
        """Format a `GyValue`; lines that it needs are appended to `before`.

        Tensors are borrowed, or new handles if `owned`; `static` gives lists static storage.
        """
        match value:
            case h.Ref(name):
                return self._ref(name, owned)
            case Literal(constant):
                return self._constant(constant, before, static)
            case TypeArg(kind, text):
                return f"gy::value_text({quoted(f'{kind}:{text}')}, GY_TYPE)"
            case h.ListValue(items):
                elements = [self.value(item, before) for item in items]
                return _array(elements, before, "GY_LIST", static)
            case Expr():
                return f"gy::value_int({self.size(value)})"
        raise TypeError(f"not a value: {value!r}")

    def _ref(self, name: str, owned: bool) -> str:
        member = f"f.{self.kinds.member(name)}"
        match self.kinds[name]:
            case Kind.TENSOR:
                return f"gy::value_tensor({member}.{'new_handle' if owned else 'get'}())"
            case Kind.VALUE:
                return member
            case Kind.DESCRIPTOR:
                return f"gy::value_descriptor(&{member}.at)"
        raise refusal(
            "GY-WCPP-005", f"{name!r} is a {self.kinds[name].name.lower()}, which cannot be passed"
        )

    def _constant(self, constant: object, before: Lines, static: bool) -> str:
        match constant:
            case None:
                return "gy::value_none()"
            case bool():
                return f"gy::value_bool({'true' if constant else 'false'})"
            case int():
                return f"gy::value_int({integer(constant)})"
            case float():
                return f"gy::value_float({real(constant)})"
            case str():
                return f"gy::value_text({quoted(constant)})"
            case complex():
                parts = [f"gy::value_float({real(p)})" for p in (constant.real, constant.imag)]
                return _array(parts, before, "GY_COMPLEX", static)
        raise TypeError(f"not a constant: {constant!r}")


def _array(elements: list[str], before: Lines, kind: str, static: bool) -> str:
    name = f"l{len(before)}"
    storage = "static const" if static else "const"
    before.append(f"{storage} GyValue {name}[] = {{{', '.join(elements) or 'gy::value_none()'}}};")
    return f"gy::value_list({name}, {len(elements)}, {kind})"


def _block(lines: Lines) -> Lines:
    """Return one line in braces if it is short, else a block."""
    joined = f"{{ {' '.join(lines)} }}"
    return [joined] if len(joined) <= 160 else ["{", *(f"  {line}" for line in lines), "}"]
