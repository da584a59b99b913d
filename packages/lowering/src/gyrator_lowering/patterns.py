"""Search and replace in ATen graphs, with both sides written as functions of tensors.

A `Rewrite` is a pass. It searches for the graph of a function on example arguments, decomposed like
any graph before lowering:

>>> import torch
>>> def search(x, y):
...     return torch.nn.functional.silu(x) * y
>>> def replace(x, y):
...     return y * x * torch.sigmoid(x)
>>> sample = torch.empty(4, 8)
>>> Rewrite("silu-and-mul", search, replace, (sample, sample)).name
'silu-and-mul'
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from attrs import field
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._python_dispatch import _disable_current_modes

from gyrator_ir.content import value_hash
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.user_code import blamed
from gyrator_lowering.builder.program import each
from gyrator_lowering.decompositions import default_decompositions
from gyrator_lowering.fx_passes.views.remove_noop import RemoveNoop
from gyrator_lowering.torch_bridge.graphs import fake_of, graph_results
from gyrator_lowering.torch_bridge.schema import info_of, named_arguments

__all__ = ["Match", "PatternError", "Rewrite"]

aten = torch.ops.aten
_COMMUTATIVE = frozenset(
    {
        aten.add.Tensor, aten.mul.Tensor, aten.maximum.default, aten.minimum.default,
        aten.eq.Tensor, aten.ne.Tensor, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor,
        aten.bitwise_xor.Tensor, aten.logical_and.default, aten.logical_or.default,
    }
)  # fmt: skip
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class PatternError(GyratorError):
    """A pattern that no graph can contain, or a replacement that is not equivalent in form."""


@frozen(eq=False)
class Match:
    """An occurrence of a pattern, before it is replaced."""

    arguments: Mapping[str, Any]
    """The values of the parameters of `search`, by name: numbers, and fake tensors with the shape,
    dtype, strides and device of the tensors in the graph."""
    results: tuple[torch.Tensor, ...]
    """The results of the pattern in the graph, as fake tensors."""
    nodes: tuple[Node, ...]
    """The matched calls, in graph order."""

    def __getitem__(self, name: str) -> Any:
        """Return the value of a parameter of `search`."""
        return self.arguments[name]


@frozen
class Rewrite:
    """A pass over ATen graphs that replaces the computation of one function by that of another.

    A tensor in `examples` matches tensors of its dtype and number of dimensions. Sizes of 0 and 1
    match only themselves, other sizes match any size, and equal sizes match equal sizes. A number
    matches any number of its type: choose one that occurs nowhere else in `search`. Everything
    else, including `True` and `False`, matches only itself.

    An occurrence matches if no value between the arguments and the results has other users, no
    tensor is written to before the last result, and `where` returns true. The operands of
    commutative ops such as additions and products may be in either order.

    Raises:
        PatternError: GY-PATTERN-001 for a `search` that no graph can contain: it computes nothing,
            generates random numbers, writes, or does not use an argument. GY-PATTERN-002, when the
            pass runs, for results of another shape, dtype, device or strides; GY-PATTERN-003 for a
            `replace` that takes other arguments, writes to a tensor, or creates one from literal
            numbers; GY-PATTERN-004, when the pass runs, if `where` or `replace` raises an error.
    """

    name: str
    search: Callable[..., Any] = field(eq=False)
    """Returns a tensor, or a tuple of them."""
    replace: Callable[..., Any] = field(eq=False)
    """Takes the arguments of `search`, and returns as many tensors. Traced anew for each match, on
    fake tensors of its shapes."""
    examples: tuple[Any, ...] = field(eq=False, converter=tuple)
    where: Callable[[Match], bool] = field(default=lambda match: True, eq=False)
    """Returns whether to replace a match."""
    content_hash: str = field(init=False, repr=False)
    """A hash of the rewrite's behaviour: part of cache keys."""
    _pattern: "_Pattern" = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Trace the pattern."""
        object.__setattr__(self, "content_hash", self._digest())
        object.__setattr__(self, "_pattern", _Pattern.of(self.name, self.search, self.examples))
        self._check_parameters()

    def run(self, gm: GraphModule) -> bool:
        """Replace all matches in place; return whether there were any."""
        changed = False
        for anchor in list(gm.graph.find_nodes(op="call_function", target=self._pattern.op)):
            if anchor.graph is not gm.graph or anchor._erased:
                continue
            occurrence = _Search(self._pattern, gm).at(anchor)
            if occurrence is not None and self._is_wanted(occurrence.match):
                self._replace(gm, occurrence)
                changed = True
        return changed

    def _check_parameters(self) -> None:
        try:
            signature = inspect.signature(self.replace)
        except (TypeError, ValueError):  # a function that is not written in Python
            return
        try:
            signature.bind(*self.examples)
        except TypeError:
            message = (
                f"the replacement of {self.name!r} takes {signature}, "
                f"but the pattern takes ({', '.join(self._pattern.names)})"
            )
            help = "give both functions the same parameters, in the same order"
            raise PatternError.of("GY-PATTERN-003", message, help=help) from None

    def _is_wanted(self, match: Match) -> bool:
        try:
            return self.where(match)
        except Exception as error:
            raise self._failed("where", self.where, error) from error

    def _failed(self, role: str, function: Callable[..., Any], error: Exception) -> PatternError:
        message = f"`{role}` of the pattern {self.name!r} raised {blamed(error, function)}"
        help = "this is not Gyrator's code: correct the function, or remove the pattern"
        return PatternError.of("GY-PATTERN-004", message, help=help)

    def _replace(self, gm: GraphModule, occurrence: "_Occurrence") -> None:
        order = {node: k for k, node in enumerate(gm.graph.nodes)}
        operands = [node for node in occurrence.values if isinstance(node, Node)]
        last = max(operands, key=order.__getitem__)
        if last.op == "placeholder":  # all of which come first
            last = gm.graph.find_nodes(op="placeholder")[-1]
        replacement = self._traced(occurrence)
        values = iter(operands)
        env = {p: next(values) for p in replacement.graph.find_nodes(op="placeholder")}
        insertion_point = last.next
        for node in replacement.graph.nodes:
            if node.op not in ("placeholder", "output"):
                with gm.graph.inserting_before(insertion_point):
                    env[node] = gm.graph.node_copy(node, env.__getitem__)
                inherited = occurrence.anchor.meta.items()
                own = {k: v for k, v in node.meta.items() if k in ("val", "tensor_meta")}
                env[node].meta = {k: v for k, v in inherited if k != "tensor_meta"} | own
        for old, new in zip(occurrence.results, graph_results(replacement), strict=True):
            old.replace_all_uses_with(env[new])
        for node in reversed(occurrence.match.nodes):
            if not node.users:
                gm.graph.erase_node(node)

    def _traced(self, occurrence: "_Occurrence") -> GraphModule:
        """Trace `replace` on the values at an occurrence, with its tensors as placeholders."""
        values = [fake_of(v) for v in occurrence.values]
        try:
            replacement = _trace(self.replace, values)
        except Exception as error:
            raise self._failed("replace", self.replace, error) from error
        for node in replacement.graph.nodes:
            problem = ""
            if node.op == "get_attr":
                problem = "creates a tensor from literal numbers"
                help = "use `torch.full` or `torch.arange`, or make it an argument"
            elif _writes(node):
                problem, help = f"writes, by {node.target}", "return a new tensor"
            if problem:
                message = f"the replacement of {self.name!r} {problem}"
                raise PatternError.of("GY-PATTERN-003", message, help=help)
        new = [fake_of(n) for n in graph_results(replacement)]
        old = [n.meta["val"] for n in occurrence.results]
        if len(new) != len(old) or not all(map(_same, new, old)):
            message = (
                f"the replacement of {self.name!r} returns {_described(new)}, "
                f"but the pattern returns {_described(old)}"
            )
            provenance = (f"%{occurrence.anchor.name} = {occurrence.anchor.target}",)
            help = "return the same shapes, dtypes and strides, or narrow `where`"
            raise PatternError.of("GY-PATTERN-002", message, provenance=provenance, help=help)
        return replacement

    def _digest(self) -> str:
        forms = [_form(e) if isinstance(e, torch.Tensor) else e for e in self.examples]
        try:
            return value_hash(self.name, self.search, self.replace, self.where, *forms)
        except ValueError as error:
            message = f"the pattern {self.name!r} cannot be part of a cache key: {error}"
            help = "write functions with `def`, and name what they use at the top of the module"
            raise PatternError.of("GY-PATTERN-001", message, help=help) from error


# Patterns ---------------------------------------------------------------------------------------


@frozen(eq=False)
class _Pattern:
    """The graph of `search`, whose placeholders are the tensors."""

    names: tuple[str, ...]
    """The parameters of `search`."""
    examples: tuple[Any, ...]
    tensors: tuple[Node, ...]
    """The placeholders, in the order of the tensors among the parameters."""
    results: tuple[Node, ...]
    numbers: Mapping[tuple[type, float], str]
    """The parameter that each number stands for."""

    @property
    def op(self) -> Any:
        """The target of the last result, where a search begins."""
        return self.results[-1].target

    @classmethod
    def of(cls, name: str, search: Callable[..., Any], examples: Sequence[Any]) -> "_Pattern":
        names = tuple(inspect.signature(search).parameters)
        if len(names) != len(examples):
            raise _unusable(name, f"takes {len(names)} arguments, and has {len(examples)} examples")
        with _disable_current_modes():
            # Separate tensors: one that is passed twice would be a single placeholder.
            own = [torch.empty_like(e) if isinstance(e, torch.Tensor) else e for e in examples]
            gm = _trace(search, own, symbolic=True)
        RemoveNoop().run(gm)
        tensors = tuple(gm.graph.find_nodes(op="placeholder"))
        results = tuple(n for n in graph_results(gm) if isinstance(n, Node))
        calls = bool(results) and all(n.op == "call_function" for n in results)
        if len(results) != len(graph_results(gm)) or not calls:
            raise _unusable(name, "returns something other than tensors that it computes")
        for node in gm.graph.nodes:
            if node.op == "get_attr":
                raise _unusable(name, "creates a tensor from literal numbers")
            if isinstance(node.target, torch._ops.OpOverload):
                if info_of(node.target).writes:
                    raise _unusable(name, f"writes, by {node.target}")
                if torch.Tag.nondeterministic_seeded in node.target.tags:
                    raise _unusable(name, f"generates random numbers, by {node.target}")
        numbers = {
            (type(e), e): n for n, e in zip(names, examples, strict=True) if type(e) in (int, float)
        }
        literals = {(type(v), v) for node in gm.graph.nodes for v in _leaves(node)}
        left = iter(tensors)
        for parameter, example in zip(names, examples, strict=True):
            tensor = isinstance(example, torch.Tensor)
            unused = not next(left).users if tensor else False
            if unused or (
                type(example) in (int, float) and (type(example), example) not in literals
            ):
                raise _unusable(name, f"does not use its argument {parameter!r}")
        return cls(names, tuple(examples), tensors, results, numbers)


def _unusable(name: str, why: str) -> PatternError:
    help = "see docs/how-to/custom-passes.md"
    return PatternError.of("GY-PATTERN-001", f"the pattern {name!r} {why}", help=help)


def _trace(
    function: Callable[..., Any], values: Sequence[Any], symbolic: bool = False
) -> GraphModule:
    """Return the ATen graph of a function: its tensors are placeholders, its numbers constants.

    With `symbolic`, the graph is traced on new fake tensors of symbolic sizes.
    """
    tensors = [v for v in values if isinstance(v, torch.Tensor)]

    def flat(*inputs: torch.Tensor) -> tuple[Any, ...]:
        left = iter(inputs)
        arguments = (next(left) if isinstance(v, torch.Tensor) else v for v in values)
        results = function(*arguments)
        return tuple(results) if isinstance(results, tuple | list) else (results,)

    mode: Literal["symbolic", "real"] = "symbolic" if symbolic else "real"
    traced = make_fx(flat, default_decompositions(), tracing_mode=mode)
    with torch.no_grad(), torch._C._DisableAutocast():
        gm = traced(*tensors)
    gm.graph.eliminate_dead_code()
    return gm


# The search -------------------------------------------------------------------------------------


@frozen(eq=False)
class _Occurrence:
    """A match with the nodes that it involves."""

    match: Match
    values: tuple[Any, ...]
    """Nodes and numbers, in the order of the parameters."""
    results: tuple[Node, ...]
    anchor: Node


@frozen(eq=False)
class _Bindings:
    """The bindings of a pattern's nodes, numbers and sizes so far."""

    nodes: Mapping[Node, Node]
    numbers: Mapping[str, Any]
    sizes: tuple[tuple[Any, Any], ...] = ()
    """Sizes of the pattern, and the sizes of the graph that they must equal."""

    def node(self, pattern: Node, node: Node) -> "_Bindings":
        return _Bindings({**self.nodes, pattern: node}, self.numbers, self.sizes)

    def number(self, name: str, value: Any) -> "_Bindings":
        return _Bindings(self.nodes, {**self.numbers, name: value}, self.sizes)

    def size(self, pattern: Any, value: Any) -> "_Bindings":
        return _Bindings(self.nodes, self.numbers, (*self.sizes, (pattern, value)))


