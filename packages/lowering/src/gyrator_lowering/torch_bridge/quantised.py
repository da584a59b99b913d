"""`gyrator::quantize_dequantize`: a tensor quantised and turned into floats again, by ATen.

ATen rounds differently on each kind of processor where a value is halfway between two steps.
"""

import torch
from torch._prims_common import suggest_memory_format

SCHEMA = (
    "quantize_dequantize(Tensor input, float scale, SymInt zero_point, ScalarType dtype) -> Tensor"
)


def fake_quantize_dequantize(
    input: torch.Tensor, scale: float, zero_point: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return a fake result of `quantize_dequantize`."""
    return torch.empty_like(input, memory_format=suggest_memory_format(input))


def quantize_dequantize(
    input: torch.Tensor, scale: float, zero_point: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return the values that a quantised tensor of `dtype`, such as `torch.quint8`, represents."""
    return torch.quantize_per_tensor(input, scale, zero_point, dtype).dequantize()
