"""Batch norm over ranks equals batch norm over the whole batch; lists come back in order."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from s3zoo.training.distributed import Ranks

CHILD = """
import sys, torch
from timm.layers import BatchNormAct2d
from torch import nn
from s3zoo.training import distributed
from s3zoo.training.distributed import separate_batch_norms, synchronise_batch_norms
torch.set_num_threads(1)
ranks = distributed.start("cpu")
torch.manual_seed(0)
x, target = torch.randn(8, 3, 5), torch.randn(8, 3, 5)
whole, part = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
(whole(x) * target).sum().backward()
synchronise_batch_norms(part)
own = slice(4 * ranks.rank, 4 * ranks.rank + 4)
mine = x[own].clone().requires_grad_()
whole_x = x.clone().requires_grad_()
other = nn.BatchNorm1d(3)
(other(whole_x) * target).sum().backward()
(part(mine) * target[own]).sum().backward()
torch.testing.assert_close(mine.grad, whole_x.grad[own], rtol=1e-4, atol=1e-5)
for p, q in zip(part.parameters(), whole.parameters()):
    ranks.sum(p.grad)
    torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
torch.testing.assert_close(part.running_mean, whole.running_mean)
torch.testing.assert_close(part.running_var, whole.running_var)
separate_batch_norms(part)
assert type(part) is nn.BatchNorm1d and part.state_dict().keys() == whole.state_dict().keys()
part.eval()(x)
acting, alone = BatchNormAct2d(3), BatchNormAct2d(3)
synchronise_batch_norms(acting)
torch.testing.assert_close(acting(x[own, :, :, None]), alone(x[..., None])[own], rtol=1e-4, atol=1e-5)
assert (acting.eval()(x[..., None]) >= 0).all()
coarse = x[own].to(torch.bfloat16)  # as under autocast
half = nn.BatchNorm1d(3)
synchronise_batch_norms(half)
out = half(coarse)
assert out.dtype == torch.bfloat16
total = coarse.double().sum((0, 2))
ranks.sum(total)
torch.testing.assert_close(half.running_mean.double(), 0.1 * total / 40, rtol=1e-5, atol=1e-7)  # 8 x 5 values

# A gradient that is summed during the backward pass is that of the whole batch, whatever the size of the pieces.
from s3zoo.training.distributed import summing_gradient
from s3zoo.training.loop import ModelTask
for bucket in (7, 40, 1000):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4), nn.Linear(4, 2))
    net.add_module("unused", nn.Linear(3, 3))
    task, inputs = ModelTask(net), torch.randn(8, 5)
    run = lambda x: nn.Sequential(*list(net)[:4])(x).square().sum()
    run(inputs).backward()
    expected = task.gradient.clone()
    task.gradient.zero_()
    run(inputs[own][:2]).backward()  # an earlier part of the step
    with summing_gradient(task.gradient, net, ranks, bucket):
        run(inputs[own][2:]).backward()
    torch.testing.assert_close(task.gradient, expected)
assert ranks.gather([("item", i) for i in ranks.share(list(range(5)))]) == [("item", i) for i in range(5)]
assert ranks.from_first(ranks.rank) == 0
distributed.stop()
print("fine")
"""


def test_two_processes(tmp_path):
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(child)],
        env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("fine") == 2


def test_one_process_needs_no_group():
    ranks = Ranks(0, 1, torch.device("cpu"))
    assert ranks.share([1, 2, 3]) == [1, 2, 3] == ranks.gather([1, 2, 3])
    assert ranks.rank0_first(lambda: "read") == "read"
