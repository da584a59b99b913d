"""Families for vision, audio, several modalities, and time series."""

from typing import Any

import torch

from gyrator_conformance.families.build import (
    LENGTH,
    SMALL,
    VOCABULARY,
    Feed,
    family,
    padding,
    text,
    whole,
)
from gyrator_conformance.models import Model
from gyrator_conformance.models.model import floats, images

_IMAGE: Feed = {"pixel_values": images(3, 32)}


def sights() -> tuple[Model, ...]:
    """Return the vision families."""
    patched: dict[str, Any] = {"image_size": 32, "patch_size": 8}
    stages: dict[str, Any] = {
        "image_size": 32, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4],
    }  # fmt: skip
    classes = "ForImageClassification"
    return (
        _sight("vit", classes, **patched),
        _tower("swin", classes, **stages, patch_size=2, window_size=4),
        _tower("swinv2", classes, **stages, patch_size=2, window_size=4),
        _tower("convnext", classes, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
               feed={"pixel_values": images(3, 64)}),
        _tower("convnextv2", classes, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
               feed={"pixel_values": images(3, 64)}),
        _tower("resnet", classes, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
               layer_type="basic"),
        _tower("regnet", classes, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
               groups_width=8, layer_type="y"),
        _tower("efficientnet", classes, image_size=32, width_coefficient=0.25,
               depth_coefficient=0.2, hidden_dim=320),
        _tower("mobilenet_v1", classes, depth_multiplier=0.25, image_size=32),
        _tower("mobilenet_v2", classes, depth_multiplier=0.25, image_size=32),
        _sight("beit", classes, **patched, use_relative_position_bias=True),
        _tower("segformer", "ForSemanticSegmentation", hidden_sizes=[8, 16], depths=[1, 1],
               num_encoder_blocks=2, sr_ratios=[2, 1], patch_sizes=[3, 3], strides=[2, 2],
               num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=16),
        _tower("mobilevit", classes, image_size=64, hidden_sizes=[16, 24, 32],
               neck_hidden_sizes=[8, 8, 16, 16, 16, 16, 32], feed={"pixel_values": images(3, 64)}),
        _tower("mobilevitv2", classes, image_size=64, width_multiplier=0.25,
               feed={"pixel_values": images(3, 64)}),
        _sight("dinov2", classes, **patched),
        _tower("pvt", classes, image_size=32, hidden_sizes=[8, 16], depths=[1, 1],
               num_encoder_blocks=2, sequence_reduction_ratios=[2, 1], patch_sizes=[4, 2],
               strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2]),
        _tower("poolformer", classes, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
               feed={"pixel_values": images(3, 64)}),
        _tower("cvt", classes, embed_dim=[8, 16, 32], num_heads=[1, 2, 4], depth=[1, 2, 3]),
        _tower("focalnet", classes, image_size=32, embed_dim=16, depths=[1, 1],
               hidden_sizes=[16, 32], focal_levels=[1, 1], focal_windows=[3, 3], patch_size=4),
        _sight("dpt", "ForDepthEstimation", **patched, num_hidden_layers=4,
               backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 16, 16],
               fusion_hidden_size=8, is_hybrid=False),
        _sight("vit_mae", "ViTMAEForPreTraining", **patched, decoder_hidden_size=16,
               decoder_num_hidden_layers=1, decoder_num_attention_heads=2,
               decoder_intermediate_size=24,
               feed={**_IMAGE, "noise": floats(16)}),
        _sight("yolos", "ForObjectDetection", image_size=[32, 32], patch_size=8,
               num_detection_tokens=4, use_mid_position_embeddings=False),
        _tower("swin2sr", "Swin2SRForImageSuperResolution", image_size=16, patch_size=1,
               embed_dim=16,
               depths=[1, 1], num_heads=[2, 2], window_size=4, upscale=2,
               feed={"pixel_values": images(3, 16)}),
        _tower("hiera", classes, image_size=[32, 32], embed_dim=8, depths=[1, 1],
               num_heads=[1, 2], patch_size=[3, 3], patch_stride=[4, 4], patch_padding=[1, 1],
               query_stride=[2, 2], num_query_pool=1, masked_unit_size=[4, 4],
               masked_unit_attention=[True, False]),
        _sight("timesformer", "ForVideoClassification", **patched, num_frames=2,
               feed={"pixel_values": floats(2, 3, 32, 32)}),
        _detector(),
        _deformable_detector(),
        _prompted_segmenter(),
        _segmenter(),
    )  # fmt: skip


