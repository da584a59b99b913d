"""A random program as data: its inputs, its statements, and how it is compiled.

A program is stored as JSON and shown as a Python script that runs by itself.
"""

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from attrs import asdict, field, frozen
from torch import Tensor

from gyrator_conformance.fuzz.parts import NAMES, lines_of
from gyrator_ir.types import HOST

DTYPES: Mapping[str, torch.dtype] = MappingProxyType({
    "f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u8": torch.uint8, "b8": torch.bool, "c64": torch.complex64, "c128": torch.complex128,
    "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64,
})  # fmt: skip
"""Element types by the names that programs use."""

_WIDE: Mapping[str, torch.dtype] = MappingProxyType({
    **DTYPES, "f32": torch.float64, "f16": torch.float64, "bf16": torch.float64,
    "c64": torch.complex128,
})  # fmt: skip
_NARROWING = re.compile(r"\.(float|half|bfloat16)\(\)")

LAYOUTS = ("c", "T", "perm", "step", "off", "exp", "cl", "over", "conj")
"""Contiguous, last two axes swapped, axes reversed, every second element, all but the first,
expanded along the first axis, channels-last, all strides 1, conjugated (where complex)."""

PROGRAM_FILE = "<program>"
"""The name of the file in tracebacks of programs."""
Gradients = Literal["none", "first", "second"]
Size = int | str
"""A number, or the name of a dimension whose size each call chooses."""


@frozen
class Input:
    """A tensor that a program takes."""

    name: str
    sizes: tuple[Size, ...]
    dtype: str
    layout: str = "c"
    seed: int = 0
    special: bool = False
    """Whether NaN, infinities, signed zeros, denormals and extremes are among the values."""
    grad: bool = False
    parameter: bool = False
    """Whether it is a parameter without gradient, which the option `freezing` takes as constant."""


