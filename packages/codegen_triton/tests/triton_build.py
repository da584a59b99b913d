"""Kernels on the device that the tests write Triton for."""

from functools import partial

from gyrator_ir.types import Device
from gyrator_testing.kernels.write import kernel as written

CUDA = Device("cuda")
kernel = partial(written, device=CUDA)
