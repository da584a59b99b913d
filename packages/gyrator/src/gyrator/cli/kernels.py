"""`python -m gyrator_testing kernels`: random kernels through a target's language and loader."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from gyrator.config import read_config
from gyrator.engine.emission import units_of
from gyrator.engine.verification import Built, runner_of
from gyrator.options import Options
from gyrator.session import Session
from gyrator.targets import TargetDefinition, TargetError, discover
from gyrator.targets.vendor import VendorBuilding, named
from gyrator_ir.diagnostics import GyratorError
from gyrator_ir.types import Device
from gyrator_testing.kernels.random import FORMS, Limits
from gyrator_testing.kernels.search import Fault, Refused, Search, alone

if TYPE_CHECKING:
    from gyrator.engine.context import CompilerContext
    from gyrator_ir.expr import ShapeFacts
    from gyrator_ir.kernel.nodes import Kernel
    from gyrator_ir.target import Target
    from gyrator_testing.kernels.validate import Launch


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, and say what was found; return 0, 1 for a fault, 2 where there is no such target."""
    asked = _parser().parse_args(arguments)
    try:
        with opened(asked.target) as session:
            definition, target = found(session, asked.target)
            return _search(asked, session, definition, target)
    except GyratorError as error:
        print(error, file=sys.stderr)
        return 2


def opened(name: str) -> Session:
    """Return a session in which the target of this name serves its device type."""
    config = read_config()
    config = evolve(config, targets=config.targets | {name})
    return Session(config=config, options=Options(cache=False), targets=discover(config))


def found(session: Session, name: str) -> tuple[TargetDefinition, Target]:
    """Return the target of this name.

    Raises:
        TargetError: GY-TARGET-008 where none is installed, or its device is not there.
    """
    for definition, target in session.targets.values():
        if definition.name == name:
            return definition, target
    known = ", ".join(sorted(d.name for d, _ in session.targets.values()))
    said = f"no target {name!r} serves a device of this machine"
    help = f"there are: {known}; `gyrator doctor` shows what is installed"
    raise TargetError.of("GY-TARGET-008", said, help=help)


@frozen(eq=False)
class Builder:
    """Writes, builds and loads single kernels."""

    definition: TargetDefinition
    target: Target
    setting: CompilerContext

    def __call__(self, kernel: Kernel, facts: ShapeFacts) -> Launch:
        """Return what runs a kernel.

        Raises:
            Refused: where the language refuses it.
        """
        with named(self.definition, "refuses"):
            why = self.definition.kernels.refuses(kernel, self.target)
        if why is not None:
            raise Refused(f"{why.code}: {why.message}")
        program = alone(kernel, facts)
        with named(self.definition, "emit"):
            units = units_of(program, self.definition.kernels, self.target)
        loader = self.setting.loader(self.target)
        with named(self.definition, "submit"):
            building = loader.submit(units)
        functions = VendorBuilding(self.definition, building, units).addresses()
        ((unit, source),) = [(u, k) for u in units for k in u.kernels]
        built = Built(kernel, program, source, unit.language, functions[source.symbol])
        return runner_of(built, self.setting)


def _search(
    asked: argparse.Namespace, session: Session, definition: TargetDefinition, target: Target
) -> int:
    folder: Path = asked.out
    folder.mkdir(parents=True, exist_ok=True)
    search = Search(
        build=Builder(definition, target, session.engine(session.options)),
        capabilities=target.capabilities,
        device=Device(target.device),
        forms=asked.forms,
        limits=Limits(points=asked.points),
        folder=folder,
    )
    findings = search.run(asked.count, asked.seed, asked.seconds, asked.faults)
    print(f"{definition.name}: {findings.ran} random kernels ran beside the interpreter")
    for why, number in findings.left_out.most_common():
        print(f"  {number} left out: {why}")
    for fault in findings.faults:
        _report(fault, folder, definition)
    if not findings.ran and not findings.faults:
        print("no kernel ran: the target offers nothing that the random ones need")
    return int(bool(findings.faults) or not findings.ran)


def _report(fault: Fault, folder: Path, definition: TargetDefinition) -> None:
    path = folder / f"{fault.name}.gy"
    path.write_text(fault.text)
    named = f"GYRATOR_TARGETS={definition.name} " * definition.optional
    print(f"{fault.name}: {fault.said}\n\n{fault.text}")
    print(f"in {path}; `{named}gyrator verify {path}` runs it")


def _forms(text: str) -> list[str]:
    chosen = text.split(",")
    if not {*chosen} <= {*FORMS}:
        raise argparse.ArgumentTypeError(f"there are: {', '.join(FORMS)}")
    return chosen


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gyrator_testing kernels",
        description="Random kernels through a target's language, loader and device, each beside "
        "the interpreter of its IR. What differs is made small and written to a file.",
    )
    parser.add_argument("--target", required=True, help="name of an installed target")
    parser.add_argument("--count", type=int, default=200, help="kernels to draw (200)")
    parser.add_argument("--seed", type=int, default=0, help="of the first kernel (0)")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so many")
    parser.add_argument("--faults", type=int, default=1, help="stop after so many faults (1)")
    parser.add_argument("--forms", type=_forms, default=list(FORMS), help=f"of {','.join(FORMS)}")
    parser.add_argument("--points", type=int, default=4000, help="points of a kernel (4000)")
    parser.add_argument("--out", type=Path, default=Path("kernel-faults"), help="where files go")
    return parser
