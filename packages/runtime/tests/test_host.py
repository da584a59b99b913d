import pytest
import torch

from gyrator_ir.diagnostics import NanError
from gyrator_ir.types import DType
from gyrator_runtime import host
from gyrator_runtime.host import externs
from gyrator_runtime.host.externs import PUBLIC_ENTRY, ExternError, extern, overload


def empty(size, stride, dtype, device):
    return host.allocator(device)(size, stride, dtype)


def test_every_dtype_has_its_torch_twin():
    assert set(host.DTYPES) == set(DType)
    for name, dtype in host.DTYPES.items():
        assert dtype.itemsize == DType(name).size
        assert dtype.is_complex == DType(name).is_complex
        assert dtype.is_floating_point == DType(name).is_float
    assert host.DTYPES["u8"] == torch.uint8


@pytest.mark.parametrize("dtype", list(host.DTYPES.values()))
@pytest.mark.parametrize(
    ("size", "stride"), [((), ()), ((0,), (1,)), ((2, 3), (1, 2)), ((4, 1), (7, 9))]
)
def test_allocators(dtype, size, stride):
    result = empty(size, stride, dtype, "cpu")
    assert (tuple(result.shape), result.stride(), result.dtype) == (size, stride, dtype)


def test_allocators_elsewhere():
    result = empty((2, 3), (3, 1), torch.float32, "meta")
    assert result.device.type == "meta"
    assert result.stride() == (3, 1)


def test_pool_and_what_lies_in_it():
    pool = empty((256,), (1,), torch.uint8, "cpu")
    assert (pool.numel(), pool.dtype) == (256, torch.uint8)
    assert pool.data_ptr() % 64 == 0
    part = host.over_storage(pool, (2, 3), (3, 1), torch.float32, 64)
    assert part.data_ptr() == pool.data_ptr() + 64
    part.fill_(1.5)
    assert pool[64:88].view(torch.float32).tolist() == [1.5] * 6
    odd = host.over_storage(empty((9,), (1,), torch.uint8, "cpu"), (1,), (1,), torch.int64, 0)
    odd.fill_(7)
    assert odd.item() == 7


@pytest.mark.parametrize("requires_grad", [False, True])
def test_views(requires_grad):
    whole = torch.arange(24.0)
    base = whole[4:].requires_grad_(requires_grad)
    seen = host.over_storage(base, (2, 3), (6, 2), torch.float32, 4)
    assert torch.equal(seen, torch.as_strided(whole, (2, 3), (6, 2), 5))
    assert seen.data_ptr() == base.data_ptr() + 4
    assert not seen.requires_grad
    halves = host.over_storage(base, (4,), (1,), torch.int32, 8)
    assert halves.data_ptr() == base.data_ptr() + 8
    assert torch.equal(halves, whole[6:10].view(torch.int32))
    wide = host.over_storage(whole, (2,), (1,), torch.int64, 8)
    assert wide.data_ptr() == whole.data_ptr() + 8


def test_view_without_torchs_quick_entry():
    base = torch.arange(10.0, requires_grad=True)[2:]
    quick = host.reinterpret(base, (2, 2), (3, 1), 1)
    slow = host._as_strided_reinterpret(base, (2, 2), (3, 1), 1)
    assert torch.equal(quick, slow)
    assert quick.data_ptr() == slow.data_ptr()
    assert not slow.requires_grad


def test_check_nan():
    for fine in (torch.zeros(3), torch.zeros(3, dtype=torch.int64), torch.zeros(0)):
        host.check_nan(fine, "fine")
    for bad in (torch.tensor([1.0, float("nan")]), torch.tensor([complex(0, float("inf"))])):
        with pytest.raises(AssertionError, match="GY-RUNTIME-003"):
            host.check_nan(bad, "bad")
    with pytest.raises(NanError, match="t holds 2 NaN and 1 infinite of 4"):
        host.check_nan(torch.tensor([float("nan"), 0.0, float("nan"), float("-inf")]), "t")


def test_scalars_and_copies():
    assert host.read_scalar(torch.tensor(7)) == 7
    assert host.read_scalar(torch.tensor([2.5])) == 2.5
    target = torch.zeros(2, 2)
    assert host.copy(target, torch.tensor([[1, 2], [3, 4]]).t()) is target
    assert target.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert host.identity(target) is target
    assert host.pack(1, target)[1] is target


