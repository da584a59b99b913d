"""Ahead-of-time compilation: models compiled to one file that runs without a compiler.

>>> import torch, gyrator.aot, tempfile, os
>>> path = os.path.join(tempfile.mkdtemp(), "model.gya")
>>> _ = gyrator.aot.compile(torch.nn.Softmax(-1), (torch.zeros(1, 2),), package=path)
>>> gyrator.aot.load(path)(torch.zeros(1, 2))
tensor([[0.5000, 0.5000]])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gyrator.aot.entry import EntryPoint
from gyrator_runtime.package import Model, PackageError, PackageManifest, inspect, load

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

__all__ = ["EntryPoint", "Model", "PackageError", "PackageManifest", "compile", "inspect", "load"]


def compile(  # shadows the builtin, as `aot.compile`
    program: torch.nn.Module | ExportedProgram | Mapping[str, EntryPoint | Sequence[Any]],
    inputs: Sequence[Any] | None = None,
    *,
    package: str | Path,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    target: str | Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    runtime: Literal["python", "standalone", "libtorch"] = "python",
    constants: Literal["compile", "load"] = "compile",
) -> Path:
    """Compile a model to one file, and return its path.

    Args:
        program: a module, an exported program, or several by name: `{"name": EntryPoint(...)}`, or
            tuples of an entry point's fields. Shared weights are stored once.
        inputs: example arguments of a module.
        package: the output file. The same model, options and compiler give the same bytes.
        kwargs: example arguments by name.
        dynamic_shapes: the dynamic sizes, in the form of `torch.export.export`.
        target: an instruction set level, `"avx512"`, `"avx2"`, `"neon"` (of aarch64) or `"plain"`,
            or several, of which the highest that the machine supports is used when the package is
            loaded. By default this machine's level. Levels of other machines require a cross
            compiler, see `gyrator_runtime.toolchain.find_cross_toolchain`.
        options: options of `torch.compile(..., options=...)`, except those that control how a
            program runs in the compiling process.
        runtime: a `"standalone"` package can also be run by the C library (`gyrator.h`), in a
            process without Python and libtorch. Matrix products, convolutions and attention are
            then generated kernels, as with the option `extern_kernels="none"`. A `"libtorch"`
            package can be run by the C library with libtorch, in a process without Python; it calls
            operators by name.
        constants: with the option `freezing`, when to compute values that depend only on weights.
            With `"compile"`, they are stored instead of weights that are not needed otherwise, and
            are fixed. With `"load"`, the original weights are stored, and can be replaced.

    Raises:
        UnsupportedError: GY-AOT-001 for a program that packages do not support; GY-AOT-005 for one
            that the C library does not support, with all calls that prevent it; and the compiler's
            refusals.
        OptionError: GY-AOT-002 for an unknown target, GY-AOT-003 for an option that packages do not
            support, and those of `torch.compile`.
        ToolchainError: GY-BUILD-001 if there is no compiler for a target.
        PackageError: GY-PACKAGE-008 for a weight that cannot be stored.
    """
    from gyrator.aot.build import build  # not needed by processes that only run packages

    entries: dict[str, EntryPoint] = {}
    if isinstance(program, Mapping):
        for name, entry in program.items():
            entries[name] = entry if isinstance(entry, EntryPoint) else EntryPoint(*entry)
    else:
        entries["forward"] = EntryPoint(program, inputs, kwargs, dynamic_shapes)
    return build(entries, Path(package), target, options, runtime, constants)
