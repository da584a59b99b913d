"""Host programs in the chosen language, or in Python as a fallback."""

from collections.abc import Iterable

from gyrator.engine.context import CompilerContext
from gyrator.store.manifest import CompiledHost
from gyrator.store.programs import HOST
from gyrator.targets import Building
from gyrator_ir.backend import WrapperBackend
from gyrator_ir.diagnostics import UnsupportedError
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.host.print import show as show_host
from gyrator_ir.source import Program
from gyrator_runtime.plan.lower import lower as lower_host
from gyrator_runtime.warn import warn


def host_language(context: CompilerContext, devices: Iterable[str]) -> WrapperBackend:
    """Return the chosen host language, or Python if that cannot drive a device's kernels.

    Python can drive every device.
    """
    chosen = context.wrapper
    for device in devices:
        _, target = context.targets[device]
        if chosen.name not in target.wrapper_backends:
            warn(
                "GY-WRAPPER-002",
                f"{device} kernels cannot be driven by the wrapper {chosen.name!r}; the wrapper "
                "'python' is used instead",
                f"{device} supports: {', '.join(target.wrapper_backends)}",
            )
            return context.wrappers["python"]
    return chosen


def wrapped(
    context: CompilerContext,
    language: WrapperBackend,
    host: HostProgram,
    building: dict[str, Building],
) -> tuple[Program, CompiledHost | None]:
    """Return the host program; the units of a compiled one are added to `building`."""
    try:
        emitted = language.emit(host)
    except UnsupportedError as error:
        why = error.diagnostic
        warn(why.code, f"{why.message}; the wrapper 'python' is used instead", why.help)
        return context.wrappers["python"].emit(host), None
    if not emitted.units:
        return emitted, None
    from gyrator.wrappers.cpp import calling, cpp_host, no_cpp  # only C++ host programs need it

    builder = cpp_host(context.cache)
    if builder is None or builder.toolchain is None:
        no_cpp("there is no C++ compiler")
        return context.wrappers["python"].emit(host), None
    building[HOST] = builder.submit(
        emitted.units, context.cache, context.options.threads, context.progress(), context.seconds
    )
    return emitted, calling(host, emitted)


def plan_of(wrapper: Program, host: HostProgram) -> str:
    """Return the executable plan of a host program: see `Product`."""
    if wrapper.units:
        return ""
    return show_host(host) if wrapper.language == "fx" else lower_host(host).text()
