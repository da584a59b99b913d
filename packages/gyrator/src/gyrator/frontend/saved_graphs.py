"""Compiled graphs that are saved, and loaded by other processes without tracing.

The file contains the cache entries from which a warm start loads the graph.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import attrs
import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from gyrator.frontend.aot import Frontend, SavableGraph
from gyrator.frontend.tracing import unguarded_convolutions
from gyrator.graphs.compiled import untraced
from gyrator.options import Options, make_options
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import LayoutError, UnsupportedError
from gyrator_ir.expr import TRUE, Cond, Sym, holds, parse_cond, to_text
from gyrator_ir.expr.sympy_bridge import cond_from_sympy
from gyrator_runtime.cache import CacheError, CacheKey
from gyrator_runtime.transfer import packed, unpack

_FORMAT = 2
_LENGTH = struct.Struct("<Q")
_LOADED = "it was loaded from a file, which does not contain the function itself"


class SavedGraph:
    """A compiled graph with the contents of a file from which another process can load it.

    Args:
        call: the compiled graph.
        head: the options, in JSON.
        entries: the cache entries, the graph's first.
    """

    def __init__(self, call: Callable[..., Any], head: bytes, entries: Sequence[bytes]) -> None:
        self._call = untraced(call)
        self._head = head
        self._entries = tuple(entries)

    @classmethod
    def of(cls, graph: SavableGraph) -> Self:
        """Collect the cache entries of a graph. Raises UnsupportedError (GY-AOT-006) if there
        are none."""
        key, cache = graph.key, graph.cache
        entry = None if key is None else cache.get(key)
        if key is None or entry is None:
            raise _unsaved("it is not in the cache")
        programs = [CacheKey("programs", name, {}) for name in _programs(entry.read("graph.json"))]
        entries = [(k, cache.get(k)) for k in programs]
        contents = [packed(k, e) for k, e in entries if e is not None]
        if len(contents) != len(programs):
            raise _unsaved("its programs were pruned from the cache")
        head = json.dumps({"options": _changed(graph.options)}, sort_keys=True)
        return cls(graph.call, head.encode(), [packed(key, entry), *contents])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the graph."""
        return self._call(*args, **kwargs)

    def data(self) -> bytes:
        """Return the bytes that `read` takes."""
        parts = (self._head, *self._entries)
        return b"".join(_LENGTH.pack(len(part)) + part for part in parts)

    @classmethod
    def read(cls, data: bytes, frontend: Callable[[Options], Frontend]) -> Self:
        """Load a graph and its programs through the cache of the frontend that `frontend` returns
        for its options.

        Raises CacheError for bytes of another kind (GY-CACHE-012), or for a program that is
        incompatible with this machine, torch version or Gyrator version (GY-CACHE-004).
        """
        head, *entries = _parts(data)
        loader = frontend(make_options(options=json.loads(head)["options"], base=Options()))
        keys = [unpack(loader.cache, entry) for entry in entries]
        return cls(_load(loader, keys[0]), head, entries)


def _load(frontend: Frontend, key: CacheKey) -> Callable[..., Any]:
    run = frontend.loaded(key, _no_function, _LOADED)
    if run is None:
        raise CacheError.of(
            "GY-CACHE-004",
            "a saved function is incompatible with this machine, torch version or Gyrator version",
            help="compile it again",
        )
    return run


def _no_function(*_: Any) -> Any:
    raise UnsupportedError.of(
        "GY-AOT-006",
        f"forward-mode derivatives of a saved function cannot be computed: {_LOADED}",
        help="call the function itself, or compile it here",
    )


_NOT_CACHED = (
    "`gyrator explain` shows the ops that run eagerly; graphs that return views of their inputs, "
    "or are compiled with `cache=False` or `trace_dir`, are not cached"
)


def _unsaved(why: str, help: str = _NOT_CACHED) -> UnsupportedError:
    message = f"a compiled graph cannot be saved: {why}"
    return UnsupportedError.of("GY-AOT-006", message, help=help)