def test_profile_range_shows_in_the_profiler():
    with host.profile_range("outside"):
        pass
    with torch.profiler.profile() as profiler, host.profile_range("gyrator-range"):
        torch.zeros(3)
    assert "gyrator-range" in [e.key for e in profiler.key_averages()]


def test_device_guard_of_the_host():
    with host.device_guard("cpu"), host.device_guard(torch.device("cpu", 0)):
        pass


def arguments(name):
    """Return arguments of an overload."""
    op, variant = name.split(".")[1:]
    a, b = torch.rand(2, 3, 4) + 1, torch.rand(2, 4, 5)
    bias = torch.rand(2, 3, 5)
    result = {
        "mm": (a[0], b[0]),
        "bmm": (a, b),
        "addmm": (bias[0], a[0], b[0]),
        "baddbmm": (bias, a, b),
        "convolution": (
            torch.randn(2, 4, 9, 9),
            torch.randn(6, 2, 3, 3),
            torch.randn(6),
            [2, 1],
            [1, 0],
            [1, 2],
            False,
            [0, 0],
            2,
        ),
        "_softmax": (a, 1, False),
        "_log_softmax": (a, -1, False),
        "sum": (a,) if variant == "default" else (a, (0, 2), True),
        "mean": (a,) if variant == "default" else (a, [1], False),
        "native_layer_norm": (a, [4], b[0, :, 0], None, 1e-5),
        "native_group_norm": (a, None, a[0, :, 0], 2, 3, 4, 3, 1e-5),
        "_scaled_dot_product_flash_attention_for_cpu": (a[None], a[None], a[None], 0.0, True),
        "_fft_c2c": (a.to(torch.complex64), [1, 2], 0, True),
        "_fft_c2r": (a.to(torch.complex64), [2], 2, 6),
        "_fft_r2c": (a, [1, 2], 1, True),
        "_int_mm": tuple(torch.ones(s, dtype=torch.int8) for s in ((17, 8), (8, 8))),
        "addmv": (a[0, :, 0], a[0], b[0, :, 0]),
        "dot": (a[0, 0], b[0, :, 0]),
        "histc": (a, 5, 1, 2),
        "kthvalue": (a, 2, 1, True),
        "median": (a,) if variant == "default" else (a, 1, True),
        "mode": (a, 1, True),
        "mv": (a[0], b[0, :, 0]),
        "nanmedian": (a, 1, True),
        "sort": (a, 1, True),
        "topk": (a, 2, 1, False, True),
        "vdot": (a[0, 0], b[0, :, 0]),
        "_log_softmax_backward_data": (a, a - 1, 1, torch.float32),
        "_native_batch_norm_legit": (a, a[0, :, 0], None, True, 0.1, 1e-5),
        "_native_batch_norm_legit_no_training": (
            (a, None, a[0, :, 0], *torch.rand(2, 3), 0.1, 1e-5)
        ),
        "_trilinear": (a[0], a[1], a[0], [], [], [], [1]),
        "add": (a, a[0]),
        "addcdiv": (a, a[0], a[1]),
        "addcmul": (a, a[0], a[1]),
        "atan2": (a, a[0]),
        "col2im": (torch.rand(1, 8, 4), [3, 3], [2, 2], [1, 1], [0, 0], [1, 1]),
        "cumprod": (a, 1),
        "cumsum": (a, 1),
        "grid_sampler_2d": (a[None], torch.rand(1, 2, 2, 2), 0, 0, False),
        "hypot": (a, a[0]),
        "lerp": (a, a[0], 0.3 if variant == "Scalar_out" else a[1]),
        "linalg_vector_norm": (a, 3, [0, 2], True),
        "logaddexp": (a, a[0]),
        "logcumsumexp": (a, 1),
        "logsumexp": (a, [0, 2], True),
        "pow": {"Scalar_out": (1.5, a), "Tensor_Scalar_out": (a, 2.5)}.get(variant, (a, a[0])),
        "prod": (a, 1, True),
        "sub": (a, a[0]),
        "xlogy": (a, a[0]),
    }
    if op in {"asin", "acos", "atanh", "erfinv"}:
        return (a - 1,)
    return result.get(op, (a,))


def plain(name):
    """Return the overload that makes what another one writes."""
    known = {
        "aten.sum.IntList_out": "aten.sum.dim_IntList", "aten.mean.out": "aten.mean.dim",
        "aten.prod.int_out": "aten.prod.dim_int", "aten.xlogy.OutTensor": "aten.xlogy.Tensor",
        "aten.add.out": "aten.add.Tensor", "aten.sub.out": "aten.sub.Tensor",
    }  # fmt: skip
    return overload(known.get(name, name.replace(".out", ".default").removesuffix("_out")))


