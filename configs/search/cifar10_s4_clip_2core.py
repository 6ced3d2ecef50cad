"""S4's decoder beside a small frozen CLIP tower on CIFAR-10 at 112 x 112 for two cores, below 800K parameters.

Expected:  not measured yet; the tower's weights could not be fetched where this was written.
Cost:      17,500 images through the tower, once; then 4 x 6 epochs of supernets, up to 480 + 200 scored networks and 20
           epochs of retraining without it, and 10,000 test images through it; about 40 minutes of one core,
           extrapolated from 20 measured steps. 2.7 GB of disk for three layers of features, 0.9 GB more for each that
           the decoders grow.
Command:   python tools/search.py cifar10_s4_clip_2core --data /path/to/cifar10

Images as for cifar10_s3_2core, 15,000 of them for training. The tower is TinyCLIP's ViT with 8.15M parameters, fetched
by timm; `--set tower.weights=FILE` takes its weights from a file, and `--set tower.weights=random` is a trial without.
Images are not augmented, so all features are kept; runs with the same images share them through
`--set tower.cache_dir=FOLDER`.
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.space import S4_CLIP
from s3zoo.training.config import Tower, load_config

_vit = load_config("cifar10_s4_vit_2core", SearchRun, "search")
_clip = load_config("s4_clip_cifar10", SearchRun, "search")
_choices = {
    "depth": (2, 3),
    "embed_dim": (32, 48, 64),
    "num_heads": (1, 2, 3, 4),
    "mlp_ratio": (1, 1.5),
    "head_dim": (32,),
}
config = dataclasses.replace(
    _vit,
    name="cifar10_s4_clip_2core",
    space=S4_CLIP.replaced(_choices, name="cifar10_s4_clip"),
    data=dataclasses.replace(
        _vit.data,
        img_size=112,
        holdout=2_500,
        train_limit=15_000,
        mean=_clip.data.mean,
        std=_clip.data.std,
        scale=(1, 1),
        ratio=(1, 1),
        random_crop_pad=0,
        hflip=0.0,
    ),
    space_search=dataclasses.replace(_vit.space_search, upper=800e3),
    arch_search=dataclasses.replace(_vit.arch_search, budgets=("params<=800K",)),
    tower=Tower("vit_xsmall_patch16_clip_224.tinyclip_yfcc15m", cache="all"),
)
