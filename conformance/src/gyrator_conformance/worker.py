"""The process that runs cells: it reads names of cells and writes results, one JSON line each.

If a cell crashes it, the suite starts another one and continues.
"""

import json
import sys
import warnings
from typing import Any

from attrs import asdict

from gyrator_conformance.cells import Cell
from gyrator_conformance.models import all_models
from gyrator_conformance.process import line_writer
from gyrator_conformance.profiles import find_target
from gyrator_conformance.running import CellRunner, Result

VERIFY = "--verify"
"""The argument that makes a worker compare kernels with the interpreter of their IR."""


def serve(seed: int, verify: bool = False) -> None:
    """Answer one request a line until the input ends."""
    write = line_writer()
    warnings.simplefilter("ignore")
    models = all_models()
    runners: dict[str, CellRunner] = {}
    for line in sys.stdin:
        cell = Cell(**json.loads(line))
        if cell.target not in runners:
            runners[cell.target] = CellRunner(find_target(cell.target), seed, verify)
        result = runners[cell.target].run(cell, models[cell.model])
        write(json.dumps(as_json(result)))


def as_json(result: Result) -> dict[str, Any]:
    """Return a result as JSON data."""
    return asdict(result)


def from_json(data: dict[str, Any]) -> Result:
    """Parse the output of `as_json`."""
    return Result(**{**data, "cell": Cell(**data["cell"])})


if __name__ == "__main__":
    serve(int(sys.argv[-1]), VERIFY in sys.argv)
