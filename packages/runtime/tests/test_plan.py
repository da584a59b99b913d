"""What a plan does, on both runners."""

import gc
import operator
import threading
import weakref

import pytest
import torch

from gyrator_ir.diagnostics import LayoutError
from gyrator_runtime import host
from gyrator_runtime.host.outside import ALL, conform, separate
from gyrator_runtime.native import PureRunner
from gyrator_runtime.native.program import (
    EXPR_DEPTH,
    EXPR_OPS,
    Buffer,
    Call,
    Conform,
    Const,
    Drop,
    GetItem,
    IntTuple,
    Launch,
    Layout,
    Move,
    PlanProgram,
    Reg,
    Return,
    Separate,
    SizeArg,
    SizeProgram,
)


def new(target, size, dtype=torch.float32):
    return Call(target, host.allocator("cpu"), (IntTuple(size), IntTuple((1,)), Const(dtype)))


def test_allocates_launches_and_returns(runner, kernels):
    x, y = torch.randn(37), torch.randn(37)
    program = PlanProgram(
        2,
        3,
        (
            new(2, (37,)),
            Call(None, torch.Tensor.copy_, (Reg(2), Reg(1))),
            Launch(kernels["gy_axpy"], (Buffer(0), Buffer(2)), (37, 3)),
            Launch(kernels["gy_axpy"], (Buffer(2), Buffer(2)), (37, -1)),
            Return((Reg(2), Const(None), 5, Reg(0))),
        ),
    )
    before = x.clone(), y.clone()
    out, none, five, same = runner.plan(program)(x, y)
    torch.testing.assert_close(out, torch.zeros(37))
    assert none is None
    assert five == 5
    assert same is x
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


def test_dynamic_sizes(runner, kernels):
    n = SizeArg(1)
    twice = SizeProgram((("arg", 1), ("const", 2), ("mul", 0)))
    half = SizeProgram((("arg", 1), ("const", 2), ("floordiv", 0)))
    program = PlanProgram(
        2,
        4,
        (
            new(2, (twice,)),
            Call(None, torch.Tensor.zero_, (Reg(2),)),
            # The second half of the first n elements, by a byte offset.
            Launch(kernels["gy_axpy"], (Buffer(0), Buffer(2)), (half, 10)),
            Return((Reg(2), twice, n)),
        ),
    )
    plan = runner.plan(program)
    for size in (0, 1, 2, 9, 64):
        x = torch.randn(max(size, 1))
        out, count, again = plan(x, size)
        assert (count, again) == (2 * size, size)
        want = torch.zeros(2 * size)
        want[: size // 2] = 10 * x[: size // 2]
        assert torch.equal(out, want)


def test_byte_offsets_into_a_pool(runner, kernels):
    offset = SizeProgram((("arg", 2), ("const", 4), ("mul", 0)))
    program = PlanProgram(
        3, 3, (Launch(kernels["gy_axpy"], (Buffer(1, 8), Buffer(0, offset)), (3, 1)),)
    )
    pool, x = torch.zeros(16), torch.arange(5.0)
    assert runner.plan(program)(pool, x, 7) is None
    want = torch.zeros(16)
    want[7:10] = x[2:5]
    assert torch.equal(pool, want)


@pytest.mark.parametrize("op", [op for op in EXPR_OPS[2:] if op not in ("unless", "skip")])
def test_size_arithmetic_is_pythons(runner, op):
    meaning = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "floordiv": lambda a, b: a // b,
        "mod": lambda a, b: a % b,
        "min": min,
        "max": max,
        "eq": operator.eq,
        "ne": operator.ne,
        "lt": operator.lt,
        "le": operator.le,
    }[op]
    size = SizeProgram((("arg", 0), ("arg", 1), (op, 0)))
    plan = runner.plan(PlanProgram(2, 2, (Return((size,)),)))
    numbers = (-(2**31), -7, -3, -2, -1, 1, 2, 3, 7, 2**21)
    for a in (*numbers, 0):
        for b in numbers:
            assert plan(a, b) == (meaning(a, b),), (op, a, b)


def test_choices_leave_the_other_side_out(runner):
    """`r1 // r0 if r0 != 0 else -r1`, and the same inside of a choice."""
    inner = (
        *(("arg", 0), ("const", 0), ("ne", 0), ("unless", 4)),
        *(("arg", 1), ("arg", 0), ("floordiv", 0), ("skip", 3)),
        *(("const", 0), ("arg", 1), ("sub", 0)),
    )
    n = len(inner)
    outer = (
        ("arg", 1),
        ("unless", n + 1),
        *inner,
        ("skip", 1),
        ("const", 9),
        ("const", 1),
        ("add", 0),
    )
    plan = runner.plan(PlanProgram(2, 2, (Return((SizeProgram(inner), SizeProgram(outer))),)))
    for a, b in ((0, 4), (3, 7), (0, 0), (-2, 5)):
        want = b // a if a else -b
        assert plan(a, b) == (want, 1 + (want if b else 9))


