"""Builds generated programs with the test double, and calls them."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from attrs import define, field

from gyrator_ir.host.nodes import HostProgram
from gyrator_wrapper_cpp.schema import parse_schemas
from gyrator_wrapper_cpp.stage import CppWrapper, interface, output_count

pytest_plugins = ["gyrator_testing.filetest.plugin"]

SCHEMAS = parse_schemas(
    [
        "aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)",
        "aten::nonzero(Tensor self) -> Tensor",
    ]
)
HERE = Path(__file__).parent
CODES = {
    np.uint8: 0, np.int8: 1, np.int16: 2, np.int32: 3, np.int64: 4, np.float16: 5, np.float32: 6,
    np.float64: 7, np.bool_: 8,
}  # fmt: skip
DTYPES = {code: np.dtype(kind) for kind, code in CODES.items()}
KINDS = {"none": 0, "tensor": 1, "int": 2, "float": 3, "bool": 4, "text": 5, "lent": 11}


def pytest_configure(config):
    """Register the wrapper for `.gy` files."""
    # pytest rewrites the assertions of a plugin only if nothing has imported it before.
    from gyrator_testing.filetest.plugin import register

    wrapper = CppWrapper(SCHEMAS, fallback=True)
    register(config, stages={"host c++": lambda program: wrapper.emit(program).text})


class Payload(ctypes.Union):
    _fields_ = [
        ("tensor", ctypes.c_void_p),
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("text", ctypes.c_char_p),
        ("bits", ctypes.c_uint64),
    ]


class Value(ctypes.Structure):
    _anonymous_ = ("of",)
    _fields_ = [("kind", ctypes.c_int32), ("count", ctypes.c_int32), ("of", Payload)]


class Context(ctypes.Structure):
    _fields_ = [
        ("kernels", ctypes.c_void_p),
        ("constants", ctypes.c_void_p),
        ("error", ctypes.c_void_p),
        ("error_size", ctypes.c_int64),
        ("kernel", ctypes.c_int64),
        ("kernel_code", ctypes.c_int64),
        ("state", ctypes.c_void_p),
        ("call_op", ctypes.c_void_p),
        ("launch_user", ctypes.c_void_p),
        ("parts", ctypes.c_void_p),
        ("times", ctypes.c_void_p),
        ("culprit", ctypes.c_void_p),
    ]


class HostError(Exception):
    """A program returned a status other than 0."""

    def __init__(self, status: int, text: str, context: Context) -> None:
        super().__init__(text)
        self.status = status
        self.kernel = (context.kernel, context.kernel_code)


@define
class Built:
    """A program that was compiled with the double."""

    library: ctypes.CDLL
    program: HostProgram
    kernels: tuple[str, ...]
    constants: tuple[str, ...]
    parts: tuple[str, ...]
    hooks: dict[str, str] = field(factory=dict)

    def tensor(self, array: np.ndarray) -> int:
        """Make a tensor of the double with a copy of an array."""
        result = ctypes.c_void_p()
        sizes = (ctypes.c_int64 * array.ndim)(*array.shape)
        dense = np.ascontiguousarray(array)
        steps = [s // array.itemsize for s in dense.strides] if array.ndim else []
        strides = (ctypes.c_int64 * array.ndim)(*steps)
        code = CODES[array.dtype.type]
        make = self.library.aoti_torch_empty_strided
        rank = ctypes.c_int64(array.ndim)
        assert make(rank, sizes, strides, code, 0, 0, ctypes.byref(result)) == 0
        ctypes.memmove(self._data(result.value), dense.ctypes.data, array.nbytes)
        return result.value

    def _data(self, handle: int) -> int:
        actual = ctypes.c_void_p()
        assert (
            self.library.aoti_torch_get_data_ptr(ctypes.c_void_p(handle), ctypes.byref(actual)) == 0
        )
        return actual.value

    def _int(self, function: str, handle: int, *args: ctypes.c_int64, kind=ctypes.c_int64) -> int:
        actual = kind()
        call = getattr(self.library, function)
        assert call(ctypes.c_void_p(handle), *args, ctypes.byref(actual)) == 0
        return actual.value

    def array(self, handle: int) -> np.ndarray:
        """Copy a tensor of the double out, and delete it."""
        rank = self._int("aoti_torch_get_dim", handle)
        axes = [ctypes.c_int64(d) for d in range(rank)]
        sizes = [self._int("aoti_torch_get_size", handle, d) for d in axes]
        dtype = DTYPES[self._int("aoti_torch_get_dtype", handle, kind=ctypes.c_int32)]
        steps = [self._int("aoti_torch_get_stride", handle, d) * dtype.itemsize for d in axes]
        span = dtype.itemsize + sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
        raw = ctypes.string_at(self._data(handle), 0 if 0 in sizes else span)
        result = np.ndarray(sizes, dtype, raw, strides=steps).copy()
        self.library.aoti_torch_delete_tensor_object(ctypes.c_void_p(handle))
        return result

    def __call__(self, inputs, constants=None, fail_at=-1):
        """Run the program on arrays and integers, as `run_host` does, the outputs flat."""
        arguments = [self.tensor(constants[key]) for key in self.constants]
        handles = (ctypes.c_void_p * max(1, len(arguments)))(*arguments)
        table = (ctypes.c_void_p * max(1, len(self.kernels)))(
            *(ctypes.cast(getattr(self.library, k), ctypes.c_void_p).value for k in self.kernels)
        )
        values = (Value * max(1, len(inputs)))()
        for slot, value in zip(values, inputs, strict=False):
            if isinstance(value, np.ndarray):
                slot.kind, slot.tensor = KINDS["tensor"], self.tensor(value)
            elif isinstance(value, ctypes.c_void_p):  # a tensor that the call doesn't take over
                slot.kind, slot.tensor = KINDS["lent"], value.value
            else:
                slot.kind, slot.integer = KINDS["int"], value
        out = (Value * max(1, output_count(self.program)))()
        text = ctypes.create_string_buffer(400)
        context = Context(
            ctypes.addressof(table), ctypes.addressof(handles), ctypes.addressof(text), 400
        )
        for name, function in self.hooks.items():
            pointer = ctypes.cast(getattr(self.library, function), ctypes.c_void_p).value
            setattr(context, name, pointer)
        parts = (ctypes.c_void_p * max(1, len(self.parts)))(
            *(ctypes.cast(getattr(self.library, p), ctypes.c_void_p).value for p in self.parts)
        )
        context.parts = ctypes.addressof(parts)
        self.library.double_fail_at(ctypes.c_int64(fail_at))
        status = self.library.gy_main(ctypes.byref(context), values, out)
        self.library.double_fail_at(ctypes.c_int64(-1))
        for handle in arguments:
            self.library.aoti_torch_delete_tensor_object(ctypes.c_void_p(handle))
        if context.culprit:
            self.library.aoti_torch_delete_tensor_object(ctypes.c_void_p(context.culprit))
        if status:
            raise HostError(status, text.value.decode(), context)
        return [self._out(v) for v in out[: output_count(self.program)]]

    def _out(self, value: Value) -> object:
        match value.kind:
            case 1:
                return self.array(value.tensor)
            case 2:
                return value.integer
            case 3:
                return value.real
            case 4:
                return bool(value.integer)
            case 5:
                return value.text.decode()
            case 0:
                return None
        raise AssertionError(value.kind)

    @property
    def alive(self) -> int:
        """How many handles of the double live."""
        return self.library.double_alive()


@pytest.fixture(scope="session")
def compiler() -> str:
    """The C++ compiler; without one these tests can't say anything."""
    actual = shutil.which("g++") or shutil.which("c++")
    if actual is None:
        pytest.skip("no C++ compiler")
    return actual


