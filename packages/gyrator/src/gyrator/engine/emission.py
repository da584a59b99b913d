"""The text of a host program's kernels: staged kernels, templates, and groups."""

from collections.abc import Callable

from attrs import evolve, field

from gyrator.targets.vendor import checked_units
from gyrator_ir.backend import KernelBackend, TemplateBackend, TilingBackend
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import Diagnostic, UnsupportedError
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Launchable, TemplateKernel
from gyrator_ir.passes import NO_EDITS, PassEdits, Tracer
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TileProgram


def kernels_of(launched: Launchable) -> tuple[Kernel, ...]:
    """Return the staged kernels of a launch."""
    if isinstance(launched, KernelGroup):
        return launched.kernels
    return (launched,) if isinstance(launched, Kernel) else ()


@frozen
class Tiling:
    """Settings of the tile passes: the user's edits, a tracer and callbacks."""

    edits: PassEdits = NO_EDITS
    tracer: Tracer | None = None
    observe: Callable[[TileProgram], None] = field(default=lambda program: None)
    """Called with the result of the passes."""
    choose: Callable[[TileProgram], TileProgram] = field(default=lambda program: program)
    """Returns the program to emit."""


DEFAULT_TILING = Tiling()
_ORDER = (Kernel, KernelGroup, TemplateKernel)


def units_of(
    program: HostProgram, language: KernelBackend, target: Target, tiling: Tiling = DEFAULT_TILING
) -> tuple[TranslationUnit, ...]:
    """Emit the kernels of a program for the target's device.

    Raises TypeError if the target enables templates or groups that its kernel language lacks.
    """
    launched = _launched(program, target)
    kernels = [k for k in launched if isinstance(k, Kernel)]
    if isinstance(language, TilingBackend):
        tiled = tiled_of(program, language, target, tiling)
        tiling.observe(tiled)
        return language.emit_tiled(tiling.choose(tiled), target)
    if isinstance(language, TemplateBackend):
        units = language.emit(launched, program.facts, program.origins, target)
    elif len(kernels) < len(launched):
        message = f"{language.name} has no templates and no groups, and {target.arch} enables them"
        raise TypeError(message)
    else:
        units = language.emit(kernels, program.facts, program.origins, target)
    return checked_units(units, [k.name for k in launched], language.name)


def tiled_of(
    program: HostProgram, language: TilingBackend, target: Target, tiling: Tiling = DEFAULT_TILING
) -> TileProgram:
    """Return the kernels of a program for the target's device, tiled: staged kernels first, then
    groups, then templates."""
    kernels = sorted(_launched(program, target), key=lambda k: _ORDER.index(type(k)))
    return language.tile(
        kernels, program.facts, program.origins, target, tiling.edits, tiling.tracer
    )


def refusals(
    program: HostProgram, language: KernelBackend, target: Target
) -> dict[str, Diagnostic]:
    """Return the FX nodes whose kernels the language refuses for the target's device, by name."""
    refused: dict[str, Diagnostic] = {}
    for kernel in (k for launch in _launched(program, target) for k in kernels_of(launch)):
        if (why := language.refuses(kernel, target)) is not None:
            refused |= _refused_nodes(program, kernel, why)
    return refused


def late_refusals(
    program: HostProgram, language: KernelBackend, target: Target, tiling: Tiling = DEFAULT_TILING
) -> dict[str, Diagnostic]:
    """Like `refusals`, for kernels that the language refuses only on emission."""
    refused: dict[str, Diagnostic] = {}
    for kernel in _launched(program, target):
        try:
            units_of(evolve(program, kernels=(kernel,)), language, target, tiling)
        except UnsupportedError as error:
            refused |= _refused_nodes(program, kernel, error.diagnostic)
    return refused


def _launched(program: HostProgram, target: Target) -> list[Launchable]:
    return [k for k in program.kernels if k.device.type == target.device]


def _refused_nodes(
    program: HostProgram, kernel: Launchable, why: Diagnostic
) -> dict[str, Diagnostic]:
    """Return the nodes that a refused kernel computes, each with the reason.

    Raises:
        UnsupportedError: for a kernel without a node of origin.
    """
    if not kernel.origins:
        raise UnsupportedError(why)
    return {program.origins[o].node: why for o in kernel.origins}
