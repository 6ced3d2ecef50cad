"""Runs that are cut in two end with the same bits, whatever optimizer of timm they use; or are refused at once."""

import dataclasses
import inspect
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from oldest import REFUSED_OPTIMIZERS
from test_loop import StopAfter
from timm.optim import get_optimizer_class, list_optimizers
from torch import nn

from s3zoo.training import checkpoint
from s3zoo.training.config import Train
from s3zoo.training.distributed import Ranks
from s3zoo.training.log import Log
from s3zoo.training.loop import Interrupted, ModelTask, Stop, check, fit
from s3zoo.training.optimizers import FUSED, check_optimizer, make_optimizer

ONE = Ranks(0, 1, torch.device("cpu"))
STEPS, CUT = 13, 7  # Lookahead's slow weights are made in step 6 and moved in step 12
# Two need a GPU or its packages; adahessian needs second derivatives, which the loop does not compute.
ELSEWHERE = ("bnb", "fused")
REFUSED = ("adahessian", *REFUSED_OPTIMIZERS)


class Noise:
    """Seven samples of noise a step, the same each time; as much of data as the loop asks for."""

    train_size = 7 * STEPS

    def train_batches(self, epoch, batch_size, start_batch=0):
        for step in range(start_batch, STEPS):
            generator = torch.Generator().manual_seed(step)
            yield torch.randn(7, 2, 4, 4, generator=generator), torch.arange(7) % 3, torch.arange(7)

    def mixup(self, images, targets, step, smoothing=0.0):
        return images, targets


def trained(folder: Path, opt: str, stop: Stop | None = None, **options) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.1), nn.Linear(16, 3))
    task = ModelTask(model, lr_scale={"0.weight": 0.5})
    train = Train(epochs=1, batch_size=7, opt=opt, lr=0.01, warmup_epochs=0.3, **{"checkpoint_seconds": 99, **options})
    with torch.compiler.set_stance("force_eager"):  # Kron would compile itself for minutes
        fit(task, train, Noise(), seed=0, ranks=ONE, folder=folder, log=Log(None, speaks=False), name="t", stop=stop)
    return model.state_dict()


@pytest.mark.parametrize("wrapper", ["", "lookahead_"])
@pytest.mark.parametrize("name", [n for n in list_optimizers() if not n.startswith(ELSEWHERE)])
def test_a_run_cut_in_two_is_the_same_run(tmp_path, one_thread, name, wrapper):
    opt = wrapper + name
    if name in REFUSED:
        with pytest.raises(ValueError, match=f"opt is '{opt}', which cannot be used here"):
            check(Train(opt=opt, batch_size=7), Noise(), ONE)
        return
    whole = trained(tmp_path / "whole", opt)
    with pytest.raises(Interrupted):
        trained(tmp_path / "cut", opt, StopAfter(CUT - 1))
    assert checkpoint.load(tmp_path / "cut")[1]["step"] == CUT
    again = trained(tmp_path / "cut", opt)
    assert all(value.isfinite().all() for value in whole.values())
    for key, value in whole.items():
        assert torch.equal(value, again[key]), key


def test_every_optimizer_that_can_steps_fused():
    names = [name for name in list_optimizers() if not name.startswith(ELSEWHERE)]
    can = [name for name in names if "fused" in inspect.signature(get_optimizer_class(name, False)).parameters]
    assert sorted([*FUSED, "momentum", "nesterov", "sgd"]) == sorted(can)  # SGD: not where momenta begin one by one
    weight = nn.Parameter(torch.ones(2, 2))
    for name in names:
        task = SimpleNamespace(weights={"w": weight}, no_decay=(), lr_scale={})
        if name not in REFUSED:
            group = make_optimizer(task, Train(opt=name)).param_groups[0]
            assert group.get("fused", None) == (True if name in FUSED else None), name


class Forgetful(torch.optim.SGD):
    """Counts its steps where state_dict() does not look."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            group["lr"] = 0.1 / self.count
        return super().step(closure)


class Borrower(torch.optim.SGD):
    """Keeps the last gradient by its place, which the next one takes."""

    def step(self, closure=None):
        for weight in self.param_groups[0]["params"]:
            last = self.state[weight].get("last", torch.zeros_like(weight))
            self.state[weight]["last"] = weight.grad
            weight.data -= last
        return super().step(closure)


class Keeper(torch.optim.SGD):
    """Keeps what no file can hold."""

    def step(self, closure=None):
        self.param_groups[0]["hook"] = print
        return super().step(closure)


@pytest.mark.parametrize(
    "kind, why",
    [
        (Forgetful, "interrupted would not end as"),
        (Borrower, "interrupted would not end as"),
        (Keeper, "builtin_function_or_method, which cannot be"),
    ],
)
def test_what_cannot_be_exact_is_refused_before_the_first_step(tmp_path, one_thread, monkeypatch, kind, why):
    monkeypatch.setattr(
        "s3zoo.training.optimizers.create_optimizer_v2", lambda groups, opt, lr, **_: kind(groups, lr=lr)
    )
    with pytest.raises(ValueError, match=why):
        check_optimizer(Train(opt="mine"))
    with pytest.raises(ValueError, match="opt is 'mine'"):
        trained(tmp_path, "mine")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("opt, resumes", [("adamw", True), ("momentum", True), ("lamb", False)])
def test_checkpoints_of_version_1_resume_where_nothing_is_lost(tmp_path, one_thread, opt, resumes):
    """They had the tensors alone."""
    whole = trained(tmp_path / "whole", opt)
    with pytest.raises(Interrupted):
        trained(tmp_path / "cut", opt, StopAfter(CUT - 1))
    (place,) = (tmp_path / "cut").glob("step-*")
    state = json.loads((place / "state.json").read_text())
    del state["optimizer"]
    (place / "state.json").write_text(json.dumps(state))
    if resumes:
        again = trained(tmp_path / "cut", opt)
        assert all(torch.equal(value, again[key]) for key, value in whole.items())
    else:
        with pytest.raises(ValueError, match="older version .* did not save all that Lamb remembers"):
            trained(tmp_path / "cut", opt)


def test_the_trial_leaves_the_random_generator_as_it_was():
    before = torch.get_rng_state()
    check_optimizer(dataclasses.replace(Train(), opt="kron"))
    assert torch.equal(before, torch.get_rng_state())