class _Search:
    """The search for a pattern in one graph."""

    def __init__(self, pattern: _Pattern, gm: GraphModule) -> None:
        self.pattern, self.graph = pattern, gm.graph

    def at(self, anchor: Node) -> _Occurrence | None:
        """Return an occurrence whose last result is `anchor`, if there is one."""
        for bound in self._rest(self.pattern.results[:-1], anchor):
            occurrence = self._found(bound, anchor)
            if occurrence is not None:
                return occurrence
        return None

    def _rest(self, results: Sequence[Node], anchor: Node) -> Iterator[_Bindings]:
        """Yield the possible bindings of all results, the last one being `anchor`."""
        open_ = list(self._node(self.pattern.results[-1], anchor, _Bindings({}, {})))
        for result in results:
            candidates = self.graph.find_nodes(op="call_function", target=result.target)
            open_ = [
                more
                for bound in open_
                for node in ([bound.nodes[result]] if result in bound.nodes else candidates)
                for more in self._node(result, node, bound)
            ]
        yield from open_

    def _node(self, pattern: Node, node: Any, bound: _Bindings) -> Iterator[_Bindings]:
        """Yield the bindings under which `node` matches the pattern's node."""
        if not isinstance(node, Node):
            return
        if pattern in bound.nodes:
            if bound.nodes[pattern] is node:
                yield bound
            return
        if pattern.op == "placeholder":
            if _fits(node.meta.get("val"), pattern.meta["val"]):
                yield bound.node(pattern, node)
            return
        if node.op != "call_function" or node.target != pattern.target:
            return
        actual, expected = named_arguments(node), named_arguments(pattern)
        if actual.keys() != expected.keys():
            return
        bound = bound.node(pattern, node)
        orders = [list(actual.values())]
        if node.target in _COMMUTATIVE:
            first, second, *others = orders[0]
            orders.append([second, first, *others])
        for order in orders:
            yield from self._all(list(expected.values()), order, bound)

    def _all(
        self, patterns: Sequence[Any], values: Sequence[Any], b: _Bindings
    ) -> Iterator[_Bindings]:
        if len(patterns) != len(values):
            return
        if not patterns:
            yield b
            return
        for more in self._value(patterns[0], values[0], b):
            yield from self._all(patterns[1:], values[1:], more)

    def _value(self, pattern: Any, value: Any, bound: _Bindings) -> Iterator[_Bindings]:
        """Yield the bindings under which `value` matches an argument of the pattern."""
        if isinstance(pattern, Node) and isinstance(pattern.meta.get("val"), _SYMBOLIC):
            size = value.meta.get("val") if isinstance(value, Node) else value
            if isinstance(size, int | float | torch.SymInt | torch.SymFloat):
                yield bound.size(pattern.meta["val"], size)
        elif isinstance(pattern, Node):
            yield from self._node(pattern, value, bound)
        elif isinstance(pattern, list | tuple):
            if isinstance(value, list | tuple):
                yield from self._all(pattern, value, bound)
        elif (name := self._named(pattern)) is not None:
            if type(value) is type(pattern) and bound.numbers.get(name, value) == value:
                yield bound.number(name, value)
        elif not isinstance(value, Node) and type(value) is type(pattern) and value == pattern:
            yield bound

    def _named(self, value: Any) -> str | None:
        number = isinstance(value, int | float)
        return self.pattern.numbers.get((type(value), value)) if number else None

    def _found(self, bound: _Bindings, anchor: Node) -> _Occurrence | None:
        p = self.pattern
        if not _sizes_agree(p, bound):
            return None
        results = tuple(bound.nodes[r] for r in p.results)
        covered = {n for q, n in bound.nodes.items() if q.op != "placeholder"}
        inputs = {bound.nodes[t] for t in p.tensors}
        if covered & inputs or not self._movable(covered, inputs, results):
            return None
        left = iter(p.tensors)
        values = tuple(
            bound.nodes[next(left)] if isinstance(e, torch.Tensor) else bound.numbers.get(n, e)
            for n, e in zip(p.names, p.examples, strict=True)
        )
        fakes = (fake_of(v) for v in values)
        match = Match(
            dict(zip(p.names, fakes, strict=True)),
            tuple(n.meta["val"] for n in results),
            tuple(n for n in self.graph.nodes if n in covered),
        )
        return _Occurrence(match, values, results, anchor)

    def _movable(self, covered: set[Node], inputs: set[Node], results: Sequence[Node]) -> bool:
        """Return whether all results can be computed right after the last input."""
        if any(covered.isdisjoint({u}) for n in covered.difference(results) for u in n.users):
            return False
        users = {u for n in results for u in n.users} - covered
        missing, left, started = set(inputs), set(covered), False
        for node in self.graph.nodes:
            if node in users and missing:
                return False
            started |= node in covered or not missing
            missing.discard(node)
            left.discard(node)
            if not left and not missing:
                return True
            if started and node not in covered and node not in inputs and _writes(node):
                return False
        return True


