"""S3 on ImageNet-1k: three supernets and two shifts of the space, then S3-T, S3-S and S3-B from the last supernet.

Expected:  82.1 / 83.7 / 84.0 % top-1 with 28.1M / 50M / 71M parameters and 4.7G / 9.5G / 13.6G MACs (the paper's
           figures, its Table 1; not run here).
Cost:      3 x 300 epochs of 1,241 steps with four networks each; 3 x 10^20 FLOP by closed form if the space stays as
           large as the first (estimate), or 174 GPU-days at an assumed 20 TFLOP/s. The paper used 16 V100 GPUs with
           32 GB and gives no days.
Command:   torchrun --nproc-per-node 8 -m s3zoo search s3 --data /path/to/imagenet

On several machines add torchrun's --nnodes and --rdzv-endpoint. Readings of what the paper leaves open:

- "Total iteration 3" are three spaces (A, B, C in its Table 5), hence two shifts.
- The number of samples is ours. So is the constraint c of the space search: here what S3-B costs. The paper's Table 5
  names 28M and 4.7G for space A too, but by exact counts A has 4.9M to 17.4M parameters and 4.6G to 18.8G MACs, and
  with 4.7G every dimension of stage 1 would have one choice alone, so that stage could not move.
- The held-out images come from the training set; the paper scores spaces on the validation set, which is the test here.
- If a budget fits no network of the last space, the last space where all fit is searched (`backtrack`).

`--set space_search.audit=10` asks for Fig. 5: ten random networks of the last space, finetuned (`audit_finetune`: 40
epochs, as AutoFormer prints; S3 prints none) and retrained (`final.train`).
`--set space_search.search_each_space=true` searches A and B too, for Table 5: 65.5 / 78.0 / 82.1 % (the paper's
figures).
"""

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import S3_INITIAL
from s3zoo.training.config import Train
from s3zoo.training.recipes import IMAGENET

config = SearchRun(
    name="s3",
    space=S3_INITIAL,
    data=IMAGENET,
    supernet=Train(epochs=300, lr=1e-3, min_lr=1e-5, warmup_epochs=20, drop_path=0.2, sampling="sandwich"),
    space_search=SpaceSearch(
        method="s3",
        iterations=2,
        samples=1000,
        tau=0.4,
        top=50,  # as printed, whatever the size of a subset
        top_share=1.0,
        limit_metric="macs",
        upper=13.7e9,
        backtrack=True,
    ),
    arch_search=ArchSearch(
        budgets=("params<=28.4M, macs<=4.7G", "params<=50M, macs<=9.5G", "params<=71.2M, macs<=13.7G")
    ),
    final=Final(mode="inherit", train=Train(epochs=300, lr=1e-3, min_lr=1e-5, warmup_epochs=20, drop_path=0.2)),
    audit_finetune=Train(epochs=40, lr=1e-4, min_lr=1e-6, warmup_epochs=5, drop_path=0.2),
)
