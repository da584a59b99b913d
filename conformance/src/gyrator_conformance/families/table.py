"""All families by name."""

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType

from gyrator_conformance.families import senses, timm_models, words
from gyrator_conformance.models import Model

KINDS = (
    words.encoders, words.decoders, words.recurrences, words.both,
    senses.sights, senses.sounds, senses.meetings, senses.series,
)  # fmt: skip


def all_families() -> Mapping[str, Model]:
    """Return the families by name; including those of timm if it is installed."""
    makers = (*KINDS, timm_models.sights) if find_spec("timm") else KINDS
    table: dict[str, Model] = {}
    for make in makers:
        for model in make():
            if model.name in table:
                raise ValueError(f"two families are called {model.name!r}")
            table[model.name] = model
    return MappingProxyType(table)
