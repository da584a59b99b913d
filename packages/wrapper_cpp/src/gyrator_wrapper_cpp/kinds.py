"""The kind of each name of a program, which determines the type of its frame member."""

from collections.abc import Iterable, Iterator
from enum import Enum

from gyrator_ir.expr import Sym
from gyrator_ir.host import nodes as h
from gyrator_wrapper_cpp.errors import refusal


class Kind(Enum):
    """The type and the prefix of a member of a frame."""

    TENSOR = ("gy::Tensor", "t_")
    VALUE = ("GyValue", "v_")
    DESCRIPTOR = ("gy::Descriptor", "d_")
    SYMBOL = ("int64_t", "s_")

    @property
    def type(self) -> str:
        """The C++ type."""
        return self.value[0]

    @property
    def prefix(self) -> str:
        """The prefix of the member's name."""
        return self.value[1]


_TENSORS = (h.BindConstant, h.Allocate, h.AllocatePool, h.AllocateFromPool, h.Reuse, h.View)
_SYMBOLS = (h.BindSize, h.BindParameter, h.DefineSymbol, h.ReadScalar)


def returned(program: h.HostProgram) -> tuple[h.Value, ...]:
    """Return the results of a program."""
    last = program.instructions[-1] if program.instructions else None
    return last.values if isinstance(last, h.Return) else ()


def leaves(values: Iterable[h.Value]) -> Iterator[h.Value]:
    """Yield the values with lists flattened, depth first."""
    for v in values:
        if isinstance(v, h.ListValue):
            yield from leaves(v.items)
        else:
            yield v


class Kinds:
    """The kind of each name and symbol of one program, in order of first use."""

    def __init__(self, program: h.HostProgram) -> None:
        self._names: dict[str, Kind] = {}
        self._symbols: dict[str, None] = {}
        self._subs = {s.name: s for s in program.subprograms}
        self._inner: dict[str, Kinds] = {}
        for p in program.parameters:
            self._bind(p.name, Kind.TENSOR if p.kind == "tensor" else Kind.VALUE)
        self._read(program.instructions)

    def __getitem__(self, name: str) -> Kind:
        return self._names[name]

    def member(self, name: str) -> str:
        """Return the frame member of `name`."""
        if name not in self._names:
            raise refusal("GY-WCPP-005", f"{name!r} is not bound")
        return f"{self._names[name].prefix}{name}"

    def holds(self, name: str) -> bool:
        """Return whether a name owns something that can be released: symbols and values do not."""
        return self._names.get(name, Kind.SYMBOL) not in (Kind.SYMBOL, Kind.VALUE)

    def members(self) -> Iterator[tuple[str, str]]:
        """Yield the type and name of each member."""
        for name, kind in self._names.items():
            yield kind.type, f"{kind.prefix}{name}"
        for name in self._symbols:
            yield Kind.SYMBOL.type, f"{Kind.SYMBOL.prefix}{name}"

    def callee(self, name: str) -> h.HostProgram:
        """Return a subprogram."""
        if name not in self._subs:
            raise refusal("GY-WCPP-005", f"there is no subprogram {name!r}")
        return self._subs[name]

    def _bind(self, name: str, kind: Kind) -> None:
        if self._names.setdefault(name, kind) is not kind:
            raise refusal(
                "GY-WCPP-005", f"{name!r} is a {kind.name.lower()} and also has another kind"
            )

    def _of(self, name: str) -> Kind:
        return self._names.get(name, Kind.TENSOR)

    def _read(self, instructions: Iterable[h.Instruction]) -> None:
        for i in instructions:
            if isinstance(i, _TENSORS):
                self._bind(i.name, Kind.TENSOR)
            elif isinstance(i, _SYMBOLS):
                self._symbols[i.symbol.name] = None
            else:
                self._others(i)

    def _others(self, i: h.Instruction) -> None:
        match i:
            case h.TmaDescriptor(name=name):
                self._bind(name, Kind.DESCRIPTOR)
            case h.ExternCall(out=None, results=results) | h.CollectiveStart(results=results):
                self._results(results)
            case h.WithDevice(body=body) | h.ProfileRange(body=body):
                self._read(body)
            case h.Branch():
                self._read(i.then)
                self._read(i.otherwise)
                for name, value in zip(i.results, i.then_values, strict=True):
                    self._bind(name, self._of(value))
            case h.Loop() | h.Repeat():
                if isinstance(i, h.Repeat):
                    self._symbols[i.symbol.name] = None
                for name, value in zip(i.carried, i.initial, strict=True):
                    self._bind(name, self._of(value))
                self._read((*(i.condition if isinstance(i, h.Loop) else ()), *i.body))
                for name, value in zip(i.results, i.initial, strict=True):
                    self._bind(name, self._of(value))
            case h.CallProgram() | h.CallPartition():
                self._call(i)

    def _results(self, results: Iterable[str | tuple[str, ...] | Sym | None]) -> None:
        for r in results:
            match r:
                case str():
                    self._bind(r, Kind.TENSOR)
                case tuple():
                    for name in r:
                        self._bind(name, Kind.TENSOR)
                case Sym():
                    self._symbols[r.name] = None

    def _call(self, i: h.CallProgram | h.CallPartition) -> None:
        callee = self.callee(i.program)
        if i.program not in self._inner:
            self._inner[i.program] = Kinds(callee)
        inner = self._inner[i.program]
        values = returned(callee)
        if len(i.results) > len(values):
            raise refusal("GY-WCPP-005", f"{i.program!r} returns {len(values)} values")
        for name, value in zip(i.results, values, strict=False):
            if isinstance(value, h.ListValue):
                raise refusal("GY-WCPP-005", f"{i.program!r} returns a list to its caller")
            tensor = isinstance(value, h.Ref) and inner[value.name] is Kind.TENSOR
            self._bind(name, Kind.TENSOR if tensor else Kind.VALUE)