@pytest.mark.parametrize(
    ("op", "a", "b", "error"),
    [
        ("mul", 2**40, 2**40, OverflowError),
        ("add", 2**63 - 1, 1, OverflowError),
        ("sub", -(2**63), 1, OverflowError),
        ("floordiv", -(2**63), -1, OverflowError),
        ("floordiv", 3, 0, ZeroDivisionError),
        ("mod", 3, 0, ZeroDivisionError),
        ("add", 2**70, 1, OverflowError),
        ("add", 1.5, 1, TypeError),
    ],
)
def test_size_errors(runner, op, a, b, error):
    size = SizeProgram((("arg", 0), ("arg", 1), (op, 0)))
    with pytest.raises(error):
        runner.plan(PlanProgram(2, 2, (Return((size,)),)))(a, b)


def test_int64_extremes_pass_through(runner, kernels):
    low, high = -(2**63), 2**63 - 1
    plan = runner.plan(
        PlanProgram(
            3,
            3,
            (Launch(kernels["gy_sizes"], (Buffer(0),), (4, low, high, SizeArg(1), SizeArg(2))),),
        )
    )
    out = torch.zeros(4, dtype=torch.int64)
    plan(out, high, low)
    assert out.tolist() == [low, high, high, low]


def test_failed_check_raises_what_was_registered(runner, kernels):
    checks = ((IndexError, "index below zero"), (ValueError, "index too large"))
    launch = Launch(
        kernels["gy_gather"], (Buffer(0), Buffer(1), Buffer(2)), (2, SizeArg(3)), checks
    )
    plan = runner.plan(PlanProgram(4, 4, (launch,)))
    x, out = torch.arange(4.0), torch.zeros(2)
    plan(x, torch.tensor([3, 0]), out, 4)
    assert out.tolist() == [3.0, 0.0]
    with pytest.raises(IndexError, match="below zero"):
        plan(x, torch.tensor([1, -1]), out, 4)
    with pytest.raises(ValueError, match="too large"):
        plan(x, torch.tensor([1, 4]), out, 4)


@pytest.mark.parametrize("release", [False, True])
def test_handler_sees_the_data_and_later_launches_do_not_run(runner, kernels, release):
    def handler(number, buffers, sizes):
        index = buffers[1]
        bad = int(index[index >= sizes[1]][0])
        return IndexError(f"check {number}: index {bad} is out of bounds for size {sizes[1]}")

    gather = Launch(
        kernels["gy_gather"],
        (Buffer(0), Buffer(1), Buffer(2)),
        (2, 4),
        handler=handler,
        release_gil=release,
    )
    axpy = Launch(kernels["gy_axpy"], (Buffer(0), Buffer(3)), (4, 1), release_gil=release)
    x, out, rest = torch.arange(4.0), torch.zeros(2), torch.zeros(4)
    plan = runner.plan(PlanProgram(4, 4, (gather, axpy)))
    with pytest.raises(IndexError, match="check 2: index 9 is out of bounds for size 4"):
        plan(x, torch.tensor([1, 9]), out, rest)
    assert rest.tolist() == [0.0] * 4
    plan(x, torch.tensor([1, 2]), out, rest)
    assert rest.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_unregistered_check_is_a_runtime_error(runner, kernels):
    launch = Launch(kernels["gy_is_null"], (Buffer(0), Buffer(0)), (7,), name="nullness")
    with pytest.raises(RuntimeError, match="check 7 of kernel nullness"):
        runner.plan(PlanProgram(1, 1, (launch,)))(torch.zeros(1, dtype=torch.int64))


def test_handler_that_raises_or_returns_nonsense(runner, kernels):
    def broken(*_):
        raise KeyError("in the handler")

    for handler, error in ((broken, KeyError), (lambda *_: "text", RuntimeError)):
        launch = Launch(kernels["gy_is_null"], (Buffer(0), Buffer(0)), (1,), handler=handler)
        with pytest.raises(error):
            runner.plan(PlanProgram(1, 1, (launch,)))(torch.zeros(1, dtype=torch.int64))


