"""What code generators give: text with its calling convention, still data."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from attrs import field, frozen

from gyrator_ir.checks import a_tuple, exactly, natural

if TYPE_CHECKING:
    from gyrator_ir.expr import Expr


class Failure(StrEnum):
    """The exception that a failed check of a kernel raises."""

    INDEX = "IndexError"
    RUNTIME = "RuntimeError"


@frozen
class KernelCheck:
    """A kernel that returns `code` (1, 2, ...) has found this wrong."""

    code: int = field(validator=natural)
    failure: Failure = field(validator=exactly(Failure))
    message: str = field(validator=exactly(str))


@frozen
class Configuration:
    """One point of a kernel's tuning space: `BLOCK_X=128 num_warps=4`."""

    values: tuple[tuple[str, int], ...] = field(validator=a_tuple)


@frozen
class KernelArgument:
    """A parameter of a kernel in a language that compiles for argument types."""

    name: str = field(validator=exactly(str))
    type: str = field(validator=exactly(str))
    """As the language spells it: `*fp32`, `i64`."""
    divisor: int = field(default=1, validator=natural)
    """What the value, an address in bytes or an integer, is expected to be a multiple of. Whoever
    launches the kernel checks it, and takes another build where it does not hold."""


@frozen
class KernelSource:
    """One kernel as text.

    The C calling convention of every kernel is
    `int64_t symbol(void *const *buffers, const int64_t *sizes)`: the buffers of
    `Kernel.parameters` and the values of `Kernel.sizes`, in order; 0 is success, otherwise the
    code of a `KernelCheck`. Languages with their own launchers take the same two lists.
    """

    kernel: str = field(validator=exactly(str))
    """Name of the `Kernel`."""
    symbol: str = field(validator=exactly(str))
    """Name of the function in the text."""
    text: str = field(validator=exactly(str))
    checks: tuple[KernelCheck, ...] = field(default=(), validator=a_tuple)
    source_map: tuple[tuple[int, int], ...] = field(default=(), validator=a_tuple)
    """Pairs (line of `text` from 1, row of the program's origins): the remarks that say where the
    kernel came from, which are no part of what it does."""
    candidates: tuple[Configuration, ...] = field(default=(), validator=a_tuple)
    """Configurations worth measuring, best guess first."""
    arguments: tuple[KernelArgument, ...] = field(default=(), validator=a_tuple)
    """Buffers, then sizes, in the order of the calling convention; empty where every kernel is
    compiled to that convention itself."""
    grid: tuple[Expr, ...] = field(default=(), validator=a_tuple)
    """How many programs run along each dimension, for a language whose kernels are launched as
    grids of them: over sizes by the names of `arguments`, and entries of a configuration by
    theirs."""


@frozen
class TranslationUnit:
    """A text that a compiler takes whole, and the kernels in it."""

    name: str = field(validator=exactly(str))
    language: str = field(validator=exactly(str))
    """`c++`, `triton`, `interpreter`, or a vendor's own."""
    text: str = field(validator=exactly(str))
    kernels: tuple[KernelSource, ...] = field(validator=a_tuple)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The functions that it exports."""
        return tuple(k.symbol for k in self.kernels)


@frozen
class HostUnit:
    """A translation unit of a host program in a compiled language."""

    name: str = field(validator=exactly(str))
    text: str = field(validator=exactly(str))
    symbols: tuple[str, ...] = field(validator=a_tuple)
    """The functions that it exports."""


@frozen
class Program:
    """A host program as text. Executing it defines the function `entry`."""

    language: str = field(validator=exactly(str))
    """`python`, `c++` or `fx`."""
    text: str = field(validator=exactly(str))
    entry: str = field(validator=exactly(str))
    kernels: tuple[str, ...] = field(validator=a_tuple)
    """Kernels the text refers to, in the order in which they are handed to it."""
    constants: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Keys of the constants, in the order in which they are handed to it."""
    units: tuple[HostUnit, ...] = field(default=(), validator=a_tuple)
    """What a compiler takes, for a compiled language; `text` is then for readers. The first exports
    the entry, which finds the functions of the others through a table, in the order of symbols."""