def _programs(stored: bytes) -> list[str]:
    names: list[str] = json.loads(stored)["programs"]
    return names


def _changed(options: Options) -> dict[str, Any]:
    """Return the options that differ from their defaults."""
    fields = attrs.fields(Options)
    named = {f.name: getattr(options, f.name) for f in fields}
    changed = {f.name: named[f.name] for f in fields if named[f.name] != f.default}
    wrong = [name for name, value in changed.items() if callable(value)]
    if wrong:
        raise _unsaved(f"the option {wrong[0]!r} is a function")
    return changed


def _parts(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        parts.append(data[at : at + length])
        at += length
    return parts


@frozen(eq=False)
class CompiledArtifact:
    """A compiled graph that is called like the graph itself, and saved as one file."""

    graph: SavedGraph
    single: bool
    """Whether the graph returns a single tensor instead of a tuple."""
    integers: tuple[tuple[int, int, int], ...]
    """Integer arguments, each with its index, its minimum and its maximum."""
    conditions: tuple[Cond, ...]
    """The conditions between sizes for which the graph was compiled."""
    sources: Mapping[str, tuple[int, int | None]]
    """Where the value of each symbol of `conditions` is: the index of an argument, and an axis of
    it, or None for an integer."""

    def __call__(self, *args: Any) -> Any:
        """Call the graph.

        Raises LayoutError (GY-RUNTIME-090) for sizes or integers that it was not compiled for.
        """
        if self.conditions:
            self._check(args)
        for index, minimum, maximum in self.integers:
            if not minimum <= args[index] <= maximum:
                sizes = minimum if minimum == maximum else f"{minimum} to {maximum}"
                raise LayoutError.of(
                    "GY-RUNTIME-090",
                    f"argument {index} is {args[index]}; the graph was compiled for {sizes}",
                    help="compile the graph for this size, or with a symbolic size",
                )
        results = self.graph(*args)
        return results[0] if self.single else results

    def _check(self, args: Sequence[Any]) -> None:
        try:
            values = {
                Sym(name): args[index] if axis is None else args[index].shape[axis]
                for name, (index, axis) in self.sources.items()
            }
        except (AttributeError, IndexError):
            return  # the graph itself raises for other ranks, types and numbers of arguments
        for condition in self.conditions:
            if not holds(condition, values):
                known = ", ".join(f"{name} = {value}" for name, value in values.items())
                raise LayoutError.of(
                    "GY-RUNTIME-090",
                    f"the graph was compiled for sizes with {to_text(condition)}, but {known}",
                    help="compile the graph for these sizes",
                )

    def save(self, path: str | Path) -> None:
        """Write the graph to a file, atomically. The file contains native code: load only files
        that you trust."""
        path = Path(path)
        about = {
            "format": _FORMAT,
            "single": self.single,
            "integers": self.integers,
            "conditions": [to_text(condition) for condition in self.conditions],
            "sources": dict(self.sources),
        }
        head = json.dumps(about).encode()
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(head + b"\n" + self.graph.data())
        part.replace(path)

    @classmethod
    def load(cls, path: str | Path, frontend: Callable[[Options], Frontend]) -> CompiledArtifact:
        """Load an artifact; see `Session.load`."""
        head, _, data = Path(path).read_bytes().partition(b"\n")
        try:
            about = json.loads(head)
            valid = about["format"] == _FORMAT
        except (ValueError, KeyError, TypeError):
            valid = False
        if not valid:
            raise _unread(path)
        integers = tuple((index, minimum, maximum) for index, minimum, maximum in about["integers"])
        conditions = tuple(map(parse_cond, about["conditions"]))
        sources = {name: (index, axis) for name, (index, axis) in about["sources"].items()}
        graph = SavedGraph.read(data, frontend)
        return cls(graph, about["single"], integers, conditions, sources)


def _unread(path: str | Path) -> UnsupportedError:
    message = f"{path} is not a compiled graph of this version"
    return UnsupportedError.of("GY-AOT-007", message, help="compile the graph again")


def compiled_artifact(
    frontend: Frontend,
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    sizes: tuple[int, int] | None,
) -> CompiledArtifact:
    """Compile a graph for inputs; see `Session.compile`."""
    weights = [name for name, _ in (*gm.named_parameters(), *gm.named_buffers())]
    if weights:
        why = f"it has {len(weights)} weights of its own, {weights[0]!r} the first"
        raise _unsaved(why, "pass weights as inputs, as graphs of Dynamo do")
    graph, single = _returning_tuple(gm)
    modes = (x.fake_mode for x in inputs if isinstance(x, FakeTensor))
    mode = next(modes, None) or FakeTensorMode()  # without symbolic sizes
    environment = mode.shape_env
    config: Any = torch._functorch.config
    saving = config.patch(bundled_autograd_cache=True, force_autograd_cache=True)
    within = _narrowed(inputs, sizes) if sizes is not None else nullcontext()
    unguarded = unguarded_convolutions(mode)
    with torch.no_grad(), saving, tracing(TracingContext(mode)), within, unguarded:
        compiled: Callable[..., Any] = frontend.compile(graph, inputs)
    assert isinstance(compiled, SavableGraph)
    integers = [(index, x, x) for index, x in enumerate(inputs) if type(x) is int]
    if sizes is not None:
        symbolic = (k for k, x in enumerate(inputs) if isinstance(x, torch.SymInt))
        integers += [(index, *sizes) for index in symbolic]
    conditions, sources = _conditions(environment, inputs)
    saved = SavedGraph.of(compiled)
    return CompiledArtifact(saved, single, tuple(integers), conditions, sources)


def _conditions(
    environment: Any, inputs: Sequence[Any]
) -> tuple[tuple[Cond, ...], dict[str, tuple[int, int | None]]]:
    """Return the guards of a `ShapeEnv` that inputs decide, and where their symbols' values are."""
    sizes = [
        (size, (index, axis))
        for index, x in enumerate(inputs)
        for axis, size in ([(None, x)] if isinstance(x, torch.SymInt) else enumerate(_shape(x)))
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol
    ]
    sources = {size.node.expr.name: source for size, source in reversed(sizes)}
    guards = () if environment is None else environment.guards
    exprs = {environment.replace(guard.expr): None for guard in guards}
    decided = (e for e in exprs if {s.name for s in e.free_symbols} <= sources.keys())
    conditions = tuple(c for c in map(cond_from_sympy, decided) if c is not TRUE)
    used = {symbol.name for c in conditions for symbol in c.free_symbols}
    return conditions, {name: source for name, source in sources.items() if name in used}


def _shape(x: Any) -> Sequence[Any]:
    return x.shape if isinstance(x, torch.Tensor) else ()


@contextmanager
def _narrowed(inputs: Sequence[Any], sizes: tuple[int, int]) -> Iterator[None]:
    """Restrict the ranges of symbolic integers to two bounds for the duration of the block."""
    nodes = [x.node for x in inputs if isinstance(x, torch.SymInt)]
    before = [(n.shape_env, n.expr, n.shape_env.var_to_range.get(n.expr)) for n in nodes]
    try:
        for env, symbol, bounds in before:
            if bounds is not None:
                env.var_to_range[symbol] = bounds & type(bounds)(*sizes)
        yield
    finally:
        for env, symbol, bounds in before:
            if bounds is not None:
                env.var_to_range[symbol] = bounds


def _returning_tuple(gm: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, bool]:
    """Return a copy of a graph that returns a tuple, and whether the original returns a single
    tensor."""
    graph = torch.fx.Graph()
    results: Any = graph.graph_copy(gm.graph, {})
    single = not isinstance(results, tuple | list)
    graph.output((results,) if single else results)
    wrapped = torch.fx.GraphModule(gm, graph)
    wrapped.meta = dict(gm.meta)
    return wrapped, single
