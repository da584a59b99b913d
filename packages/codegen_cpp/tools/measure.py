"""Measure error and speed of the prelude's float32 functions, for docs/vector-math.md.

Run ``python packages/codegen_cpp/tools/measure.py [stride] [name ...]``: every ``stride``-th
float32 bit pattern is compared with the float64 function (libm's, or the prelude's own where libm
has none), and a vector loop over 4,096 values in the first-level cache is timed on one core.
"""

import ctypes
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "prelude"))

from prelude_harness import Library, build, elementwise, float32_patterns, runnable_isas, ulps

from gyrator_codegen_cpp.ops import function
from gyrator_codegen_cpp.prelude import Isa
from gyrator_ir.types import DType

NAMES = """exp exp2 expm1 sigmoid log log2 log10 log1p tanh sinh cosh asinh acosh atanh erf erfc
erfinv sin cos tan asin acos atan sqrt rsqrt reciprocal lgamma digamma""".split()


def worst(library: Library, references: Library, name: str, stride: int) -> tuple[float, float]:
    """The largest error in ulps, and the argument where it is."""
    largest, where = 0.0, 0.0
    every = float32_patterns(stride, start=7)
    for x in np.array_split(every, max(1, len(every) // 1_000_000)):
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            exact = {"sqrt": np.sqrt, "reciprocal": np.reciprocal}.get(name)
            reference = exact(wide) if exact else references.map("f64_s", "f64", wide)
        error = ulps(library.map("f32_s", "f32", x), reference)
        i = int(np.argmax(error))
        if error[i] > largest:
            largest, where = float(error[i]), float(x[i])
    return largest, where


def nanoseconds(library: Library, symbol: str, x: np.ndarray) -> float:
    """Nanoseconds an element, the best of 30 runs of 50 passes in cache."""
    out = np.zeros_like(x)
    function = getattr(ctypes.CDLL(str(library.path)), symbol)
    arguments = [ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data)]
    best = float("inf")
    for _ in range(30):
        start = time.perf_counter()
        for _ in range(50):
            function(*arguments, ctypes.c_long(len(x)))
        best = min(best, (time.perf_counter() - start) / 50 / len(x))
    return best * 1e9


def main(arguments: list[str]) -> None:
    """Print one row a function: error and time for each instruction set."""
    stride = int(arguments[0]) if arguments else 211
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in arguments[1:] or NAMES:
            calls = {t: f"{function(name, DType(t))}(a)" for t in ("f32", "f64")}
            body = "".join(elementwise(t, call, t, t) for t, call in calls.items())
            low, high = (1.0, 9.0) if name == "acosh" else (0.01, 0.99)
            x = rng.uniform(low, high, 4096).astype(np.float32)
            cells = []
            references = build(body, runnable_isas()[0], folder)
            for isa in runnable_isas():
                library = build(body, isa, folder)
                error, where = worst(library, references, name, stride)
                symbol = "f32_s" if isa is Isa.PLAIN else "f32_v"
                cells.append(f"{error:.3f} ({where:.8g}) | {nanoseconds(library, symbol, x):.2f}")
            sys.stdout.write(f"| `gy_{name}` | {' | '.join(cells)} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
