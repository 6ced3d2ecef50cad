"""VQA v2 with Swin-T at 384 x 384, S3 supplement's recipe: 40 epochs of train and val, 2048 questions a step.

Command:  torchrun --nproc-per-node 8 tools/vqa.py train vqa_v2_swin_tiny --data /path/to/vqa_v2
          then: python tools/vqa.py predict runs/vqa_v2_swin_tiny/model --data /path/to/vqa_v2
Paper:    67.13 test-dev, 67.40 test-std (S3 Table 4; not reproduced here)
Cost:     at least 12,840 steps of 512 images with 4 questions each (658,111 questions; an image's last group of four
          is filled up, which adds some); untested here: it needs GPUs, BERT and ImageNet weights
To have numbers without the server: --set "data.train_splits=('train',)" --set data.val_split=val
"""

from s3zoo.transfer.vqa.config import vqa_v2

config = vqa_v2("vqa_v2_swin_tiny", "swin_tiny_patch4_window7_224")
