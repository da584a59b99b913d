"""Encoded plans, and their completion with addresses and objects of the process."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gyrator_ir.define import frozen
from gyrator_runtime.native.kernels import (
    CheckHandler,
    Checks,
    KernelFunction,
    LoadedKernel,
    TensorLaunch,
    check_handler,
)
from gyrator_runtime.native.shim import device_words, operator_address

WORD = "q"
"""Type code of words in an `array`."""
_HEADER, _LAUNCH = 5, 6
"""Number of header words of a launch group, and of a launch."""


@frozen(kw_only=True)
class Encoded:
    """An encoded plan: pure data, except for Python objects in its instructions.

    The addresses of kernels and operators are 0.
    """

    n_args: int
    n_regs: int
    boxed: bool
    code: Sequence[int]
    ints: Sequence[int]
    """Initial values of the integer slots."""
    consts: Sequence[Any]
    """Constants by index: objects and references."""
    launches: Sequence[tuple[KernelFunction | str, str, Checks | CheckHandler]]
    """The kernel of each launch, its name for reports, and its checks."""
    groups: Sequence[int]
    """Offsets of the launch groups in `code`."""
    operators: Sequence[tuple[int, str, str]]
    """Offsets of operator addresses in `code`, with the operator and its device type."""
    devices: Sequence[tuple[int, str]] = ()
    """Offsets in `code` of a device's type and index in libtorch's encoding, with the device."""


@frozen(eq=False)
class Ready:
    """An encoded plan with addresses and objects, as both runners execute it."""

    code: "array[int]"
    ints: "array[int]"
    consts: tuple[Any, ...]
    kernels: tuple[KernelFunction, ...]
    """Kernels of the launches, in order. They must stay alive as long as the plan."""
    handlers: tuple[CheckHandler, ...]
    """Create the exceptions of failed launches."""
    n_args: int
    n_regs: int
    boxed: bool
    timed: bool


def no_kernel(name: str) -> LoadedKernel:
    """Raise LookupError: the default for plans whose launches contain their kernels."""
    raise LookupError(f"no kernel {name!r} was given to this plan")


def ready(
    encoded: Encoded,
    consts: tuple[Any, ...],
    find: Callable[[str], LoadedKernel] = no_kernel,
    timed: bool = False,
    place: Callable[[str], torch.device] = torch.device,
) -> Ready:
    """Fill in the addresses and objects of a plan.

    Args:
        encoded: the plan.
        consts: the resolved constants.
        find: returns a kernel by name.
        timed: record the times of launches.
        place: returns the device of this process for a device name in the plan.
    """
    code = array(WORD, encoded.code)
    kernels: list[KernelFunction] = []
    handlers: list[CheckHandler] = []
    for kernel, name, raised in encoded.launches:
        loaded = find(kernel) if isinstance(kernel, str) else LoadedKernel(kernel)
        kernels.append(loaded.function)
        handlers.append(check_handler(loaded.function, name, raised or loaded.checks))
    for group in encoded.groups:
        _fill(code, group, kernels)
    for at, target, device in encoded.operators:
        code[at] = _signed(operator_address(target, device))
    named = {name for _, name in encoded.devices}
    words = {name: array(WORD, device_words(place(name))) for name in named}
    for at, name in encoded.devices:
        code[at : at + 2] = words[name]
    return Ready(
        code=code,
        ints=array(WORD, encoded.ints),
        consts=consts,
        kernels=tuple(kernels),
        handlers=tuple(handlers),
        n_args=encoded.n_args,
        n_regs=encoded.n_regs,
        boxed=encoded.boxed,
        timed=timed,
    )


def _fill(code: "array[int]", group: int, kernels: list[KernelFunction]) -> None:
    """Fill in the kernels of a launch group."""
    at = group + _HEADER
    for _ in range(code[group + 2]):
        kernel = kernels[code[at + 1]]
        if isinstance(kernel, int):
            code[at] = _signed(kernel)
        elif not isinstance(kernel, TensorLaunch):
            code[at + 4] = _signed(kernel.address)
            code[group + 1] = 0  # queueing needs the GIL, to raise exceptions
        at += _LAUNCH + 2 * code[at + 2] + code[at + 3]


def _signed(address: int) -> int:
    return address - (1 << 64) if address >= 1 << 63 else address
