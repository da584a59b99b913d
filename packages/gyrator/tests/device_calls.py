"""A process that calls a package of a device by the C library, and has no torch and no device.

    python device_calls.py CASE PACKAGE LIBRARY DRIVER

The driver is that of fake_driver.c. The program adds two inputs of [n, 16] to a weight, counts its
calls, and multiplies a weight that does not lie in order by their number.
"""

import ctypes as c
import sys
from array import array
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import Any

from gyrator_runtime.standalone.ffi import (
    Array,
    Instance,
    Package,
    RawTensor,
    StandaloneError,
    raw_tensor,
)

CUDA = 2
PATH, LIBRARY, DRIVER = sys.argv[2:5]
STREAM = 0x5EED


class Fake:
    """What the driver tells."""

    def __init__(self) -> None:
        self.library = c.CDLL(DRIVER, mode=c.RTLD_GLOBAL)  # found by its name from here on
        self.library.fake_context.restype = c.c_int64
        self.library.fake_set_context.argtypes = (c.c_int64,)

    def long(self, name: str) -> int:
        """Return a counter."""
        return c.c_long.in_dll(self.library, f"fake_{name}").value

    def pointer(self, name: str) -> int:
        """Return an address, 0 for none."""
        return c.c_void_p.in_dll(self.library, f"fake_{name}").value or 0

    def set(self, name: str, value: int) -> None:
        """Set a switch."""
        c.c_int32.in_dll(self.library, f"fake_{name}").value = value


FAKE = Fake()


def floats(*numbers: float) -> bytearray:
    """Return numbers as float32."""
    return bytearray(array("f", numbers).tobytes())


def rows(n: int, first: float = 0.0) -> bytearray:
    """Return [n, 16] numbers, one after the other."""
    return floats(*(first + k for k in range(16 * n)))


def on_device(data: bytearray, sizes: Sequence[int], device: int, *, after: int = 0) -> RawTensor:
    """Return a tensor on a device, whose memory is the host's: so many bytes after its start."""
    room = bytearray(after + len(data) + 64)
    start = -c.addressof(c.c_char.from_buffer(room)) % 64 + after
    room[start : start + len(data)] = data
    result = raw_tensor(Array("float32", tuple(sizes), b""))
    result.data = c.addressof(c.c_char.from_buffer(room)) + start
    result.room = room
    result.device_type, result.device_index = CUDA, device
    return result


class Lent:
    """The device's memory, for arrays."""

    def __init__(self) -> None:
        self.held: list[RawTensor] = []

    def tensor(self, array: Array) -> RawTensor:
        """Return a tensor on the device."""
        self.held.append(on_device(array.data, array.sizes, 0))
        return self.held[-1]

    def read(self, address: int, length: int) -> bytes:
        """Return bytes of a result."""
        return c.string_at(address, length)


def called(
    model: Instance, inputs: Sequence[RawTensor], stream: int | None = None
) -> tuple[Any, Any]:
    """Call the model; the caller releases what it gives."""
    arguments, results = (RawTensor * 2)(*inputs), (RawTensor * 2)()
    if stream is None:
        status = model.library.gyr_run(model.handle, 0, arguments, 2, results, 2)
    else:
        status = model.library.gyr_run_on(model.handle, 0, arguments, 2, results, 2, stream)
    if status:
        name = model.library.gyr_status_name(status).decode()
        raise StandaloneError(name, model.library.gyr_last_error().decode())
    return results[0], results[1]


def release(model: Instance, *results: RawTensor) -> None:
    """Release results."""
    for one in results:
        model.library.gyr_tensor_release(c.byref(one))


def numbers(raw: RawTensor) -> list[float]:
    """Return the elements of a result, row by row."""
    n, m = raw.sizes[0], raw.sizes[1]
    data = c.cast(raw.data, c.POINTER(c.c_float))
    return [data[i * raw.strides[0] + k * raw.strides[1]] for i in range(n) for k in range(m)]


def check(model: Instance, device: int, n: int, calls: int, stream: int | None = None) -> None:
    """Call the model, and compare what it gives."""
    x, y = on_device(rows(n), (n, 16), device), on_device(rows(n, 0.5), (n, 16), device)
    total, scaled = called(model, (x, y), stream)
    assert numbers(total) == [2 * k + 0.5 + k % 16 for k in range(16 * n)]
    assert numbers(scaled) == [calls * k for k in range(64)]
    for one in (total, scaled):
        assert (one.device_type, one.device_index) == (CUDA, device)
    release(model, total, scaled)


def refused(status: str, words: str, function: Any) -> None:
    """See that a call is refused."""
    actual = "", ""
    try:
        function()
    except StandaloneError as error:
        actual = error.status, str(error)
    assert actual[0] == status, actual
    assert words in actual[1], actual


