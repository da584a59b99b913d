"""Operators that plans call through libtorch's C ABI."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gyrator_ir.host.parse import parse
from gyrator_ir.host.verify import verify
from gyrator_runtime.native.program import Operate, PlanProgram, TensorArg
from gyrator_runtime.native.shim import OPERATORS, load_shim, operator_address
from gyrator_runtime.plan.link import Linker
from gyrator_runtime.plan.lower import lower

PRODUCTS = {
    "aten.mm.out": ((3, 4), (4, 5)),
    "aten.bmm.out": ((2, 3, 4), (2, 4, 5)),
    "aten.addmm.out": ((5,), (3, 4), (4, 5)),
    "aten.baddbmm.out": ((2, 3, 5), (2, 3, 4), (2, 4, 5)),
}
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}


def row_major(shape):
    return tuple(torch.empty(shape).stride())


def product(target: str, dtype: str, shapes, numbers, transposed: bool) -> str:
    """The text of a program of one product of views: of its inputs from element 1 on."""
    names = [f"x{k}" for k in range(len(shapes))]
    lines = ["host.program 1 @main", *(f"  parameter {n} tensor" for n in names), "  do"]
    for name, shape in zip(names, shapes, strict=True):
        strides = row_major(shape)
        if transposed and name == names[-1]:
            strides = (*strides[:-2], 1, shape[-2])
        form = f"{dtype}{list(shape)} strides {list(strides)}"
        lines += [f"    v{name} = view {name} as {form} offset 1", f"    free {name}"]
    out = (*shapes[-2][:-1], shapes[-1][-1])
    lines.append(f"    b = allocate {dtype}{list(out)} strides {list(row_major(out))} on cpu")
    inputs = ", ".join("v" + n for n in names)
    more = ", ".join(f"{k}={v}" for k, v in numbers.items())
    more = f" with {{{more}}}" if more else ""
    plain = target.replace(".out", ".default")
    lines.append(f"    extern {plain} ({inputs}){more} -> (b) out {target} names (out)")
    return "\n".join([*lines, "    return b", ""])


def run(runner, text, *args):
    stored = lower(verify(parse(text)))
    assert stored.plans[-1].operators, "it goes through the dispatcher"
    return Linker(runner, {}, {}).link(stored)(list(args))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", PRODUCTS)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_views(runner, target, dtype, transposed):
    shapes = PRODUCTS[target]
    numbers = {"beta": 0.5, "alpha": 2} if len(shapes) == 3 else {}
    flat = [torch.randn(1 + torch.Size(s).numel()).to(DTYPES[dtype]) for s in shapes]
    views = [x[1:].reshape(s) for x, s in zip(flat, shapes, strict=True)]
    if transposed:
        last = shapes[-1]
        views[-1] = flat[-1][1:].reshape((*last[:-2], last[-1], last[-2])).transpose(-1, -2)
    want = getattr(torch, target.split(".")[1])(*views, **numbers)
    text = product(target, dtype, shapes, numbers, transposed)
    (result,) = run(runner, text, *flat)
    assert torch.equal(result, want)
    # The same bytes behind another element type: the views are made from addresses.
    (again,) = run(runner, text, *(x.view(torch.uint8) for x in flat))
    assert torch.equal(again, want)


def test_every_operator_has_an_address():
    assert set(OPERATORS) == set(PRODUCTS)
    assert load_shim() is not None
    assert all(operator_address(target, "cpu") for target in OPERATORS)
    assert operator_address("aten.mm.out", "vax") == 0


def mm(out, a, b, function=lambda objects, _: torch.mm(*objects[1:], out=objects[0])):
    """Return the instruction out = a @ b on registers or tensor arguments."""
    tensors = tuple(t if isinstance(t, TensorArg) else TensorArg(t) for t in (out, a, b))
    return Operate(function, tensors, ("aten.mm.out", "cpu"))


def test_python_is_left_out_unless_somebody_watches(runner):
    calls = []

    def function(objects, sizes):
        calls.append(sizes)
        torch.mm(objects[1], objects[2], out=objects[0])

    plan = runner.plan(PlanProgram(3, 3, (mm(0, 1, 2, function), mm(0, 1, 2, function))))
    a, b = torch.randn(2, 3), torch.nn.Parameter(torch.randn(3, 4))
    out = torch.empty(2, 4)
    with torch.no_grad():
        plan(out, a, b)
        assert torch.equal(out, a @ b)
        if runner.name == "native":
            assert calls == []
        calls.clear()

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(str(func))
                return func(*args, **(kwargs or {}))

        seen: list[str] = []
        with Watch():
            plan(out, a, b)
        assert seen == ["aten.mm.out"] * 2
        assert calls == [(), ()]
        with torch.profiler.profile() as profiler:
            plan(out, a, b)
        assert [e.count for e in profiler.key_averages() if e.key == "aten::mm"] == [2]


class Loud(torch.Tensor):
    """A subclass that says which functions it meets."""

    seen: list[str] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs)


def test_subclasses_see_the_operator(runner):
    plan = runner.plan(PlanProgram(3, 3, (mm(0, 1, 2),)))
    a, b, out = torch.randn(2, 3), torch.randn(3, 4), torch.empty(2, 4)
    Loud.seen = []
    plan(out, a.as_subclass(Loud), b)
    assert Loud.seen == ["mm"]
    assert torch.equal(out, a @ b)


def test_gradients_are_not_recorded(runner):
    plan = runner.plan(PlanProgram(4, 4, (Operate(
        lambda o, _: torch.addmm(*(t.detach() for t in o[1:]), out=o[0]),
        tuple(map(TensorArg, range(4))),
        ("aten.addmm.out", "cpu"),
        (1.0, 1.0),
    ),)))  # fmt: skip
    bias, a, b = (torch.randn(s, requires_grad=True) for s in ((4,), (2, 3), (3, 4)))
    out = torch.empty(2, 4)
    plan(out, bias, a, b)
    assert torch.is_grad_enabled()
    assert not out.requires_grad
    torch.testing.assert_close(out, torch.addmm(bias, a, b).detach())


def test_sizes_and_offsets_that_are_not_constant(runner):
    text = """host.program 1 @main
  parameter x tensor
  parameter w tensor
  parameter n size
  parameter k size
  do
    s0 = parameter n
    s1 = parameter k
    b = allocate f32[s0, 5] strides [5, 1] on cpu
    v = view x as f32[s0 + 1, s1] strides [s1, 1] offset s1 + 1
    u = view v as f32[s0, s1] strides [s1, 1] offset s1
    free x
    free v
    extern aten.mm.default (u, w) -> (b) out aten.mm.out names (out)
    return b, u
