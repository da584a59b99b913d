"""What a package says of itself: JSON of frozen classes, read back with every type checked."""

import functools
import json
import types
from collections.abc import Mapping
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
    runtime: Literal["python", "standalone"] = "python"
    """`standalone`: the C library runs it, too, and no member is deflated."""
    device: str = ""
    """The type of the devices that it runs on; empty for the CPU."""
    format: int = FORMAT

    def to_json(self) -> str:
        """Return what `from_json` reads."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: bytes) -> "PackageManifest":
        """Return the manifest. TypeError, KeyError or ValueError where it is none."""
        found: PackageManifest = _made(cls, json.loads(text))
        return found


def format_of(text: bytes) -> object:
    """Return the format that a manifest says it has; ValueError where it is none."""
    found = json.loads(text)
    return found.get("format") if isinstance(found, dict) else None


def _made(kind: Any, data: Any) -> Any:
    """Return a value of a type made of JSON data; TypeError where the data are of another one."""
    if attrs.has(kind):
        if not isinstance(data, dict):
            raise TypeError(f"{kind.__name__} of {data!r}")
        hints = _hints(kind)
        unknown = data.keys() - hints.keys()
        if unknown:
            raise TypeError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
        return kind(**{name: _made(hints[name], value) for name, value in data.items()})
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple:
        if not isinstance(data, list):
            raise TypeError(f"a list was expected: {data!r}")
        kinds = args[:1] * len(data) if args[1:] == (...,) else args
        return tuple(_made(k, item) for k, item in zip(kinds, data, strict=True))
    if origin is Mapping:
        if not isinstance(data, dict):
            raise TypeError(f"a mapping was expected: {data!r}")
        return {str(k): _made(args[1], v) for k, v in data.items()}
    if origin is Literal:
        if data not in args:
            raise TypeError(f"one of {args} was expected: {data!r}")
        return data
    if origin in (Union, types.UnionType):
        return _made_of_one(args, data)
    if type(data) is not kind and not (kind is float and type(data) is int):
        raise TypeError(f"{kind.__name__} was expected: {data!r}")
    return data


@functools.cache
def _hints(kind: type) -> Mapping[str, Any]:
    """Return the types of a class's fields; to find them out takes longer than to use them."""
    return get_type_hints(kind)


def _made_of_one(kinds: tuple[Any, ...], data: Any) -> Any:
    for kind in kinds:
        try:
            return _made(kind, data)
        except (TypeError, ValueError):
            continue
    raise TypeError(f"one of {kinds} was expected: {data!r}")
