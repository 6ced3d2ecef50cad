"""VQA v2 with four backbones at 384 x 384 by the recipe of S3's supplement."""

from s3zoo.training.registry import Entry, Registry
from s3zoo.transfer.vqa.config import vqa_v2

TEXT = """VQA v2 with {title} at 384 x 384, S3 supplement's recipe: 40 epochs of train and val, 2048 questions a step.

Command:  torchrun --nproc-per-node 8 -m s3zoo vqa train {name} --data /path/to/vqa_v2
          then: s3zoo vqa predict runs/{name}/model --data /path/to/vqa_v2
Paper:    {dev} test-dev, {std} test-std (S3 Table 4; not reproduced here)
Cost:     at least 12,840 steps of 512 images with 4 questions each (658,111 questions; an image's last group of four
          is filled up, which adds some); untested here: it needs GPUs, BERT and ImageNet weights
To have numbers without the server: --set "data.train_splits=('train',)" --set data.val_split=val"""

configs = Registry()
for short, backbone, title, dev, std in (
    ("s3_tiny", "s3_tiny", "S3-T", 67.84, "68.00"),
    ("swin_tiny", "swin_tiny_patch4_window7_224", "Swin-T", 67.13, "67.40"),
    ("resnet50", "resnet50", "ResNet-50", 64.65, 65.12),
    ("resnet101", "resnet101", "ResNet-101", 65.44, 65.71),
):
    name = f"vqa_v2_{short}"
    configs[name] = Entry(vqa_v2(name, backbone), TEXT.format(name=name, title=title, dev=dev, std=std))
