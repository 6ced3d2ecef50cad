"""The networks, one module per family; importing this package registers them with timm."""

from torch import nn

from s3zoo.models.autoformer import AutoFormer
from s3zoo.models.glit import GLiT
from s3zoo.models.ladder import Ladder
from s3zoo.models.s3 import S3
from s3zoo.models.shunted import Shunted

MODELS: dict[str, type[nn.Module]] = {
    "s3": S3,
    "autoformer": AutoFormer,
    "glit": GLiT,
    "shunted": Shunted,
    "ladder": Ladder,
}
# By family, timm's name of the model that takes any architecture of it.
ENTRYPOINTS: dict[str, str] = {family: family for family in MODELS} | {"ladder": "clip_ladder"}