def test_none_is_a_null_pointer_even_with_an_offset(runner, kernels):
    out = torch.full((1,), 9, dtype=torch.int64)
    plan = runner.plan(
        PlanProgram(2, 2, (Launch(kernels["gy_is_null"], (Buffer(0), Buffer(1, 16)), (0,)),))
    )
    plan(out, None)
    assert out.item() == 1
    plan(out, torch.zeros(8))
    assert out.item() == 0


def test_refuses_what_is_not_a_tensor(runner, kernels):
    plan = runner.plan(
        PlanProgram(2, 2, (Launch(kernels["gy_axpy"], (Buffer(0), Buffer(1)), (1, 1)),))
    )
    with pytest.raises(TypeError, match="wants a tensor"):
        plan(torch.zeros(1), 3)
    with pytest.raises(TypeError, match="2 arguments got 1"):
        plan(torch.zeros(1))


def test_parameters_and_subclasses_are_tensors(runner, kernels):
    plan = runner.plan(
        PlanProgram(2, 2, (Launch(kernels["gy_axpy"], (Buffer(0), Buffer(1)), (4, 2)),))
    )
    x, y = torch.nn.Parameter(torch.ones(4)), torch.zeros(4)
    plan(x, y)
    assert y.tolist() == [2.0] * 4


def test_tensor_without_storage_is_an_exception_not_a_crash(runner, kernels):
    plan = runner.plan(
        PlanProgram(2, 2, (Launch(kernels["gy_axpy"], (Buffer(0), Buffer(1)), (1, 1)),))
    )
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(RuntimeError):
        plan(sparse, torch.zeros(3))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer")
def test_tensors_without_memory_are_an_exception_not_a_crash(runner, kernels):
    from torch._subclasses import FakeTensorMode

    launch = Launch(kernels["gy_axpy"], (Buffer(0), Buffer(1)), (SizeArg(2), 1))
    plan = runner.plan(PlanProgram(3, 3, (launch,)))
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.zeros(3))
    for without in (fake, torch.zeros(3, device="meta")):
        with pytest.raises(RuntimeError, match="without memory"):
            plan(without, torch.zeros(3), 3)
    plan(torch.zeros(0), torch.zeros(0, 4), 0)


def test_nothing_leaks(runner, kernels):
    import sys

    def fail(*_):
        raise LookupError

    marker, x, y = object(), torch.ones(4), torch.zeros(4)
    size = SizeProgram((("arg", 2), ("const", 0), ("add", 0)))
    axpy = Launch(kernels["gy_axpy"], (Buffer(0), Buffer(1)), (size, 1))
    refuse = Launch(kernels["gy_is_null"], (Buffer(1), Buffer(0)), (1,), handler=fail)
    good = (
        Call(3, identity_pair, (Const(marker), Reg(0)), (("size", size),)),
        GetItem(4, 3, 1),
        Move(5, 4),
        axpy,
        Drop(3),
        Return((Reg(5), Const(marker), IntTuple((size, 1)))),
    )
    plans = [
        (runner.plan(PlanProgram(3, 6, good)), None),
        (runner.plan(PlanProgram(3, 6, (*good[:4], Call(None, fail, (Reg(3),))))), LookupError),
        (runner.plan(PlanProgram(3, 6, (*good[:4], refuse))), LookupError),
        (runner.plan(PlanProgram(3, 6, (*good[:3], GetItem(4, 3, 9)))), IndexError),
    ]
    counts = [sys.getrefcount(o) for o in (marker, x, y)]
    for plan, error in plans:
        for _ in range(200):
            if error is None:
                plan(x, y, 4)
            else:
                with pytest.raises(error):
                    plan(x, y, 4)
    gc.collect()
    assert [sys.getrefcount(o) for o in (marker, x, y)] == counts


def identity_pair(first, second, size):
    return (first, second, size)


def test_boxed_arguments_die_early(runner):
    seen = []
    refs = []

    def look():
        gc.collect()
        seen.append([r() is not None for r in refs])

    program = PlanProgram(
        2,
        2,
        (Call(None, look), Drop(0), Call(None, look), Return((Reg(1),))),
        boxed=True,
    )
    box = [torch.zeros(2), torch.ones(2)]
    refs += [weakref.ref(t) for t in box]
    (out,) = runner.plan(program)(box)
    assert box == []
    assert seen == [[True, True], [False, True]]
    assert out.tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match="one list of 2"):
        runner.plan(program)([1])
    with pytest.raises(TypeError, match="one list of 2"):
        runner.plan(program)((1, 2))


