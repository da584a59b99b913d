"""Launchable kernels: the variants of a kernel, and the block that the native runner reads.

The block mirrors `DeviceLaunch` in plan.h. A kernel is built for aligned addresses and sizes with
the divisors known at compile time. If a call's arguments do not have them, a variant without
assumptions is built, once, and launched instead.
"""

import ctypes
import weakref
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from attrs import evolve

from gyrator_runtime.native.pure import evaluate
from gyrator_runtime.native.words import EXPR_OPS
from gyrator_runtime.triton.binary import Binary, unpack
from gyrator_runtime.triton.compile import CODE, FACTS, Facts, Job, read_facts
from gyrator_runtime.triton.driver import INVALID_CONTEXT, Driver, Loaded
from gyrator_runtime.triton.pool import WorkerPool

_PARAMETERS_MORE = 4
"""Number of null pointers after the arguments: scratch parameters that our kernels do not use."""
_ENTER_CONTEXT = 2


class _Block(ctypes.Structure):
    _fields_: ClassVar = [
        ("launch", ctypes.c_void_p),
        ("launch_with", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("prepare", ctypes.c_void_p),
        ("functions", ctypes.c_void_p * 2),
        ("shared", ctypes.c_int64 * 2),
        ("threads", ctypes.c_int64),
        ("divisors", ctypes.POINTER(ctypes.c_int64)),
        ("dimensions", ctypes.c_int64),
        ("grid_words", ctypes.POINTER(ctypes.c_int64) * 3),
        ("grid_lengths", ctypes.c_int64 * 3),
    ]


_Prepare = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)


class DeviceKernel:
    """A kernel that a plan launches on a device."""

    def __init__(self, driver: Driver, binary: Binary) -> None:
        self.name = binary.symbol
        self._driver = driver
        self._binary = binary
        self._loaded: list[Loaded | None] = [None, None]
        self._error: Exception | None = None
        self._divisors = tuple(d for _, _, d in binary.job.arguments)
        # The callback must not keep this object alive, or it would never be freed.
        reference = weakref.ref(self)
        self._prepare = _Prepare(lambda _, variant: _prepared(reference, variant))
        self._divisor_words = (ctypes.c_int64 * max(len(self._divisors), 1))(*self._divisors)
        self._grid_words = [_words(e) for e in binary.grid]
        self._block = _Block(
            launch=driver.launch_address,
            launch_with=driver.launch_with_address if binary.facts.waits else 0,
            stream=driver.stream_address,
            prepare=ctypes.cast(self._prepare, ctypes.c_void_p).value,
            threads=binary.facts.threads,
            divisors=self._divisor_words,
            dimensions=len(binary.grid),
        )
        for k, words in enumerate(self._grid_words):
            self._block.grid_words[k] = words
            self._block.grid_lengths[k] = len(words) // 2

    @property
    def address(self) -> int:
        """Address of the block that the native runner reads; valid as long as this object."""
        return ctypes.addressof(self._block)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers per thread, and bytes of spilled registers per thread."""
        loaded = self.load()
        return loaded.registers, loaded.spilled

    def load(self) -> Loaded:
        """Load the first variant, which otherwise happens on the first launch. BuildError
        (GY-BUILD-004) if the driver rejects it."""
        return self._loaded[0] or self._build(0)

    def launch(self, addresses: Sequence[int | None], sizes: Sequence[int]) -> int:
        """Queue the kernel on the current stream; return 0 or the driver's error."""
        grid = [evaluate(e, sizes) for e in self._binary.grid]
        if 0 in grid:
            return 0
        values = [a or 0 for a in addresses] + list(sizes)
        pairs = zip(values, self._divisors, strict=True)
        variant = int(any(v % d for v, d in pairs))
        loaded = self._loaded[variant] or self._build(variant)
        cells = (ctypes.c_int64 * (len(values) + _PARAMETERS_MORE))(*values)
        size = ctypes.sizeof(ctypes.c_int64)
        pointers = [ctypes.addressof(cells) + size * k for k in range(len(cells))]
        parameters = (ctypes.c_void_p * len(cells))(*pointers)
        stream = ctypes.c_void_p()
        get_stream = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)
        get_stream(self._driver.stream_address)(-1, ctypes.addressof(stream))
        call = getattr(self._driver.library, self._driver.names.launch)
        x, y, z = (*grid, 1, 1)[:3]
        arguments = (
            ctypes.c_void_p(loaded.function),
            *(x, y, z, self._binary.facts.threads, 1, 1, self._block.shared[variant]),
            *(stream, parameters, None),
        )
        status = int(call(*arguments))
        if status == INVALID_CONTEXT:
            self._driver.enter_context()
            status = int(call(*arguments))
        return status

    def failure(
        self, status: int, _buffers: tuple[object, ...], _sizes: tuple[int, ...]
    ) -> BaseException:
        """Return the exception of a launch that failed."""
        if status < 0 and self._error is not None:
            return self._error
        return RuntimeError(f"kernel {self.name}: {self._driver.describe(status)}")

    def prepare(self, variant: int) -> int:
        """Build variant 0 or 1, or with 2, enter the device's context. Return 0, or -1 if that
        failed."""
        try:
            if variant == _ENTER_CONTEXT:
                self._driver.enter_context()
            else:
                self._build(variant)
        except Exception as error:  # native code is the caller; `failure` returns the error
            self._error = error
            return -1
        return 0

    def _build(self, variant: int) -> Loaded:
        facts, code = self._binary.facts, self._binary.code
        if variant:
            facts, code = self._binary.general or compile_alone(without_alignment(self._binary.job))
        loaded = self._driver.load(code, facts.name, facts.shared)
        weakref.finalize(self, self._driver.unload, loaded.module).atexit = False
        self._loaded[variant] = loaded
        self._block.shared[variant] = facts.shared
        self._block.functions[variant] = loaded.function
        return loaded


def launches(driver: Driver, data: bytes, symbols: Sequence[str]) -> dict[str, DeviceKernel]:
    """Return the launchable kernels of a stored library by symbol. Needs no compiler."""
    binaries = unpack(data)
    return {symbol: DeviceKernel(driver, binaries[symbol]) for symbol in symbols}


def without_alignment(job: Job) -> Job:
    """Return the job of the variant without assumptions on its arguments."""
    return evolve(job, arguments=tuple((n, t, 1) for n, t, _ in job.arguments))


def compile_alone(job: Job) -> tuple[Facts, bytes]:
    """Compile one job in a separate process."""
    pool = WorkerPool(1)
    try:
        with TemporaryDirectory(prefix="gyrator-") as folder:
            pool.run(job, Path(folder))
            built = Path(folder)
            return read_facts((built / FACTS).read_bytes()), (built / CODE).read_bytes()
    finally:
        pool.close()


def _prepared(reference: "weakref.ref[DeviceKernel]", variant: int) -> int:
    kernel = reference()
    return -1 if kernel is None else kernel.prepare(variant)


def _words(expression: Sequence[tuple[str, int]]) -> "ctypes.Array[ctypes.c_int64]":
    flat = [w for name, value in expression for w in (EXPR_OPS.index(name), value)]
    return (ctypes.c_int64 * len(flat))(*flat)
