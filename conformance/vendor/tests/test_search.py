"""`python -m gyrator_testing kernels --target toy`, on the toy as it is and with a planted bug."""

import os
import subprocess
import sys

import pytest

from gyrator_testing.__main__ import main

PLANT = """
import sys
import numpy as np
from gyrator_toy import language, machine
{bug}
from gyrator_testing.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
BUGS = {
    "": (0, ""),
    "machine.EXACT['maximum'] = np.minimum": (1, "maximum"),
    "machine.FOLDS['max'] = np.min": (1, "reduce.max"),
    "language.ToyBackend.emit = lambda *_: 1 / 0": (1, "failed in `emit`"),
}


def run(tmp_path, bug, *arguments):
    environment = {**os.environ, "GYRATOR_CACHE_DIR": str(tmp_path / "cache")}
    return subprocess.run(
        [sys.executable, "-c", PLANT.format(bug=bug), *arguments],
        env=environment, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_and_shrunk(tmp_path, bug):
    status, said = BUGS[bug]
    found = ("kernels", "--target", "toy", "--count", "120", "--points", "500", "--out", "found")
    done = run(tmp_path, bug, *found, "--forms", "pointwise,reduction")
    assert done.returncode == status, done.stdout + done.stderr
    files = list((tmp_path / "found").glob("*.gy"))
    assert len(files) == status
    assert said in done.stdout
    if said:
        (file,) = files
        lines = file.read_text().splitlines()
        assert 8 <= len(lines) < 24
        assert f"gyrator verify {file.relative_to(tmp_path)}" in done.stdout


def test_a_target_that_is_not_there_is_an_error(capsys):
    assert main(["kernels", "--target", "acme"]) == 2
    said = capsys.readouterr().err
    assert "GY-TARGET-008" in said and "cpu" in said
    assert main(["kernel"]) == 2
    assert "usage" in capsys.readouterr().err