def _sight(name: str, head: str, feed: Feed = _IMAGE, **changes: Any) -> Model:
    return family("sight", name, head, feed, **changes)


def _tower(name: str, head: str, feed: Feed = _IMAGE, **changes: Any) -> Model:
    """Return a family with separate sizes for each stage."""
    return family("sight", name, head, feed, small={}, **changes)


def _backbone() -> dict[str, Any]:
    return {
        "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 16, 16],
        "depths": [1, 1, 1, 1], "layer_type": "basic",
        "out_features": ["stage1", "stage2", "stage3", "stage4"],
    }  # fmt: skip


def _detector() -> Model:
    return _sight(
        "detr", "ForObjectDetection", backbone_config=_backbone() | {"out_features": ["stage4"]},
        use_timm_backbone=False, backbone=None, d_model=32, num_queries=4, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, feed={"pixel_values": images(3, 64)},
    )  # fmt: skip


def _deformable_detector() -> Model:
    return _sight(
        "deformable_detr", "ForObjectDetection", backbone_config=_backbone(), d_model=32,
        use_timm_backbone=False, backbone=None, num_queries=4, num_feature_levels=4,
        encoder_layers=1, decoder_layers=2, encoder_n_points=2, decoder_n_points=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
        decoder_ffn_dim=48, feed={"pixel_values": images(3, 64)},
    )  # fmt: skip


def _prompted_segmenter() -> Model:
    vision = {
        "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "image_size": 32,
        "num_attention_heads": 2, "patch_size": 4, "window_size": 4, "global_attn_indexes": [1],
        "mlp_ratio": 2.0, "num_pos_feats": 8,
    }  # fmt: skip
    return _tower(
        "sam", "SamModel", vision_config=vision,
        prompt_encoder_config={"hidden_size": 16, "image_size": 32, "patch_size": 4,
                               "mask_input_channels": 4},
        mask_decoder_config={"hidden_size": 16, "mlp_dim": 24, "num_attention_heads": 2,
                             "iou_head_hidden_dim": 16, "num_hidden_layers": 1},
        feed={**_IMAGE, "input_points": floats(1, 2, 2), "input_labels": whole(1, 1, 2)},
    )  # fmt: skip


def _segmenter() -> Model:
    swin: dict[str, Any] = {
        "model_type": "swin", "image_size": 64, "patch_size": 2, "embed_dim": 8,
        "depths": [1, 1, 1, 1], "num_heads": [1, 1, 1, 1], "window_size": 4, "drop_path_rate": 0.0,
        "out_features": ["stage1", "stage2", "stage3", "stage4"],
    }  # fmt: skip
    return _sight(
        "mask2former", "Mask2FormerModel", backbone_config=swin, feature_size=32,
        mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=24, encoder_layers=1,
        decoder_layers=2, num_attention_heads=2, dim_feedforward=24, num_queries=4,
        feed={"pixel_values": images(3, 64)},
    )  # fmt: skip


