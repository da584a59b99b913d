"""The process that judges cases: a line of JSON asks, a line of JSON answers."""

import json
import os
import sys

from attrs import asdict

from gyrator_conformance.opinfo.judge import OpJudge
from gyrator_conformance.opinfo.samples import Case


def serve() -> None:
    """Answer requests until the input ends."""
    # What libraries print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    judge = OpJudge()
    for line in sys.stdin:
        answers.write(json.dumps(asdict(judge.judge(Case(**json.loads(line))))) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
