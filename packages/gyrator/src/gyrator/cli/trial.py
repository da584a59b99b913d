"""`gyrator opt --run`: compile and run a program's text, and compare it with its interpreter."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor

from gyrator.engine.pipeline import Stages
from gyrator.engine.verification import Built, runner_of
from gyrator.repro.arrays import array_of, check_interpreters, tensor_of, torch_externs
from gyrator.store.summary import built_kernels
from gyrator_ir.define import frozen
from gyrator_ir.host.nodes import HostProgram
from gyrator_ir.kernel.nodes import KernelGroup, Launchable, Schedule
from gyrator_ir.levels import HOST, TILE, level_of
from gyrator_ir.loop.nodes import LoopProgram
from gyrator_ir.tile.nodes import Repeat, Tiled, TiledGroup, TileProgram
from gyrator_lowering.torch_bridge.dtypes import FROM_TORCH
from gyrator_runtime.native import KernelFunction, Plan
from gyrator_runtime.plan.link import Linker
from gyrator_runtime.plan.lower import lower


@frozen
class Trial:
    """The result of a run."""

    level: str
    results: tuple[str, ...]
    """A line for each result, or for each kernel if kernels run one by one."""
    difference: str = ""
    """How results differ from the interpreter's; empty if they match."""

    def __str__(self) -> str:
        verdict = self.difference or f"matches the interpreter of the level {self.level}"
        return "\n".join((*self.results, verdict))


def try_program(
    program: LoopProgram | Schedule | HostProgram | TileProgram, stages: Stages, seed: int = 0
) -> Trial:
    """Compile a program from its level on, run it on random arguments, and interpret it.

    Tiled kernels run one by one, on sizes that satisfy their facts, and so do those of a host
    program whose arguments are not described.

    Raises:
        VerificationError: GY-VERIFY-010 if `gyrator_testing` is not installed; GY-VERIFY-011 for a
            kernel of such a host program that differs from its IR.
    """
    check_interpreters("running a program's text")
    if isinstance(program, TileProgram):
        return _kernels(program, stages, seed)
    from gyrator_testing.feeds import assert_same, feed
    from gyrator_testing.levels import run_program

    try:
        arguments = feed(program, seed)
    except ValueError:  # the host program does not describe arguments that it only passes to calls
        assert isinstance(program, HostProgram)
        runs = stages.verify(program)
        return Trial(HOST.name, tuple(f"{name}: {difference}" for name, difference in runs.items()))
    actual, reference = arguments.copy(), arguments.copy()
    constants = {key: tensor_of(array) for key, array in actual.constants.items()}
    call = _compiled(_hosted(program, stages), stages, constants)
    tensors = [tensor_of(value) for value in actual.inputs]
    results = [*cast("Sequence[Any]", call(list(tensors)))]
    expected = run_program(program, reference.inputs, reference.constants, torch_externs())
    difference = ""
    try:
        assert_same([array_of(value) for value in results], expected, "result")
        assert_same([array_of(value) for value in tensors], reference.inputs, "argument")
    except AssertionError as error:
        difference = " ".join(str(error).split())
    lines = (f"result {k}: {_described(value)}" for k, value in enumerate(results))
    return Trial(level_of(program).name, tuple(lines), difference)


def _hosted(program: LoopProgram | Schedule | HostProgram, stages: Stages) -> HostProgram:
    options = stages.scheduler_options()
    if isinstance(program, LoopProgram):
        program = stages.scheduled(program, options)
    return stages.hosted(program, options) if isinstance(program, Schedule) else program


def _compiled(host: HostProgram, stages: Stages, constants: Mapping[str, Any]) -> Plan:
    context = stages.context
    units = stages.kernels(host)
    functions: dict[str, KernelFunction] = {}
    for device, part in units.items():
        functions |= context.loader(context.targets[device][1]).submit(part).addresses()
    kernels = {k.name: k.loaded(functions[k.symbol]) for k in built_kernels(units)}
    return Linker(context.runner(), kernels, constants).link(lower(host))


def _kernels(program: TileProgram, stages: Stages, seed: int) -> Trial:
    """Compare every kernel with text of its own with the interpreter of its IR."""
    from gyrator_testing.kernels.validate import validate

    units = stages.printed(program)
    target = stages.context.targets[program.device.type][1]
    functions = stages.context.loader(target).submit(units).addresses()
    kernels = {k.name: k for k in map(_launchable, program.kernels) if k is not None}
    lines: list[str] = []
    for unit, source in ((u, k) for u in units for k in u.kernels):
        if source.kernel not in kernels:
            continue
        kernel = kernels[source.kernel]
        built = Built(kernel, program, source, unit.language, functions[source.symbol])
        verdict = validate(kernel, program.facts, runner_of(built, stages.context), seed)
        lines.append(f"{kernel.name}: {verdict.skipped or f'{verdict.runs} runs'}")
        if verdict.difference:
            return Trial(TILE.name, tuple(lines), f"{kernel.name}: {verdict.difference}")
    return Trial(TILE.name, tuple(lines))


def _launchable(tiled: Tiled) -> Launchable | None:
    """Return the launchable of a tiled kernel; None for a repeat, which shares another kernel's
    text."""
    match tiled:
        case TiledGroup(name, device, kernels, members):
            return KernelGroup(name, device, tuple(t.kernel for t in kernels), members)
        case Repeat():
            return None
    return tiled.kernel


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    dtype = FROM_TORCH[value.dtype].value
    form = f"{dtype}[{', '.join(map(str, value.shape))}] strides {list(value.stride())}"
    if not value.numel() or value.is_complex():
        return form
    wide = value.double()
    return f"{form} from {wide.min().item():.6g} to {wide.max().item():.6g}"
