"""A model stored by one process answers in another, where nothing is compiled."""

import os
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


PIECES = """
import sys, torch
from pathlib import Path
from gyrator import default_session
from gyrator_server.piecewise import Piecewise

@torch.library.custom_op("served::attend", mutates_args=())
def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.T, -1) @ v

@attend.register_fake
def _(q, k, v):
    return torch.empty_like(q)

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = torch.nn.LayerNorm(16), torch.nn.Linear(16, 16)
        self.qkv = torch.nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = (part.contiguous() for part in self.qkv(self.norm(x)).split(16, -1))
        x = x + self.out(torch.ops.served.attend(q, k, v))
        return x + torch.nn.functional.gelu(x).sum(0) / x.shape[0]

torch.manual_seed(0)
torch._dynamo.config.specialize_float = True
model = torch.nn.Sequential(Layer(), Layer()).eval()
ops = frozenset({torch.ops.served.attend, torch.ops.served.attend.default})
backend = Piecewise(default_session(), Path(sys.argv[1]), ops, sizes=(4, 8), ranges=(6,))
fast = torch.compile(model, backend=backend, dynamic=True, fullgraph=True)
with torch.no_grad():
    for n in (5, 4, 8, 9, 6, 7):
        x = torch.randn(n, 16)
        torch.testing.assert_close(fast(x), model(x))
stages = [f"gyrator_{s}.stage" for s in ("lowering", "scheduler", "codegen_cpp")]
imported = any(name in sys.modules for name in stages)
for piece in backend.pieces:
    print(len(piece.general), sorted(piece.common))
print(backend.compiled, imported)
"""


def test_pieces_of_a_graph_are_compiled_once_for_ranges_and_common_sizes(tmp_path):
    found = []
    for cache in ("first", "second"):
        done = subprocess.run(
            [sys.executable, "-c", PIECES, str(tmp_path / "store")],
            env={**os.environ, "GYRATOR_CACHE_DIR": str(tmp_path / cache)},
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(done.stdout.splitlines())
    pieces = ["2 [4, 8]"] * 3
    assert found == [[*pieces, "12 True"], [*pieces, "0 False"]]
    (folder,) = (tmp_path / "store").iterdir()
    assert len(list(folder.glob("*.gyr"))) == 12
