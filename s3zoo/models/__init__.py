"""The networks, one module per family; importing this package registers them with timm."""

import importlib

# temporary while the families are written
MODELS: dict[str, type] = {}
for _family, _cls in {"s3": "S3", "autoformer": "AutoFormer", "glit": "GLiT"}.items():
    try:
        MODELS[_family] = getattr(importlib.import_module(f"s3zoo.models.{_family}"), _cls)
    except (ModuleNotFoundError, AttributeError):
        pass
