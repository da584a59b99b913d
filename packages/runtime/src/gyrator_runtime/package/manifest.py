"""The manifest of a package: frozen classes stored as JSON, and read back with type checks."""

import json
from collections.abc import Mapping
from typing import Literal, TypeAlias

from attrs import asdict, field

from gyrator_ir.define import frozen
from gyrator_runtime.native import BuiltKernel
from gyrator_runtime.typed_json import read

FORMAT = 1
"""Format version of packages, increased when an older runtime would misread one."""
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"

Scalar: TypeAlias = bool | int | float | str | None


@frozen
class Dim:
    """A size `factor * symbol + offset`."""

    symbol: str
    factor: int = 1
    offset: int = 0

    def __str__(self) -> str:
        """Return the readable form."""
        scaled = self.symbol if self.factor == 1 else f"{self.factor}*{self.symbol}"
        return f"{scaled}{self.offset:+}" if self.offset else scaled


@frozen
class Symbol:
    """The range of a size symbol."""

    name: str
    least: int
    most: int | None
    """None for no bound."""


@frozen
class Input:
    """A leaf of the arguments."""

    name: str
    kind: Literal["tensor", "integer", "constant"]
    """`integer`: a size that the caller passes. `constant`: a value fixed at compile time."""
    dtype: str = ""
    """As in `torch.float32`."""
    device: str = ""
    shape: tuple[Dim | int, ...] = ()
    """For an integer, its own value."""
    strides: tuple[str, ...] = ()
    """As compiled. The program rejects a tensor with other strides (GY-RUNTIME-090)."""
    written: bool = False
    value: Scalar = None
    """The value of a constant."""

    def __str__(self) -> str:
        """Return the readable form."""
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
    """`value`: a number or None. `input`: an argument that is returned unchanged."""
    dtype: str = ""
    shape: tuple[str, ...] = ()
    strides: tuple[str, ...] = ()
    place: int = 0
    """For an input, its index among the weights followed by the leaves of the arguments."""


@frozen
class Weight:
    """A parameter, buffer or constant."""

    name: str
    kind: Literal["parameter", "buffer", "constant"]
    tensor: str
    """Its name in the safetensors member; weights that share memory have the same one."""
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    written: bool = False
    """A program writes to it, so every instance has its own copy."""
    hosted: bool = False
    """It is in host memory, regardless of the device of the programs."""


@frozen
class Kernels:
    """A kernel library: a shared library, or machine code for a device driver."""

    member: str
    symbols: tuple[str, ...]
    driven: bool = False
    """It is loaded by the device driver."""


@frozen
class PackedProgram:
    """An entry point compiled for one instruction set level or one device architecture."""

    isa: str
    plan: str
    """The member with its `StoredPlan`."""
    libraries: tuple[Kernels, ...]
    kernels: tuple[BuiltKernel, ...]
    constants: Mapping[str, str]
    """Names of tensors in the safetensors member, by their names in the plan."""
    calls: tuple[str, ...]
    """The operators that it calls."""
    machine: str = ""
    """Machine of its kernels; empty for the package's machine."""
    hosted: tuple[str, ...] = ()
    """Constants that are in host memory."""
    graphs: Mapping[str, tuple[int, ...]] = field(factory=dict)
    """Partitions that a device graph may replace, by name (empty for the whole program), with the
    indices of the arguments that each writes to."""


@frozen
class OperatorArgument:
    """An argument of an operator, in the order of its schema."""

    name: str
    kind: str
    """`Tensor`, `int`, `bool`, `float`, `str`, `ScalarType`, `Layout`, `MemoryFormat`, `Device` and
    others, with suffix `?` for optional arguments, `[]` for lists, and `[2]` for lists of two that
    accept a single value."""
    default: Scalar | tuple[Scalar, ...] = None


@frozen
class CalledOperator:
    """An operator that plans call."""

    name: str
    """`aten.mm.out`"""
    arguments: tuple[OperatorArgument, ...]
    returns: tuple[str, ...]