"""
    for n, k in ((1, 2), (3, 4), (0, 3), (2, 1)):
        x, w = torch.randn(1 + (n + 2) * k), torch.randn(k, 5)
        (result, view) = run(runner, text, x, w, n, k)
        want = x[1 + 2 * k :].reshape(n, k)
        assert torch.equal(result, want @ w)
        assert torch.equal(view, want)


def test_errors_are_those_of_python(runner, capfd):
    plan = runner.plan(PlanProgram(3, 3, (mm(0, 1, 2),)))
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        plan(torch.empty(2, 4), torch.randn(2, 3), torch.randn(5, 4))
    with pytest.raises(TypeError):
        plan(torch.empty(2, 4), 3, torch.randn(5, 4))
    with pytest.raises(ValueError, match="registers"):
        runner.plan(PlanProgram(2, 2, (mm(0, 1, 2),)))
    empty = runner.plan(PlanProgram(2, 3, (mm(0, 1, 2),)))
    with pytest.raises(RuntimeError, match="empty register"):
        empty(torch.empty(2, 4), torch.randn(2, 3))


@pytest.mark.parametrize(
    ("line", "direct"),
    [
        ("extern aten.mm.default (x, x) -> (b) out aten.mm.out names (out)", True),
        ("extern aten.add.Tensor (x, x) -> (b) out aten.add.out names (out)", False),
        ("extern aten.mm.default (x, x) -> (x) out aten.mm.out names (out)", False),
        ("extern aten.mm.default (x, x) -> (c)", False),
        ("extern aten.mm.default (x, x) -> (z) out aten.mm.out names (out)", False),
        ("extern aten.mm.default (x, x) -> (m) out aten.mm.out names (out)", False),
        ("extern aten.mm.default (x, 2) -> (b) out aten.mm.out names (out)", False),
        (
            "extern aten.addmm.default (x, x, x) with {beta=true} -> (b) out aten.addmm.out "
            "names (out)",
            False,
        ),
        (
            "extern aten.mm.default (x, x) with {beta=1} -> (b) out aten.mm.out names (out)",
            False,
        ),
    ],
)
def test_what_is_called_directly(line, direct):
    text = f"""host.program 1 @main
  parameter x tensor
  do
    b = allocate f32[2, 2] strides [2, 1] on cpu
    z = allocate c64[2, 2] strides [2, 1] on cpu
    m = allocate f32[2, 2] strides [2, 1] on meta
    {line}
    return b
"""
    assert bool(lower(parse(text)).plans[-1].operators) == direct
