"""Detection and segmentation: networks of s3zoo and timm as backbones of mmdet and mmseg, with nothing to compile.

This package is what a config names in `custom_imports`. Importing it makes mmcv's operators available where they are
not compiled, stops mmengine from running code in checkpoints, and registers `S3ZooBackbone`.
"""

import importlib.util
from importlib.metadata import PackageNotFoundError, version

from s3zoo.transfer.mm import opencv

INSTALL = "pip install 's3zoo[mm]'"


class NotInstalled(ImportError, ValueError):
    """A package is missing or broken. Also a ValueError: the command line answers those in one line."""


def require(*packages: str) -> None:
    """Nothing if these mm packages and OpenCV can be imported, else one sentence on what to install."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise NotInstalled(f"{' and '.join(missing)} cannot be found; install the packages with {INSTALL}.")
    try:
        opencv.load()
    except ImportError as error:
        raise NotInstalled(_repair_opencv(str(error))) from None


def _repair_opencv(error: str) -> str:
    """The headless one needs nothing of a display; which of the two is in the folder cv2 is the one installed last."""
    for name in ("opencv-python-headless", "opencv-python"):
        try:
            found = f"=={version(name)}"
            break
        except PackageNotFoundError:
            found = ""
    return (
        f"OpenCV cannot be imported ({error}); repair it with "
        f"`pip install --force-reinstall --no-deps opencv-python-headless{found}`."
    )


require("mmengine", "mmcv")

from s3zoo.transfer.mm import checkpoints, ops  # noqa: E402

ops.install()
checkpoints.install()

from s3zoo.transfer.mm.backbone import S3ZooBackbone, decay_exempt_keys  # noqa: E402

__all__ = ["NotInstalled", "S3ZooBackbone", "decay_exempt_keys", "require"]
