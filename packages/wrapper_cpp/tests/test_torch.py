"""Generated programs on the real libtorch, where there is one."""

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gyrator_ir.host.parse import parse
from gyrator_wrapper_cpp.schema import parse_schemas, targets
from gyrator_wrapper_cpp.stage import CppWrapper, output_count

torch = pytest.importorskip("torch")

TEXT = """host.program 1 @p
  constant w: f32[8, 4] strides [4, 1] on cpu key weight
  parameter x tensor
  do
    s0 = dim x 0
    w = constant weight
    wt = view w as f32[4, 8] strides [1, 4] offset 0
    conform x to f32[s0, 8] strides [8, 1] on cpu mend nothing
    assert_finite x
    pool = pool 16*s0 + 64 on cpu
    a = place pool at 64 as f32[s0, 4] strides [4, 1]
    extern aten.mm.default (x, w) -> (a) out aten.mm.out names (out)
    half = allocate f32[4, 4] strides [4, 1] on cpu
    extern aten.mm.default (wt, w) -> (half) out aten.mm.out names (out)
    extern aten.gelu.default (a) with {approximate="tanh"} -> (g)
    extern aten.sum.dim_IntList (g, [1], true) with {dtype=<dtype float64>} -> (s)
    extern aten.split.Tensor (g, 2, 1) -> ([p, q])
    extern aten.topk.default (g, 2) -> (v, i)
    i0 = view i as i64[s0] strides [2] offset 0
    extern aten.index.Tensor (g, [none, i0]) -> (picked)
    r = view q as f32[s0] strides [4] offset 1
    bits = view r as i16[s0, 2] strides [8, 1] offset 0
    extern aten.zeros.default ([1]) with {dtype=<dtype uint8>} -> (one)
    profile "range"
      extern aten.cat.default ([p, q], 1) -> (c)
    u0 = read one
    extern aten.var_mean.dim (g, none, false) -> (var, mean)
    return half, a, s, p, q, v, i, picked, r, bits, c, (u0), var, mean
"""


class Value(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("count", ctypes.c_int32), ("bits", ctypes.c_int64)]


class Context(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in "kernels constants error size k c s o l parts times culprit".split()
    ]


def handles(tensors: Sequence[Any]) -> list[int]:
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    result = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(tensors))
    return [read(capsule, None) for capsule in result]


@pytest.fixture(scope="module")
def library(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    place = tmp_path_factory.mktemp("torch")
    source, result = place / "p.cpp", place / "p.so"
    source.write_text(CppWrapper(table(), abi=(2, 11)).emit(parse(TEXT)).units[0].text)
    lib = Path(torch.__file__).parent / "lib"
    link = [f"-L{lib}", f"-Wl,-rpath,{lib}", "-ltorch_cpu"]
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(source), "-o", str(result), *link], check=True)
    return ctypes.CDLL(str(result))


def table():
    actual = []
    for target in targets(parse(TEXT)):
        space, name, overload = target.split(".")
        op = getattr(getattr(getattr(torch.ops, space), name), overload)
        actual.append(str(op._schema))
    return parse_schemas(actual)


def call(
    library: ctypes.CDLL, x: Any, weight: Any, keep: bool = True
) -> tuple[int, str, list[Any]]:
    with torch.no_grad():
        (inputs,) = handles([x])
        constants = (ctypes.c_int64 * 1)(*handles([weight]))
        values = (Value * 1)(Value(1, 0, inputs))
        count = output_count(parse(TEXT))
        out = (Value * count)()
        text = ctypes.create_string_buffer(500)
        address = ctypes.addressof
        context = Context(0, address(constants), address(text), 500)
        status = library.gy_main(ctypes.byref(context), values, out)
        results = [taken(v.bits) if keep and v.kind == 1 else v.bits for v in out]
        for bits in [
            constants[0],
            context.culprit,
            *(v.bits for v in out if v.kind == 1 and not keep),
        ]:
            if bits:
                library.aoti_torch_delete_tensor_object(ctypes.c_void_p(bits))
    return status, text.value.decode(), results


def taken(bits: int) -> Any:
    """Return the tensor of a handle; torch does not free the handle itself."""
    return torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs([ptr(bits)])[0]


def ptr(bits: int) -> Any:
    pointer = ctypes.pythonapi.PyCapsule_New
    pointer.restype = ctypes.py_object
    pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return pointer(bits, None, None)


@pytest.mark.parametrize("rows", [1, 5])
def test_it_does_as_eager(library, rows):
    x, w = torch.randn(rows, 8), torch.randn(8, 4)
    status, text, actual = call(library, x, w)
    assert (status, text) == (0, "")
    a = x @ w
    g = torch.nn.functional.gelu(a, approximate="tanh")
    v, i = g.topk(2)
    p, q = g.split(2, 1)
    var, mean = torch.var_mean(g, None, unbiased=False)
    r = q[:, 1]
    expected = [
        w.t() @ w, a, g.sum(1, keepdim=True, dtype=torch.float64), p, q, v, i, g[:, i[:, 0]], r,
        torch.stack(list(r)).view(torch.int16).view(rows, 2), g, 0, var, mean,
    ]  # fmt: skip
    for one, other in zip(actual, expected, strict=True):
        if isinstance(other, int):
            assert one == other
        else:
            torch.testing.assert_close(one, other)


def test_errors_say_what_is_wrong(library):
    status, text, _ = call(library, torch.randn(3, 7), torch.randn(8, 4))
    assert status == 7
    assert text.startswith("the input x is of dtype 6, sizes (3, 7), strides (7, 1);")
    status, text, _ = call(library, torch.full((3, 8), float("nan")), torch.randn(8, 4))
    assert (status, text) == (4, "")
    status, text, _ = call(library, torch.randn(3, 8), torch.randn(9, 4))
    assert status == 1
    assert "mat1 and mat2 shapes cannot be multiplied" in text or "aten::mm failed" in text
