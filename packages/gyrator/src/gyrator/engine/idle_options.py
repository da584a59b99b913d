"""Warnings about options that have no effect on a graph."""

from collections.abc import Collection, Iterator, Mapping

from gyrator.graphs.compiled import Phase
from gyrator.options import Options
from gyrator.targets import TargetDefinition
from gyrator_ir.backend import TilingBackend
from gyrator_ir.target import Target
from gyrator_runtime.warn import warn

Targets = Mapping[str, tuple[TargetDefinition, Target]]


def warn_idle(options: Options, targets: Targets, devices: Collection[str], phase: Phase) -> None:
    """Warn (GY-OPTION-006) of each option that has no effect on a graph on these devices."""
    for message, help in idle(options, targets, devices, phase):
        warn("GY-OPTION-006", message, help)


def idle(
    options: Options, targets: Targets, devices: Collection[str], phase: Phase
) -> Iterator[tuple[str, str]]:
    """Yield a message and a remedy for each option that has no effect."""
    served = {device: targets[device] for device in sorted(devices) if device in targets}
    names = ", ".join(served)
    if options.fx_compiler and options.wrapper != "fx":
        yield (
            f"the option 'fx_compiler' has no effect with wrapper={options.wrapper!r}",
            "set `wrapper` to 'fx'",
        )
    for name in ("debug_python", "memory_asserts"):
        if getattr(options, name) and options.wrapper != "python":
            yield (
                f"the option {name!r} has no effect with wrapper={options.wrapper!r}",
                "set `wrapper` to 'python'",
            )
    if options.autotune_seconds and not (options.max_autotune or options.eager_if_faster):
        yield (
            "the option 'autotune_seconds' has no effect without 'max_autotune' or "
            "'eager_if_faster'",
            "set `max_autotune`",
        )
    if options.eager_if_faster and options.keeps_compiled:
        yield (
            f"the option 'eager_if_faster' has no effect with {options.keeps_compiled}",
            "set one of the two",
        )
    if options.bitwise and options.extern_kernels == "none":
        yield (
            "the option 'extern_kernels' has no effect with numerics='bitwise': only ATen's matrix "
            "products have eager's bits",
            "choose other numerics",
        )
    if options.freezing and phase != "inference":
        yield "the option 'freezing' has no effect in training", "run under `torch.no_grad()`"
    if not served:
        return
    if options.device_graphs and not any(t.capabilities.graphs for _, t in served.values()):
        yield (
            f"the option 'device_graphs' has no effect on {names}",
            "these devices do not support graphs",
        )
    if options.max_autotune and not any(map(_tunes, served.values())):
        yield (
            f"the option 'max_autotune' has no effect on {names}",
            "their kernel languages have no alternatives to measure",
        )


def _tunes(served: tuple[TargetDefinition, Target]) -> bool:
    definition, target = served
    return isinstance(definition.kernels, TilingBackend) or len(definition.variants(target)) > 1
