"""Families of timm, on images of 64 x 64 if they support that size."""

from importlib import import_module
from typing import Any

from torch import nn

from gyrator_conformance.models import Model
from gyrator_conformance.models.model import images

_CLASSES = 10


def sights() -> tuple[Model, ...]:
    """Return families of timm."""
    narrow: dict[str, Any] = {"img_size": 64}
    small: dict[str, Any] = {"embed_dim": 32, "depth": 2, "num_heads": 2}
    small |= {"img_size": 32, "patch_size": 8}
    return (
        _timm("resnet18"),
        _timm("efficientnet_b0"),
        _timm("mobilenetv3_small_050"),
        _timm("convnext_atto", dims=(8, 16, 24, 32), depths=(1, 1, 2, 1)),
        _timm("regnetx_002"),
        _timm("vit_tiny_patch16_224", 32, **small),
        _timm("swin_tiny_patch4_window7_224", embed_dim=16, depths=(1, 2, 1), num_heads=(1, 2, 2),
              img_size=64, window_size=4),
        _timm("maxvit_tiny_rw_224", embed_dim=(32, 64), depths=(1, 1), stem_width=8, img_size=64),
        _timm("mixer_s32_224", 64, img_size=64),
        _timm("nfnet_l0"),
        _timm("densenet121", block_config=(2, 2), growth_rate=8),
        # Untrained, its gradients in eager mode are a fifth away from float64's.
        _timm("inception_v3", 139, trains=False, aux_logits=False),
        _timm("coat_lite_tiny", embed_dims=(16, 24, 32, 40), serial_depths=(1, 1, 1, 1), **narrow),
        _timm("levit_128s", 224),
        _timm("eva02_tiny_patch14_224", 28, embed_dim=32, depth=2, num_heads=2, img_size=28),
        _timm("repvgg_a0"),
        _timm("ghostnet_050"),
        _timm("xcit_nano_12_p16_224", depth=2, **narrow),
        _timm("hrnet_w18_small"),
        _timm("fastvit_t8", layers=(1, 1, 1, 1), embed_dims=(8, 16, 32, 64)),
        _timm("sequencer2d_s", layers=(1, 1, 1, 1), embed_dims=(16, 16, 16, 16),
              hidden_sizes=(8, 8, 8, 8), img_size=64),
    )  # fmt: skip


def _timm(name: str, side: int = 64, trains: bool = True, **changes: Any) -> Model:
    def build() -> nn.Module:
        model: nn.Module = import_module("timm").create_model(
            name, pretrained=False, num_classes=_CLASSES, drop_rate=0.0, **changes
        )
        for module in model.modules():
            if hasattr(module, "drop_prob"):
                module.drop_prob = 0.0  # type: ignore[assignment]  # a number
        return model

    return Model(
        f"timm:{name}", "timm", build, images(3, side), size=2, sizes=(2, 3, 5), trains=trains
    )
