"""A language of tiles gives what eager gives, or says what it lacks."""

import pytest
import torch
from gyrator_tiles import TileError, compile_tiles


def gated(x, y):
    return torch.tanh(x) * y + torch.sigmoid(y.transpose(0, 1)).transpose(0, 1) / 2


def softmax(x):
    shifted = torch.exp(x - x.amax(-1, keepdim=True))
    return shifted / shifted.sum(-1, keepdim=True)


@pytest.mark.parametrize("tile", [1, 7, 1000])
@pytest.mark.parametrize(("function", "count"), [(gated, 2), (softmax, 1)])
def test_tiles_compute_what_eager_computes(function, count, tile):
    torch.manual_seed(tile)
    given = [torch.randn(6, 11) for _ in range(count)]
    program = compile_tiles(function, *given, tile=tile)
    fresh = [torch.randn(6, 11) for _ in range(count)]
    (found,) = program(*(t.numpy() for t in fresh))
    torch.testing.assert_close(torch.from_numpy(found), function(*fresh))


def test_the_language_has_a_text():
    text = compile_tiles(softmax, torch.randn(4, 8), tile=2).text
    assert "by 2" in text and "= max(" in text and "over r0 < 8" in text


@pytest.mark.parametrize(
    "function", [torch.erf, lambda x: x @ x, lambda x: torch.sort(x).values, torch.argmax]
)
def test_what_tiles_lack_is_named(function):
    with pytest.raises(TileError, match="tiles"):
        compile_tiles(function, torch.randn(4, 4))
