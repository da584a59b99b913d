"""Host programs in the language that was asked for, or in Python."""

from collections.abc import Iterable

from gyrator.engine.context import CompilerContext
from gyrator.store.manifest import CompiledHost
from gyrator.store.programs import HOST
from gyrator.targets import Building
from gyrator.wrappers.cpp import calling, cpp_host, no_cpp
from gyrator_ir.backend import WrapperBackend
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.print import show as show_host
from gyrator_ir.source import Program
from gyrator_runtime.plan.lower import lower as lower_host
from gyrator_runtime.warn import warn


def host_language(setting: CompilerContext, devices: Iterable[str]) -> WrapperBackend:
    """Return the host language asked for, or Python where that cannot drive a device's kernels.

    Python drives every device.
    """
    chosen = setting.wrapper
    for device in devices:
        _, target = setting.targets[device]
        if chosen.name not in target.wrapper_backends:
            warn(
                "GY-WRAPPER-002",
                f"kernels of {device} cannot be driven by a host program in {chosen.name!r}; "
                "this one is in Python",
                f"{device} takes: {', '.join(target.wrapper_backends)}",
            )
            return setting.wrappers["python"]
    return chosen


def wrapped(
    setting: CompilerContext,
    language: WrapperBackend,
    host: HostProgram,
    building: dict[str, Building],
) -> tuple[Program, CompiledHost | None]:
    """Return the host program; the units of a compiled one join what is being built."""
    try:
        emitted = language.emit(host)
    except UnsupportedError as error:
        why = error.diagnostic
        warn(why.code, f"{why.message}; the host program is in Python", why.help)
        return setting.wrappers["python"].emit(host), None
    if not emitted.units:
        return emitted, None
    builder = cpp_host(setting.cache)
    if builder is None or builder.toolchain is None:
        no_cpp("there is no C++ compiler")
        return setting.wrappers["python"].emit(host), None
    building[HOST] = builder.submit(
        emitted.units,
        setting.cache,
        setting.options.threads,
        setting.progress(),
        setting.seconds,
    )
    return emitted, calling(host, emitted)


def plan_of(wrapper: Program, host: HostProgram) -> str:
    """Return what runs for a host program: see `Product`."""
    if wrapper.units:
        return ""
    return show_host(host) if wrapper.language == "fx" else lower_host(host).text()
