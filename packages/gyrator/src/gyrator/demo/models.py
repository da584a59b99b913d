"""The models of the demo and of the benchmark: real architectures with random weights."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from gyrator_ir.define import frozen

Inputs = dict[str, Tensor]


@frozen
class Workload:
    """A model and its inputs."""

    name: str
    build: Callable[[float], nn.Module]
    """Build the model with this dropout probability."""
    inputs: Callable[[torch.Generator], Inputs]
    """Generate random inputs, including labels."""


def _tokens(vocabulary: int, batch: int, length: int) -> Callable[[torch.Generator], Inputs]:
    def make(generator: torch.Generator) -> Inputs:
        ids = torch.randint(0, vocabulary, (batch, length), generator=generator)
        return {"input_ids": ids, "labels": ids}

    return make


def _classified_tokens(generator: torch.Generator) -> Inputs:
    ids = torch.randint(0, 30522, (4, 128), generator=generator)
    labels = torch.randint(0, 2, (4,), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def _images(size: int) -> Callable[[torch.Generator], Inputs]:
    def make(generator: torch.Generator) -> Inputs:
        pixels = torch.randn(4, 3, size, size, generator=generator)
        return {"pixel_values": pixels, "labels": torch.randint(0, 10, (4,), generator=generator)}

    return make


def _bert(dropout: float) -> nn.Module:
    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    model: nn.Module = BertForSequenceClassification(config)
    return model


def _gpt2(dropout: float) -> nn.Module:
    config = GPT2Config(
        vocab_size=8192, n_positions=128, n_embd=256, n_layer=4, n_head=4, use_cache=False,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def _llama(dropout: float) -> nn.Module:
    config = LlamaConfig(
        vocab_size=4096, hidden_size=512, intermediate_size=1408, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=256, use_cache=False,
        attention_dropout=dropout,
    )  # fmt: skip
    model: nn.Module = LlamaForCausalLM(config)
    return model


def _resnet18(_dropout: float) -> nn.Module:
    config = ResNetConfig(
        depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic", num_labels=10
    )
    model: nn.Module = ResNetForImageClassification(config)
    return model


def _vit(dropout: float) -> nn.Module:
    config = ViTConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
        image_size=128, num_labels=10, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    model: nn.Module = ViTForImageClassification(config)
    return model


WORKLOADS: Mapping[str, Workload] = MappingProxyType({
    w.name: w
    for w in (
        Workload("BERT", _bert, _classified_tokens),
        Workload("GPT-2", _gpt2, _tokens(8192, 4, 128)),
        Workload("Llama", _llama, _tokens(4096, 4, 128)),
        Workload("ResNet-18", _resnet18, _images(128)),
        Workload("ViT", _vit, _images(128)),
    )
})  # fmt: skip
"""The workloads by name, in the order of tables."""


def outputs_of(result: Any) -> list[Tensor]:
    """Return the tensors of a model's output: loss and logits."""
    return [result.loss, result.logits]


def inference(model: nn.Module, call: Callable[..., Any]) -> Callable[[Inputs], list[Tensor]]:
    """Return a function that runs `call` (the model, or its compiled form) without gradients."""

    def run(inputs: Inputs) -> list[Tensor]:
        with torch.no_grad():
            return outputs_of(call(**inputs))

    return run


def training_step(model: nn.Module, call: Callable[..., Any]) -> Callable[[Inputs], list[Tensor]]:
    """Return a function that computes the loss, the logits and all gradients."""

    def run(inputs: Inputs) -> list[Tensor]:
        model.zero_grad(set_to_none=True)
        result = outputs_of(call(**inputs))
        torch.autograd.backward(result[0])
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        return [t.detach() for t in result] + gradients

    return run
