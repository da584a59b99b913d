"""The rules for `numerics="bitwise"` that have ATen's bits although they round in several steps."""

from collections.abc import Mapping
from types import MappingProxyType

from gyrator_lowering.rules.bits import aten_formulas as formulas
from gyrator_lowering.rules.bits import aten_losses as losses
from gyrator_lowering.rules.bits import aten_softmax as rows
from gyrator_lowering.rules.bits.aten_norms import layer_norm
from gyrator_lowering.rules.bits.aten_sums import aten_mean, aten_sum
from gyrator_lowering.rules.bits.onednn_gelu import gelu, gelu_backward
from gyrator_lowering.rules.norm.batch_norm import exact_no_training
from gyrator_lowering.table import Rule


def _by_lanes(lanes: int) -> dict[str, Rule]:
    """Return the rules of ops whose bits depend on the number of elements in ATen's vectors."""
    return {
        "aten.sigmoid.default": formulas.sigmoid(lanes),
        "aten.silu.default": formulas.silu(lanes),
        "aten.silu_backward.default": formulas.silu_backward(lanes),
        "aten.gelu.default": gelu(lanes),
        "aten._softmax.default": rows.softmax(lanes),
        "aten._safe_softmax.default": rows.safe_softmax(lanes),
        "aten._log_softmax.default": rows.log_softmax(lanes),
        "aten._softmax_backward_data.default": rows.backward(lanes, logarithm=False),
        "aten._log_softmax_backward_data.default": rows.backward(lanes, logarithm=True),
    }


EXACT_RULES: Mapping[str, Rule] = MappingProxyType(
    _by_lanes(8)
    | {
        "aten.sum.default": aten_sum,
        "aten.sum.dim_IntList": aten_sum,
        "aten.mean.default": aten_mean,
        "aten.mean.dim": aten_mean,
        "aten.add.Tensor": formulas.scaled_sum(1),
        "aten.sub.Tensor": formulas.scaled_sum(-1),
        "aten.addcmul.default": formulas.addcmul,
        "aten.lerp.Scalar": formulas.lerp,
        "aten.rsqrt.default": formulas.rsqrt,
        "aten.tanh_backward.default": formulas.tanh_backward,
        "aten.gelu_backward.default": gelu_backward,
        "aten.pow.Tensor_Scalar": formulas.power,
        "aten.mse_loss.default": losses.mse,
        "aten.mse_loss_backward.default": losses.mse_backward,
        "aten.smooth_l1_loss.default": losses.smooth_l1,
        "aten.smooth_l1_loss_backward.default": losses.clamped_backward,
        "aten.huber_loss.default": losses.huber,
        "aten.huber_loss_backward.default": losses.clamped_backward,
        "aten.nll_loss_backward.default": losses.nll_loss_backward,
        "aten.native_layer_norm.default": layer_norm,
        "aten._native_batch_norm_legit_no_training.default": exact_no_training,
    }
)
"""Rules by overload. They apply to targets whose `aten_bits` has the op's name, and raise
FallbackToAten for arguments for which ATen's bits are not known."""

WIDE_RULES: Mapping[str, Rule] = MappingProxyType(_by_lanes(16))
"""Those for an ATen whose vectors have sixteen elements, where they differ. They apply to targets
whose `aten_bits` has the op's name with the suffix `:16`."""
