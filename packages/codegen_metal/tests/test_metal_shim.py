"""The host's stand-in for Metal finds what threads must not do, and rounds as Metal does."""

import ctypes
import subprocess

import ml_dtypes
import numpy as np
import pytest
from metal_harness import FLAGS

from gyrator_codegen_metal.shim import header
from gyrator_codegen_metal.support import preamble, sections

KERNELS = """
kernel void turned(device int* x, uint group, uint t) {
  threadgroup int kept[64];
  kept[t] = x[64 * group + t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[64 * group + t] = kept[63 - t];
}
kernel void raced(device int* x, uint group, uint t) {
  threadgroup int kept[64];
  kept[t] = x[64 * group + t];
  simdgroup_barrier(mem_flags::mem_none);
  x[64 * group + t] = kept[63 - t];
}
kernel void shuffled(device int* x, uint group, uint t) {
  x[64 * group + t] = simd_shuffle(x[64 * group + t], (t + 1) % 32);
}
kernel void left(device int* x, uint group, uint t) {
  if (t % 32 == 5) return;
  x[64 * group + t] = simd_shuffle(x[64 * group + t], 5);
}
kernel void apart(device int* x, uint group, uint t) {
  if (t % 32 < 5) x[t] = simd_shuffle(x[t], 0);
  else threadgroup_barrier(mem_flags::mem_none);
}
kernel void missed(device int* x, uint group, uint t) {
  if (t < 32) return;
  threadgroup_barrier(mem_flags::mem_none);
}
kernel void rounded(device float* x, device half* h, device bfloat* b, device float* back) {
  for (int k = 0; k < 65536; k++) {
    h[k] = half(x[k]);
    b[k] = bfloat(x[k]);
    back[k] = float(h[k]);
  }
}
"""
NAMES = ("turned", "raced", "shuffled", "left", "apart", "missed")
LAUNCH = """
extern "C" int64_t run_{0}(int *x) {{
  return metal_shim::launch<64, true>(2, [&](uint group, uint thread) {{ {0}(x, group, thread); }});
}}
"""
ROUND = """
extern "C" void run_rounded(float *x, half *h, bfloat *b, float *back) { rounded(x, h, b, back); }
"""


def build(text, folder, name):
    source, path = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text(text, encoding="utf-8")
    command = ["g++", *FLAGS, "-o", str(path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done, path


@pytest.fixture(scope="module")
def library(build_folder):
    text = header() + "using namespace metal;\n" + KERNELS + ROUND
    done, path = build(text + "".join(map(LAUNCH.format, NAMES)), build_folder, "shim")
    assert done.returncode == 0, done.stderr[:2000]
    return ctypes.CDLL(str(path))


def run(library, name):
    x = np.arange(128, dtype=np.int32)
    return library[f"run_{name}"](ctypes.c_void_p(x.ctypes.data)), x


def test_threads_meet(library):
    code, x = run(library, "turned")
    assert code == 0
    np.testing.assert_array_equal(x, np.arange(128).reshape(2, 64)[:, ::-1].ravel())
    code, x = run(library, "shuffled")
    assert code == 0
    np.testing.assert_array_equal(x, np.roll(np.arange(128).reshape(4, 32), -1, 1).ravel())


def test_a_barrier_that_lacks_shows(library):
    _, x = run(library, "raced")
    assert (x != np.arange(128).reshape(2, 64)[:, ::-1].ravel()).any()


@pytest.mark.parametrize(("name", "code"), [("left", 1001), ("apart", 1002), ("missed", 1002)])
def test_what_threads_must_not_do_is_a_fault(library, name, code):
    assert run(library, name)[0] == code


def test_narrow_floats_round_to_nearest_even(library):
    rng = np.random.default_rng(2)
    x = rng.integers(0, 1 << 32, 65536, np.uint32).view(np.float32)
    x[:60000] = rng.integers(0x33000000, 0x47900000, 60000, np.uint32).view(np.float32)
    h, b, back = np.zeros(65536, np.float16), np.zeros(65536, ml_dtypes.bfloat16), np.zeros_like(x)
    library.run_rounded(*(ctypes.c_void_p(a.ctypes.data) for a in (x, h, b, back)))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(h, x.astype(np.float16))
        np.testing.assert_array_equal(b.astype(np.float32), x.astype(b.dtype).astype(np.float32))
        np.testing.assert_array_equal(back, h.astype(np.float32))


def test_a_group_of_too_many_threads_does_not_compile(build_folder):
    text = (
        header() + "int64_t f() { return metal_shim::launch<2048, false>(1, [](uint, uint) {}); }"
    )
    done, _ = build(text, build_folder, "many")
    assert done.returncode and "at most 1024 threads" in done.stderr


def test_every_section_compiles_alone(build_folder):
    """Sections stand after what they use."""
    for section in sections():
        text = preamble(" ".join(section.names)).replace("#include <metal_stdlib>\n", header())
        (build_folder / "one.cpp").write_text(text, encoding="utf-8")
        command = ["g++", *FLAGS, "-fsyntax-only", str(build_folder / "one.cpp")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:2000]
