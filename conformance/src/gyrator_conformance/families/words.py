"""Text families: encoders, decoders, and encoder-decoders."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from gyrator_conformance.families.build import LENGTH, VOCABULARY, Feed, family, text, words
from gyrator_conformance.models import Model
from gyrator_conformance.models.model import Inputs, images

_EXPERTS: Mapping[str, Any] = MappingProxyType(
    {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
)
_LATENT: Mapping[str, Any] = MappingProxyType({
    "topk_group": 1, "num_experts_per_tok": 2, "kv_lora_rank": 16, "q_lora_rank": 16,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
    "moe_intermediate_size": 24, "num_key_value_heads": 4, "head_dim": 4,
})  # fmt: skip
"""Fields of DeepSeek's attention, whose keys and values are projections of a few latent ones, and
of its experts."""


def encoders() -> tuple[Model, ...]:
    """Return the encoder families."""
    add = words("encoder")
    masked = "ForMaskedLM"
    unmasked: Feed = {"input_ids": text(), "labels": text()}
    return (
        add("bert", masked),
        add("roberta", masked),
        add("deberta-v2", masked, relative_attention=True, pos_att_type=["p2c", "c2p"]),
        add("deberta", masked, relative_attention=True, pos_att_type=["p2c", "c2p"]),
        add("albert", masked, embedding_size=16),
        add("electra", masked, embedding_size=16),
        add("mpnet", masked),
        add("distilbert", masked, dim=32, n_layers=2, n_heads=4, hidden_dim=48),
        add("funnel", masked, num_hidden_layers=None, block_sizes=[1, 1], d_model=32, n_head=4,
            d_head=8, d_inner=48),
        add("longformer", masked, attention_window=[4, 4]),
        add("big_bird", masked, attention_type="original_full"),
        # In training, it attends to blocks drawn with NumPy, of which Dynamo draws others.
        add("big_bird:sparse", masked, attention_type="block_sparse", block_size=2,
            num_random_blocks=1, trains=False),
        family("encoder", "nystromformer", masked, unmasked, num_landmarks=4,
               segment_means_seq_len=16),
        family("encoder", "fnet", masked, unmasked),
        add("modernbert", masked, global_attn_every_n_layers=2, local_attention=8),
        add("convbert", masked, embedding_size=16),
        add("mobilebert", masked, embedding_size=16, intra_bottleneck_size=16,
            true_hidden_size=16),
        add("squeezebert", masked, embedding_size=32, q_groups=2, k_groups=2, v_groups=2,
            post_attention_groups=1, intermediate_groups=2, output_groups=2),
        add("roformer", masked, embedding_size=16),
        add("rembert", masked, input_embedding_size=16, output_embedding_size=16),
        add("xlnet", "", max_position_embeddings=None, d_model=32, n_layer=2, n_head=4, d_inner=48),
        add("ibert", masked, quant_mode=False),
        add("esm", masked, token_dropout=False, mask_token_id=98),
        add("canine", "", num_hash_buckets=16, local_transformer_stride=4,
            downsampling_rate=4, upsampling_kernel_size=4),
        add("reformer", "", attn_layers=["local", "lsh"], axial_pos_shape=[4, 4],
            axial_pos_embds_dim=[16, 16], attention_head_size=8, feed_forward_size=48,
            local_attn_chunk_length=4, lsh_attn_chunk_length=4, hash_seed=0, num_buckets=4,
            is_decoder=False),
        add("xmod", masked, default_language="en_XX", languages=["en_XX"]),
        add("layoutlm", masked),
        add("tapas", "", feed={"token_type_ids": _places(7, 2)}),
        # Its hash functions are expectations, not draws.
        add("yoso", masked),
        add("layoutlmv3", "", feed={"bbox": _places(4, 50), "pixel_values": images(3, 32)},
            input_size=32, patch_size=8, coordinate_size=4, shape_size=8,
            max_2d_position_embeddings=64, has_relative_attention_bias=True,
            has_spatial_attention_bias=True, rel_pos_bins=8, max_rel_pos=16),
    )  # fmt: skip


def decoders() -> tuple[Model, ...]:
    """Return the decoder families."""
    add = words("decoder")
    causal = "ForCausalLM"
    heads: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return (
        add("gpt2", causal, **heads),
        add("gpt_neo", causal, num_layers=2, num_heads=4, window_size=8,
            attention_types=[[["global", "local"], 1]]),
        add("gpt_neox", causal),
        add("gptj", causal, **heads, rotary_dim=4),
        add("codegen", causal, **heads, rotary_dim=4),
        add("gpt_bigcode", causal, **heads),
        add("opt", causal, ffn_dim=48, word_embed_proj_dim=32),
        add("bloom", causal, n_layer=2, n_head=4),
        add("falcon", causal, head_dim=None, alibi=False, multi_query=True),
        add("falcon:alibi", causal, head_dim=None, alibi=True,
            new_decoder_architecture=True, num_kv_heads=2),
        add("mpt", causal, d_model=32, n_heads=4, n_layers=2, max_seq_len=64),
        add("llama", causal),
        add("mistral", causal, sliding_window=8),
        add("qwen2", causal),
        add("qwen3", causal),
        add("gemma", causal),
        add("gemma2", causal, sliding_window=8, query_pre_attn_scalar=8),
        add("gemma3_text", causal, sliding_window=8, query_pre_attn_scalar=8),
        add("phi", causal, partial_rotary_factor=0.5),
        add("phi3", causal),
        add("stablelm", causal),
        add("olmo2", causal),
        add("persimmon", causal),
        add("cohere", causal),
        add("granite", causal),
        add("starcoder2", causal, sliding_window=8),
        add("nemotron", causal),
        add("glm", causal),
        add("smollm3", causal),
        add("biogpt", causal),
        add("xglm", causal, d_model=32, num_layers=2, attention_heads=4, ffn_dim=48),
        add("mixtral", causal, num_local_experts=4),
        add("qwen2_moe", causal, **_EXPERTS, shared_expert_intermediate_size=24),
        add("qwen3_moe", causal, **_EXPERTS),
        add("olmoe", causal, **_EXPERTS),
        add("gpt_oss", causal, num_local_experts=4, num_experts_per_tok=2, sliding_window=8),
        add("granitemoe", causal, num_local_experts=4, num_experts_per_tok=2),
        add("deepseek_v3", causal, **_LATENT, n_routed_experts=4, n_shared_experts=1, n_group=2,
            first_k_dense_replace=1),
        add("deepseek_v32", causal, **_LATENT, n_routed_experts=4, n_shared_experts=1, n_group=2,
            first_k_dense_replace=1, index_topk=4, index_head_dim=8, index_n_heads=2),
        add("diffllama", causal),
        add("deepseek_v2", causal, **_LATENT, n_routed_experts=4, n_shared_experts=1, n_group=2,
            first_k_dense_replace=1, topk_method="group_limited_greedy"),
        add("jetmoe", causal, num_attention_heads=None, num_local_experts=4,
            num_experts_per_tok=2, kv_channels=8),
        add("phimoe", causal, num_local_experts=4, num_experts_per_tok=2),
        add("llama4_text", causal, num_local_experts=4, num_experts_per_tok=1,
            intermediate_size_mlp=48, interleave_moe_layer_step=2, attention_chunk_size=8),
        add("gemma3n_text", causal, num_hidden_layers=4, intermediate_size=[48] * 4,
            vocab_size_per_layer_input=VOCABULARY, hidden_size_per_layer_input=8, laurel_rank=4,
            altup_num_inputs=2, num_kv_shared_layers=2, sliding_window=8,
            layer_types=["sliding_attention", "full_attention"] * 2,
            activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0]),
        add("apertus", causal),
    )  # fmt: skip


def recurrences() -> tuple[Model, ...]:
    """Return the decoder families in which some layer has a state instead of attention."""
    add = words("decoder")
    causal = "ForCausalLM"
    return (
        add("mamba", causal, state_size=4, time_step_rank=4),
        add("mamba2", causal, state_size=4, num_heads=8, n_groups=2, chunk_size=8),
        add("falcon_mamba", causal, state_size=4, time_step_rank=4),
        add("rwkv", causal, attention_hidden_size=32, context_length=64),
        add("jamba", causal, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
            expert_layer_offset=1, num_experts=4, num_experts_per_tok=2, mamba_d_state=4,
            mamba_dt_rank=4, use_mamba_kernels=False),
        add("bamba", causal, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8,
            mamba_n_groups=1, mamba_d_state=4, mamba_chunk_size=8),
        add("recurrent_gemma", causal, lru_width=32, attention_window_size=8,
            block_types=["recurrent", "attention"]),
        add("qwen3_next", causal, **_EXPERTS, shared_expert_intermediate_size=24,
            linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2,
            linear_num_value_heads=4, layer_types=["linear_attention", "full_attention"]),
        add("kimi_linear", causal, **{**_LATENT, "q_lora_rank": None}, num_local_experts=4,
            linear_head_dim=8, linear_num_heads=2,
            layer_types=["linear_attention", "full_attention"]),
        add("minimax", causal, num_local_experts=4, block_size=8,
            layer_types=["linear_attention", "full_attention"]),
        add("lfm2", causal, layer_types=["conv", "full_attention"]),
        add("lfm2_moe", causal, **_EXPERTS, num_dense_layers=1,
            layer_types=["conv", "full_attention"]),
        add("zamba2", causal, num_hidden_layers=4, head_dim=None, num_key_value_heads=4,
            layers_block_type=["mamba", "hybrid"] * 2, mamba_d_state=4, mamba_headdim=8,
            n_mamba_heads=8, mamba_ngroups=1, chunk_size=8, num_mem_blocks=1, use_mem_rope=True,
            adapter_rank=4),
    )  # fmt: skip


def both() -> tuple[Model, ...]:
    """Return the encoder-decoder families."""
    t5: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    bart: dict[str, Any] = {
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    }  # fmt: skip
    return (
        _pair("t5", **t5),
        _pair("umt5", **t5),
        _pair("longt5", **t5, local_radius=3),
        _pair("longt5:global", **t5, local_radius=3, global_block_size=4,
              encoder_attention_type="transient-global"),
        _pair("switch_transformers", **t5, num_experts=4, expert_capacity=32),
        _pair("bart", **bart),
        _pair("mbart", **bart),
        _pair("pegasus", **bart),
        _pair("m2m_100", **bart),
        _pair("marian", **bart),
        _pair("blenderbot", **bart),
        _pair("led", **bart, attention_window=[4, 4], max_encoder_position_embeddings=64,
              max_decoder_position_embeddings=64),
        _pair("pegasus_x", **bart, block_size=8, num_global_tokens=4, stagger_local_blocks=True),
        _pair("bigbird_pegasus", **bart, attention_type="original_full"),
        _pair("prophetnet", num_hidden_layers=None, num_encoder_layers=2, num_decoder_layers=2,
              ngram=2,
              num_encoder_attention_heads=4, num_decoder_attention_heads=4,
              encoder_ffn_dim=48, decoder_ffn_dim=48),
    )  # fmt: skip


def _pair(name: str, **changes: Any) -> Model:
    feed = {"input_ids": text(), "labels": text(8)}
    return family("both", name, "ForSeq2SeqLM", feed, **changes)


def _places(columns: int, most: int) -> Inputs:
    """Return a generator of `int64[n, length, columns]` below `most`: a token's places."""
    shape = (LENGTH, columns)
    return lambda g, n: (torch.randint(0, most, (n, *shape), generator=g),)