@pytest.fixture(scope="session")
def double_object(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test double, compiled."""
    place = tmp_path_factory.mktemp("double")
    source = place / "double.cpp"
    source.write_text(interface() + (HERE / "double.cpp").read_text())
    result = place / "double.o"
    subprocess.run(
        [compiler, "-std=c++17", "-fPIC", "-c", str(source), "-o", str(result)], check=True
    )
    return result


@pytest.fixture(scope="session")
def build(
    compiler: str, double_object: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Built]:
    """A function that compiles a program, with its kernels in C++."""

    def made(program: HostProgram, wrapper: CppWrapper, kernels: str = "", **hooks: str) -> Built:
        emitted = wrapper.emit(program)
        tmp_path = tmp_path_factory.mktemp("program")
        extra = tmp_path / "kernels.cpp"
        units = [tmp_path / f"{unit.name}.cpp" for unit in emitted.units]
        for unit, path in zip(emitted.units, units, strict=True):
            path.write_text(unit.text)
        extra.write_text(interface() + kernels)
        library = tmp_path / "program.so"
        flags = ["-std=c++17", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
        files = [*map(str, units), str(extra), str(double_object)]
        subprocess.run([compiler, *flags, *files, "-o", str(library)], check=True)
        loaded = ctypes.CDLL(str(library))
        loaded.double_alive.restype = ctypes.c_int64
        loaded.double_calls.restype = ctypes.c_int64
        parts = tuple(s for unit in emitted.units[1:] for s in unit.symbols)
        return Built(loaded, program, emitted.kernels, emitted.constants, parts, hooks)

    return made


@pytest.fixture(scope="session")
def host_error() -> type[HostError]:
    """What a failing program raises."""
    return HostError
