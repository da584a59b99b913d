"""What a package says of itself: JSON of frozen classes, read back with every type checked."""

import functools
import json
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import attrs
from attrs import asdict, field, frozen

from gyrator_runtime.native import BuiltKernel

FORMAT = 1
"""Of packages; raised when an older runtime would misread one."""
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"

Scalar: TypeAlias = bool | int | float | str | None


@frozen
class Dim:
    """A size that is `factor * symbol + offset`."""

    symbol: str
    factor: int = 1
    offset: int = 0

    def __str__(self) -> str:
        """Return it as people write it."""
        scaled = self.symbol if self.factor == 1 else f"{self.factor}*{self.symbol}"
        return f"{scaled}{self.offset:+}" if self.offset else scaled


@frozen
class Symbol:
    """The sizes that a symbol may stand for."""

    name: str
    least: int
    most: int | None
    """None where there is no bound."""


@frozen
class Input:
    """A leaf of the arguments."""

    name: str
    kind: Literal["tensor", "integer", "constant"]
    """`integer`: a size that the caller gives. `constant`: it was known when it was compiled."""
    dtype: str = ""
    """As in `torch.float32`."""
    device: str = ""
    shape: tuple[Dim | int, ...] = ()
    """Of an integer, its own value."""
    strides: tuple[str, ...] = ()
    """As it was compiled: the program refuses a tensor that lies otherwise (GY-RUNTIME-090)."""
    written: bool = False
    value: Scalar = None
    """Of a constant."""

    def __str__(self) -> str:
        """Return it as people write it."""
        if self.kind == "constant":
            return repr(self.value)
        if self.kind == "integer":
            return f"an integer {self.shape[0]}"
        sizes = ", ".join(map(str, self.shape))
        return f"{self.dtype}[{sizes}] on {self.device}"


@frozen
class Output:
    """A leaf of the results."""

    kind: Literal["tensor", "value", "input"]
    """`value`: a number or None. `input`: what was given, which is returned as it is."""
    dtype: str = ""
    shape: tuple[str, ...] = ()
    strides: tuple[str, ...] = ()
    place: int = 0
    """Of an input: its place among the weights and the leaves of the arguments."""


@frozen
class Weight:
    """A parameter, buffer or constant."""

    name: str
    kind: Literal["parameter", "buffer", "constant"]
    tensor: str
    """Its name in the safetensors member; weights that share memory have one."""
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    written: bool = False
    """A program writes to it: every instance has its own."""
    hosted: bool = False
    """It lies in the host's memory, wherever the programs run."""


@frozen
class Kernels:
    """A library of kernels: shared, or machine code that a device's driver loads."""

    member: str
    symbols: tuple[str, ...]
    driven: bool = False
    """The driver loads it."""


@frozen
class PackedProgram:
    """An entry point as one instruction set level, or one architecture of devices, runs it."""

    isa: str
    plan: str
    """The member that holds its `StoredPlan`."""
    libraries: tuple[Kernels, ...]
    kernels: tuple[BuiltKernel, ...]
    constants: Mapping[str, str]
    """Tensors in the safetensors member, by the plan's names of them."""
    calls: tuple[str, ...]
    """The operators that it calls."""
    machine: str = ""
    """Whose code its kernels are; empty for the package's machine."""
    hosted: tuple[str, ...] = ()
    """Which of its constants lie in the host's memory."""
    graphs: Mapping[str, tuple[int, ...]] = field(factory=dict)
    """Parts of it for which a device's graph may stand, by name (empty for the whole of it), and
    which arguments each writes to."""


@frozen
class OperatorArgument:
    """An argument of an operator, in the order of its schema."""

    name: str
    kind: str
    """`Tensor`, `int`, `bool`, `float`, `str`, `ScalarType`, `Layout`, `MemoryFormat`, `Device` and
    others, with `?` behind what may be None, `[]` behind lists, and `[2]` where one may stand for
    two."""
    default: Scalar | tuple[Scalar, ...] = None


@frozen
class CalledOperator:
    """An operator that plans call."""

    name: str
    """`aten.mm.out`"""
    arguments: tuple[OperatorArgument, ...]
    returns: tuple[str, ...]


@frozen
class Entry:
    """A function that the package holds."""

    name: str
    weights: tuple[str, ...]
    """Those that it takes, in order, before the leaves of the arguments."""
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    symbols: tuple[Symbol, ...]
    parameters: tuple[str, ...]
    """Names of the arguments, those given by place first."""
    positional: int
    """How many were given by place when it was compiled."""
    keywords: tuple[str, ...]
    """Those given by name, in their order."""
    in_spec: str
    """Of `(args, kwargs)`, as `torch.utils._pytree.treespec_dumps` writes it."""
    out_spec: str
    programs: tuple[PackedProgram, ...]
    tokens: int = 0
    """What a program with ordered effects, such as checks, takes first and returns first."""


