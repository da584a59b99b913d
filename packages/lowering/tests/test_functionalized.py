"""Ops that write their arguments, and ops with side effects, as AOTAutograd wraps them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._higher_order_ops.effects import _EffectType

from gyrator_ir.loop.nodes import Extern, LoopProgram, Pointwise
from gyrator_ir.loop.verify import verify
from gyrator_lowering import LoweringOptions, lower
from gyrator_testing.interp.loop import run_loop

LOG: list[float] = []


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    with torch.library._scoped_library("gy_test", "FRAGMENT") as lib:
        lib.define("write(Tensor x, Tensor(a!) out, Tensor(b!)[] more) -> Tensor")
        lib.define("act(Tensor x) -> Tensor")

        def write(x: torch.Tensor, out: torch.Tensor, more: list[torch.Tensor]) -> torch.Tensor:
            out.copy_(x.sin())
            for one in more:
                one.add_(2)
            return x * 3

        def act(x: torch.Tensor) -> torch.Tensor:
            LOG.append(x.sum().item())
            return x * 2

        lib.impl("write", write, "CPU")
        lib.impl("act", act, "CPU")
        lib.impl("write", lambda x, out, more: torch.empty_like(x), "Meta")
        lib.impl("act", torch.empty_like, "Meta")
        handle = torch.library._register_effectful_op("gy_test::act", _EffectType.ORDERED)
        yield
        if handle is not None:
            handle.destroy()


def compare(check: Any, fn: Callable[..., Any], *args: torch.Tensor) -> LoopProgram:
    """Run `fn` through AOTAutograd and Loop IR; compare results and arguments."""
    programs: list[LoopProgram] = []

    def compiler(gm: Any, _: Any) -> Callable[..., Any]:
        programs.append(verify(lower(gm, LoweringOptions(), check.targets)))

        def run(*inputs: Any) -> Any:
            arrays = [None if g is None else g.numpy() for g in inputs]
            return [torch.from_numpy(r) for r in run_loop(programs[0], arrays, {}, check.externs)]

        return make_boxed_func(run)

    actual = [a.clone() for a in args]
    got = aot_function(fn, compiler, keep_inference_input_mutations=True)(*actual)
    torch.testing.assert_close(got, fn(*args))
    torch.testing.assert_close(actual, list(args))
    return programs[0]


def written(program: LoopProgram) -> list[str]:
    """Return the buffers that the calls write, in order."""
    calls = (o for o in program.operations if isinstance(o, Extern))
    return [name for o in calls for name in o.mutates]


def test_dead_values_are_overwritten(check) -> None:
    def fn(x: torch.Tensor, buffer: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = torch.empty_like(x)
        y = torch.ops.gy_test.write(x, out, [buffer])
        return y, out + buffer

    program = compare(check, fn, torch.randn(4), torch.randn(4))
    assert len(set(written(program))) == 2
    assert sum(isinstance(o, Pointwise) for o in program.operations) == 2  # fill, add


def test_live_values_are_copied(check) -> None:
    def fn(x: torch.Tensor, buffer: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = x + 1
        old, view = out.exp(), buffer[1:]
        torch.ops.gy_test.write(x, out, [])
        return old + out, view * 2, buffer

    program = compare(check, fn, torch.randn(4), torch.randn(4))
    assert written(program)

    def early(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = x + 1
        torch.ops.gy_test.write(x, out.clone(), [out])
        return (out,)

    compare(check, early, torch.randn(4))


def test_views_of_one_tensor_are_written(check) -> None:
    def fn(x: torch.Tensor, buffer: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = torch.zeros(3, 4)
        torch.ops.gy_test.write(x, rows[1], [rows[:, 2], buffer[1:3], buffer.view(2, 2).t()])
        expanded = torch.zeros(1).expand(4).clone()
        torch.ops.gy_test.write(x, expanded, [])
        return rows, expanded

    compare(check, fn, torch.randn(4), torch.randn(4))


def test_side_effects_keep_their_order(check) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torch.ops.gy_test.act(x + 5)
        y = torch.ops.gy_test.act(x.sin())
        torch.ops.gy_test.act(y)
        return y + 1

    x = torch.randn(3)
    fn(x)
    want = [*LOG]
    LOG.clear()
    program = compare(check, fn, x)
    assert want * 2 == LOG
    assert len(set(written(program))) == 1 and len(written(program)) == 3
    LOG.clear()


def test_errors_of_linear_algebra(check) -> None:
    compare(check, lambda x: torch.linalg.inv(x) * 2, torch.randn(3, 3))
    with pytest.raises(torch.linalg.LinAlgError):
        compare(check, torch.linalg.inv, torch.zeros(3, 3))