def runs() -> None:
    """It runs on the device that is asked for, on the stream, and leaves the context."""
    for device, isa in ((0, "sm_90"), (1, "sm_86"), (-1, "sm_90")):
        with Package.open(PATH, LIBRARY, device=device) as package:
            assert package.isa == isa
            (entry,) = package.entries
            assert entry.inputs[0].text.endswith(", 16] on cuda")
            with package.instance() as model:
                place = max(device, 0)
                for calls, n in enumerate((1, 3, 64), 1):
                    check(model, place, n, calls)
                    assert FAKE.long("stream") == 0
                check(model, place, 2, 4, STREAM)
                assert (FAKE.pointer("stream"), FAKE.pointer("freed_on")) == (STREAM, STREAM)
                assert c.c_int32.in_dll(FAKE.library, "fake_device").value == place
                assert FAKE.library.fake_context() == -1
                retained = called(model, [on_device(rows(1), (1, 16), place) for _ in range(2)])
        assert FAKE.long("libraries") == 0
        assert FAKE.library.fake_retained() == 1  # a result lives on
        release(model, *retained)
        assert (FAKE.long("bytes"), FAKE.library.fake_retained()) == (0, 0)
    FAKE.library.fake_set_context(1)
    with Package.open(PATH, LIBRARY) as package, package.instance() as model:
        assert package.isa == "sm_86"
        check(model, 1, 2, 1)
        FAKE.library.fake_set_context(0)
        check(model, 1, 2, 2)
        assert FAKE.library.fake_context() == 0


def unaligned() -> None:
    """Other machine code is loaded for addresses that are not aligned, once."""
    with Package.open(PATH, LIBRARY, device=0) as package, package.instance() as model:
        check(model, 0, 3, 1)
        loaded = FAKE.long("libraries")
        for _ in range(2):
            x = on_device(rows(3), (3, 16), 0, after=4)
            total, scaled = called(model, (x, on_device(rows(3), (3, 16), 0)))
            assert numbers(total) == [2 * k + k % 16 for k in range(48)]
            assert FAKE.long("libraries") == loaded + 1
            release(model, total, scaled)


def weights() -> None:
    """Weights are read and replaced; counters are an instance's own."""
    with Package.open(PATH, LIBRARY, device=1) as package:
        one, other = package.instance(), package.instance()
        check(one, 1, 2, 1)
        check(one, 1, 2, 2)
        check(other, 1, 2, 1)
        result = (RawTensor * 1)()
        assert not one.library.gyr_instance_read(one.handle, b"calls", result)
        assert c.cast(result[0].data, c.POINTER(c.c_int64))[0] == 2
        release(one, result[0])
        one.update({"w": Array("float32", (16,), floats(*([1] * 16)))})
        turned = Array("float32", (4, 16), floats(*([2] * 64)))
        one.update({"v": turned})
        lent = on_device(floats(*(float(k) for k in range(64))), (4, 16), 1)
        inputs = [on_device(rows(1), (1, 16), 1) for _ in range(2)]
        total, scaled = called(one, inputs)
        assert numbers(total) == [2 * k + 1 for k in range(16)]
        assert numbers(scaled) == [6] * 64
        release(one, total, scaled)
        names = (c.c_char_p * 1)(b"v")
        assert not one.library.gyr_instance_update(one.handle, names, c.byref(lent), 1)
        total, scaled = called(one, inputs)
        assert numbers(scaled) == [4 * k for k in range(64)]
        release(one, total, scaled)
        check(other, 1, 1, 2)
        lent.device_index = 0
        assert one.library.gyr_instance_update(one.handle, names, c.byref(lent), 1) == 9
        one.close()
        other.close()
    assert FAKE.long("bytes") == 0


def lends() -> None:
    """Arrays are brought to the device, and results back."""
    with Package.open(PATH, LIBRARY, device=0) as package, package.instance(Lent()) as model:
        inputs = [Array("float32", (2, 16), rows(2)) for _ in range(2)]
        total, scaled = model.run(inputs)
        assert array("f", total.data).tolist() == [2 * k + k % 16 for k in range(32)]
        assert (scaled.sizes, model.read("calls").data) == ((4, 16), (1).to_bytes(8, sys.byteorder))


