"""The process that judges programs: reads one as JSON a line, answers with a verdict a line."""

import json
import os
import sys

import torch
from attrs import asdict

from gyrator_conformance.fuzz.judge import Judge
from gyrator_conformance.fuzz.program import Program
from gyrator_conformance.profiles import find_target
from gyrator_ir.types import HOST


def serve(target: str) -> None:
    """Answer requests until the input ends."""
    # What libraries print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    chosen = find_target(target)
    device = chosen.target.device
    if device != HOST:  # where programs make tensors of their own
        torch.set_default_device(device)
    judge = Judge(chosen.config, device)
    for line in sys.stdin:
        verdict = judge.judge(Program.from_json(line))
        answers.write(json.dumps(asdict(verdict)) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
