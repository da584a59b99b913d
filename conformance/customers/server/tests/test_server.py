"""A model stored by one process answers in another, where nothing is compiled."""

import subprocess
import sys

import torch
from gyrator_server import cut, save

SERVE = """
import sys, torch
from pathlib import Path
from gyrator_server import Served
served = Served(Path(sys.argv[1]))
torch.manual_seed(5)
result = served(torch.randn(4, 8))
print(len(served.records), len(served.compiled_anew()))
torch.save(result, sys.argv[2])
"""


def model():
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16),
        torch.nn.Linear(16, 16), torch.nn.Softplus(), torch.nn.Linear(16, 3), torch.nn.Softmax(-1),
    ).eval()  # fmt: skip


def test_a_model_is_cut_into_parts_that_make_the_whole():
    whole, x = model(), torch.randn(4, 8)
    parts = cut(whole, 3)
    value = x
    for part in parts:
        value = part(value)
    assert len(parts) == 3
    torch.testing.assert_close(value, whole(x))


def test_another_process_serves_it_without_compiling(tmp_path):
    assert save(model(), torch.randn(4, 8), tmp_path / "store", parts=2) == 2
    moved = (tmp_path / "store").rename(tmp_path / "elsewhere")
    answer = tmp_path / "answer.pt"
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(moved), str(answer)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["2", "0"]
    whole = model()
    torch.manual_seed(5)
    torch.testing.assert_close(torch.load(answer), whole(torch.randn(4, 8)))