def refuses() -> None:
    """What lies elsewhere, a device that there is not, and a driver that fails."""
    refused("GYR_ERROR_MISFIT", "there is no cuda:7; there are 2", lambda: opened(7))
    with Package.open(PATH, LIBRARY, device=0) as package, package.instance() as model:
        there = [on_device(rows(1), (1, 16), 0) for _ in range(2)]
        elsewhere = [on_device(rows(1), (1, 16), 1) for _ in range(2)]
        hosted = [raw_tensor(Array("float32", (1, 16), rows(1))) for _ in range(2)]
        refused("GYR_ERROR_INPUT", "missing or different device", lambda: called(model, elsewhere))
        refused("GYR_ERROR_INPUT", "is on another device", lambda: called(model, hosted))
        inputs, results = (RawTensor * 2)(*there), (RawTensor * 2)()
        results[0] = raw_tensor(Array("float32", (1, 16), rows(1)))
        status = model.library.gyr_run(model.handle, 0, inputs, 2, results, 2)
        assert model.library.gyr_status_name(status) == b"GYR_ERROR_OUTPUT"
        FAKE.set("fails_launch", 1)
        refused("GYR_ERROR_DEVICE", "kernel gk0", lambda: called(model, there))
        FAKE.set("fails_launch", 0)
        retained = FAKE.long("bytes")
        for k in (1, 2, 3):
            FAKE.set("fails_allocation", k)
            refused("GYR_ERROR_MEMORY", "out of memory", lambda: called(model, there))
            assert FAKE.long("bytes") == retained
        before = FAKE.long("launches")
        release(model, *called(model, there))
        assert FAKE.long("launches") == before + 2
    for k in range(1, 6):
        FAKE.set("fails_allocation", k)
        with suppress(StandaloneError):
            opened(0).instance().close()
    FAKE.set("fails_allocation", 0)


def opened(device: int) -> Package:
    """Open the package."""
    return Package.open(PATH, LIBRARY, device=device)


def buffers() -> None:
    """Results go where the caller wants them, in its strides."""
    with Package.open(PATH, LIBRARY, device=0) as package, package.instance() as model:
        for sizes, strides in (((3, 16), (16, 1)), ((3, 16), (1, 3)), ((3, 16), (40, 2))):
            place = on_device(bytearray(4 * 160), sizes, 0)
            place.strides = (c.c_int64 * 2)(*strides)
            inputs = [on_device(rows(3), (3, 16), 0) for _ in range(2)]
            arguments, results = (RawTensor * 2)(*inputs), (RawTensor * 2)()
            results[0] = place
            assert not model.library.gyr_run(model.handle, 0, arguments, 2, results, 2)
            assert numbers(place) == [2 * k + k % 16 for k in range(48)]
            release(model, results[1])
        over = on_device(rows(3), (3, 16), 0)
        over.strides = (c.c_int64 * 2)(16, 1)
        arguments, results = (RawTensor * 2)(over, over), (RawTensor * 2)()
        results[0] = over
        assert not model.library.gyr_run(model.handle, 0, arguments, 2, results, 2)
        assert numbers(over) == [2 * k + k % 16 for k in range(48)]
        release(model, results[1])


def allocates() -> None:
    """The caller's allocator gives the device's memory."""
    rooms: dict[int, bytearray] = {}

    @c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_size_t, c.c_size_t)
    def allocate(_: object, size: int, alignment: int) -> int:
        room = bytearray(size + alignment)
        start = c.addressof(c.c_char.from_buffer(room))
        rooms[actual := start + -start % alignment] = room
        return actual

    @c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_size_t)
    def free(_: object, data: int, size: int) -> None:
        assert len(rooms.pop(data)) >= size

    own = (c.c_void_p * 3)(None, c.cast(allocate, c.c_void_p), c.cast(free, c.c_void_p))
    handle = c.c_void_p()
    with Package.open(PATH, LIBRARY, device=0) as package:
        retained = FAKE.long("bytes")
        lib = package.library
        assert not lib.gyr_instance_create(package.handle, own, c.byref(handle))
        with Instance(lib, handle, [2]) as model:
            assert rooms
            check(model, 0, 5, 1)
            assert FAKE.long("bytes") == retained
    assert not rooms


def threads() -> None:
    """Threads call one instance on two devices' streams; a cycle leaves nothing behind."""
    for device in (0, 1):
        with Package.open(PATH, LIBRARY, device=device) as package, package.instance() as model:

            def work(model: Instance = model, device: int = device) -> None:
                for _ in range(20):
                    inputs = [on_device(rows(4), (4, 16), device) for _ in range(2)]
                    total, scaled = called(model, inputs, STREAM)
                    assert numbers(total) == [2 * k + k % 16 for k in range(64)]
                    release(model, total, scaled)

            at_work = [Thread(target=work) for _ in range(8)]
            for one in at_work:
                one.start()
            for one in at_work:
                one.join()
        assert (FAKE.long("bytes"), FAKE.long("libraries")) == (0, 0)
        assert FAKE.library.fake_retained() == 0


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    assert "torch" not in sys.modules
