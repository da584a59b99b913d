"""Ahead of time: models compiled into one file, which runs without a compiler.

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


def compile(  # `aot.compile` is what it is
    program: torch.nn.Module | ExportedProgram | Mapping[str, EntryPoint | Sequence[Any]],
    inputs: Sequence[Any] | None = None,
    *,
    package: str | Path,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    target: str | Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    runtime: Literal["python", "standalone", "libtorch"] = "python",
) -> Path:
    """Compile a model for the CPU into one file, and return its path.

    Args:
        program: a module, an exported program, or several by name: `{"name": EntryPoint(...)}`, or
            tuples of an entry point's fields. Weights that they share are stored once.
        inputs: example arguments of a module.
        package: the file. The same model, options and compiler give the same bytes.
        kwargs: example arguments by name.
        dynamic_shapes: which sizes may differ, as `torch.export.export` takes them.
        target: an instruction set level, `"avx512"`, `"avx2"`, `"neon"` (of aarch64) or `"plain"`,
            or several of them: the highest that a machine has is chosen when the package is loaded.
            By default this machine's. What another machine has takes a compiler for it, see
            `gyrator_runtime.toolchain.find_cross_toolchain`.
        options: of `torch.compile(..., options=...)`. Those that say how a program runs in the
            compiling process do not go into packages.
        runtime: `"standalone"` makes a package that the C library (`gyrator.h`) runs, too, in a
            process without Python and libtorch. Kernels then compute matrix products, convolutions
            and attention, as with the option `extern_kernels="none"`. `"libtorch"` makes one for
            the C library with libtorch, in a process without Python: it calls operators by name.

    Raises:
        UnsupportedError: GY-AOT-001 for what a package cannot do; GY-AOT-005 for what one that
            C runs cannot, with all calls that prevent it; what the compiler refuses.
        OptionError: GY-AOT-002 for a target that there is not, GY-AOT-003 for an option that does
            not go into packages, and those of `torch.compile`.
        ToolchainError: GY-BUILD-001 where there is no compiler for a target.
        PackageError: GY-PACKAGE-008 for a weight that cannot be stored.
    """
    from gyrator.aot.build import build  # a process that runs packages needs no compiler

    entries: dict[str, EntryPoint] = {}
    if isinstance(program, Mapping):
        for name, given in program.items():
            entries[name] = given if isinstance(given, EntryPoint) else EntryPoint(*given)
    else:
        entries["forward"] = EntryPoint(program, inputs, kwargs, dynamic_shapes)
    return build(entries, Path(package), target, options, runtime)
