"""The kernels of a host program as text: those with stages, and those of templates."""

from gyrator_ir.backend import KernelBackend, TemplateBackend
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.kernel.nodes import Kernel, TemplateKernel
from gyrator_ir.source import TranslationUnit
from gyrator_ir.target import Target


def units_of(
    program: HostProgram, language: KernelBackend, target: Target
) -> tuple[TranslationUnit, ...]:
    """Write the kernels of a program for the target's device, those of templates after the others.

    TypeError for a template where the target offers what its kernel language does not have.
    """
    here = [k for k in program.kernels if k.device.type == target.device]
    kernels = tuple(k for k in here if isinstance(k, Kernel))
    templates = tuple(k for k in here if isinstance(k, TemplateKernel))
    units = language.emit(kernels, program.facts, program.origins, target)
    if not templates:
        return units
    if not isinstance(language, TemplateBackend):
        raise TypeError(f"{language.name} has no templates, and {target.arch} offers them")
    more = language.emit_templates(templates, program.facts, program.origins, target)
    return (*units, *more)
