"""Fake results of ops have eager's strides, and the search finds those that have others."""

from gyrator_conformance.models import all_models
from gyrator_conformance.strides import Comparison, compare_model, compare_op

OPS = (
    "xlogy", "nn.functional.leaky_relu", "nn.functional.layer_norm",
    "nn.functional.batch_norm", "nn.functional.glu", "log_softmax", "logit",
    "nn.functional.binary_cross_entropy",
)  # fmt: skip


def test_fake_results_have_eagers_strides() -> None:
    torchs, ours = Comparison(corrected=False), Comparison()
    for comparison in (torchs, ours):
        for name in OPS:
            compare_op(name, comparison, most=3)
    found = {"aten.xlogy.Tensor[0]", "aten.native_layer_norm_backward.default[0]"}
    assert found <= torchs.different.keys()
    assert not ours.different
    assert found <= ours.equal


def test_results_in_models_have_eagers_strides() -> None:
    comparison = Comparison()
    compare_model(all_models()["mixer"], comparison)
    assert not comparison.different
    assert "aten.native_layer_norm_backward.default[0]" in comparison.equal