def writes(name):
    """Whether an overload takes the tensor that it writes."""
    return name.lower().rpartition(".")[2].startswith("out") or name.endswith("_out")


def leaves(results):
    """Return the tensors of a result, which a binding returns as a named tuple."""
    return [results] if isinstance(results, torch.Tensor) else [t for t in results if t is not None]


@pytest.mark.parametrize("name", sorted(PUBLIC_ENTRY))
def test_public_entries_are_the_same_operator(name):
    args = arguments(name)
    want = plain(name)(*args)
    if writes(name):
        for out in (torch.empty_like(want), torch.empty_like(want.mT).mT):
            assert extern(name)(*args, out=out) is out
            assert torch.equal(out, want)
        return
    pairs = zip(leaves(extern(name)(*args)), leaves(want), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    if name in {"aten.addmm.default", "aten.baddbmm.default"}:
        got = extern(name)(*args, beta=0.5, alpha=2)
        assert torch.equal(got, overload(name)(*args, beta=0.5, alpha=2))


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("aten.sum.default", (), {"dtype": torch.float64}),
        ("aten.sum.IntList_out", (None, False), {"dtype": torch.float64}),
        ("aten.sum.IntList_out", ([], False), {"dtype": torch.float64}),
        ("aten.sum.IntList_out", ((0,),), {"dtype": torch.float64}),
        ("aten.mean.out", ([-1], True), {"dtype": torch.float64}),
        ("aten.gelu.out", (), {"approximate": "tanh"}),
        ("aten.elu.out", (2.0, 1, 3.0), {}),
        ("aten.add.out", (2.5,), {"alpha": 3}),
        ("aten.cumsum.out", (0,), {"dtype": torch.float64}),
        ("aten.linalg_vector_norm.out", (), {}),
        ("aten.linalg_vector_norm.out", (float("inf"), None), {"dtype": torch.float64}),
        ("aten.prod.int_out", (0,), {"dtype": torch.float64}),
        ("aten.softplus.out", (2, 1.5), {}),
        ("aten.histc.default", (4,), {}),
        ("aten.kthvalue.default", (2,), {}),
        ("aten.median.dim", (0,), {}),
        ("aten.mode.default", (), {}),
        ("aten.nanmedian.dim", (-1,), {}),
        ("aten.sort.default", (), {}),
        ("aten.topk.default", (2, 1), {}),
    ],
)
def test_public_entries_take_what_the_overload_takes(name, args, kwargs):
    x = torch.randn(3, 4)
    want = plain(name)(x, *args, **kwargs)
    out = {"out": torch.empty_like(want)} if writes(name) else {}
    got = extern(name)(x, *args, **kwargs, **out)
    pairs = zip(leaves(got), leaves(want), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", sorted(PUBLIC_ENTRY))
def test_public_entries_have_the_defaults_of_the_overload(name):
    schema = overload(name)._schema.arguments
    required = sum(not a.kwarg_only and not a.has_default_value() for a in schema)
    args = arguments(name)[:required]
    want = plain(name)(*args)
    out = {"out": torch.empty_like(want)} if writes(name) else {}
    pairs = zip(leaves(extern(name)(*args, **out)), leaves(want), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_public_entries_dispatch_to_the_overload():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    for name in PUBLIC_ENTRY:
        args = arguments(name)
        out = plain(name)(*args)
        with Seen() as seen:
            extern(name)(*args, **({"out": out} if writes(name) else {}))
        assert seen.names == [name]


def test_extern_by_name():
    assert extern("aten.sin.default")(torch.zeros(2)).tolist() == [0.0, 0.0]
    assert extern("aten.sin.default") is torch.ops.aten.sin.default
    for bad in ("aten.no_such_op.default", "aten.sin.no_such_overload", "sin", "no.such.thing"):
        with pytest.raises(ExternError) as caught:
            extern(bad)
        assert caught.value.diagnostic.code == "GY-RUNTIME-002"


def test_custom_operators():
    with torch.library._scoped_library("gyrator_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        assert extern("gyrator_test.twice.default")(torch.ones(1)).item() == 2.0


def test_public_entry_that_torch_lacks(monkeypatch):
    monkeypatch.setattr(externs, "PUBLIC_ENTRY", {"aten.sin.default": "no_such_binding"})
    assert extern("aten.sin.default") is torch.ops.aten.sin.default
