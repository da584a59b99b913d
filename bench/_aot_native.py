"""Packages in a process without Python: `libgyrator_torch` beside AOTInductor's C++ loader."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import torch
from _aot import exported, models

SOURCE = Path(__file__).parent / "native" / "packages.cpp"
_TYPES = {torch.float32: "f32", torch.int64: "i64"}


def build_native(arguments: dict[str, Any]) -> dict[str, Any]:
    """Build the library and the program that calls both."""
    from torch.utils.cpp_extension import include_paths

    from gyrator_runtime.cache import Cache
    from gyrator_runtime.standalone import install, shared_runtime
    from gyrator_runtime.toolchain import find_toolchain

    folder = Path(arguments["folder"])
    cache = Cache(folder / "cache")
    toolchain = find_toolchain(os.environ, cache)
    install(folder, shared_runtime(cache, toolchain, torch=True))
    libtorch = Path(torch.__file__).with_name("lib")
    program = folder / "packages"
    command = [*toolchain.command, "-std=c++20", "-O1", str(SOURCE), "-o", str(program)]
    command += [f"-I{path}" for path in (*include_paths(), folder / "include")]
    command += [f"-L{path}" for path in (folder / "lib", libtorch)]
    command += ["-lgyrator_torch", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"]
    subprocess.run([*command, f"-Wl,-rpath,{folder / 'lib'}:{libtorch}"], check=True)
    return {"program": str(program)}


def use_native(arguments: dict[str, Any]) -> dict[str, Any]:
    """Load both packages of a model and call them, in turns, by the program."""
    from gyrator import aot

    program, _, (_, inputs) = exported(models()[arguments["model"]])
    path = Path(arguments["paths"]["gyrator"]).with_name("native.gya")
    aot.compile(program, package=path, runtime="libtorch")
    shapes = [f"{_TYPES[t.dtype]}:{','.join(map(str, t.shape))}" for t in inputs]
    numbers = [str(arguments[name]) for name in ("threads", "rounds", "batch")]
    command = [arguments["program"], str(path), arguments["paths"]["inductor"], *numbers, *shapes]
    alone = os.environ | {"OMP_NUM_THREADS": str(arguments["threads"])}
    done = subprocess.run(command, env=alone, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
