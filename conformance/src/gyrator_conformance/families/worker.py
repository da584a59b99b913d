"""The process that judges families: a line of JSON asks, a line of JSON answers."""

import json
import os
import sys

from attrs import asdict

from gyrator_conformance.families.judge import FamilyJudge, Form
from gyrator_conformance.families.table import all_families


def serve() -> None:
    """Answer requests until the input ends."""
    # What libraries print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    judge, families = FamilyJudge(), all_families()
    for line in sys.stdin:
        form = Form(**json.loads(line))
        answers.write(json.dumps(asdict(judge.judge(families[form.name], form))) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