def sounds() -> tuple[Model, ...]:
    """Return the audio families."""
    waves: Feed = {"input_values": floats(400)}
    filters: dict[str, Any] = {
        "conv_dim": [8, 8], "conv_stride": [5, 2], "conv_kernel": [10, 3],
        "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
        "apply_spec_augment": False, "layerdrop": 0.0, "mask_time_prob": 0.0,
    }  # fmt: skip
    layers: dict[str, Any] = {
        "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    }  # fmt: skip
    spoken: Feed = {"labels": text(8)}
    # Eager's gradients of a batch norm are wrong in `clap`, whose input is a turned image with
    # a dimension of 1: native_batch_norm_backward sums wrong elements (torch 2.13, CPU).
    return (
        family("sound", "wav2vec2", "", waves, **filters),
        family("sound", "hubert", "", waves, **filters),
        family("sound", "wavlm", "", waves, **filters),
        family("sound", "unispeech-sat", "", waves, **filters),
        family("sound", "sew", "", waves, **filters, squeeze_factor=2),
        family("sound", "sew-d", "", waves, **filters, squeeze_factor=2, position_buckets=8),
        family("sound", "data2vec-audio", "", waves, **filters),
        family("sound", "wav2vec2-conformer", "", waves, **filters),
        family("sound", "wav2vec2-bert", "", {"input_features": floats(20, 16)},
               feature_projection_input_dim=16,
               apply_spec_augment=False, layerdrop=0.0),
        family("sound", "audio-spectrogram-transformer", "ForAudioClassification",
               {"input_values": floats(24, 16)}, patch_size=4, frequency_stride=4, time_stride=4,
               max_length=24, num_mel_bins=16),
        family("sound", "encodec", "", {"input_values": floats(1, 320)}, num_filters=4,
               upsampling_ratios=[4, 2], codebook_size=16, codebook_dim=16, hidden_size=16,
               num_lstm_layers=1, trains=False),
        family("sound", "dac", "", {"input_values": floats(1, 320)}, small={},
               encoder_hidden_size=4, downsampling_ratios=[2, 4], decoder_hidden_size=16,
               n_codebooks=2, codebook_size=16, codebook_dim=4, trains=False),
        # Nothing is drawn: a float64 model would draw other durations.
        family("sound", "vits", "VitsModel", {"input_ids": text()}, vocab_size=VOCABULARY,
               hidden_size=16, num_hidden_layers=1, ffn_dim=24, flow_size=16, spectrogram_bins=9,
               use_stochastic_duration_prediction=False, layerdrop=0.0, noise_scale=0.0,
               upsample_initial_channel=8, upsample_rates=[2, 2], upsample_kernel_sizes=[4, 4],
               resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]],
               duration_predictor_filter_channels=16, prior_encoder_num_flows=2,
               prior_encoder_num_wavenet_layers=1, posterior_encoder_num_wavenet_layers=1,
               small={}, trains=False),
        family("sound", "whisper", "ForSpeechSeq2Seq",
               {"input_features": floats(16, 40), **spoken}, **layers, num_mel_bins=16,
               max_source_positions=20, max_target_positions=20),
        family("sound", "speech_to_text", "ForSpeechSeq2Seq",
               {"input_features": floats(40, 16), **spoken}, **layers, input_feat_per_channel=16,
               num_conv_layers=2, conv_kernel_sizes=[3, 3], conv_channels=32),
        family("sound", "speecht5", "ForSpeechSeq2Seq", {**waves, **spoken}, **filters,
               encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
               decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48),
        family("sound", "moonshine", "ForSpeechSeq2Seq", {"input_values": floats(2000), **spoken},
               encoder_num_hidden_layers=1, decoder_num_hidden_layers=1,
               encoder_num_attention_heads=4, decoder_num_attention_heads=4,
               encoder_num_key_value_heads=4, decoder_num_key_value_heads=4),
        family("sound", "clap", "",
               {"input_ids": text(), "attention_mask": padding(),
                "input_features": floats(1, 64, 64)},
               text_config=dict(SMALL), audio_config={
                   "spec_size": 64, "num_mel_bins": 64, "patch_size": 4, "patch_stride": [4, 4],
                   "patch_embeds_hidden_size": 8, "depths": [1, 1], "num_attention_heads": [1, 2],
                   "window_size": 4, "hidden_size": 16, "enable_fusion": False},
               projection_dim=16, trains=False),
    )  # fmt: skip


