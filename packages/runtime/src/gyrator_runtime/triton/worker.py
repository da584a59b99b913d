"""A process that compiles Triton kernels: `python -m gyrator_runtime.triton.worker`.

It reads lines of JSON from its input, `[folder, job]`, and answers each with a line: an empty
string, or a traceback. It ends at the end of its input, so that it never outlives its parent, and
after a minute without work.
"""

import json
import os
import select
import traceback
from pathlib import Path

from gyrator_runtime.triton.compile import compile_job, import_compiler, parse_job

_PATIENCE = 60.0  # seconds


def main() -> None:
    """Serve jobs until the input ends."""
    # Output printed by compilers must not be read as an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import_compiler()
    questions = os.fdopen(0, "rb", buffering=0)
    while select.select([questions], [], [], _PATIENCE)[0]:
        line = questions.readline()
        if not line:
            return
        folder, job = json.loads(line)
        failure = ""
        try:
            compile_job(parse_job(job), Path(folder))
        except Exception:
            failure = traceback.format_exc()
        answers.write(json.dumps(failure) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
