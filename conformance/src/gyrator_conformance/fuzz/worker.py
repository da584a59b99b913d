"""The process that draws, runs and judges programs: a line of JSON asks, a line of JSON answers.

Eager mode itself ends the process for some programs: not even drawing one is safe elsewhere.
"""

import json
import sys
from typing import Any

import torch
from attrs import asdict

from gyrator_conformance.fuzz.generate import generate
from gyrator_conformance.fuzz.judge import Judge
from gyrator_conformance.fuzz.program import Program
from gyrator_conformance.process import line_writer
from gyrator_conformance.profiles import find_target
from gyrator_ir.types import HOST


def _not_measured(*_: object) -> float:
    """Stand in for what measures how long guards take, for the log alone.

    It empties the processor's caches first, which takes a tenth of a program's time.
    """
    return 0.0


def serve(target: str) -> None:
    """Answer requests until the input ends."""
    write = line_writer()
    guards: Any = torch._dynamo.guards
    guards.profile_guard_manager = _not_measured
    chosen = find_target(target)
    device = chosen.target.device
    if device != HOST:  # where programs make tensors of their own
        torch.set_default_device(device)
    judge = Judge(chosen.config, device)
    for line in sys.stdin:
        what, argument = json.loads(line)
        if what == "draw":
            answer = generate(argument["seed"], tuple(argument["wrappers"])).as_json()
        elif what == "run":
            judge.run_eagerly(Program.from_json(argument))
            answer = "{}"
        else:
            answer = json.dumps(asdict(judge.judge(Program.from_json(argument))))
        write(answer)


if __name__ == "__main__":
    serve(sys.argv[1])