@frozen
class ConstantsProgram:
    """A program that computes constants from weights, on loading and when a weight is replaced."""

    weights: tuple[str, ...]
    """Its inputs, in order."""
    programs: tuple[PackedProgram, ...]
    count: int
    """How many of its results, the first ones, the entry point takes. The others are only read by
    its packed inputs."""


@frozen
class Source:
    """A tensor that a packed input is made from: a weight, or a result of the constants program."""

    weight: str = ""
    constant: int | None = None


@frozen
class PackedInput:
    """An input in a library's own layout, made by an operator on loading, and when a weight that it
    is made from is replaced."""

    operator: str
    """`mkldnn._reorder_linear_weight.default`"""
    arguments: tuple[Source | Scalar | tuple[Scalar, ...], ...]


@frozen
class Entry:
    """A function in the package."""

    name: str
    weights: tuple[str, ...]
    """The weights that it takes before the leaves of the arguments, in order."""
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    symbols: tuple[Symbol, ...]
    parameters: tuple[str, ...]
    """Names of the arguments, positional ones first."""
    positional: int
    """Number of positional arguments in the compile."""
    keywords: tuple[str, ...]
    """Arguments passed by name, in order."""
    in_spec: str
    """Structure of `(args, kwargs)`, from `torch.utils._pytree.treespec_dumps`."""
    out_spec: str
    programs: tuple[PackedProgram, ...]
    tokens: int = 0
    """Number of tokens for ordered effects, such as checks, that it takes and returns first."""
    constants: ConstantsProgram | None = None
    """Computes inputs between the weights and the arguments, if any."""
    packed: tuple[PackedInput, ...] = ()
    """The inputs between these and the arguments. Standalone packages have none."""


def programs_of(entry: Entry) -> tuple[PackedProgram, ...]:
    """Return all programs of an entry point, including those that compute its constants."""
    return entry.programs + (() if entry.constants is None else entry.constants.programs)


@frozen
class Member:
    """A file in the package."""

    name: str
    size: int
    sha256: str


@frozen
class Runner:
    """The native runner, built for a version of Python."""

    member: str
    key: str
    """Hash of its source, Python's ABI and the flags."""


@frozen
class Provenance:
    """Origin of a package."""

    gyrator: str
    """Version of the compiler."""
    sources: str
    """Hash of the compiler's source."""
    torch: str
    python: str
    compiler: str
    options: Mapping[str, Scalar]
    licence: str
    """License of the parts of Gyrator in the package: kernel helpers and the runner."""


@frozen
class PackageManifest:
    """The description of a package: everything except plans, libraries and weights."""

    machine: str
    """Target machine, as in `platform.machine`, of programs that do not name another."""
    least_torch: str
    plan_format: int
    entries: tuple[Entry, ...]
    weights: tuple[Weight, ...]
    members: tuple[Member, ...]
    runners: tuple[Runner, ...]
    provenance: Provenance
    runtime: Literal["python", "standalone", "libtorch"] = "python"
    """Besides Python, which C libraries run it: `standalone`, those with and without libtorch;
    `libtorch`, only the one with libtorch. Their packages have no compressed members."""
    operators: tuple[CalledOperator, ...] = ()
    """Operators that plans call, for `libtorch`."""
    device: str = ""
    """Device type that it runs on; empty for the CPU."""
    format: int = FORMAT

    def to_json(self) -> str:
        """Return the text for `from_json`."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: bytes) -> "PackageManifest":
        """Return the manifest.

        Raises:
            OtherFormatError: when its format is not supported.
            TypeError, KeyError, ValueError: when it is malformed.
        """
        data = json.loads(text)
        if isinstance(data, dict) and data.get("format") != FORMAT:
            raise OtherFormatError(data.get("format"))
        return read(cls, data)


class OtherFormatError(ValueError):
    """A manifest has an unsupported `format`."""

    def __init__(self, format: object) -> None:
        super().__init__(f"it has the format {format}")
        self.format = format
