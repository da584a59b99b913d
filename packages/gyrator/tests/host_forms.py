"""Running a host program in each host language, against the interpreter of the Wrapper IR."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_mutation,
)

from gyrator.store.programs import host_runner
from gyrator.wrappers.cpp import TorchCppWrapper, calling, cpp_host, load, typed
from gyrator.wrappers.fx import load_graph
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.parse import parse
from gyrator_ir.host.print import show
from gyrator_ir.host.verify import verify
from gyrator_ir.host.walk import programs
from gyrator_ir.loop.nodes import TypeArg
from gyrator_ir.source import Program
from gyrator_runtime.cache import Cache
from gyrator_runtime.host.debug import load_text
from gyrator_runtime.host.externs import overload
from gyrator_runtime.native import LoadedKernel
from gyrator_runtime.plan.link import Linker
from gyrator_runtime.plan.lower import lower
from gyrator_runtime.plan.stored import parse as parse_plan
from gyrator_runtime.progress import ProgressReporter
from gyrator_testing.host_cases import assert_same
from gyrator_testing.interp.externs import Dispatched, mapped
from gyrator_testing.interp.host import run_host
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.interp.memory import span
from gyrator_wrapper_python.stage import PythonWrapper

WRAPPERS = ("python", "text", "cpp", "fx")
"""The plan, the printed Python, a C++ library, an FX graph."""
Run = Callable[[list[Any]], Sequence[Any]]
UserKernels = Mapping[str, Callable[..., None]]
CHECKS = ((IndexError, "index out of range"),)
_KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64)
)


def array(value: Any) -> Any:
    """Return a tensor as an array that shares its memory; anything else as it is."""
    return value.numpy() if isinstance(value, torch.Tensor) else value


def tensor(value: Any) -> Any:
    """Return a copy of an array as a tensor with its strides; anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    steps = [s // value.itemsize for s in value.strides]
    source = torch.from_numpy(value)
    return torch.empty_strided(value.shape, steps, dtype=source.dtype).copy_(source)


def externs(user_kernels: UserKernels) -> Dispatched:
    """Return the dispatcher's own ops, and users' kernels, for the interpreter."""
    return Dispatched(overload, _given, array, user_kernels)


def _given(value: Any) -> Any:
    if isinstance(value, TypeArg):
        return typed(f"{value.kind}:{value.value}")
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


@frozen
class Forms:
    """The three loaders of host programs, with kernels that the interpreter runs."""

    cache: Cache
    user_kernels: UserKernels = field(factory=dict)

    def load(
        self, wrapper: str, program: HostProgram, constants: Mapping[str, torch.Tensor]
    ) -> Run:
        """Return a program as its host language runs it."""
        functions = {k.name: _pointer(k) for p in programs(program) for k in p.kernels}
        kernels = {
            name: LoadedKernel(ctypes.cast(f, ctypes.c_void_p).value or 0, CHECKS)
            for name, f in functions.items()
        }
        if wrapper == "cpp":
            return self._cpp(program, kernels, constants, functions)
        launchers = {k: _launcher(f) for k, f in self.user_kernels.items()}
        linker = Linker(host_runner(self.cache), kernels, constants, launchers)
        plan: Run
        if wrapper == "python":
            plan = linker.link(parse_plan(lower(program).text()))
        elif wrapper == "text":
            emitted = PythonWrapper().emit(program)
            plan = load_text(emitted.text, linker, emitted.entry)
        else:
            compiler = self._interpreted if self.user_kernels else None
            plan = load_graph(show(program), linker, compiler)

        def run(args: list[Any]) -> Sequence[Any]:
            assert functions is not None  # they must outlive the plan
            return plan(args)

        return run

    def _cpp(
        self,
        program: HostProgram,
        kernels: Mapping[str, LoadedKernel],
        constants: Mapping[str, torch.Tensor],
        functions: Mapping[str, Any],
    ) -> Run:
        emitted: Program = TorchCppWrapper().emit(program)
        builder = cpp_host(self.cache)
        assert builder is not None
        building = builder.submit(emitted.units, self.cache, 1, ProgressReporter())
        plan: Run = load(
            builder.caller,
            calling(program, emitted),
            building.addresses(),
            kernels,
            [constants[key] for key in emitted.constants],
            {k: _launcher(f) for k, f in self.user_kernels.items()},
        )

        def run(args: list[Any]) -> Sequence[Any]:
            assert functions is not None  # they must outlive the plan
            return plan(args)

        return run

    def _interpreted(self, gm: torch.fx.GraphModule) -> Callable[..., Any]:
        """Compile a graph: users' Triton kernels become the functions that stand for them."""
        kernels = self.user_kernels

        class Interpreter(torch.fx.Interpreter):
            def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
                if target is not triton_kernel_wrapper_mutation:
                    return super().call_function(target, args, kwargs)
                name = kernel_side_table.get_kernel(kwargs["kernel_idx"]).fn.__name__
                constant = kernel_side_table.get_constant_args(kwargs["constant_args_idx"])
                kernels[name](**mapped(array, kwargs["kwargs"]), **constant)
                return None

        return lambda *args: Interpreter(gm).run(*args)

    def check(
        self,
        text: str | HostProgram,
        inputs: Sequence[Any],
        constants: Mapping[str, Any] | None = None,
        wrappers: Sequence[str] = WRAPPERS,
    ) -> list[Any]:
        """Compare each host language with the interpreter: results, and inputs that change."""
        program = verify(parse(text) if isinstance(text, str) else text)
        arguments = [array(tensor(a)) for a in inputs]
        expected = run_host(program, arguments, constants or {}, externs(self.user_kernels))
        tensors = {k: tensor(v) for k, v in (constants or {}).items()}
        for wrapper in wrappers:
            args = [tensor(a) for a in inputs]
            actual = self.load(wrapper, program, tensors)(list(args))
            same(wrapper, actual, expected)
            same(f"{wrapper}: inputs", args, arguments)
        return expected


def _pointer(kernel: Any) -> Any:
    """Return a C function that interprets a kernel; 1 for an index out of range."""

    def run(buffers: Any, sizes: Any) -> int:
        env = {symbol: sizes[k] for k, symbol in enumerate(kernel.sizes)}
        inputs = {}
        for k, p in enumerate(kernel.parameters):
            count = span(p, env)
            dtype = np.dtype(p.dtype.name.lower().replace("f", "float").replace("i", "int"))
            address = buffers[k] or 0
            raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
            inputs[p.name] = np.frombuffer(raw, dtype)
        try:
            run_kernel(kernel, inputs, {s.name: v for s, v in env.items()})
        except IndexError:
            return 1
        return 0

    return _KERNEL(run)


def _launcher(function: Callable[..., None]) -> Callable[[list[Any], dict[str, Any]], None]:
    def launch(grids: list[Any], arguments: dict[str, Any]) -> None:
        assert all(next(iter(grid)) > 0 for grid in grids)
        function(**mapped(array, {k: _base(v) for k, v in arguments.items()}))

    return launch


def _base(value: Any) -> Any:
    """Return the tensor of a descriptor."""
    return getattr(value, "base", value)


def same(name: str, value: Sequence[Any], expected: Sequence[Any]) -> None:
    """Assert equal values, types and nesting."""
    assert_same(name, mapped(array, list(value)), mapped(array, list(expected)))
