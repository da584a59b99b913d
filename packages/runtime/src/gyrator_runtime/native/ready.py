"""Plans in words, and what they need of the process that runs them."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen

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
"""The type of words in an `array`."""
_HEADER, _LAUNCH = 5, 5
"""Words of a group of launches, and of a launch, before its buffers and sizes."""


@frozen(kw_only=True)
class Encoded:
    """A plan in words: data, but for objects that its instructions hold.

    Addresses of kernels and operators are 0.
    """

    n_args: int
    n_regs: int
    boxed: bool
    code: Sequence[int]
    ints: Sequence[int]
    """The integer slots as they are when the plan begins."""
    consts: Sequence[Any]
    """What words count: objects, and what stands for some."""
    launches: Sequence[tuple[KernelFunction | str, str, Checks | CheckHandler]]
    """What each launch runs, its name for reports, and what it raises."""
    groups: Sequence[int]
    """Places in `code` of the groups of launches."""
    operators: Sequence[tuple[int, str, str]]
    """Places in `code` of addresses of operators, and which, for which type of device."""
    devices: Sequence[tuple[int, str]] = ()
    """Places in `code` of a device's type and number as libtorch has them, and which device."""


@frozen(eq=False)
class Ready:
    """A plan in words with its addresses and objects: what both runners execute."""

    code: "array[int]"
    ints: "array[int]"
    consts: tuple[Any, ...]
    kernels: tuple[KernelFunction, ...]
    """Of the launches, in order: they must live as long as the plan."""
    handlers: tuple[CheckHandler, ...]
    """What makes the exceptions of the launches that fail."""
    n_args: int
    n_regs: int
    boxed: bool
    timed: bool


def no_kernel(name: str) -> LoadedKernel:
    """Raise LookupError: there are no kernels besides those that launches hold."""
    raise LookupError(f"no kernel {name!r} was given to this plan")


def ready(
    encoded: Encoded,
    consts: tuple[Any, ...],
    find: Callable[[str], LoadedKernel] = no_kernel,
    timed: bool = False,
    place: Callable[[str], torch.device] = torch.device,
) -> Ready:
    """Fill in the addresses of a plan.

    Args:
        encoded: the plan.
        consts: the objects that its constants stand for.
        find: returns a kernel by name.
        timed: keep the times of launches.
        place: returns a device of this process by the plan's name of it.
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
    """Fill in the kernels of a group of launches."""
    at = group + _HEADER
    for _ in range(code[group + 2]):
        kernel = kernels[code[at + 1]]
        if isinstance(kernel, int):
            code[at] = _signed(kernel)
        elif not isinstance(kernel, TensorLaunch):
            code[at + 4] = _signed(kernel.address)
            code[group + 1] = 0  # queueing needs the interpreter's lock, to raise
        at += _LAUNCH + 2 * code[at + 2] + code[at + 3]


def _signed(address: int) -> int:
    return address - (1 << 64) if address >= 1 << 63 else address
