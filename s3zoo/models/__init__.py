"""The networks, one module per family; importing this package registers them with timm."""

import logging
from importlib import import_module

import timm
from torch import nn

from s3zoo.families import BUILT_IN, FAMILIES
from s3zoo.models.loading import register_bundled

_logger = logging.getLogger(__name__)


MODELS: dict[str, type[nn.Module]] = {}  # by family, the class of its networks


def model_names(family: str) -> list[str]:
    """timm's names of the models of a family."""
    module = FAMILIES[family].module
    return [name for name in timm.list_models() if timm.model_entrypoint(name).__module__ == module]


for _family in FAMILIES.values():
    try:
        _module = import_module(_family.module)
    except Exception as error:  # whatever a foreign module raises; other families work without it
        if _family.name in BUILT_IN:
            raise
        _logger.warning(
            "The networks of family %r cannot be imported (%s: %s).", _family.name, type(error).__name__, error
        )
    else:
        MODELS[_family.name] = getattr(_module, _family.model.partition(":")[2])
        register_bundled(MODELS[_family.name])
# By family, timm's name of the model that takes any architecture of it.
ENTRYPOINTS: dict[str, str] = {_family.name: _family.entrypoint for _family in FAMILIES.values()}
