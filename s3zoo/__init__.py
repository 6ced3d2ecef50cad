"""Searched vision transformers as timm models.

`import s3zoo` is all that timm needs to know `s3_tiny` and the rest, whichever of the two is imported first. It costs
nothing by itself: torch takes seconds to import, and architectures, spaces, costs and the command line do without it,
so the models register themselves when timm is imported, or at once if it already was.
"""

import importlib
import sys
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

__version__ = "0.1.0"


class _RegisterWithTimm(MetaPathFinder):
    """Finds timm as the other finders do, and imports `s3zoo.models` right after it has been loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "timm":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                importlib.import_module("s3zoo.models")

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


def __getattr__(name: str) -> Any:
    if name == "models":
        return importlib.import_module("s3zoo.models")
    if name == "to_plain":
        return importlib.import_module("s3zoo.models.plain").to_plain
    raise AttributeError(f"module 's3zoo' has no attribute {name!r}")


if "timm" in sys.modules:
    importlib.import_module("s3zoo.models")
else:
    sys.meta_path.insert(0, _RegisterWithTimm())
