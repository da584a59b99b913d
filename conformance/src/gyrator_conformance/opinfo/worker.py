"""The process that judges cases: a line of JSON asks, a line of JSON answers."""

import json
import sys

from attrs import asdict

from gyrator_conformance.opinfo.judge import OpJudge
from gyrator_conformance.opinfo.samples import Case
from gyrator_conformance.process import line_writer


def serve() -> None:
    """Answer requests until the input ends."""
    write = line_writer()
    judge = OpJudge()
    for line in sys.stdin:
        write(json.dumps(asdict(judge.judge(Case(**json.loads(line))))))


if __name__ == "__main__":
    serve()
