"""Small models with random weights from configurations of transformers."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import transformers
from torch import Generator, Tensor, nn

from gyrator_conformance.models import Model
from gyrator_conformance.models.model import Inputs

VOCABULARY = 99
LENGTH = 16
"""The number of tokens of a text."""

SMALL: Mapping[str, Any] = MappingProxyType({
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
})  # fmt: skip
"""Small sizes, by the field names that most configurations use."""

Feed = Mapping[str, Inputs]
"""The inputs of a model: a generator of tensors for each parameter name."""


class Called(nn.Module):
    """A model that is called with named tensors and returns its outputs without caches."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *tensors: Tensor) -> Any:
        """Call the model."""
        outputs = self.model(**dict(zip(self.names, tensors, strict=True)))
        return outputs.to_tuple() if hasattr(outputs, "to_tuple") else outputs


def family(
    kind: str,
    name: str,
    head: str,
    feed: Feed,
    trains: bool = True,
    small: Mapping[str, Any] = SMALL,
    **changes: Any,
) -> Model:
    """Return the family of configuration `name` under `AutoModel<head>`.

    Args:
        kind: the group in which it is listed.
        name: the `model_type` of the configuration; a suffix after `:` distinguishes variants.
        head: the rest of the name of one of transformers' automatic classes, or the whole name of
            another class.
        feed: the generators of its inputs.
        trains: whether transformers supports training it.
        small: fields of the configuration.
        changes: fields that override those of `small`; None removes a field.
    """

    def build() -> nn.Module:
        config = _without_chance(transformers.AutoConfig.for_model(name.partition(":")[0], **sizes))
        maker = getattr(transformers, f"AutoModel{head}", None)
        model = getattr(transformers, head)(config) if maker is None else maker.from_config(config)
        for module in model.modules():
            if hasattr(module, "_requires_grad"):  # encoders of sound ask for gradients of a wave,
                module._requires_grad = False  # which raises where the wave asks already
        return Called(model, tuple(feed))

    sizes = {k: v for k, v in {**small, **changes}.items() if v is not None}
    return Model(name, kind, build, _drawn(feed), size=2, sizes=(2, 3, 5), trains=trains)


def _drawn(feed: Feed) -> Inputs:
    return lambda g, n: tuple(t for draw in feed.values() for t in draw(g, n))


def _without_chance(config: Any) -> Any:
    """Set dropout rates to 0: the float64 model would draw other random numbers."""
    for name, value in vars(config).items():
        if isinstance(value, transformers.PretrainedConfig):
            _without_chance(value)
        elif "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


def text(length: int = LENGTH, vocabulary: int = VOCABULARY) -> Inputs:
    """Return a generator of `int64[n, length]` without special tokens."""
    return lambda g, n: (torch.randint(3, vocabulary, (n, length), generator=g),)


def padding(length: int = LENGTH) -> Inputs:
    """Return a generator of masks `int64[n, length]`: ones, then up to four zeros."""

    def draw(g: Generator, n: int) -> tuple[Tensor, ...]:
        ends = torch.randint(length - 4, length + 1, (n, 1), generator=g)
        return ((torch.arange(length) < ends).long(),)

    return draw


def whole(value: int, *shape: int) -> Inputs:
    """Return a generator of constant `int64[n, *shape]`."""
    return lambda g, n: (torch.full((n, *shape), value),)


def words(kind: str = "") -> Callable[..., Model]:
    """Return a constructor of families that take a text, a mask and labels."""

    def make(name: str, head: str, **changes: Any) -> Model:
        feed = {"input_ids": text(), "attention_mask": padding()}
        if head in ("ForMaskedLM", "ForCausalLM"):
            feed["labels"] = text()
        return family(kind, name, head, feed | changes.pop("feed", {}), **changes)

    return make
