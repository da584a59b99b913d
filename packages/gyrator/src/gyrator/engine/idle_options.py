"""Options that a user set and that do nothing for a graph, so that somebody says so."""

from collections.abc import Collection, Iterator, Mapping

from gyrator.engine.compiled import Phase
from gyrator.options import Options
from gyrator.targets import TargetDefinition
from gyrator_ir.backend import TilingBackend
from gyrator_ir.target import Target
from gyrator_runtime.warn import warn

Targets = Mapping[str, tuple[TargetDefinition, Target]]


def warn_idle(options: Options, targets: Targets, devices: Collection[str], phase: Phase) -> None:
    """Warn (GY-OPTION-006) of each option that does nothing for a graph on these devices."""
    for said, help in idle(options, targets, devices, phase):
        warn("GY-OPTION-006", said, help)


def idle(
    options: Options, targets: Targets, devices: Collection[str], phase: Phase
) -> Iterator[tuple[str, str]]:
    """Yield which options do nothing, and what they need."""
    served = {device: targets[device] for device in sorted(devices) if device in targets}
    where = ", ".join(served)
    if options.fx_compiler and options.wrapper != "fx":
        yield (
            f"the option 'fx_compiler' does nothing with wrapper={options.wrapper!r}",
            "set `wrapper` to 'fx'",
        )
    for name in ("debug_python", "memory_asserts"):
        if getattr(options, name) and options.wrapper != "python":
            yield (
                f"the option {name!r} does nothing with wrapper={options.wrapper!r}",
                "set `wrapper` to 'python'",
            )
    if options.autotune_seconds and not options.max_autotune:
        yield "the option 'autotune_seconds' does nothing alone", "set `max_autotune`"
    if options.bitwise and options.extern_kernels == "none":
        yield (
            "the option 'extern_kernels' does nothing with numerics='bitwise': products are "
            "calls of ATen, which alone has eager's bits",
            "choose other numerics",
        )
    if options.freezing and phase != "inference":
        yield "the option 'freezing' does nothing in training", "run under `torch.no_grad()`"
    if not served:
        return
    if options.device_graphs and not any(t.capabilities.graphs for _, t in served.values()):
        yield f"the option 'device_graphs' does nothing on {where}", "none of them records graphs"
    if options.max_autotune and not any(map(_tunes, served.values())):
        yield (
            f"the option 'max_autotune' does nothing on {where}",
            "their kernel languages have one form of each kernel",
        )


def _tunes(served: tuple[TargetDefinition, Target]) -> bool:
    definition, target = served
    return isinstance(definition.kernels, TilingBackend) or len(definition.variants(target)) > 1
