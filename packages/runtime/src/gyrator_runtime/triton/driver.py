"""The device driver's library, through ctypes: loads machine code and gives addresses to launch.

No compiler and no header is needed. What differs between makers of devices is data (`NVIDIA`,
`AMD`): the names of the same few functions.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from attrs import field, frozen

from gyrator_runtime.build import BuildError

INVALID_CONTEXT = 201
"""What a launch returns in a thread that has not used the device yet; both makers' number."""
_SHARED_BY_DEFAULT = 48 * 1024


@frozen(kw_only=True)
class DriverNames:
    """Where a maker's driver is, and what it calls things."""

    library: str
    torch_library: str
    """The one of torch's libraries that knows the current stream."""
    init: str
    load: str
    get: str
    unload: str
    set_attribute: str
    get_attribute: str
    launch: str
    retain_context: str
    set_context: str
    describe: str
    modules: bool
    """Code belongs to the device that is current when it is loaded, rather than to all."""
    shared_attribute: int
    registers_attribute: int
    spilled_attribute: int


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
    retain_context="cuDevicePrimaryCtxRetain",
    set_context="cuCtxSetCurrent",
    describe="cuGetErrorString",
    modules=False,
    shared_attribute=8,
    registers_attribute=4,
    spilled_attribute=3,
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
    retain_context="hipDevicePrimaryCtxRetain",
    set_context="hipCtxSetCurrent",
    describe="hipDrvGetErrorString",
    modules=True,
    shared_attribute=8,
    registers_attribute=4,
    spilled_attribute=3,
)


@frozen(eq=False)
class Loaded:
    """Machine code in the driver's hands."""

    module: int
    function: int
    registers: int
    """A thread."""
    spilled: int
    """Bytes of registers a thread keeps in memory."""


@frozen(eq=False)
class Driver:
    """One maker's driver, loaded."""

    names: DriverNames
    library: ctypes.CDLL
    launch_address: int
    stream_address: int
    """Of `int32_t f(int32_t device, void **stream)`; device -1 is the current one."""
    _devices: int = field(default=1)

    def load(self, code: bytes, name: str, shared: int) -> Loaded:
        """Load machine code and find its function. BuildError GY-BUILD-004 where that fails."""
        n = self.names
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        none: tuple[object, ...] = () if n.modules else (None, None, 0, None, None, 0)
        self._check(getattr(self.library, n.load)(ctypes.byref(module), code, *none), name)
        get = getattr(self.library, n.get)
        self._check(get(ctypes.byref(function), module, name.encode()), name)
        if shared > _SHARED_BY_DEFAULT:
            self._allow_shared(function, shared, name)
        registers = self._attribute(function, n.registers_attribute)
        spilled = self._attribute(function, n.spilled_attribute)
        assert module.value is not None and function.value is not None
        return Loaded(module.value, function.value, registers, spilled)

    def unload(self, module: int) -> None:
        """Give machine code back once what is queued has run.

        Nothing may wait while a graph is captured: the code then stays.
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
        """Return the driver's words for an error."""
        text = ctypes.c_char_p()
        getattr(self.library, self.names.describe)(status, ctypes.byref(text))
        return text.value.decode() if text.value else f"error {status}"

    def _allow_shared(self, function: ctypes.c_void_p, shared: int, name: str) -> None:
        change = getattr(self.library, self.names.set_attribute)
        attribute = self.names.shared_attribute
        if self.names.modules:
            self._check(change(function, attribute, shared), name)
            return
        for device in range(self._devices):
            self._check(change(attribute, shared, function, device), name)

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
    """Return what the driver is called that this process's torch is built for; None for a torch
    that has none of these devices."""
    if torch.version.cuda is not None:
        return NVIDIA
    return AMD if torch.version.hip is not None else None


@cache
def open_driver(names: DriverNames) -> Driver:
    """Return a maker's driver. BuildError GY-BUILD-004 where it is not installed."""
    try:
        library = ctypes.CDLL(names.library)
        torch_library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / names.torch_library))
        launch = _address(library, names.launch)
        stream = _address(torch_library, "aoti_torch_get_current_cuda_stream")
    except (OSError, AttributeError) as error:
        raise _unloadable(str(error), names.library) from error
    status = getattr(library, names.init)(0)
    driver = Driver(names, library, launch, stream, max(torch.accelerator.device_count(), 1))
    if status:
        raise _unloadable(driver.describe(status), names.library)
    return driver


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _unloadable(reason: str, name: str) -> BuildError:
    said = f"a kernel cannot be loaded: {reason}"
    help = "check the device's driver; the model runs in eager mode"
    return BuildError.of("GY-BUILD-004", said, where=name, help=help)
