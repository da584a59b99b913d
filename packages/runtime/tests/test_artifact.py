import json
import os
import subprocess
import sys

import pytest
import torch

from gyrator_ir.host.parse import parse
from gyrator_ir.source import HostUnit
from gyrator_runtime import artifact as module
from gyrator_runtime.artifact import Artifact, ArtifactError, Library, load_artifact, save_artifact
from gyrator_runtime.build import Builder, BuildError
from gyrator_runtime.cache import Cache, make_key
from gyrator_runtime.native import LoadedKernel
from gyrator_runtime.plan.link import Linker
from gyrator_runtime.plan.lower import lower
from gyrator_runtime.plan.stored import parse as parse_plan
from gyrator_runtime.warn import GyratorWarning

KEY = make_key("program", {"graph": b"g"})
UNIT = HostUnit(
    "unit0",
    'extern "C" long gy_inc(void *const *b, const long *s) {\n'
    "  for (long i = 0; i < s[0]; i++) ((float *)b[0])[i] += 1.0f;\n"
    "  return 0;\n}\n",
    ("gy_inc",),
)
PROGRAM = """host.program 1 @main
  parameter x tensor
  parameter n size
  kernel inc on cpu (i0 < s0) sizes (s0)
    parameter p0: f32[s0] strides [1] on cpu
    outer
      a = load p0[i0]
      store p0[i0], a
  do
    s0 = parameter n
    launch inc (x) sizes [s0]
    return x
"""


@pytest.fixture
def stored(tmp_path, toolchain):
    cache = Cache(tmp_path / "c")
    builder = Builder(toolchain, cache, "plain")
    libraries = builder.submit([UNIT]).libraries()
    builder.close()
    plan = lower(parse(PROGRAM)).text()
    save_artifact(cache, KEY, Artifact("text", plan, libraries, '{"of": "me"}'))
    return cache


def test_round_trip(stored, runner):
    loaded = load_artifact(stored, KEY)
    assert loaded is not None
    assert (loaded.host_source, loaded.manifest) == ("text", '{"of": "me"}')
    linker = Linker(runner, {"inc": LoadedKernel(loaded.symbols["gy_inc"])}, {})
    plan = linker.link(parse_plan(loaded.plan))
    assert plan([torch.zeros(3), 2])[0].tolist() == [1.0, 1.0, 0.0]
    assert load_artifact(stored, make_key("program", {})) is None


def test_moved_to_another_folder_and_process_without_a_compiler(stored, tmp_path):
    stored.root.rename(tmp_path / "moved")
    code = f"""
import ctypes
from pathlib import Path
import torch
from gyrator_runtime.artifact import load_artifact
from gyrator_runtime.cache import Cache, make_key
cache = Cache(Path({str(tmp_path / "moved")!r}))
loaded = load_artifact(cache, make_key("program", {{"graph": b"g"}}))
x = torch.zeros(2)
kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
kind(loaded.symbols["gy_inc"])((ctypes.c_void_p * 1)(x.data_ptr()), (ctypes.c_int64 * 1)(2))
assert x.tolist() == [1.0, 1.0]
"""
    env = {"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def test_damage_is_a_miss(stored):
    entry = stored.get(KEY)
    library = entry.file("lib0.so")
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(data)
    with pytest.warns(GyratorWarning, match="lib0.so has another hash"):
        assert load_artifact(stored, KEY) is None


def test_another_machine(stored, monkeypatch):
    monkeypatch.setattr(module.platform, "machine", lambda: "vax")
    with pytest.raises(ArtifactError, match="this is vax") as caught:
        load_artifact(stored, KEY)
    assert caught.value.diagnostic.code == "GY-CACHE-004"


def test_lesser_cpu(tmp_path, monkeypatch):
    cache = Cache(tmp_path / "c")
    save_artifact(cache, KEY, Artifact("", "", (Library("x", b"", (), isa="avx512"),), ""))
    monkeypatch.setattr(module, "cpu_isa", lambda: "avx2")
    with pytest.raises(ArtifactError, match="built for avx512, this CPU has avx2"):
        load_artifact(cache, KEY)


def test_other_schema(tmp_path):
    cache = Cache(tmp_path / "c")
    cache.put(KEY, {"artifact.json": json.dumps({"schema": 0}).encode()})
    with pytest.raises(ArtifactError, match="schema 0"):
        load_artifact(cache, KEY)


def test_library_that_is_none(tmp_path):
    cache = Cache(tmp_path / "c")
    save_artifact(cache, KEY, Artifact("", "", (Library("x", b"junk", ("gy_x",)),), ""))
    with pytest.raises(BuildError):
        load_artifact(cache, KEY)
