"""Trace a function, lower it, verify, interpret, and compare with eager."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.utils._pytree as pytree
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator_ir.loop.nodes import Extern, LoopProgram, TypeArg
from gyrator_ir.loop.verify import verify
from gyrator_ir.modes import ATOMIC_MODES
from gyrator_ir.target import Capabilities, Target
from gyrator_ir.types import DType
from gyrator_lowering import LoweringOptions, lower
from gyrator_lowering.decompositions import default_decompositions
from gyrator_lowering.fx_passes import (
    FX,
    Activation,
    ExpandForeach,
    LinearCalls,
    Packed,
    PackWeights,
    Product,
    RestrideOutputs,
    fx_pipeline,
    joint_pipeline,
)
from gyrator_testing.feeds import assert_same, feed
from gyrator_testing.interp.loop import run_loop

sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = ["gyrator_testing.filetest.plugin"]

REAL = frozenset(d for d in DType if not d.is_complex)
TARGETS = {
    "cpu": Target(
        device="cpu",
        arch="plain",
        kernel_backend="interpreter",
        capabilities=Capabilities(
            dtypes=REAL, atomics=frozenset((d, m) for d in REAL for m in ATOMIC_MODES)
        ),
    )
}
_BITS = {torch.bfloat16: (torch.int16, ml_dtypes.bfloat16)}
_BACK = {np.dtype(ml_dtypes.bfloat16): (np.int16, torch.bfloat16)}


def to_numpy(value: Any) -> Any:
    """Share a tensor's memory as an array."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if value.dtype in _BITS:
        bits, kind = _BITS[value.dtype]
        return value.view(bits).numpy().view(kind)
    return value.numpy()


def to_torch(value: Any) -> Any:
    """Share an array's memory as a tensor."""
    if isinstance(value, TypeArg):
        return torch.device(value.value) if value.kind == "device" else getattr(torch, value.value)
    if isinstance(value, (list, tuple)):
        return [to_torch(v) for v in value]
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype in _BACK:
        bits, kind = _BACK[value.dtype]
        return torch.from_numpy(value.view(bits)).view(kind)
    return torch.from_numpy(value)


class AllOps(Mapping[str, Callable[..., Any]]):
    """Every op of ATen as a function of arrays."""

    def __contains__(self, target: object) -> bool:
        return True

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Any:
        return iter(())

    def __getitem__(self, target: str) -> Callable[..., Any]:
        namespace, name, overload = target.split(".")
        op = getattr(getattr(getattr(torch.ops, namespace), name), overload)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = op(*map(to_torch, args), **{k: to_torch(v) for k, v in kwargs.items()})
            if len(op._schema.returns) != 1:
                return tuple(map(to_numpy, result or ()))
            if isinstance(result, (list, tuple)):
                return (list(map(to_numpy, result)),)
            return to_numpy(result)

        return call


def _lower(gm: torch.fx.GraphModule) -> LoopProgram:
    return lower(gm, LoweringOptions(), TARGETS)


def assert_as_eager(
    graph: torch.fx.GraphModule, lowered: torch.fx.GraphModule | LoopProgram
) -> None:
    """Compare eager PyTorch's results of a graph with those of `lowered`: a program, or another
    graph, which is lowered first."""
    program = _lower(lowered) if isinstance(lowered, torch.fx.GraphModule) else lowered
    inputs = feed(program)
    actual, expected = inputs.copy(), inputs.copy()
    for key, array in expected.constants.items():
        graph.register_buffer(key, to_torch(array))
    results = torch.fx.Interpreter(graph).run(*map(to_torch, expected.inputs))
    got = run_loop(program, actual.inputs, actual.constants, AllOps())
    assert_same(got, [to_numpy(value) for value in pytree.tree_leaves(results)], "output")
    assert_same(actual.inputs, expected.inputs, "argument")


class PacksDeepProducts:
    """Packs weights with 16 rows or more for oneDNN, with the function after the product, and
    stores shallower ones row-major."""

    def packed(self, product: Product, after: Activation, biased: bool) -> Packed:
        return Packed("onednn", whole=True) if product.depth >= 16 else Packed("aten")

    def allows(self, device: str, after: Activation) -> bool:
        return after.attr == "relu"


def pytest_configure(config: pytest.Config) -> None:
    """Register what this package's `.gy` files use."""
    # pytest rewrites the assertions of a plugin only if nothing has imported it before.
    from gyrator_testing.filetest.plugin import register

    passes = {**joint_pipeline(LoweringOptions()).table, **fx_pipeline().table}
    # The options of these cannot be expressed in text.
    bound = (
        LinearCalls(frozenset({"cpu"}), lambda product: product.rows >= 8),
        RestrideOutputs({0: (1, 4)}),
        PackWeights(frozenset({"cpu"}), PacksDeepProducts(), bfloat16=frozenset({"cpu"})),
    )
    register(
        config,
        passes={name: type(p) for name, p in passes.items()} | {p.name: p for p in bound},
        stages={"lower": _lower},
        levels={FX: assert_as_eager},
    )