def _fits(fake: Any, example: Any) -> bool:
    """Return whether a tensor matches an example."""
    if not isinstance(fake, torch.Tensor) or not isinstance(example, torch.Tensor):
        return False
    if fake.dtype != example.dtype or fake.dim() != example.dim():
        return False
    fixed = [(n, w) for n, w in zip(fake.shape, example.shape, strict=True) if isinstance(w, int)]
    return all(statically_known_true(n == w) for n, w in fixed)


def _sizes_agree(pattern: _Pattern, bound: _Bindings) -> bool:
    """Return whether sizes shared by the pattern's arguments are equal, and computed sizes
    match."""
    bound_sizes: dict[Any, Any] = {}
    for tensor in pattern.tensors:
        shape = bound.nodes[tensor].meta["val"].shape
        for size, value in zip(tensor.meta["val"].shape, shape, strict=True):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                first = bound_sizes.setdefault(size.node.expr, value)
                if not statically_known_true(first == value):
                    return False
    for size, value in bound.sizes:
        expression = size.node.expr
        if not expression.free_symbols <= bound_sizes.keys():
            return False
        expected = expression.subs(
            {s: _expression(bound_sizes[s]) for s in expression.free_symbols}
        )
        if expected != _expression(value):
            return False
    return True


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, _SYMBOLIC) else size