def test_extern_call_with_several_results_and_keywords(runner):
    x = torch.randn(5, 4)
    program = PlanProgram(
        1,
        5,
        (
            Call(1, host.extern("aten.max.dim"), (Reg(0), 1), (("keepdim", Const(True)),)),
            GetItem(2, 1, 0),
            GetItem(3, 1, -1),
            Drop(1),
            Move(4, 2),
            Return((Reg(4), Reg(3))),
        ),
    )
    values, indices = runner.plan(program)(x)
    want = x.max(1, keepdim=True)
    assert torch.equal(values, want.values)
    assert torch.equal(indices, want.indices)


def test_dynamic_call_arguments(runner):
    def see(*args, **kwargs):
        return args, kwargs

    size = SizeProgram((("arg", 0), ("const", 1), ("add", 0)))
    program = PlanProgram(
        1,
        2,
        (
            Call(
                1,
                see,
                (size, IntTuple((1, size)), Const("c"), IntTuple(())),
                (("n", SizeArg(0)), ("pair", IntTuple((2, 3)))),
            ),
            Return((Reg(1),)),
        ),
    )
    ((args, kwargs),) = runner.plan(program)(41)
    assert args == (42, (1, 42), "c", ())
    assert kwargs == {"n": 41, "pair": (2, 3)}


def test_a_size_read_back_is_read_again_after_the_register_changes(runner):
    numbers = iter((3, 5))
    program = PlanProgram(
        0,
        3,
        (
            Call(0, lambda: next(numbers)),
            Call(1, tuple, (IntTuple((SizeArg(0),)),)),
            Call(0, lambda: next(numbers)),
            Call(2, tuple, (IntTuple((SizeArg(0),)),)),
            Return((Reg(1), Reg(2))),
        ),
    )
    assert runner.plan(program)() == ((3,), (5,))


def test_exception_of_a_call_releases_everything(runner):
    def fail(_):
        raise LookupError("from the call")

    x = torch.zeros(3)
    program = PlanProgram(1, 3, (Move(1, 0), Call(2, fail, (Reg(1),)), Return(())))
    plan = runner.plan(program)
    ref = weakref.ref(x)
    with pytest.raises(LookupError):
        plan(x)
    del x
    gc.collect()
    assert ref() is None


def test_empty_registers_are_errors(runner, kernels):
    launch = Launch(kernels["gy_axpy"], (Buffer(0), Buffer(1)), (1, 1))
    for program in (
        PlanProgram(0, 2, (launch,)),
        PlanProgram(0, 1, (Return((Reg(0),)),)),
        PlanProgram(1, 1, (Drop(0), Return((Reg(0),)))),
        PlanProgram(0, 2, (GetItem(0, 1, 0),)),
        PlanProgram(0, 1, (Return((SizeArg(0),)),)),
    ):
        args = [1] * program.n_args
        with pytest.raises(RuntimeError, match="empty register"):
            runner.plan(program)(*args)


def test_malformed_programs_are_refused(runner):
    for program in (
        PlanProgram(0, 1, (Drop(1),)),
        PlanProgram(2, 1, ()),
        PlanProgram(0, 1, (Return((SizeArg(-1),)),)),
        PlanProgram(0, 1, (Launch(0, (Buffer(4),)),)),
    ):
        with pytest.raises(ValueError):
            runner.plan(program)
    for code in (
        (),
        (("add", 0),),
        (("const", 1), ("const", 2)),
        (("pow", 0),),
        (("const", 1),) * (EXPR_DEPTH + 1),
    ):
        with pytest.raises(ValueError):
            SizeProgram(code)


def test_many_registers_and_launches_go_past_the_inline_storage(runner, kernels):
    k = 400
    instructions = [new(1 + i, (8,)) for i in range(k)]
    instructions += [Call(None, torch.Tensor.zero_, (Reg(1 + i),)) for i in range(k)]
    instructions += [
        Launch(kernels["gy_axpy"], (Buffer(0), Buffer(1 + i)), (8, i)) for i in range(k)
    ]
    program = PlanProgram(1, k + 1, (*instructions, Return(tuple(Reg(1 + i) for i in range(k)))))
    out = runner.plan(program)(torch.ones(8))
    assert [int(o[3]) for o in out] == list(range(k))


def test_one_plan_in_many_threads(runner, kernels):
    program = PlanProgram(
        2,
        3,
        (
            new(2, (SizeArg(1),)),
            Call(None, torch.Tensor.zero_, (Reg(2),)),
            Launch(kernels["gy_axpy"], (Buffer(0), Buffer(2)), (SizeArg(1), 2), release_gil=True),
            Return((Reg(2),)),
        ),
    )
    plan = runner.plan(program)
    wrong = []

    def work(seed):
        for i in range(50):
            x = torch.full((seed * 7 + i + 1,), float(seed))
            (out,) = plan(x, x.numel())
            if not torch.equal(out, 2 * x):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_a_plan_may_call_itself(runner):
    plans = []

    def again(n):
        return plans[0](n - 1)[0] if n > 0 else 100

    program = PlanProgram(1, 2, (Call(1, again, (SizeArg(0),)), Return((Reg(1), SizeArg(0)))))
    plans.append(runner.plan(program))
    assert plans[0](5) == (100, 5)


