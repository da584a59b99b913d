"""Running a host program in every form that the FX wrapper gives it, against the interpreter."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.parse import parse as parse_program
from gyrator_ir.host.verify import verify
from gyrator_ir.loop.nodes import TypeArg
from gyrator_testing.host_cases import LIBRARY, assert_same
from gyrator_testing.interp.externs import DEFAULT, Dispatched, mapped
from gyrator_testing.interp.host import run_host
from gyrator_testing.interp.kernel import run_kernel
from gyrator_wrapper_fx.kernels import KernelFunction
from gyrator_wrapper_fx.load import LoadedProgram
from gyrator_wrapper_fx.stage import FxWrapper, to_graph
from gyrator_wrapper_fx.text import program_text

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
            made = torch.empty_strided(value.shape, steps, dtype=dtype)
            made.view(same).copy_(
                torch.from_numpy(value.view(torch.empty(0, dtype=same).numpy().dtype))
            )
            return made
    made = torch.empty_strided(value.shape, steps, dtype=torch.from_numpy(value).dtype)
    return made.copy_(torch.from_numpy(value))


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
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return made.copy_(value)


def kernels(program: HostProgram) -> dict[str, KernelFunction]:
    """Return functions that interpret the kernels of a program and its subprograms."""
    found: dict[str, KernelFunction] = {}
    for sub in program.subprograms:
        found |= kernels(sub)
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

        found[kernel.name] = run
    return found


class Runtime:
    """What `build(rt)` asks of a host runtime."""

    def __init__(
        self,
        kernels: Mapping[str, KernelFunction],
        constants: Mapping[str, torch.Tensor],
        fx_compiler: Callable[..., Any] | None = None,
    ) -> None:
        self.kernels, self.constants, self.fx_compiler = kernels, constants, fx_compiler

    def program(self, name: str, parameters: Sequence[str]) -> "Recorder":
        return Recorder(self, len(parameters))


class Recorder:
    """Records one launch."""

    def __init__(self, rt: Runtime, count: int) -> None:
        self.rt, self.parameters = rt, tuple(range(count))

    def integer(self, value: int) -> int:
        return value

    def launch(self, kernel: str, tensors: Sequence[int], sizes: Sequence[int]) -> None:
        self.step = (kernel, tensors, sizes)

    def finish(self, values: tuple[()]) -> Any:
        kernel, tensors, sizes = self.step

        def plan(args: list[Any]) -> tuple[()]:
            given = [args[k] for k in tensors], [args[k] for k in sizes]
            self.rt.kernels[kernel](*given)
            args.clear()
            return ()

        return SimpleNamespace(plan=plan)


def load(program: HostProgram, rt: Runtime) -> LoadedProgram:
    """Execute the text of a program, as a loader does."""
    emitted = FxWrapper().emit(program)
    scope: dict[str, Any] = {}
    exec(compile(emitted.text, "<text>", "exec"), scope)
    return scope[emitted.entry](rt)


def forms(
    program: HostProgram, constants: Mapping[str, torch.Tensor], tracing: str = "symbolic"
) -> dict[str, Callable[[list[Any]], Sequence[Any]]]:
    """Return a function of a list of arguments for each form of the graph."""
    functions = kernels(program)
    gm = to_graph(program, functions, constants)
    gm.graph.lint()
    loaded = load(program, Runtime(functions, constants))
    traced = torch.fx.symbolic_trace(gm)
    traced.graph.eliminate_dead_code()
    traced.recompile()

    def remade(args: list[Any]) -> Any:
        first = [copied(a) if isinstance(a, torch.Tensor) else a for a in args]
        return make_fx(gm, tracing_mode=tracing, _allow_non_fake_inputs=True)(*first)(*args)

    found = {
        "graph": lambda args: gm(*args),
        "text": loaded.plan,
        "interpreter": lambda args: torch.fx.Interpreter(gm).run(*args),
        "symbolic_trace": lambda args: traced(*args),
    }
    if tracing:
        found["make_fx"] = remade
    return found


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
    given = [array(tensor(a)) for a in inputs]
    known = externs if isinstance(externs, Dispatched) else {**DEFAULT, **(externs or {})}
    expected = run_host(program, given, constants, known)
    tensors = {k: tensor(v) for k, v in constants.items()}
    for name, function in forms(program, tensors, tracing).items():
        args = [tensor(a) for a in inputs]
        found = list(function(list(args)))
        assert_same(name, mapped(array, found), mapped(array, expected))
        assert_same(f"{name}: inputs", mapped(array, args), given)
    return expected


def text_again(
    loaded: LoadedProgram, emitted: str, launches: Mapping[str, tuple[int, int]]
) -> None:
    """The text of the module that a text built is that text."""
    assert program_text(loaded.module, launches, loaded.integers)[0] == emitted
