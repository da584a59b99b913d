"""The models of the suite: a value, filled by one function a family."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gyrator_conformance.models.attention import attention_models
from gyrator_conformance.models.collective import collective_models
from gyrator_conformance.models.conv import conv_models
from gyrator_conformance.models.extern import extern_models
from gyrator_conformance.models.index import index_models
from gyrator_conformance.models.matmul import matmul_models
from gyrator_conformance.models.model import FLOATS, Model
from gyrator_conformance.models.pointwise import pointwise_models
from gyrator_conformance.models.pool import pool_models
from gyrator_conformance.models.random import random_models
from gyrator_conformance.models.reduction import reduction_models
from gyrator_conformance.models.scan import scan_models
from gyrator_conformance.models.scatter import scatter_models
from gyrator_conformance.models.sort import sort_models
from gyrator_conformance.models.view import view_models

__all__ = ["FAMILIES", "FLOATS", "Model", "all_models"]

FAMILIES: tuple[Callable[[], tuple[Model, ...]], ...] = (
    pointwise_models,
    reduction_models,
    view_models,
    index_models,
    matmul_models,
    conv_models,
    pool_models,
    random_models,
    scan_models,
    sort_models,
    scatter_models,
    attention_models,
    collective_models,
    extern_models,
)


def all_models() -> Mapping[str, Model]:
    """Return the models by name, family by family."""
    table: dict[str, Model] = {}
    for family in FAMILIES:
        for model in family():
            if model.name in table:
                raise ValueError(f"two models are called {model.name!r}")
            table[model.name] = model
    return MappingProxyType(table)
