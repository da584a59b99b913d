"""Builds small libraries out of prelude functions and runs them on numpy arrays."""

import ctypes
import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np

from gyrator_codegen_cpp.prelude import Isa, assemble, names_in
from gyrator_testing.kernels.built import caller, lacking
from gyrator_testing.kernels.emulator import Caller

FLAGS = (
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-nostdlib",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fno-trapping-math",
    "-fopenmp",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-psabi",
    "-Wno-type-limits",
    "-Wno-unused-function",
)

VECTORS = ("-O2", "-fpeel-loops", "-fno-tree-slp-vectorize")
"""How explicitly vectorised kernels are optimised for users; scalar ones with -O3."""

NUMPY = {
    "f32": np.float32,
    "f64": np.float64,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "bool": np.bool_,
}

Run = Callable[..., np.ndarray]


@attrs.frozen
class Library:
    """A library's functions; `map` runs one of those that are element-wise."""

    path: Path
    caller: Caller | None
    """What calls them, where this process cannot."""

    def __call__(self, symbol: str, *arguments: np.ndarray | int) -> int:
        """Call ``symbol`` with memory, where arrays begin, and numbers; return what it returns."""
        if self.caller is not None:
            return self.caller(self.path, symbol, *arguments)
        for name in ("libm.so.6", "libgomp.so.1"):
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        function = getattr(ctypes.CDLL(str(self.path)), symbol)
        function.restype = ctypes.c_long
        return function(*(
            ctypes.c_long(a)
            if isinstance(a, int)
            else ctypes.c_void_p(a.__array_interface__["data"][0])
            for a in arguments
        ))  # fmt: skip

    def map(self, symbol: str, out: str, *arrays: np.ndarray) -> np.ndarray:
        """Run ``symbol`` over arrays, padded to whole vectors; ``out`` is a type's name."""
        n = len(arrays[0])
        padded = -(-n // 16) * 16
        inputs = [np.concatenate([a, np.resize(a[-1:], padded - n)]) for a in arrays]
        result = np.zeros(padded, NUMPY[out])
        self(symbol, *inputs, result, padded)
        return result[:n]


def runnable_isas() -> list[Isa]:
    """The instruction sets of the prelude that this machine executes."""
    return [isa for isa in Isa if not lacking(isa.name.lower())]


def build(body: str, isa: Isa, folder: Path) -> Library:
    """Compile ``body`` after the prelude it needs; libm and libgomp come from the process."""
    text = assemble(names_in(body), isa) + body
    key = hashlib.sha256(f"{isa}{text}".encode()).hexdigest()[:16]
    source, target = folder / f"{key}.cpp", folder / f"{key}.so"
    by = caller(isa.name.lower(), folder)
    if not target.exists():
        source.write_text(text)
        compiler = "g++" if by is None else by.machine.compiler
        optimise = ("-O3",) if isa is Isa.PLAIN else VECTORS
        command = [compiler, *optimise, *FLAGS, *isa.flags, "-o", str(target), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:4000]
    return Library(target, by)


def elementwise(symbol: str, call: str, inputs: str, out: str) -> str:
    """C++ of ``symbol_s`` and ``symbol_v``: out[i] = call(a, b, ...), scalar and vector.

    ``inputs`` are type names separated by spaces; they are called a, b, c in ``call``.
    """
    types = inputs.split()
    parameters = ", ".join(f"const s{t} *p{i}" for i, t in enumerate(types))
    text = ""
    for kind, step in (("s", "1"), ("v", "GY_LANES")):
        loads = " ".join(f"auto {'abc'[i]} = gy_{kind}load(p{i} + i);" for i in range(len(types)))
        loop = f"for (si64 i = 0; i < n; i += {step}) {{ {loads} gy_store(o + i, {call}); }}"
        head = f'extern "C" void {symbol}_{kind}({parameters}, s{out} *o, si64 n)'
        function = f"{head} {{ {loop} }}\n"
        text += function if kind == "s" else f"#if GY_VEC\n{function}#endif\n"
    return text


def float32_patterns(stride: int, start: int = 0) -> np.ndarray:
    """Every ``stride``-th float32 bit pattern (NaNs too), and the specials."""
    bits = np.arange(start, 2**32, stride, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([bits.view(np.float32), specials()])


def specials() -> np.ndarray:
    """Values at which functions change their mind."""
    tiny = np.float32(1e-45)
    one = np.float32(1)
    values = [0.0, np.inf, np.nan, 1.0, 0.5, 2.0, 3.0, 1.5, 2.5, 88.7, 89.0, 104.0, 127.0, 128.0]
    values += [tiny, 1.1754944e-38, 1.17549421e-38, 3.4028235e38, 16777216.0, 8388608.5, 1e10, 1e30]
    values += [np.nextafter(one, np.float32(2)), np.nextafter(one, np.float32(0)), np.pi, np.pi / 2]
    array = np.array(values, np.float32)
    return np.concatenate([array, -array])


def ulps(got: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Errors of float32 ``got`` in units of the last place of float64 ``reference`` as float32.

    Equal infinities and NaNs count 0, unequal ones infinity. What rounds to infinity must be so.
    """
    with np.errstate(all="ignore"):
        rounded = reference.astype(np.float32)
        _, exponent = np.frexp(np.abs(reference))
        unit = np.ldexp(1.0, np.maximum(exponent - 24, -149))
        error = np.abs(got.astype(np.float64) - reference) / unit
        same = (got == rounded) & ~np.isfinite(rounded) | np.isnan(got) & np.isnan(rounded)
        odd = ~np.isfinite(got) | ~np.isfinite(rounded)
    return np.where(same, 0.0, np.where(odd, np.inf, error))


def same_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where two arrays agree bit for bit, all NaNs being equal."""
    view = {2: np.uint16, 4: np.uint32, 8: np.uint64, 1: np.uint8}[a.itemsize]
    equal = a.view(view) == b.view(view)
    return equal | (np.isnan(a) & np.isnan(b)) if a.dtype.kind == "f" else equal
