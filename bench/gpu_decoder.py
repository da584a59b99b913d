"""A decoder that makes one token at a time, on a GPU: milliseconds a token, by device graphs.

    python bench/gpu_decoder.py [gyrator|inductor|eager] [llama|qwen3|gemma2]

The shape is that of Llama 3.2 1B, the weights are random in bfloat16, the cache of 512 tokens is
static. With a name, the model is that of transformers, of 8 layers and with a static cache of 1024
tokens. `difference` is that of the logits from eager's, relative to these in the Euclidean norm.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

LAYERS, WIDTH, HEADS, GROUPS, HEAD, HIDDEN, WORDS, LENGTH = 16, 2048, 32, 8, 64, 8192, 128256, 512
CALLS, ROUNDS = 100, 5


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def _turned(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * cosines + torch.cat((-high, low), -1) * sines


class Layer(nn.Module):
    """Attention with rotary embedding over a cache, and a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = _linear(WIDTH, HEADS * HEAD), _linear(HEADS * HEAD, WIDTH)
        self.key, self.value = _linear(WIDTH, GROUPS * HEAD), _linear(WIDTH, GROUPS * HEAD)
        self.gate, self.up = _linear(WIDTH, HIDDEN), _linear(WIDTH, HIDDEN)
        self.down = _linear(HIDDEN, WIDTH)
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.register_buffer("keys", torch.zeros(1, GROUPS, LENGTH, HEAD))
        self.register_buffer("values", torch.zeros(1, GROUPS, LENGTH, HEAD))

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], at: Tensor, mask: Tensor) -> Tensor:
        """Return what follows `x` of shape (1, 1, `WIDTH`)."""
        h = self.before(x)
        parts = (part(h).view(1, 1, -1, HEAD) for part in (self.query, self.key, self.value))
        q, k, v = (part.transpose(1, 2) for part in parts)
        self.keys.index_copy_(2, at, _turned(k, *turn))
        self.values.index_copy_(2, at, v)
        y = F.scaled_dot_product_attention(
            _turned(q, *turn), self.keys, self.values, attn_mask=mask, enable_gqa=True
        )
        x = x + self.out(y.transpose(1, 2).reshape(1, 1, -1))
        h = self.between(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """Layers between an embedding and the same one as the head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.RMSNorm(WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        rates = 500000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
        turns = (torch.arange(LENGTH)[:, None] * rates).repeat(1, 2)
        self.register_buffer("cosines", turns.cos())
        self.register_buffer("sines", turns.sin())

    def forward(self, word: Tensor, at: Tensor) -> Tensor:
        """Return logits of the word after `word` of shape (1, 1), which is at place `at`."""
        x = self.words(word)
        mask = (torch.arange(LENGTH, device=at.device) <= at)[None, None, None]
        for layer in self.layers:
            x = layer(x, (self.cosines[at], self.sines[at]), at, mask)
        return F.linear(self.norm(x), self.words.weight)


CONFIGURATIONS = {
    "llama": transformers.LlamaConfig,
    "qwen3": transformers.Qwen3Config,
    "gemma2": transformers.Gemma2Config,
}


class Pretrained(nn.Module):
    """A decoder of transformers with its cache."""

    def __init__(self, name: str) -> None:
        super().__init__()
        config = CONFIGURATIONS[name](
            hidden_size=WIDTH, intermediate_size=5632, num_hidden_layers=8, vocab_size=32000,
            num_attention_heads=HEADS, num_key_value_heads=GROUPS, head_dim=HEAD,
            attn_implementation="sdpa",
        )  # fmt: skip
        self.model = transformers.AutoModelForCausalLM.from_config(config)
        self.cache = transformers.StaticCache(config=config, max_cache_len=1024)

    def forward(self, word: Tensor, at: Tensor) -> Tensor:
        """Return logits of the word after `word` of shape (1, 1), which is at place `at`."""
        return self.model(word, past_key_values=self.cache, cache_position=at).logits


def compiled(model: nn.Module, backend: str) -> Callable[..., Any]:
    """Return the model behind a backend, with device graphs."""
    if backend == "eager":
        return model
    if backend == "inductor":
        return torch.compile(model, mode="reduce-overhead")
    from gyrator import Session

    session = Session(options={"strict": True, "progress": False, "device_graphs": True})
    return torch.compile(model, backend=session.backend)


def main(arguments: list[str]) -> int:
    """Measure one backend, and print a line of JSON."""
    backend, name = (*arguments, *("gyrator", "")[len(arguments) :])
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Pretrained(name) if name else Decoder()
        model = model.to(torch.bfloat16).eval().requires_grad_(False)
        word, at = torch.tensor([[5]]), torch.tensor([7])
    with torch.no_grad():
        wanted = model(word, at).float()
        run = compiled(model, backend)
        start = time.perf_counter()
        found = run(word, at).float()
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        for _ in range(10):
            run(word, at)
        best = min(_seconds(run, word, at) for _ in range(ROUNDS))
    difference = float((found - wanted).norm() / wanted.norm())
    row = {"backend": backend, "ms": best * 1e3, "first call s": first, "difference": difference}
    print(json.dumps(row))
    return 0


def _seconds(run: Callable[..., Any], *inputs: Tensor) -> float:
    """Return the seconds of a call, of many in a row."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        run(*inputs)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / CALLS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
