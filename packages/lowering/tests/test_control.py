"""Branches, loops and repeated regions; scalars read back."""

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from gyrator_ir.loop.nodes import CallOp, CondOp, ScalarRead, WhileOp
from gyrator_ir.loop.verify import verify
from gyrator_lowering import LoweringOptions, lower
from gyrator_lowering.fx_passes import HoldNumbers
from gyrator_testing.interp.loop import run_loop


def compiled(check, fn, programs):
    def compiler(gm, _):
        HoldNumbers().run(gm)
        program = verify(lower(gm, LoweringOptions(), check.targets))
        programs.append(program)

        def run(*inputs):
            arrays = [g.detach().numpy() if isinstance(g, torch.Tensor) else g for g in inputs]
            results = run_loop(program, arrays, externs=check.externs)
            return [v if isinstance(v, int) else torch.from_numpy(v) for v in results]

        return make_boxed_func(run)

    torch._dynamo.reset()
    return torch.compile(fn, backend=aot_autograd(fw_compiler=compiler), fullgraph=True)


@pytest.mark.parametrize("sign", [1, -1])
def test_cond(check, sign: int) -> None:
    def fn(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x * 2, (x,)) + 1

    x = torch.rand(3, 4) * sign
    programs = []
    torch.testing.assert_close(compiled(check, fn, programs)(x), fn(x))
    assert any(isinstance(op, CondOp) for op in programs[0].operations)


def test_while_loop(check) -> None:
    def fn(n, x):
        return torch.while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, x * 2 + 1), (n, x))

    inputs = torch.tensor(3), torch.randn(4)
    programs = []
    for got, want in zip(compiled(check, fn, programs)(*inputs), fn(*inputs), strict=True):
        torch.testing.assert_close(got, want)
    assert any(isinstance(op, WhileOp) for op in programs[0].operations)


def test_repeated_region(check) -> None:
    block = torch.compiler.nested_compile_region(lambda x: (x * 2).sin())

    def fn(x):
        return block(block(x)) + 1

    x = torch.randn(5)
    programs = []
    torch.testing.assert_close(compiled(check, fn, programs)(x), ((x * 2).sin() * 2).sin() + 1)
    assert sum(isinstance(op, CallOp) for op in programs[0].operations) == 2
    assert len(programs[0].subprograms) == 1


def test_scalars_read_back(check) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        programs = []

        def fn(x, n):
            return x * n.item() + x[0].item()

        inputs = torch.randn(4), torch.tensor(3)
        torch.testing.assert_close(compiled(check, fn, programs)(*inputs), fn(*inputs))
        assert any(isinstance(op, ScalarRead) for op in programs[0].operations)


def test_symbolic_floats_as_number_arguments(check) -> None:
    functional = torch.nn.functional

    def fn(x, t):
        s = t.item()
        bent = functional.elu(x, s), functional.softplus(x, s), functional.leaky_relu(x, s)
        tensors = torch.linspace(-s, s, 7), torch.linspace(1, s, 1), torch.full((2,), 1 - s)
        return *bent, functional.hardshrink(x, s), *tensors, x * int(9 * s)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        programs = []
        run = compiled(check, fn, programs)
        for number in (0.7, 1.25):
            inputs = torch.randn(4, 5), torch.tensor(number)
            for got, want in zip(run(*inputs), fn(*inputs), strict=True):
                torch.testing.assert_close(got, want)
        assert len(programs) == 1


def test_data_dependent_sizes(check) -> None:
    def fn(x):
        chosen = torch.masked_select(x, x > 0)
        indices = x.nonzero()
        return chosen.softmax(0) * 2, indices[:, 0].sum() * indices.shape[0], x[x < 0] @ x[x < 0]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        programs = []
        run = compiled(check, fn, programs)
        for x in (torch.randn(4, 5), torch.ones(4, 5), -torch.ones(4, 5)):
            for got, want in zip(run(x), fn(x), strict=True):
                torch.testing.assert_close(got, want)
    assert len(programs) == 1


def test_data_dependent_slices(check) -> None:
    def fn(x, n):
        k = n.item()
        return x[:k].sum(0), x[k:] + 1, x.narrow(0, k, 1) * 2

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        programs = []
        run = compiled(check, fn, programs)
        for k in (2, 0, 4):
            inputs = torch.randn(5, 3), torch.tensor(k)
            for got, want in zip(run(*inputs), fn(*inputs), strict=True):
                torch.testing.assert_close(got, want)
    assert any(getattr(o, "target", "") == "aten.sym_size.int" for o in programs[0].operations)


def test_a_branch_inside_of_a_branch(check) -> None:
    def inner(x):
        return torch.cond(x[0] > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    def fn(x):
        return torch.cond(x.sum() > 0, inner, lambda x: x * 2, (x,))

    programs = []
    run = compiled(check, fn, programs)
    for first in (1.0, -1.0):
        x = torch.tensor([first, 3.0, -1.0])
        torch.testing.assert_close(run(x), fn(x))
    (outer,) = (p for p in programs[0].subprograms if p.subprograms)
    names = [p.name for p in (*programs[0].subprograms, *outer.subprograms)]
    assert len(set(names)) == len(names)


def test_a_loop_carries_an_integer(check) -> None:
    def fn(x):
        return torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2 + i), (0, x))

    x = torch.randn(4)
    n, got = compiled(check, fn, [])(x)
    assert n == 3
    torch.testing.assert_close(got, fn(x)[1])


def test_an_assertion_about_a_float(check) -> None:
    def fn(x, n):
        torch._check(n.item() / 3 > 0, lambda: "not positive")
        return x + 1

    x = torch.randn(4)
    run = compiled(check, fn, [])
    torch.testing.assert_close(run(x, torch.tensor(2.0)), x + 1)
    with pytest.raises(RuntimeError, match=r"positive|assertion"):
        run(x, torch.tensor(-2.0))
