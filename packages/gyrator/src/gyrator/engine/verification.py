"""The option `verify`: compare every built kernel with the interpreter of its IR."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve
from torch.utils._python_dispatch import _disable_current_modes

from gyrator.engine.context import CompilerContext
from gyrator.targets import Building
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import VerificationError
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.print import show
from gyrator_ir.host.walk import programs
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Launchable
from gyrator_ir.source import KernelSource, TranslationUnit
from gyrator_ir.tile.nodes import TileProgram
from gyrator_runtime.host import DTYPES
from gyrator_runtime.native import KernelFunction
from gyrator_runtime.native.program import Buffer, PlanProgram
from gyrator_runtime.native.program import Launch as PlanLaunch

if TYPE_CHECKING:
    from gyrator_testing.kernels.validate import Launch as Run


@frozen(eq=False)
class Built:
    """A built kernel with its program and source."""

    kernel: Launchable
    program: HostProgram | TileProgram
    source: KernelSource
    language: str
    function: KernelFunction


def verified(
    host: HostProgram,
    units: Mapping[str, Sequence[TranslationUnit]],
    building: Mapping[str, Building],
    context: CompilerContext,
    folder: Path | None,
) -> dict[str, str]:
    """Compare every kernel with its IR; return for each its number of runs, or why it was skipped.

    `folder` receives the files that reproduce a difference; None creates a temporary folder.

    Raises:
        VerificationError: GY-VERIFY-010 if `gyrator_testing` is not installed, GY-VERIFY-011 for
            the first kernel that differs from its IR.
    """
    try:
        from gyrator_testing.kernels.validate import Verdict, validate  # an optional dependency
    except ImportError as error:
        why = f"the option 'verify' needs gyrator_testing, which cannot be imported: {error}"
        raise VerificationError.of(
            "GY-VERIFY-010", why, help="pip install 'gyrator[verify]'"
        ) from error
    runs: dict[str, str] = {}
    verdicts: dict[Any, Verdict] = {}
    # The compiler runs while torch traces with fake tensors; kernels need real ones.
    with _disable_current_modes():
        for built in _all(host, units, building):
            form = _form(built)
            if form not in verdicts:
                verdicts[form] = validate(
                    built.kernel, built.program.facts, runner_of(built, context)
                )
            verdict = verdicts[form]
            if verdict.difference:
                raise _different(built, verdict.difference, folder)
            runs[built.kernel.name] = verdict.skipped or f"{verdict.runs} runs"
    return runs


def _all(
    host: HostProgram,
    units: Mapping[str, Sequence[TranslationUnit]],
    building: Mapping[str, Building],
) -> Iterator[Built]:
    for device, texts in units.items():
        functions = building[device].addresses()
        written = {k.kernel: (k, u.language) for u in texts for k in u.kernels}
        for part in programs(host):
            for kernel in part.kernels:
                if kernel.device.type == device:
                    source, language = written[kernel.name]
                    yield Built(kernel, part, source, language, functions[source.symbol])


def _form(built: Built) -> tuple[object, ...]:
    """Return the kernel's content without its name, equal for kernels that differ only in names."""
    kernel = _nameless(built.kernel)
    lines = built.source.text.replace(built.source.symbol, "k").splitlines()
    return (
        kernel,
        built.program.facts,
        tuple(x for x in lines if not x.lstrip().startswith(("#", "//"))),
    )


def _nameless(kernel: Launchable) -> Launchable:
    match kernel:
        case KernelGroup(kernels=members):
            return evolve(kernel, name="k", kernels=tuple(map(_without_names, members)))
        case Kernel():
            return _without_names(kernel)
    return evolve(kernel, name="k", origins=())


def _without_names(kernel: Kernel) -> Kernel:
    return evolve(kernel, name="k", origins=(), refusals=())


def runner_of(built: Built, context: CompilerContext) -> Run:
    """Return a function that runs a kernel on its device, on copies of NumPy byte arrays."""
    from gyrator_testing.kernels.validate import GUARD

    kernel = built.kernel
    definition, target = context.targets[kernel.device.type]
    interface, index = definition.device(target), kernel.device.index or 0
    checks = tuple((RuntimeError, c.message) for c in sorted(built.source.checks, key=_code))
    device = torch.device(str(kernel.device))

    def run(memories: Sequence[Any], sizes: Sequence[int]) -> Sequence[Any]:
        buffers = tuple(Buffer(k) for k in range(len(memories)))
        launch = PlanLaunch(built.function, buffers, tuple(sizes), checks, name=kernel.name)
        plan = context.runner().plan(PlanProgram(len(memories), len(memories), (launch,)))
        with interface.guard(index):
            raw = [torch.from_numpy(m).to(device, copy=True) for m in memories]
            plan(
                *(
                    r[GUARD : r.numel() - GUARD].view(DTYPES[p.dtype])
                    for r, p in zip(raw, kernel.parameters, strict=True)
                )
            )
            return [r.cpu().numpy() for r in raw]

    return run


def _code(check: Any) -> int:
    return int(check.code)


def _different(built: Built, difference: str, folder: Path | None) -> VerificationError:
    from gyrator_testing.kernels.search import single_kernel_program

    kernel, program = built.kernel, built.program
    folder = folder or Path(tempfile.mkdtemp(prefix="gyrator-verify-"))
    path = folder / f"{kernel.name}.gy"
    path.write_text(
        show(single_kernel_program(kernel, program.facts, program.origins, program.name))
    )
    text = folder / f"{kernel.name}.{built.language.replace('+', 'p')}"
    text.write_text(built.source.text)
    origins = [program.origins[o] for o in kernel.origins]
    return VerificationError.of(
        "GY-VERIFY-011",
        f"kernel {kernel.name} does not match its IR: {difference}",
        where=f"{path}, emitted as {text}",
        provenance=tuple(
            line
            for o in origins
            for line in (f"%{o.node} = {o.target}", f"{o.location}: {o.code}")
            if line != ": "
        ),
        help=f"report it with both files; `gyrator verify {path}` runs the kernel again",
    )