def meetings() -> tuple[Model, ...]:
    """Return the multimodal families."""
    patched: dict[str, Any] = {**SMALL, "image_size": 32, "patch_size": 8}
    read: Feed = {"input_ids": text(), "attention_mask": padding()}
    seen: dict[str, Any] = {
        "vision_config": patched, "text_config": dict(SMALL), "projection_dim": 16,
    }  # fmt: skip
    return (
        family("several", "clip", "", {**read, **_IMAGE}, **seen),
        family("several", "siglip", "", {"input_ids": text(), **_IMAGE}, **seen),
        family("several", "blip", "", {**read, **_IMAGE}, **seen, image_text_hidden_size=16),
        family("several", "altclip", "", {**read, **_IMAGE}, **seen),
        family("several", "vilt", "", {**read, **_IMAGE}, image_size=32, patch_size=8),
        family("several", "llava", "ForImageTextToText", {"input_ids": _pictured(4), **_IMAGE},
               vision_config={"model_type": "clip_vision_model", **patched},
               text_config={"model_type": "llama", **SMALL}, image_token_index=3,
               image_token_id=3, vision_feature_layer=-1,
               vision_feature_select_strategy="default", image_seq_length=16),
        family("several", "perceiver", "ForMaskedLM", read, d_model=16, d_latents=16,
               num_latents=8, num_blocks=1, num_self_attends_per_block=2,
               num_self_attention_heads=2, num_cross_attention_heads=2, qk_channels=16,
               v_channels=16),
        family("several", "git", "ForCausalLM", {**read, **_IMAGE},
               vision_config={**patched, "model_type": "git_vision_model"}),
        family("several", "flava", "", {**read, **_IMAGE}, text_config=dict(SMALL),
               image_config=patched, multimodal_config=dict(SMALL), projection_dim=16),
        family("several", "lxmert", "",
               {**read, "visual_feats": floats(4, 8), "visual_pos": floats(4, 4)},
               l_layers=1, x_layers=1, r_layers=1, visual_feat_dim=8),
    )  # fmt: skip


def _pictured(side: int) -> Any:
    """Return a generator of texts that begin with placeholders for `side * side` patches."""
    patches, letters = whole(3, side * side), text(LENGTH)
    return lambda g, n: (torch.cat((*patches(g, n), letters(g, n)[0].clamp(min=4)), 1),)


def series() -> tuple[Model, ...]:
    """Return the time-series families."""
    past: Feed = {"past_values": floats(24)}
    timed: Feed = {
        **past,
        "past_time_features": floats(24, 2), "past_observed_mask": _ones(24),
        "future_values": floats(4), "future_time_features": floats(4, 2),
    }  # fmt: skip
    sizes: dict[str, Any] = {
        "prediction_length": 4, "context_length": 17, "lags_sequence": [1, 2, 7],
        "num_time_features": 2, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
    }  # fmt: skip
    channels: Feed = {"past_values": floats(32, 2)}
    patches: dict[str, Any] = {
        "num_input_channels": 2, "context_length": 32, "patch_length": 8, "patch_stride": 8,
        "d_model": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 24,
        "prediction_length": 4,
    }  # fmt: skip
    return (
        family("series", "informer", "InformerForPrediction", timed, **sizes),
        family("series", "autoformer", "AutoformerForPrediction", timed, **sizes, label_length=2,
               moving_average=3),
        family("series", "time_series_transformer", "TimeSeriesTransformerForPrediction", timed,
               **sizes),
        family("series", "patchtst", "PatchTSTForPrediction", channels, **patches),
        family("series", "timesfm", "TimesFmModelForPrediction",
               {"past_values": floats(32), "freq": whole(0, 1)}, small={}, patch_length=8,
               context_length=32, horizon_length=8, num_hidden_layers=2, hidden_size=32,
               intermediate_size=48, head_dim=8, num_attention_heads=4,
               quantiles=[0.1, 0.5, 0.9], trains=False),
        family("series", "patchtsmixer", "PatchTSMixerForPrediction", channels, **patches),
    )  # fmt: skip


def _ones(length: int) -> Any:
    return lambda g, n: (torch.ones(n, length),)
