"""The output of code generators: text and its calling convention, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field

from gyrator_ir.checks import a_tuple, exactly, natural
from gyrator_ir.define import frozen
from gyrator_ir.modes import Failure

if TYPE_CHECKING:
    from gyrator_ir.expr import Expr


@frozen
class KernelCheck:
    """The error that a kernel reports by returning `code` (1, 2, ...)."""

    code: int = field(validator=natural)
    failure: Failure = field(validator=exactly(Failure))
    message: str = field(validator=exactly(str))


@frozen
class Configuration:
    """One configuration of a kernel's tuning parameters: `BLOCK_X=128 num_warps=4`."""

    values: tuple[tuple[str, int], ...] = field(validator=a_tuple)


@frozen
class KernelArgument:
    """A parameter of a kernel in a language that specialises kernels by argument type."""

    name: str = field(validator=exactly(str))
    type: str = field(validator=exactly(str))
    """Spelled as in the language: `*fp32`, `i64`."""
    divisor: int = field(default=1, validator=natural)
    """The value (an address in bytes, or an integer) is expected to be a multiple of this. The
    launcher checks it, and uses another build of the kernel if it is not."""


@frozen
class KernelSource:
    """One kernel as text.

    The C calling convention of every kernel is
    `int64_t symbol(void *const *buffers, const int64_t *sizes)`: the buffers of
    `Kernel.parameters` and the values of `Kernel.sizes`, in order. It returns 0 on success, else
    the code of a `KernelCheck`. Languages with their own launchers take the same two lists.
    """

    kernel: str = field(validator=exactly(str))
    """Name of the `Kernel`."""
    symbol: str = field(validator=exactly(str))
    """Name of the function in the text."""
    text: str = field(validator=exactly(str))
    checks: tuple[KernelCheck, ...] = field(default=(), validator=a_tuple)
    source_map: tuple[tuple[int, int], ...] = field(default=(), validator=a_tuple)
    """Pairs of a line of `text`, counted from 1, and a row of the program's origins: the comments
    that name the kernel's origins. They do not affect its behaviour."""
    candidates: tuple[Configuration, ...] = field(default=(), validator=a_tuple)
    """Configurations worth measuring, best guess first."""
    arguments: tuple[KernelArgument, ...] = field(default=(), validator=a_tuple)
    """Buffers, then sizes, in the order of the calling convention; empty for a language that
    compiles kernels to the C calling convention."""
    grid: tuple[Expr, ...] = field(default=(), validator=a_tuple)
    """The number of programs along each dimension, for a language whose kernels are launched as
    grids. The expressions refer to sizes by the names of `arguments`, and to the values of a
    configuration by their names."""


@frozen
class TranslationUnit:
    """A text that is compiled as a whole, and the kernels in it."""

    name: str = field(validator=exactly(str))
    language: str = field(validator=exactly(str))
    """`c++`, `triton`, `interpreter`, or the name of a vendor's language."""
    text: str = field(validator=exactly(str))
    kernels: tuple[KernelSource, ...] = field(validator=a_tuple)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the exported functions."""
        return tuple(k.symbol for k in self.kernels)


@frozen
class HostUnit:
    """One translation unit of a host program in a compiled language."""

    name: str = field(validator=exactly(str))
    text: str = field(validator=exactly(str))
    symbols: tuple[str, ...] = field(validator=a_tuple)
    """Names of the exported functions."""


@frozen
class Program:
    """A host program as text; executing it defines the function `entry`."""

    language: str = field(validator=exactly(str))
    """`python`, `c++` or `fx`."""
    text: str = field(validator=exactly(str))
    entry: str = field(validator=exactly(str))
    kernels: tuple[str, ...] = field(validator=a_tuple)
    """Names of the kernels that the text uses, in the order in which they are passed to it."""
    constants: tuple[str, ...] = field(default=(), validator=a_tuple)
    """Keys of the constants, in the order in which they are passed to it."""
    units: tuple[HostUnit, ...] = field(default=(), validator=a_tuple)
    """The translation units of a program in a compiled language, whose `text` is then for readers
    only. The first unit exports the entry, which calls the functions of the others through a table
    in the order of `symbols`."""