class Checker:
    """Compares a function, lowered to Loop IR and interpreted, with eager."""

    targets = TARGETS
    externs = AllOps()

    def __init__(
        self, decompositions: dict[Any, Any], options: LoweringOptions | None = None
    ) -> None:
        self.decompositions = decompositions
        self.options = options or LoweringOptions()

    def trace(self, fn: Callable[..., Any], args: tuple[Any, ...], dynamic: bool = False) -> Any:
        functional = torch.func.functionalize(lambda *inputs: pytree.tree_leaves(fn(*inputs)))
        return make_fx(
            functional,
            decomposition_table=self.decompositions,
            tracing_mode="symbolic" if dynamic else "fake",
        )(*args)

    def lower(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        dynamic: bool = False,
        options: LoweringOptions | None = None,
    ) -> LoopProgram:
        gm = self.trace(fn, args, dynamic)
        ExpandForeach().run(gm)
        self.constants = {k: v for k, v in vars(gm).items() if isinstance(v, torch.Tensor)}
        self.constants |= dict(gm.named_buffers())
        return verify(lower(gm, options or self.options, self.targets))

    def __call__(
        self,
        fn: Callable[..., Any],
        *args: Any,
        other: tuple[Any, ...] | None = None,
        externs: tuple[str, ...] = (),
        strides: bool = True,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> LoopProgram:
        """Compare results, strides and mutated arguments.

        With `other`, sizes are symbolic: the program is traced on `args` and run on both. `externs`
        are the only calls that the program may contain.
        """
        program = self.lower(fn, tuple(map(_cloned, args)), dynamic=other is not None)
        called = {op.target for op in program.operations if isinstance(op, Extern)}
        assert called <= set(externs), f"calls of ATen: {called}"
        for inputs in [args] if other is None else [args, other]:
            self._run(program, fn, inputs, strides, rtol, atol)
        return program

    def results(self, fn: Callable[..., Any], *args: torch.Tensor) -> list[Any]:
        """Return the program's results."""
        program = self.lower(fn, args)
        return [to_torch(v) for v in run_loop(program, list(map(to_numpy, args)))]

    def gradients(
        self,
        fn: Callable[..., Any],
        *args: Any,
        externs: tuple[str, ...] = (),
        rtol: float | None = None,
        atol: float | None = None,
    ) -> list[LoopProgram]:
        """Compare the result and the gradients of float arguments, through AOTAutograd."""
        programs: list[LoopProgram] = []

        def compiler(gm: Any, _: Any) -> Callable[..., Any]:
            program = verify(lower(gm, self.options, self.targets))
            programs.append(program)

            def run(*inputs: Any) -> Any:
                arrays = [to_numpy(g) for g in inputs]
                return [to_torch(g) for g in run_loop(program, arrays, externs=AllOps())]

            return make_boxed_func(run)

        compiled = aot_function(
            fn, fw_compiler=compiler, bw_compiler=compiler, decompositions=self.decompositions
        )
        results = []
        for call in (compiled, fn):
            arguments = [_cloned(a).requires_grad_() if _differentiable(a) else a for a in args]
            y = pytree.tree_leaves(call(*arguments))
            floats = [v for v in y if v.requires_grad]
            torch.manual_seed(1)
            wrt = [g for g in arguments if _differentiable(g)]
            grads = torch.autograd.grad(
                floats, wrt, [torch.randn_like(v) for v in floats], allow_unused=True
            )
            results.append([*y, *grads])
        for got, want in zip(*results, strict=True):
            if want is not None:
                torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
        called = {op.target for p in programs for op in p.operations if isinstance(op, Extern)}
        assert called <= set(externs), f"calls of ATen: {called}"
        return programs

    def _run(self, program, fn, args, strides, rtol, atol) -> None:
        actual_args = [_cloned(a) for a in args]
        expected_args = [_cloned(a) for a in args]
        expected = pytree.tree_leaves(fn(*expected_args))
        arrays = [to_numpy(a) for a in actual_args if isinstance(a, (torch.Tensor, int))]
        constants = {key: to_numpy(value) for key, value in self.constants.items()}
        results = run_loop(program, arrays, constants, AllOps())
        assert len(results) == len(expected)
        for got, want in zip(results, expected, strict=True):
            if isinstance(want, torch.Tensor):
                got = to_torch(got)
                if strides and want.numel():
                    sizes = [d for d, n in enumerate(want.shape) if n > 1]
                    assert [got.stride(d) for d in sizes] == [want.stride(d) for d in sizes]
                torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
            else:
                assert got == want
        for a, e in zip(actual_args, expected_args, strict=True):
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True)


def _differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _cloned(value: Any) -> Any:
    """Copy a tensor with its strides, even if its elements overlap."""
    if not isinstance(value, torch.Tensor):
        return value
    base = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    if 0 in value.stride():
        storage = value.untyped_storage().clone()
        base.set_(storage, value.storage_offset(), value.shape, value.stride())
        return base
    return base.copy_(value)


@pytest.fixture(scope="session")
def decompositions() -> Any:
    return default_decompositions()


@pytest.fixture
def check(decompositions) -> Checker:
    return Checker(decompositions)


@pytest.fixture
def check_loops(decompositions) -> Checker:
    """Like `check`, with dense products as loops."""
    return Checker(decompositions, LoweringOptions(extern_kernels="none"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
