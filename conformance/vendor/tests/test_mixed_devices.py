"""Tensors of the host and run-time numbers in graphs of a device, in every host language.

The device can be registered once a process, and stays: the checks run in one child, and report.
"""

import json
import subprocess
import sys

import pytest

SCRIPT = r"""
import json, sys
import torch
from gyrator.config import read_config
from gyrator.session import Session
from gyrator_toy.device import start
from torch.utils._pytree import tree_map_only

folder, chosen = sys.argv[1:]
start()
torch._dynamo.config.capture_scalar_outputs = True
torch._dynamo.config.specialize_float = False
config = read_config({"GYRATOR_CACHE_DIR": folder, "GYRATOR_TARGETS": "toy"})
F = torch.nn.functional
x = torch.randn(5, 7)
places, number, count = torch.tensor([1, 3, 2]), torch.tensor(0.3), torch.tensor(2)

def written(x, t):
    x = x.clone()
    x.mul_(t).add_(x * t)
    x[0] = t
    x[1].copy_(torch.arange(7.0))
    return x

def across(x, t, u):
    y, z = x.clone(), u.clone()
    y.copy_(u)
    z.copy_(x.double())
    t = t.clone()
    first = x * t
    t.add_(1)
    return y * 2, z * 2, first, x * t

def put(x, i, t):
    y = x.clone()
    y[i] = t
    y[i, i] += 1
    return y

# Per case: the function, what lies on the device, what on the host, and numbers.
CASES = {
    "number": (lambda x, s: x * s + torch.exp(x).sum(), [x], [], [0.5]),
    "formula": (lambda x, s: (x * (s * s + 1)).softmax(-1) * s, [x], [], [0.5]),
    "item": (lambda x, t: x * t.item() + t.item(), [x], [number], []),
    "of the device": (lambda x: x * x.sum().item() + 1, [x], [], []),
    "filled": (lambda x, t: (torch.full((3,), t.item(), device=x.device) + 1,
        torch.full_like(x, t.item()), x.new_full((3,), t.item())), [x], [number], []),
    "made": (lambda x, t: (torch.linspace(0, t.item(), 7, device=x.device) + x[0],
        torch.arange(7, device=x.device) * t.item()), [x], [number], []),
    "bent": (lambda x, t: (F.elu(x, t.item()), F.softplus(x, t.item()), F.hardshrink(x, t.item()),
        F.leaky_relu(x, t.item()), x.clamp(max=t.item())), [x], [number], []),
    "whole": (lambda x, t: x * int(t.item() * 10), [x], [number], []),
    "returned": (lambda x, t: (x * t, t * 2, t.item() * 2), [x], [number], []),
    "scalars": (lambda x, t: (x * t + torch.where(x > t, t, x), torch.clamp(x, t, t + 1),
        x.masked_fill(x > 0, t), (x.abs() + 1).pow(t), torch._foreach_mul([x, x * 2], t)),
        [x], [number], []),
    "integers": (lambda x, n: (x * n.item(), x + n, n + 1), [x], [count], []),
    "indices": (lambda x, i: (x[i] * 2, x[i + 1], x[:, i], i * 2), [x], [places], []),
    "put": (put, [x], [places, number], []),
    "constants": (lambda x: (x * torch.tensor(2.5), x[[1, 2]], x[torch.tensor([0, 2])]),
        [x], [], []),
    "written": (written, [x], [number], []),
    "across": (across, [x], [number, torch.randn(5, 7, dtype=torch.float64)], []),
    "products": (lambda x, t: (x @ x.t()) * t, [x], [number], []),
}
UNTRAINED = "across", "written", "integers", "put", "whole", "returned", "filled"

def check(names, wrapper, training):
    # Cases are one graph; the results and gradients of each are compared.
    torch._dynamo.reset()
    records = []
    mine = [[t.to("toy").requires_grad_(training) for t in CASES[name][1]] for name in names]
    theirs = [[t.clone().requires_grad_(training) for t in CASES[name][1]] for name in names]
    rest = [[*(t.clone() for t in CASES[name][2]), *CASES[name][3]] for name in names]

    def run(tensors, rest):
        return [CASES[n][0](*t, *r) for n, t, r in zip(names, tensors, rest, strict=True)]

    options = {"strict": True, "wrapper": wrapper}
    with Session(config=config, options=options, observer=records.append) as session:
        g = torch.compile(run, backend=session.backend, fullgraph=True)
        for _ in range(2):
            got = g(mine, rest)
    want = run(theirs, rest)
    near = lambda a, b, name: torch.testing.assert_close(
        tree_map_only(torch.Tensor, lambda t: t.cpu(), a), b, msg=lambda text: f"{name}: {text}"
    )
    for name, a, b in zip(names, got, want, strict=True):
        near(a, b, name)
    if training:
        for out in (got, want):
            parts = [p for p in torch.utils._pytree.tree_leaves(out) if torch.is_tensor(p)]
            sum(p.sum().cpu() for p in parts if p.requires_grad).backward()
        for name, a, b in zip(names, mine, theirs, strict=True):
            near([t.grad for t in a], [t.grad for t in b], name)
    return [e.reason for r in records for e in r.externs]

# The forward graph of a trained function differs only in what it saves.
TRAINED = [name for name in CASES if name not in UNTRAINED]
WAYS = {"untrained": (UNTRAINED, False), "trained": (TRAINED, True), "alone": (TRAINED, False)}
report = {}
for way in chosen.split(", "):
    wrapper, kind = way.split()
    names, training = WAYS[kind]
    report[way] = check(names, wrapper, training)
# Threads of autograd may outlive the interpreter, and end the process before it has written all.
print("REPORT " + json.dumps(report), flush=True)
"""


@pytest.mark.parametrize(
    "ways",
    [
        "python untrained, python trained, cpp untrained, fx trained",
        pytest.param("python alone, cpp trained, fx untrained", marks=pytest.mark.long),
    ],
)
def test_programs_of_a_device_read_what_the_host_holds(tmp_path, ways):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), ways],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert lines, done.stderr[-3000:]
    report = json.loads(lines[-1].removeprefix("REPORT "))
    assert list(report) == ways.split(", ")
    assert not any("several devices" in reason for found in report.values() for reason in found)