def test_timings(runner, kernels):
    axpy = Launch(kernels["gy_axpy"], (Buffer(0), Buffer(1)), (64, 1), name="axpy")
    program = PlanProgram(2, 2, (axpy, axpy), timed=True)
    plan = runner.plan(program)
    x = torch.zeros(64)
    for _ in range(3):
        plan(x, x.clone())
    rows = plan.timings()
    assert [r[0] for r in rows] == [3, 3]
    assert all(0 < least <= total for _, total, least in rows)
    assert runner.plan(PlanProgram(2, 2, (axpy,))).timings() == []


def test_native_without_torchs_data_ptr_function(shared_cache, toolchain, kernels):
    from gyrator_runtime.native import NativeRunner, build_native_runner

    built = build_native_runner(shared_cache, toolchain)
    assert built.data_ptr_address != 0
    slow = NativeRunner(built.module, 0)
    launch = Launch(kernels["gy_axpy"], (Buffer(0), Buffer(1)), (4, 2))
    x, y = torch.ones(4), torch.zeros(4)
    slow.plan(PlanProgram(2, 2, (launch,)))(x, y)
    assert y.tolist() == [2.0] * 4
    with pytest.raises(RuntimeError):
        slow.plan(PlanProgram(2, 2, (launch,)))(torch.eye(3).to_sparse(), y)


def test_plans_do_not_leak_their_constants(runner):
    class Thing:
        pass

    thing = Thing()
    ref = weakref.ref(thing)
    plan = runner.plan(PlanProgram(0, 1, (Call(0, len, (Const([thing]),)), Return((Reg(0),)))))
    assert plan() == (1,)
    del plan, thing
    gc.collect()
    assert ref() is None


def test_runner_names(shared_cache, toolchain):
    from gyrator_runtime.native import build_native_runner

    assert PureRunner().name == "pure"
    assert build_native_runner(shared_cache, toolchain).name == "native"


def test_tensors_from_outside_conform_or_are_replaced(runner):
    n = SizeArg(1)
    layout = Layout((n, 4), (4, 1), torch.float32)

    def mended(inputs, sizes):
        shape, strides = sizes[:2], sizes[2:]
        return conform(inputs, shape, strides, torch.float32, torch.device("cpu"), ALL, "x", "f")

    steps = (Conform(0, mended, layout, torch.device("cpu")), Return((Reg(0),)))
    plan = runner.plan(PlanProgram(2, 2, steps))
    x = torch.randn(3, 4)
    (same,) = plan(x, 3)
    assert same is x
    (empty,) = plan(torch.empty_strided((0, 4), (1, 9)), 0)
    assert empty.stride() == (1, 9)
    lazy = torch.complex(x, x).conj().imag
    for odd in (torch.randn(4, 3).t(), x.double(), lazy, x._neg_view(), x[:, :1].expand(3, 4)):
        (result,) = plan(odd, 3)
        assert (result.stride(), result.dtype, result.is_neg()) == ((4, 1), torch.float32, False)
        torch.testing.assert_close(result, odd.float().resolve_neg().contiguous())
    for bad in (torch.randn(4, 4), torch.randn(3), None, torch.randn(3, 4).to_sparse()[0]):
        with pytest.raises(LayoutError, match="GY-RUNTIME-091: f returned"):
            plan(bad, 3)


def test_tensors_get_storage_of_their_own(runner):
    steps = (Separate((0, 1), (2, 3), separate), Return((Reg(0), Reg(1), Reg(2))))
    plan = runner.plan(PlanProgram(4, 4, steps))
    a, b, c = torch.randn(4), torch.randn(4), torch.randn(4)
    assert [r is x for r, x in zip(plan(a, b, c, b[:0].clone()), (a, b, c), strict=True)] == [
        True
    ] * 3
    for inputs in ((a, a[1:], c, c), (c[1:], b, c, c), (a, b, b.view(2, 2), a)):
        first, second, third = plan(*inputs)
        assert third is inputs[2]
        assert len({t.untyped_storage()._cdata for t in (first, second, third)}) == 3
        torch.testing.assert_close((first, second), inputs[:2])
