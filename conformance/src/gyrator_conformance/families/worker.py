"""The worker process that checks families: one line of JSON per request and answer."""

import json
import sys

from attrs import asdict

from gyrator_conformance.families.judge import FamilyJudge, Form
from gyrator_conformance.families.table import all_families
from gyrator_conformance.process import line_writer


def serve() -> None:
    """Answer requests until the input ends."""
    write = line_writer()
    judge, families = FamilyJudge(), all_families()
    for line in sys.stdin:
        form = Form(**json.loads(line))
        write(json.dumps(asdict(judge.judge(families[form.name], form))))


if __name__ == "__main__":
    serve()
