"""Random numbers: the dispatcher ops, the graph pass, and the rule."""

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator_lowering import LoweringOptions, lower
from gyrator_lowering.fx_passes import ReplaceRandom
from gyrator_lowering.torch_bridge.random_ops import register_ops
from gyrator_testing.interp import philox
from gyrator_testing.interp.loop import run_loop

register_ops()


def test_ops_agree_with_the_definition() -> None:
    seeds = torch.ops.gyrator.philox_seed(3, device=torch.device("cpu"))
    counter = np.arange(1000)
    seed = seeds.numpy()[1]
    call = torch.ops.gyrator.philox
    got = call([10, 100], seeds, 1, "rand", 0, 1, torch.float32, torch.device("cpu"))
    np.testing.assert_array_equal(got.numpy().ravel(), philox.rand(seed, counter))
    got = call([1000], seeds, 1, "randn", 0, 1, torch.float32, torch.device("cpu"))
    np.testing.assert_allclose(got.numpy(), philox.randn(seed, counter), rtol=1e-6, atol=1e-7)
    for low, high in ((0, 7), (-5, 1 << 20), (0, 1 << 40)):
        got = call([1000], seeds, 1, "randint", low, high, torch.int64, torch.device("cpu"))
        want = philox.randint(seed, counter, np.int64(low), np.int64(high))
        np.testing.assert_array_equal(got.numpy(), want)


def test_seeds_follow_manual_seed() -> None:
    device = torch.device("cpu")
    torch.manual_seed(3)
    first = torch.ops.gyrator.philox_seed(4, device=device)
    torch.manual_seed(3)
    assert torch.equal(first, torch.ops.gyrator.philox_seed(4, device=device))
    assert not torch.equal(first, torch.ops.gyrator.philox_seed(4, device=device))


FUNCTIONS = {
    "dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "dropout_all": lambda x: torch.native_dropout(x, 1.0, True)[0],
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(x.shape),
    "rand": lambda x: torch.rand(x.shape, dtype=torch.bfloat16),
    "randint": lambda x: torch.randint(-3, 9, x.shape),
    "randint_like": lambda x: torch.randint_like(x, 5),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.25)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_replaced_ops(check, name: str, dynamic: bool) -> None:
    fn = FUNCTIONS[name]
    x = torch.rand(64, 70)
    gm = check.trace(lambda x: (fn(x), x * fn(x)), (x,), dynamic)
    assert ReplaceRandom().run(gm)
    gm.recompile()
    program = lower(gm, LoweringOptions(), check.targets)
    calls = [op.target for op in program.operations if hasattr(op, "target")]
    assert calls == ["gyrator.philox_seed.default"]
    torch.manual_seed(5)
    expected = [v.float().numpy() for v in gm(x)]
    torch.manual_seed(5)
    got = [np.asarray(v, np.float32) for v in run_loop(program, [x.numpy()], externs=check.externs)]
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    eager = fn(x).float()
    assert abs(float(eager.mean()) - got[0].mean()) < 0.1
    assert abs(float(eager.std()) - got[0].std()) < 0.1


def test_two_calls_generate_different_numbers(check) -> None:
    gm = make_fx(lambda x: (torch.rand_like(x), torch.rand_like(x)), tracing_mode="fake")(
        torch.rand(8)
    )
    assert ReplaceRandom().run(gm)
    gm.recompile()
    a, b = gm(torch.rand(8))
    assert not torch.equal(a, b)
