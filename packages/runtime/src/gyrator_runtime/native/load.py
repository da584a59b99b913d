"""Getting a runner: the native one where Python's headers and a compiler are, else the pure one.

gyrunner.cpp is compiled at first use and kept in the cache under the hash of its text, Python's
ABI and the flags; whichever compiler built it, the module is the same to its callers, so that a
process without a compiler finds it too. It includes Python.h and nothing of torch.
"""

import importlib.machinery
import importlib.util
import os
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

import torch
from attrs import frozen

from gyrator_runtime.cache import Cache, CacheError, CacheKey, Entry, make_key
from gyrator_runtime.native.encode import encode
from gyrator_runtime.native.program import PlanProgram
from gyrator_runtime.native.pure import PurePlan
from gyrator_runtime.toolchain import Toolchain
from gyrator_runtime.warn import warn

_FLAGS = ("-O1", "-std=c++17", "-nostdinc++", "-fvisibility=hidden", "-shared", "-fPIC")


class Plan(Protocol):
    """A plan that can be called, from many threads at once."""

    def __call__(self, *args: object) -> object:
        """Run it: `plan(*args)`, or `plan(list)` where the program is boxed."""
        ...

    def timings(self) -> list[tuple[int, int, int]]:
        """Rows (calls, total ns, least ns), one a launch; empty unless the plan is timed."""
        ...

    def reset_timings(self) -> None:
        """Forget the timings."""
        ...


class Runner(Protocol):
    """Makes plans callable."""

    @property
    def name(self) -> str:
        """Either "native" or "pure"."""
        ...

    def plan(self, program: PlanProgram) -> Plan:
        """Return `program` as a callable. ValueError where it names a register it lacks."""
        ...


@frozen
class PureRunner:
    """Runs plans in Python, kernels through ctypes."""

    @property
    def name(self) -> str:
        """Return "pure"."""
        return "pure"

    def plan(self, program: PlanProgram) -> Plan:
        """Return `program` as a callable."""
        return PurePlan(program)


@frozen
class NativeRunner:
    """Runs plans in the compiled extension."""

    module: ModuleType
    data_ptr_address: int  # 0: ask each tensor by its method

    @property
    def name(self) -> str:
        """Return "native"."""
        return "native"

    def plan(self, program: PlanProgram) -> Plan:
        """Return `program` as a callable."""
        encoded = encode(program)
        made = self.module.Plan(
            code=encoded.code_bytes(),
            ints=encoded.int_bytes(),
            consts=tuple(encoded.consts),
            checks=tuple(encoded.checks),
            n_args=program.n_args,
            n_regs=program.n_regs,
            boxed=program.boxed,
            timed=program.timed,
            tensor_type=torch.Tensor,
            data_ptr_address=self.data_ptr_address,
        )
        return cast(Plan, made)


def load_runner(cache: Cache, toolchain: Toolchain | None) -> Runner:
    """Return the native runner, built if need be, else the pure one after one warning."""
    reason = "there is no C++ compiler"
    try:
        if (entry := cache.get(_key())) is not None:
            return _native(entry)
        if toolchain is not None:
            return build_native_runner(cache, toolchain)
    except (OSError, ImportError, CacheError, subprocess.SubprocessError) as error:
        reason = str(error).strip()
    warn(
        "GY-RUNTIME-001",
        f"the native runner cannot be built ({reason}); calls cost some 20 us more",
        "install a C++ compiler and Python's headers (Debian: apt-get install g++ python3-dev)",
    )
    return PureRunner()


def build_native_runner(cache: Cache, toolchain: Toolchain) -> NativeRunner:
    """Return the native runner from `cache`, built by `toolchain` where it is not there yet.

    Raises OSError or subprocess.SubprocessError where it does not build, ImportError where it
    does not load.
    """
    include = Path(sysconfig.get_path("include"))
    key = _key()
    entry = cache.get(key)
    if entry is None and not (include / "Python.h").exists():
        raise FileNotFoundError(f"no Python.h in {include}")

    def build(folder: Path) -> None:
        command = (*toolchain.command, *_FLAGS, f"-I{include}", "-o", _file_name())
        done = subprocess.run(
            (*command, "-x", "c++", "-"),
            input=_source(),
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder)},
            capture_output=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise subprocess.SubprocessError(last[0] if last else f"{command[0]} failed")

    return _native(entry or cache.get_or_build(key, build))


def _source() -> bytes:
    return Path(__file__).with_name("gyrunner.cpp").read_bytes()


def _file_name() -> str:
    return f"_gyrunner{sysconfig.get_config_var('EXT_SUFFIX') or '.so'}"


def _key() -> CacheKey:
    fields = {
        "source": _source(),
        "abi": f"{_file_name()} {sysconfig.get_config_var('SOABI')}".encode(),
        "flags": " ".join(_FLAGS).encode(),
    }
    return make_key("runner", fields)


def _native(entry: Entry) -> NativeRunner:
    return NativeRunner(_import(entry, _file_name()), tensor_data_ptr_address())


def tensor_data_ptr_address() -> int:
    """Address of the C function `void *(PyObject *)` that torch exports, or 0 without one.

    torch 2.13 offers it as an int in `torch._C._dynamo.guards`, as it has since 2.1; it reads
    `Tensor.data_ptr()` with no Python call.
    """
    guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    address = getattr(guards, "_torchinductor_pyobject_tensor_data_ptr", 0)
    return address if isinstance(address, int) else 0


def _import(entry: Entry, name: str) -> ModuleType:
    path = str(entry.file(name))
    loader = importlib.machinery.ExtensionFileLoader("_gyrunner", path)
    spec = importlib.util.spec_from_file_location("_gyrunner", path, loader=loader)
    if spec is None:
        raise ImportError(f"no import spec for {path}")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
