"""The kernels of a host program as text: those with stages, those of templates, and groups."""

from collections.abc import Callable

from attrs import evolve, field, frozen

from gyrator.targets.vendor import checked_units
from gyrator_ir.backend import KernelBackend, TemplateBackend, TilingBackend
from gyrator_ir.diagnostics import Diagnostic, UnsupportedError
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Launchable, TemplateKernel
from gyrator_ir.passes import NO_EDITS, PassEdits, Tracer
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Target
from gyrator_ir.tile.nodes import TileProgram


def kernels_of(launched: Launchable) -> tuple[Kernel, ...]:
    """Return the kernels with stages that a launch runs."""
    if isinstance(launched, KernelGroup):
        return launched.kernels
    return (launched,) if isinstance(launched, Kernel) else ()


@frozen
class Tiling:
    """How the tile passes run: as a user edited them, and who looks on."""

    edits: PassEdits = NO_EDITS
    tracer: Tracer | None = None
    seen: Callable[[TileProgram], None] = field(default=lambda program: None)
    """Is given what the passes made."""
    choose: Callable[[TileProgram], TileProgram] = field(default=lambda program: program)
    """Says what of it is written."""


AS_SHIPPED = Tiling()
_ORDER = (Kernel, KernelGroup, TemplateKernel)


def units_of(
    program: HostProgram, language: KernelBackend, target: Target, tiling: Tiling = AS_SHIPPED
) -> tuple[TranslationUnit, ...]:
    """Write the kernels of a program for the target's device.

    TypeError for a template or a group where the target asks for what its kernel language does not
    write.
    """
    launched = _launched(program, target)
    kernels = [k for k in launched if isinstance(k, Kernel)]
    if isinstance(language, TilingBackend):
        tiled = tiled_of(program, language, target, tiling)
        tiling.seen(tiled)
        return language.emit_tiled(tiling.choose(tiled), target)
    if isinstance(language, TemplateBackend):
        units = language.emit(launched, program.facts, program.origins, target)
    elif len(kernels) < len(launched):
        said = f"{language.name} has no templates and no groups, and {target.arch} asks for them"
        raise TypeError(said)
    else:
        units = language.emit(kernels, program.facts, program.origins, target)
    return checked_units(units, [k.name for k in launched], language.name)


def tiled_of(
    program: HostProgram, language: TilingBackend, target: Target, tiling: Tiling = AS_SHIPPED
) -> TileProgram:
    """Return the kernels of a program for the target's device, tiled: those with stages first, then
    groups, then those of templates."""
    kernels = sorted(_launched(program, target), key=lambda k: _ORDER.index(type(k)))
    return language.tile(
        kernels, program.facts, program.origins, target, tiling.edits, tiling.tracer
    )


def refusals(
    program: HostProgram, language: KernelBackend, target: Target
) -> dict[str, Diagnostic]:
    """Return the FX nodes, by name, whose kernels the language refuses for the target's device."""
    found: dict[str, Diagnostic] = {}
    for kernel in (k for one in _launched(program, target) for k in kernels_of(one)):
        if (why := language.refuses(kernel, target)) is not None:
            found |= _blamed(program, kernel, why)
    return found


def late_refusals(
    program: HostProgram, language: KernelBackend, target: Target, tiling: Tiling = AS_SHIPPED
) -> dict[str, Diagnostic]:
    """Like `refusals`, for kernels that the language refuses when it writes them."""
    found: dict[str, Diagnostic] = {}
    for kernel in _launched(program, target):
        try:
            units_of(evolve(program, kernels=(kernel,)), language, target, tiling)
        except UnsupportedError as error:
            found |= _blamed(program, kernel, error.diagnostic)
    return found


def _launched(program: HostProgram, target: Target) -> list[Launchable]:
    return [k for k in program.kernels if k.device.type == target.device]


def _blamed(program: HostProgram, kernel: Launchable, why: Diagnostic) -> dict[str, Diagnostic]:
    """Return the nodes that a refused kernel computes.

    Raises:
        UnsupportedError: for a kernel that comes from no node.
    """
    if not kernel.origins:
        raise UnsupportedError(why)
    return {program.origins[o].node: why for o in kernel.origins}
