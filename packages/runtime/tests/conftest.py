import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from gyrator_runtime.cache import Cache
from gyrator_runtime.native import PureRunner, Runner, build_native_runner
from gyrator_runtime.toolchain import Toolchain, find_toolchain

KERNELS = r"""
#include <stdint.h>
extern "C" int64_t gy_axpy(void *const *b, const int64_t *s) {
  const float *x = (const float *)b[0];
  float *y = (float *)b[1];
  for (int64_t i = 0; i < s[0]; i++) y[i] += (float)s[1] * x[i];
  return 0;
}
extern "C" int64_t gy_gather(void *const *b, const int64_t *s) {
  const float *x = (const float *)b[0];
  const int64_t *index = (const int64_t *)b[1];
  float *out = (float *)b[2];
  for (int64_t i = 0; i < s[0]; i++) {
    if (index[i] < 0) return 1;
    if (index[i] >= s[1]) return 2;
    out[i] = x[index[i]];
  }
  return 0;
}
extern "C" int64_t gy_sizes(void *const *b, const int64_t *s) {
  int64_t *out = (int64_t *)b[0];
  for (int64_t i = 1; i <= s[0]; i++) out[i - 1] = s[i];
  return 0;
}
extern "C" int64_t gy_is_null(void *const *b, const int64_t *s) {
  *(int64_t *)b[0] = b[1] == 0;
  return s[0];
}
"""


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory) -> Cache:
    return Cache(tmp_path_factory.mktemp("shared") / "cache")


@pytest.fixture(scope="session")
def toolchain(shared_cache) -> Toolchain:
    return find_toolchain(os.environ, shared_cache)


@pytest.fixture(scope="session", params=["native", "pure"])
def runner(request, shared_cache, toolchain) -> Runner:
    if request.param == "pure":
        return PureRunner()
    return build_native_runner(shared_cache, toolchain)


@pytest.fixture(scope="session")
def kernels(tmp_path_factory, toolchain) -> dict[str, int]:
    folder: Path = tmp_path_factory.mktemp("kernels")
    (folder / "k.cpp").write_text(KERNELS)
    command = [*toolchain.command, "-O1", "-shared", "-fPIC", "-o", "k.so", "k.cpp"]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "k.so"))
    names = ("gy_axpy", "gy_gather", "gy_sizes", "gy_is_null")
    return {n: ctypes.cast(getattr(library, n), ctypes.c_void_p).value or 0 for n in names}
