"""The device driver's library, through ctypes: loads machine code and returns function addresses.

No compiler and no header is needed. The differences between vendors are data (`NVIDIA`, `AMD`): the
names of the same few functions.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from attrs import field

from gyrator_ir.define import frozen
from gyrator_runtime.build import BuildError

INVALID_CONTEXT = 201
"""Status of a launch in a thread that has not used the device yet, for both vendors."""
_SHARED_BY_DEFAULT = 48 * 1024
_OVERLAPS_IN_GRAPHS = 12030
"""The version of CUDA whose graphs capture launches that start before the previous one ends."""
_SHARED, _REGISTERS, _SPILLED = 8, 4, 3
"""Attributes of functions, for both vendors."""


@frozen(kw_only=True)
class DriverNames:
    """Library and function names of a vendor's driver."""

    library: str
    torch_library: str
    """The library of PyTorch that returns the current stream."""
    init: str
    load: str
    get: str
    unload: str
    set_attribute: str
    get_attribute: str
    launch: str
    launch_with: str
    """Launches with attributes; empty if launches cannot start before the previous one ends."""
    version: str
    retain_context: str
    set_context: str
    describe: str
    modules: bool
    """Code is loaded for the current device, not for all devices."""


NVIDIA = DriverNames(
    library="libcuda.so.1",
    torch_library="libtorch_cuda.so",
    init="cuInit",
    load="cuLibraryLoadData",
    get="cuLibraryGetKernel",
    unload="cuLibraryUnload",
    set_attribute="cuKernelSetAttribute",
    get_attribute="cuKernelGetAttribute",
    launch="cuLaunchKernel",
    launch_with="cuLaunchKernelEx",
    version="cuDriverGetVersion",
    retain_context="cuDevicePrimaryCtxRetain",
    set_context="cuCtxSetCurrent",
    describe="cuGetErrorString",
    modules=False,
)
AMD = DriverNames(
    library="libamdhip64.so",
    torch_library="libtorch_hip.so",
    init="hipInit",
    load="hipModuleLoadData",
    get="hipModuleGetFunction",
    unload="hipModuleUnload",
    set_attribute="hipFuncSetAttribute",
    get_attribute="hipFuncGetAttribute",
    launch="hipModuleLaunchKernel",
    launch_with="",
    version="hipDriverGetVersion",
    retain_context="hipDevicePrimaryCtxRetain",
    set_context="hipCtxSetCurrent",
    describe="hipDrvGetErrorString",
    modules=True,
)


@frozen(eq=False)
class Loaded:
    """Machine code loaded by the driver."""

    module: int
    function: int
    registers: int
    """Registers per thread."""
    spilled: int
    """Bytes of spilled registers per thread."""


@frozen(eq=False)
class Driver:
    """A loaded driver library."""

    names: DriverNames
    library: ctypes.CDLL
    launch_address: int
    launch_with_address: int
    """0 if launches cannot start before the previous one ends."""
    stream_address: int
    """Address of `int32_t f(int32_t device, void **stream)`; device -1 is the current one."""
    _devices: int = field(default=1)

    def load(self, code: bytes, name: str, shared: int) -> Loaded:
        """Load machine code and find its function. BuildError (GY-BUILD-004) if that fails."""
        n = self.names
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        none: tuple[object, ...] = () if n.modules else (None, None, 0, None, None, 0)
        self._check(getattr(self.library, n.load)(ctypes.byref(module), code, *none), name)
        get = getattr(self.library, n.get)
        self._check(get(ctypes.byref(function), module, name.encode()), name)
        if shared > _SHARED_BY_DEFAULT:
            self._allow_shared(function, shared, name)
        registers = self._attribute(function, _REGISTERS)
        spilled = self._attribute(function, _SPILLED)
        assert module.value is not None and function.value is not None
        return Loaded(module.value, function.value, registers, spilled)

    def unload(self, module: int) -> None:
        """Unload machine code after all queued work has finished.

        During a graph capture, waiting is not allowed, and the code stays loaded.
        """
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        torch.accelerator.synchronize()
        getattr(self.library, self.names.unload)(ctypes.c_void_p(module))

    def enter_context(self) -> None:
        """Make the current device's context current in this thread."""
        context = ctypes.c_void_p()
        device = torch.accelerator.current_device_index()
        retain = getattr(self.library, self.names.retain_context)
        self._check(retain(ctypes.byref(context), device), "the context")
        self._check(getattr(self.library, self.names.set_context)(context), "the context")

    def describe(self, status: int) -> str:
        """Return the driver's description of an error."""
        text = ctypes.c_char_p()
        getattr(self.library, self.names.describe)(status, ctypes.byref(text))
        return text.value.decode() if text.value else f"error {status}"

    def _allow_shared(self, function: ctypes.c_void_p, shared: int, name: str) -> None:
        change = getattr(self.library, self.names.set_attribute)
        if self.names.modules:
            self._check(change(function, _SHARED, shared), name)
            return
        for device in range(self._devices):
            self._check(change(_SHARED, shared, function, device), name)

    def _attribute(self, function: ctypes.c_void_p, attribute: int) -> int:
        value = ctypes.c_int()
        ask = getattr(self.library, self.names.get_attribute)
        more = () if self.names.modules else (0,)
        ask(ctypes.byref(value), attribute, function, *more)
        return value.value

    def _check(self, status: int, name: str) -> None:
        if status:
            raise _unloadable(f"{self.names.library}: {self.describe(status)}", name)


def names_here() -> DriverNames | None:
    """Return the names of the driver that this process's PyTorch is built for, or None."""
    if torch.version.cuda is not None:
        return NVIDIA
    return AMD if torch.version.hip is not None else None


@cache
def open_driver(names: DriverNames) -> Driver:
    """Return a vendor's driver. BuildError (GY-BUILD-004) if it is not installed."""
    try:
        library = ctypes.CDLL(names.library)
        torch_library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / names.torch_library))
        launch = _address(library, names.launch)
        stream = _address(torch_library, "aoti_torch_get_current_cuda_stream")
    except (OSError, AttributeError) as error:
        raise _unloadable(str(error), names.library) from error
    status = getattr(library, names.init)(0)
    devices = max(torch.accelerator.device_count(), 1)
    driver = Driver(names, library, launch, _launch_with(library, names), stream, devices)
    if status:
        raise _unloadable(driver.describe(status), names.library)
    return driver


def _launch_with(library: ctypes.CDLL, names: DriverNames) -> int:
    """Return the address of the function that lets a launch start early, also in graphs, or 0."""
    version = ctypes.c_int32()
    if names.launch_with and not getattr(library, names.version)(ctypes.byref(version)):
        return _address(library, names.launch_with) if version.value >= _OVERLAPS_IN_GRAPHS else 0
    return 0


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _unloadable(reason: str, name: str) -> BuildError:
    message = f"a kernel cannot be loaded: {reason}"
    help = "check the device's driver; the model runs in eager mode"
    return BuildError.of("GY-BUILD-004", message, where=name, help=help)
