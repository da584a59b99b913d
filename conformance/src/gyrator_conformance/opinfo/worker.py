"""The worker process that checks cases: one line of JSON per request and answer."""

import json
import sys

import torch
from attrs import asdict

from gyrator_conformance.opinfo.judge import OpJudge
from gyrator_conformance.opinfo.samples import Case
from gyrator_conformance.process import line_writer
from gyrator_ir.types import HOST


def serve() -> None:
    """Answer requests until the input ends."""
    write = line_writer()
    judge = OpJudge()
    for line in sys.stdin:
        case = Case(**json.loads(line))
        outcome = judge.judge(case)
        if case.device != HOST:
            # After a fault of the device all else fails in this process: it ends here.
            torch.accelerator.synchronize()
        write(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    serve()