def _writes(node: Node) -> bool:
    """Return whether a node may write to memory, so that reads cannot move across it."""
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(info_of(node.target).writes)
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def _leaves(node: Node) -> Iterator[Any]:
    for value in (*node.args, *node.kwargs.values()):
        for leaf in each(value):
            if isinstance(leaf, int | float):
                yield leaf


# Results ----------------------------------------------------------------------------------------


def _same(new: Any, old: Any) -> bool:
    """Return whether a tensor can replace another."""
    if not isinstance(new, torch.Tensor) or new.dtype != old.dtype or new.device != old.device:
        return False
    if new.dim() != old.dim():
        return False
    sizes = zip(new.shape, old.shape, new.stride(), old.stride(), strict=True)
    return all(
        statically_known_true(n == m) and (statically_known_true(s == t) or n in (0, 1))
        for n, m, s, t in sizes
    )


def _described(values: Sequence[Any]) -> str:
    forms = (_form(v) if isinstance(v, torch.Tensor) else repr(v) for v in values)
    return ", ".join(forms) or "nothing"


def _form(x: torch.Tensor) -> str:
    shape, strides = [str(n) for n in x.shape], [str(n) for n in x.stride()]
    return f"{x.dtype}[{', '.join(shape)}] with strides [{', '.join(strides)}]"