@frozen
class Member:
    """A file in the package."""

    name: str
    size: int
    sha256: str


@frozen
class Runner:
    """The native runner, built for one version of Python."""

    member: str
    key: str
    """The hash of its source, of Python's ABI and of the flags."""


@frozen
class Provenance:
    """Where a package comes from."""

    gyrator: str
    """The version that made it."""
    sources: str
    """The hash of the compiler's source."""
    torch: str
    python: str
    compiler: str
    options: Mapping[str, Scalar]
    licence: str
    """Of what of Gyrator is in the package: kernels' helpers, and the runner."""


@frozen
class PackageManifest:
    """All but the bytes of plans, libraries and weights."""

    machine: str
    """Whose code it holds, as `platform.machine` calls it, but for programs that say another."""
    least_torch: str
    plan_format: int
    entries: tuple[Entry, ...]
    weights: tuple[Weight, ...]
    members: tuple[Member, ...]
    runners: tuple[Runner, ...]
    provenance: Provenance
    runtime: Literal["python", "standalone", "libtorch"] = "python"
    """Which C library runs it, too: `standalone` the one without libtorch, and the one with it;
    `libtorch` the latter. No member of theirs is deflated."""
    operators: tuple[CalledOperator, ...] = ()
    """What `libtorch` calls."""
    device: str = ""
    """The type of the devices that it runs on; empty for the CPU."""
    format: int = FORMAT

    def to_json(self) -> str:
        """Return what `from_json` reads."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: bytes) -> "PackageManifest":
        """Return the manifest. TypeError, KeyError or ValueError where it is none."""
        kind: Any = cls
        found: PackageManifest = _reader(kind)(json.loads(text))
        return found


def format_of(text: bytes) -> object:
    """Return the format that a manifest says it has; ValueError where it is none."""
    found = json.loads(text)
    return found.get("format") if isinstance(found, dict) else None


Reader: TypeAlias = Callable[[Any], Any]
"""Makes a value of JSON data; TypeError where the data are of another type."""


@functools.cache
def _reader(kind: Any) -> Reader:
    """Return what makes values of a type: to look at a type takes longer than to read a value."""
    if attrs.has(kind):
        return _class_reader(kind)
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple:
        return _tuple_reader(args)
    if origin is Mapping:
        return _mapping_reader(args[1])
    if origin is Literal:
        return _one_of(args)
    if origin in (Union, types.UnionType):
        return _union_reader(args)
    return _plain_reader(kind)


def _class_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    fields = {name: (_plain(hint), _reader(hint)) for name, hint in hints.items()}

    def read(data: Any) -> Any:
        if type(data) is not dict:
            raise TypeError(f"{kind.__name__} of {data!r}")
        made = {}
        for name, value in data.items():
            if name not in fields:
                raise TypeError(f"{kind.__name__} has no {name}")
            plain, reader = fields[name]
            made[name] = value if type(value) in plain else reader(value)
        return kind(**made)

    return read


def _tuple_reader(args: tuple[Any, ...]) -> Reader:
    alike = args[1:] == (...,)
    kinds = [_reader(k) for k in args if k is not ...]
    plain = _plain(args[0]) if alike else frozenset()

    def read(data: Any) -> Any:
        if type(data) is not list:
            raise TypeError(f"a list was expected: {data!r}")
        if alike:
            return tuple(data if plain.issuperset(map(type, data)) else map(kinds[0], data))
        return tuple(reader(item) for reader, item in zip(kinds, data, strict=True))

    return read


def _mapping_reader(kind: Any) -> Reader:
    reader = _reader(kind)

    def read(data: Any) -> Any:
        if type(data) is not dict:
            raise TypeError(f"a mapping was expected: {data!r}")
        return {k: reader(v) for k, v in data.items()}

    return read


def _one_of(values: tuple[Any, ...]) -> Reader:
    def read(data: Any) -> Any:
        if data not in values:
            raise TypeError(f"one of {values} was expected: {data!r}")
        return data

    return read


def _union_reader(kinds: tuple[Any, ...]) -> Reader:
    readers = [_reader(kind) for kind in kinds]

    def read(data: Any) -> Any:
        for reader in readers:
            try:
                return reader(data)
            except (TypeError, ValueError):
                continue
        raise TypeError(f"one of {kinds} was expected: {data!r}")

    return read


def _plain(kind: Any) -> frozenset[type]:
    """Return the types of JSON data that are values of a type as they are."""
    union = get_origin(kind) in (Union, types.UnionType)
    kinds = get_args(kind) if union else (kind,)
    return frozenset(kinds) & {bool, int, float, str, type(None)}


def _plain_reader(kind: Any) -> Reader:
    fitting = (float, int) if kind is float else (kind,)

    def read(data: Any) -> Any:
        if type(data) not in fitting:
            raise TypeError(f"{kind.__name__} was expected: {data!r}")
        return data

    return read
