"""Starts the toy's runtime, and shows it to PyTorch and to Gyrator."""

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.utils.backend_registration import rename_privateuse1_backend
from torch.utils.cpp_extension import include_paths, library_paths

from gyrator_runtime.accelerator import AcceleratorDevice, DeviceFacts

NAME = "toy"
MEMORY = 1 << 34


@functools.cache
def start() -> ctypes.CDLL:
    """Build the runtime where that was not done yet, load it, and register the device."""
    source = Path(__file__).with_name("device.cpp")
    key = hashlib.sha256(source.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gyrator-toy"
    built = folder / f"device-{key}.so"
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as place:
            made = Path(place) / built.name
            paths = [f"-I{p}" for p in include_paths()] + [f"-L{p}" for p in library_paths()]
            flags = ("-O0", "-std=c++20", "-shared", "-fPIC", "-o", str(made), str(source), *paths)
            compiler = os.environ.get("CXX", "c++")
            subprocess.run([compiler, *flags, "-ltorch_cpu", "-lc10"], check=True)
            made.rename(built)
    rename_privateuse1_backend(NAME)
    library = ctypes.CDLL(str(built))
    library.toy_bytes_held.restype = library.toy_launched.restype = ctypes.c_int64
    library.toy_start()
    accelerator, module = torch.accelerator, ModuleType(f"torch.{NAME}")
    vars(module).update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda seed: None,
        device_count=lambda: 2,
        current_device=accelerator.current_device_index,
        device=accelerator.device_index,
        current_stream=accelerator.current_stream,
        synchronize=accelerator.synchronize,
        Stream=lambda device=0: torch.Stream(torch.device(NAME, device)),
        stream=lambda stream: stream,
        Event=functools.partial(torch.Event, NAME),
        get_device_properties=lambda index=0: SimpleNamespace(name=NAME, total_memory=MEMORY),
        mem_get_info=lambda index=0: (MEMORY - library.toy_bytes_held(index), MEMORY),
        memory_reserved=lambda index=0: library.toy_bytes_held(index),
    )
    register: Any = torch._register_device_module
    register(NAME, module)
    return library


def toy_device() -> AcceleratorDevice:
    """Return Gyrator's view of the toys: what drives any device that has a module of torch's."""
    return AcceleratorDevice(DeviceFacts(type=NAME, architecture=lambda _: "one"))
