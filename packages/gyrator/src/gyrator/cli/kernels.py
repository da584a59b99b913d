"""`python -m gyrator_testing kernels`: test a target's language and loader with random kernels."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve

from gyrator.config import read_config
from gyrator.engine.emission import units_of
from gyrator.engine.verification import Built, runner_of
from gyrator.options import Options
from gyrator.session import Session
from gyrator.targets import TargetDefinition, TargetError, discover
from gyrator.targets.vendor import VendorBuilding, named
from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.types import Device
from gyrator_testing.kernels.random import FORMS, Limits
from gyrator_testing.kernels.search import Fault, Refused, Search, single_kernel_program

if TYPE_CHECKING:
    from gyrator.engine.context import CompilerContext
    from gyrator_ir.expr import ShapeFacts
    from gyrator_ir.kernel.nodes import Kernel
    from gyrator_ir.target import Target
    from gyrator_testing.kernels.validate import Launch


def main(arguments: Sequence[str] | None = None) -> int:
    """Search for faults and print them; return 0, 1 for a fault, 2 if there is no such target."""
    args = _parser().parse_args(arguments)
    try:
        with opened(args.target) as session:
            definition, target = find_target(session, args.target)
            return _search(args, session, definition, target)
    except GyratorError as error:
        print(error, file=sys.stderr)
        return 2


def opened(name: str) -> Session:
    """Return a session that uses the target of this name for its device type."""
    config = read_config()
    config = evolve(config, targets=config.targets | {name})
    return Session(config=config, options=Options(cache=False), targets=discover(config))


def find_target(session: Session, name: str) -> tuple[TargetDefinition, Target]:
    """Return the target of this name.

    Raises:
        TargetError: GY-TARGET-008 if it is not installed, or has no device here.
    """
    for definition, target in session.targets.values():
        if definition.name == name:
            return definition, target
    names = ", ".join(sorted(d.name for d, _ in session.targets.values()))
    message = f"no target {name!r} has a device on this machine"
    help = f"available targets: {names}; see `gyrator doctor`"
    raise TargetError.of("GY-TARGET-008", message, help=help)


@frozen(eq=False)
class Builder:
    """Emits, builds and loads single kernels."""

    definition: TargetDefinition
    target: Target
    context: CompilerContext

    def __call__(self, kernel: Kernel, facts: ShapeFacts) -> Launch:
        """Return a function that runs a kernel.

        Raises:
            Refused: if the language refuses it.
        """
        with named(self.definition, "refuses"):
            why = self.definition.kernels.refuses(kernel, self.target)
        if why is not None:
            raise Refused(f"{why.code}: {why.message}")
        program = single_kernel_program(kernel, facts)
        with named(self.definition, "emit"):
            units = units_of(program, self.definition.kernels, self.target)
        loader = self.context.loader(self.target)
        with named(self.definition, "submit"):
            building = loader.submit(units)
        functions = VendorBuilding(self.definition, building, units).addresses()
        ((unit, source),) = [(u, k) for u in units for k in u.kernels]
        built = Built(kernel, program, source, unit.language, functions[source.symbol])
        return runner_of(built, self.context)


def _search(
    args: argparse.Namespace, session: Session, definition: TargetDefinition, target: Target
) -> int:
    folder: Path = args.out
    folder.mkdir(parents=True, exist_ok=True)
    search = Search(
        build=Builder(definition, target, session.engine(session.options).context),
        capabilities=target.capabilities,
        device=Device(target.device),
        forms=args.forms,
        limits=Limits(points=args.points),
        folder=folder,
    )
    findings = search.run(args.count, args.seed, args.seconds, args.faults)
    print(f"{definition.name}: {findings.ran} random kernels compared with the interpreter")
    for why, number in findings.left_out.most_common():
        print(f"  {number} skipped: {why}")
    for fault in findings.faults:
        _report(fault, folder, definition)
    if not findings.ran and not findings.faults:
        print("no kernel ran: the target lacks the capabilities that the random kernels need")
    return int(bool(findings.faults) or not findings.ran)


def _report(fault: Fault, folder: Path, definition: TargetDefinition) -> None:
    path = folder / f"{fault.name}.gy"
    path.write_text(fault.text)
    named = f"GYRATOR_TARGETS={definition.name} " * definition.optional
    print(f"{fault.name}: {fault.problem}\n\n{fault.text}")
    print(f"written to {path}; run it with `{named}gyrator verify {path}`")


def _forms(text: str) -> list[str]:
    chosen = text.split(",")
    if not {*chosen} <= {*FORMS}:
        raise argparse.ArgumentTypeError(f"choose from {', '.join(FORMS)}")
    return chosen


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gyrator_testing kernels",
        description="Compile random kernels with a target's language and loader, run them on its "
        "device, and compare each with the interpreter of its IR. Failing kernels are minimised "
        "and written to files.",
    )
    parser.add_argument("--target", required=True, help="name of an installed target")
    parser.add_argument("--count", type=int, default=200, help="number of kernels (200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first kernel (0)")
    parser.add_argument("--seconds", type=float, default=0, help="time limit in seconds; 0: none")
    parser.add_argument("--faults", type=int, default=1, help="stop after this many faults (1)")
    parser.add_argument(
        "--forms", type=_forms, default=list(FORMS), help=f"comma-separated, from {','.join(FORMS)}"
    )
    parser.add_argument(
        "--points", type=int, default=4000, help="maximum iterations of a kernel (4000)"
    )
    parser.add_argument("--out", type=Path, default=Path("kernel-faults"), help="output folder")
    return parser