@frozen
class Program:
    """A function of tensors and sizes, and how it is compiled and called."""

    inputs: tuple[Input, ...]
    statements: tuple[str, ...]
    """Python assignments and in-place calls, in order; some with the mark of a part."""
    results: tuple[str, ...]
    dims: Mapping[str, tuple[int, ...]] = field(factory=dict)
    """The sizes of each named dimension, one a call."""
    scalars: Mapping[str, tuple[int, ...]] = field(factory=dict)
    """Integers that the function takes after its tensors, one value a call."""
    dynamic: bool = False
    gradients: Gradients = "none"
    wrapper: str = "python"
    options: Mapping[str, Any] = field(factory=dict)
    """Options of `torch.compile`, beside the wrapper."""

    @property
    def calls(self) -> int:
        """How many times the compiled program is called."""
        return max(map(len, (*self.dims.values(), *self.scalars.values())), default=1)

    @property
    def text(self) -> str:
        """The function as Python text."""
        names = ", ".join([*(i.name for i in self.inputs), *self.scalars])
        body = lines_of(self.statements, self.results)
        lines = [f"def fn({names}):", *(f"    {line}" for line in body)]
        return "\n".join([*lines, f"    return ({', '.join(self.results)},)", ""])

    def function(self, wide: bool = False) -> Callable[..., tuple[Any, ...]]:
        """Return the function; if `wide` one that names double precision wherever it names less."""
        space: dict[str, Any] = {"torch": torch, "F": F, **NAMES, **(_WIDE if wide else DTYPES)}
        text = _NARROWING.sub(".double()", self.text) if wide else self.text
        exec(compile(text, PROGRAM_FILE, "exec"), space)
        function: Callable[..., tuple[Any, ...]] = space["fn"]
        return function

    def arguments(self, call: int, device: str) -> tuple[list[Tensor], list[int]]:
        """Return fresh tensors and the integers of a call."""
        arguments = [make_input(i, self.sizes_of(i, call), device) for i in self.inputs]
        return arguments, [values[call] for values in self.scalars.values()]

    def sizes_of(self, declared: Input, call: int) -> tuple[int, ...]:
        """Return an input's shape in a call."""
        return tuple(self.dims[s][call] if isinstance(s, str) else s for s in declared.sizes)

    def as_json(self) -> str:
        """Return the program as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Program":
        """Read what `as_json` gave."""
        data = json.loads(text)
        data["inputs"] = tuple(Input(**{**i, "sizes": tuple(i["sizes"])}) for i in data["inputs"])
        for name in ("statements", "results"):
            data[name] = tuple(data[name])
        for name in ("dims", "scalars"):
            data[name] = {k: tuple(v) for k, v in data[name].items()}
        return cls(**data)


def make_input(declared: Input, shape: tuple[int, ...], device: str) -> Tensor:
    """Return the tensor that an input describes: the same values for the same seed and shape."""
    base = _stored_shape(declared.layout, shape)
    with torch.device(HOST):  # the same values for every device
        values = _values(declared, base)
    if declared.layout == "T" and len(shape) > 1:
        values = values.transpose(-1, -2)
    elif declared.layout == "perm":
        values = values.permute(tuple(reversed(range(len(shape)))))
    elif declared.layout in ("step", "off"):
        step = 2 if declared.layout == "step" else 1
        values = values[(slice(1, None, step),) * len(shape)]
    elif declared.layout == "exp" and shape:
        values = values.expand(shape)
    elif declared.layout == "cl" and len(shape) == 4:
        values = values.contiguous(memory_format=torch.channels_last)
    elif declared.layout == "over":
        values = values.as_strided(shape, (1,) * len(shape))
    elif declared.layout == "conj":
        values = values.conj()
    if device != HOST:
        values = _moved(values, device)
    if declared.parameter:
        return torch.nn.Parameter(values, requires_grad=declared.grad)
    return values.requires_grad_() if declared.grad else values


def _moved(values: Tensor, device: str) -> Tensor:
    """Return the tensor on a device, with its strides and its offset."""
    size = values.untyped_storage().nbytes() // values.element_size()
    whole = torch.as_strided(values, (size,), (1,), 0).to(device)
    return torch.as_strided(whole, values.shape, values.stride(), values.storage_offset())


def _stored_shape(layout: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the memory that the view of a layout is taken of."""
    match layout:
        case "T" if len(shape) > 1:
            return (*shape[:-2], shape[-1], shape[-2])
        case "perm":
            return shape[::-1]
        case "step":
            return tuple(2 * n + 1 for n in shape)
        case "off":
            return tuple(n + 1 for n in shape)
        case "exp" if shape:
            return (1, *shape[1:])
        case "over":
            return (sum(max(n - 1, 0) for n in shape) + 1,)
    return shape


def _values(declared: Input, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(declared.seed)
    dtype = DTYPES[declared.dtype]
    if dtype.is_complex:
        parts = torch.randn(2, *shape, generator=generator, dtype=torch.float32)
        return torch.complex(parts[0], parts[1]).to(dtype)
    if dtype.is_floating_point:
        if declared.seed % 2:
            exact = torch.randint(-16, 17, shape, generator=generator) / 4  # with ties
        else:
            exact = torch.randn(shape, generator=generator, dtype=torch.float64)
        drawn = exact.to(dtype)
        if declared.special and drawn.numel():
            chosen = torch.tensor(_SPECIAL, dtype=torch.float64).to(dtype)
            which = torch.randint(0, len(chosen), shape, generator=generator)
            among = torch.rand(shape, generator=generator, dtype=torch.float32) < 0.2
            drawn = torch.where(among, chosen[which], drawn)
        return drawn
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator, dtype=torch.float32) < 0.5
    low, high = {"i8": (-128, 128), "i16": (-300, 300)}.get(declared.dtype, (-20, 21))
    if not dtype.is_signed:
        low, high = 0, 256
    if declared.special:
        low, high = (
            torch.iinfo(dtype).min,
            min(torch.iinfo(dtype).max, torch.iinfo(torch.int64).max),
        )
    return torch.randint(low, high, shape, generator=generator).to(dtype)


_SPECIAL = (
    float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-40, 1e30, -1e30, 65504.0,
)  # fmt: skip
