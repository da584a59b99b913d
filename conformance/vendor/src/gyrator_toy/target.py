"""The toy's target: what it can do, what is fast on it, and how its kernels are loaded."""

import ctypes
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from gyrator.config import Config
from gyrator.targets import API, TargetDefinition
from gyrator_conformance import Excuse, Profile, Reason
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Capabilities, Heuristics, Target
from gyrator_ir.types import DType
from gyrator_runtime.build import Library
from gyrator_toy.device import NAME, start, toy_device
from gyrator_toy.language import LACKING, ToyBackend
from gyrator_toy.machine import DTYPES, Machine

_Entry = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64)
)


@functools.cache
def entry(text: str) -> Any:
    """Return a program as a function of the calling convention, kept for the process."""

    def run(buffers: Any, sizes: Any) -> int:
        start().toy_count_launch()
        return Machine(buffers, sizes).run(text)

    return _Entry(run)


def functions(symbol: str, text: str) -> Mapping[str, int]:
    """Return where a program's function is."""
    return {symbol: ctypes.cast(entry(text), ctypes.c_void_p).value or 0}


@frozen(eq=False)
class Programs:
    """Assembly needs no building."""

    units: tuple[TranslationUnit, ...]

    def libraries(self) -> tuple[Library, ...]:
        """What a cache entry keeps: the text."""
        return tuple(Library(u.name, u.text.encode(), (u.kernels[0].symbol,)) for u in self.units)

    def addresses(self) -> Mapping[str, int]:
        """Return the functions by symbol."""
        found: dict[str, int] = {}
        for unit in self.units:
            found |= functions(unit.kernels[0].symbol, unit.text)
        return found


@frozen(eq=False)
class Loader:
    """Turns assembly into functions."""

    identity: bytes = b"toy 1"

    def submit(self, units: Sequence[TranslationUnit]) -> Programs:
        """Take the units as they are."""
        return Programs(tuple(units))


def load(file: Path, symbols: Sequence[str]) -> Mapping[str, int]:
    """Read what a cache entry keeps."""
    return functions(symbols[0], file.read_text())


def probe(config: Config) -> Target:
    """Start the device, and describe it."""
    start()
    return Target(
        device=NAME,
        arch="one",
        kernel_backend="toy",
        wrapper_backends=("python", "cpp", "fx"),
        capabilities=Capabilities(
            dtypes=frozenset(map(DType, DTYPES)),
            ops_lacking=LACKING,
            scans=False,
            sorts=False,
            random=False,
        ),
        heuristics=Heuristics(
            fusion_statements=64, split_reduction_extent=1 << 20, split_scan_extent=1 << 20
        ),
    )


TARGET = TargetDefinition(
    name=NAME,
    api=API,
    probe=probe,
    kernels=ToyBackend(),
    device=lambda target: toy_device(),
    loader=lambda target, context: Loader(),
    load=load,
    optional=True,
)
PROFILE = Profile(
    excuses=(
        Excuse(
            Reason.LIBRARY,
            "eager PyTorch's way to the host ends in a crash on gradients of complex tensors",
            models=frozenset({"spectral-conv"}),
            modes=frozenset({"training"}),
        ),
    )
)
"""What the suite must not ask for, as it ends the process. An op that eager PyTorch lacks here, as
the fused cells of LSTM, the suite finds by itself; all else that kernels lack is calls of ATen."""
