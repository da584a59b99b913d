"""Running a host program in every form that the FX wrapper gives it, against the interpreter."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.parse import parse as parse_program
from gyrator_ir.host.print import show
from gyrator_ir.host.verify import verify
from gyrator_ir.loop.nodes import TypeArg
from gyrator_testing.host_cases import LIBRARY, assert_same
from gyrator_testing.interp.externs import DEFAULT, Dispatched, mapped
from gyrator_testing.interp.host import run_host
from gyrator_testing.interp.kernel import run_kernel
from gyrator_wrapper_fx.kernels import KernelFunction
from gyrator_wrapper_fx.load import load
from gyrator_wrapper_fx.stage import to_graph

ODD = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.int8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.int8, ml_dtypes.float8_e5m2),
}


def array(value: Any) -> Any:
    """Return a tensor as an array that shares its memory; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype in ODD:
        same, kind = ODD[value.dtype]
        return value.view(same).numpy().view(kind)
    return value.numpy()


def tensor(value: Any) -> Any:
    """Return a copy of an array as a tensor with its strides; anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    steps = [s // value.itemsize for s in value.strides]
    for dtype, (same, kind) in ODD.items():
        if value.dtype == kind:
            result = torch.empty_strided(value.shape, steps, dtype=dtype)
            result.view(same).copy_(
                torch.from_numpy(value.view(torch.empty(0, dtype=same).numpy().dtype))
            )
            return result
    result = torch.empty_strided(value.shape, steps, dtype=torch.from_numpy(value).dtype)
    return result.copy_(torch.from_numpy(value))


def dispatched() -> Dispatched:
    """Return the dispatcher's own ops for the interpreter."""

    def find(target: str) -> Callable[..., Any]:
        namespace, name, overload = target.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)

    def there(value: Any) -> Any:
        if isinstance(value, TypeArg):
            return getattr(torch, value.value)
        return torch.from_numpy(value) if isinstance(value, np.ndarray) else value

    return Dispatched(find, there, array)


def library() -> torch.library.Library:
    """Define the ops that the shared programs call."""
    lib = torch.library.Library("hosttest", "DEF")
    for schema in LIBRARY.values():
        lib.define(schema)
    kind = "CompositeExplicitAutograd"
    lib.impl("add_one_", lambda x: (x.add_(1), None)[1], kind)
    lib.impl("two", lambda x: (x + 1, x * 2), kind)
    lib.impl("two.out", lambda x, *, a, b: (a.copy_(x + 1), b.copy_(x * 2)), kind)
    return lib


def copied(value: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides."""
    result = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return result.copy_(value)


def kernels(program: HostProgram) -> dict[str, KernelFunction]:
    """Return functions that interpret the kernels of a program and its subprograms."""
    actual: dict[str, KernelFunction] = {}
    for sub in program.subprograms:
        actual |= kernels(sub)
    for kernel in program.kernels:

        def run(
            tensors: Sequence[torch.Tensor], sizes: Sequence[int], kernel: Any = kernel
        ) -> None:
            buffers = {}
            for p, t in zip(kernel.parameters, tensors, strict=True):
                rest = t.untyped_storage().nbytes() // t.itemsize - t.storage_offset()
                buffers[p.name] = array(torch.as_strided(t, (rest,), (1,), t.storage_offset()))
            named = dict(zip((s.name for s in kernel.sizes), sizes, strict=True))
            run_kernel(kernel, buffers, named)

        actual[kernel.name] = run
    return actual


def forms(
    program: HostProgram, constants: Mapping[str, torch.Tensor], tracing: str = "symbolic"
) -> dict[str, Callable[[list[Any]], Sequence[Any]]]:
    """Return a function of a list of arguments for each form of the graph."""
    functions = kernels(program)
    gm = to_graph(program, functions, constants)
    gm.graph.lint()
    loaded = load(parse_program(show(program)), functions, constants)
    traced = torch.fx.symbolic_trace(gm)
    traced.graph.eliminate_dead_code()
    traced.recompile()

    def remade(args: list[Any]) -> Any:
        first = [copied(a) if isinstance(a, torch.Tensor) else a for a in args]
        return make_fx(gm, tracing_mode=tracing, _allow_non_fake_inputs=True)(*first)(*args)

    actual = {
        "graph": lambda args: gm(*args),
        "loaded": loaded.plan,
        "interpreter": lambda args: torch.fx.Interpreter(gm).run(*args),
        "symbolic_trace": lambda args: traced(*args),
    }
    if tracing:
        actual["make_fx"] = remade
    return actual


def check(
    text: str | HostProgram,
    inputs: Sequence[Any],
    constants: Mapping[str, Any] | None = None,
    externs: Mapping[str, Any] | None = None,
    tracing: str = "symbolic",
) -> list[Any]:
    """Compare every form of a program with the interpreter: results, and inputs it changes."""
    program = verify(parse_program(text) if isinstance(text, str) else text)
    constants = constants or {}
    arguments = [array(tensor(a)) for a in inputs]
    known = externs if isinstance(externs, Dispatched) else {**DEFAULT, **(externs or {})}
    expected = run_host(program, arguments, constants, known)
    tensors = {k: tensor(v) for k, v in constants.items()}
    for name, function in forms(program, tensors, tracing).items():
        args = [tensor(a) for a in inputs]
        actual = list(function(list(args)))
        assert_same(name, mapped(array, actual), mapped(array, expected))
        assert_same(f"{name}: inputs", mapped(array, args), arguments)
    return expected
