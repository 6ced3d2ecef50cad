"""The training loop: gradients, schedules, state, and runs that are cut in two."""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from timm.utils import ModelEmaV3
from torch.utils._python_dispatch import TorchDispatchMode

from s3zoo.models import MODELS
from s3zoo.models.layers import DropPath
from s3zoo.space import glit_space, s3_space
from s3zoo.supernet import Supernet, recalibrate
from s3zoo.training import checkpoint
from s3zoo.training.config import Data, Train
from s3zoo.training.data import ImageData
from s3zoo.training.distributed import Ranks
from s3zoo.training.log import Log
from s3zoo.training.loop import Interrupted, LossScale, ModelTask, Stop, SupernetTask, fit, seed_from, step_archs

SPACE = s3_space(
    "toy", (1, 2), (8, 12), (2, 4), (1, 2), (1, 2), steps=(1, 4, 2, 1, 1), head_dim=4, num_stages=2, patch_size=2
)
DATA = Data(
    name="digits", holdout=100, train_limit=96, num_classes=10, img_size=8, in_chans=1, mean=(0.3,), std=(0.35,),
    crop_pct=1.0, random_crop_pad=1, hflip=0.0, color_jitter=0.0,
)  # fmt: skip
TRAIN = Train(epochs=2, batch_size=32, lr=3e-3, warmup_epochs=0.5, drop_path=0.2, checkpoint_seconds=0)
ONE = Ranks(0, 1, torch.device("cpu"))


def supernet(**options) -> Supernet:
    torch.manual_seed(0)
    return Supernet(SPACE, img_size=8, num_classes=10, in_chans=1, **{"drop_path_rate": 0.2, **options})


def train(task, folder: Path, config: Train = TRAIN, data: Data = DATA, **options) -> list[dict]:
    return fit(
        task, config, ImageData(data, 0), seed=0, ranks=ONE, folder=folder, log=Log(None), name="test", **options
    )


class StopAfter(Stop):
    """Asks for a stop once `count` steps have looked."""

    def __init__(self, count: int) -> None:
        self.count = count

    @property
    def asked(self) -> bool:
        self.count -= 1
        return self.count < 0


def test_architectures_are_a_function_of_seed_and_step():
    first = [step_archs(SPACE, "uniform", 1, step) for step in range(20)]
    assert first == [step_archs(SPACE, "uniform", 1, step) for step in range(20)]
    assert first != [step_archs(SPACE, "uniform", 2, step) for step in range(20)]
    assert len({arch for archs in first for arch in archs}) > 10
    sandwich = step_archs(SPACE, "sandwich", 1, 5)
    assert sandwich[:2] == [SPACE.largest(), SPACE.smallest()] and len(sandwich) == 4


def test_a_seed_is_the_same_everywhere():
    # The first eight bytes of sha256("0/arch/3"), little-endian, halved.
    assert seed_from(0, "arch", 3) == int.from_bytes(hashlib.sha256(b"0/arch/3").digest()[:8], "little") // 2
    assert seed_from(1, 23) != seed_from(12, 3)


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": "sandwich"},
        {"sampling": "sandwich", "distil": "inplace", "accumulate": 2},
        {"sharing": "classical"},
        {"sharing": "module"},
        {"freeze_unsampled": True},
        {"ema": 0.9},
    ],
    ids=str,
)
def test_a_run_cut_in_two_is_the_same_run(tmp_path, options):
    config = dataclasses.replace(TRAIN, **options)
    sharing = {"sharing": config.sharing}
    whole = supernet(**sharing)
    rows = train(SupernetTask(whole, config, 0), tmp_path / "whole", config)

    with pytest.raises(Interrupted, match="same command"):
        train(SupernetTask(supernet(**sharing), config, 0), tmp_path / "cut", config, stop=StopAfter(3))
    again = supernet(**sharing)
    again.flat.data.zero_()  # everything must come from the checkpoint
    assert train(SupernetTask(again, config, 0), tmp_path / "cut", config) == rows
    assert torch.equal(whole.flat, again.flat)
    lines = [(tmp_path / name / "epochs.jsonl").read_text() for name in ("whole", "cut")]
    assert lines[0] == lines[1] and len(lines[0].splitlines()) == 2


def test_the_learning_rate_of_each_step(tmp_path):
    """Six steps: two of warm-up from warmup_lr on, then the half cosine over all six, whose end would be min_lr."""
    rates = []

    class Noted(SupernetTask):
        def before_step(self, optimizer):
            rates.append(optimizer.param_groups[0]["lr"])

    config = dataclasses.replace(TRAIN, warmup_epochs=0, warmup_steps=2, warmup_lr=1e-4, lr=3e-3, min_lr=1e-5)
    train(Noted(supernet(), config, 0), tmp_path, config)
    cosine = [1e-5 + (3e-3 - 1e-5) * (1 + math.cos(math.pi * step / 6)) / 2 for step in range(6)]
    assert rates == pytest.approx([1e-4, (1e-4 + 3e-3) / 2, *cosine[2:]])


def test_every_network_of_every_step_draws_its_own_masks(tmp_path):
    """And the same ones for all its parts of a batch, each of which takes its own rows of them."""
    drawn = []

    class Noted(SupernetTask):
        def loss(self, model, *args, **options):
            drawn.append(torch.rand(()).item())
            return super().loss(model, *args, **options)

    config = dataclasses.replace(TRAIN, sampling="sandwich", accumulate=2)
    train(Noted(supernet(), config, 0), tmp_path, config)
    firsts, seconds = drawn[::2], drawn[1::2]
    assert firsts == seconds and len(set(firsts)) == len(firsts) == 6 * 4  # steps, networks


def test_an_epoch_that_was_recorded_and_then_lost_is_recorded_once(tmp_path, monkeypatch):
    """Killed after the record of the first epoch, before its checkpoint."""

    def killed(*args):
        raise KeyboardInterrupt

    config = dataclasses.replace(TRAIN, checkpoint_seconds=0)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        at_end = {"at_epoch_end": lambda epoch: patch.setattr(checkpoint, "save", killed) or {}}
        train(SupernetTask(supernet(), config, 0), tmp_path, config, **at_end)
    lines = (tmp_path / "epochs.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0]
    rows = train(SupernetTask(supernet(), config, 0), tmp_path, config)
    assert [row["epoch"] for row in rows] == [0, 1]
    assert [json.loads(line)["epoch"] for line in (tmp_path / "epochs.jsonl").read_text().splitlines()] == [0, 1]


@pytest.mark.parametrize("damage", ["running", "mean", "optimizer", "step", "pipe"])
def test_files_that_were_changed_are_refused_by_name(tmp_path, damage):
    train(SupernetTask(supernet(), TRAIN, 0), tmp_path)
    path = max(tmp_path.glob("step-*")) / "state.json"
    state = json.loads(path.read_text())
    if damage == "pipe":
        (tmp_path / "epochs.jsonl").unlink()
        os.mkfifo(tmp_path / "epochs.jsonl")
    elif damage == "step":
        (tmp_path / "epochs.jsonl").write_text('{"step": "x"}\n')
    else:
        values = {"running": 10**30, "mean": ["x"], "optimizer": {"groups": "x"}}
        path.write_text(json.dumps(state | {"running" if damage == "mean" else damage: values[damage]}))
    with pytest.raises(ValueError, match="epochs.jsonl" if damage in ("pipe", "step") else "cannot be resumed from"):
        train(SupernetTask(supernet(), TRAIN, 0), tmp_path)


def test_accumulation_gives_the_gradient_of_the_whole_batch(tmp_path):
    results = []
    for accumulate in (1, 4):
        config = dataclasses.replace(TRAIN, epochs=1, accumulate=accumulate, opt="sgd", lr=0.1, warmup_epochs=0)
        net = supernet()
        train(SupernetTask(net, config, 0), tmp_path / str(accumulate), config)
        results.append(net.flat.detach().clone())
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-6)


def test_sandwich_sums_the_gradients_of_its_four_networks(tmp_path):
    config = dataclasses.replace(
        TRAIN, epochs=1, batch_size=96, opt="momentum", lr=0.5, momentum=0.0, weight_decay=0.0, warmup_epochs=0,
        schedule="constant", sampling="sandwich", drop_path=0.0, label_smoothing=0.1,
    )  # fmt: skip
    net, reference = supernet(drop_path_rate=0.0), supernet(drop_path_rate=0.0)
    train(SupernetTask(net, config, 0), tmp_path, config)
    images, targets, _ = next(iter(ImageData(DATA, 0).train_batches(0, 96)))
    for arch in step_archs(SPACE, "sandwich", 0, 0):
        loss = F.cross_entropy(reference.subnet(arch).train()(images), targets, label_smoothing=0.1)
        loss.backward()
    expected = {name: w.detach() - 0.5 * reference.grads[name] for name, w in reference.bank.items()}
    for name, weight in net.bank.items():
        torch.testing.assert_close(weight.detach(), expected[name], rtol=1e-4, atol=1e-6, msg=name)


def test_unsampled_weights_move_by_default_and_stand_still_when_frozen(tmp_path):
    """Official behaviour: decay and stale momentum move them. The paper's words: the rest is frozen."""
    for freeze in (False, True):
        config = dataclasses.replace(TRAIN, epochs=1, batch_size=96, freeze_unsampled=freeze, warmup_epochs=0)
        net = supernet()
        before = net.flat.detach().clone()
        train(SupernetTask(net, config, 0), tmp_path / str(freeze), config)
        outside = torch.ones_like(net.flat, dtype=torch.bool)
        names = {name: outside[start : start + w.numel()].view(w.shape) for name, w, start in _places(net)}
        for arch in step_archs(SPACE, "uniform", 0, 0):
            for name, corner in net.used(arch):
                names[name][corner] = False
        assert outside.any()
        still = torch.equal(net.flat[outside], before[outside])
        assert still == freeze
        assert not torch.equal(net.flat[~outside], before[~outside])


def _places(net: Supernet):
    start = 0
    for name, weight in net.bank.items():
        yield name, weight, start
        start += weight.numel()


@pytest.mark.parametrize("sharing", ["classical", "module"])
def test_classical_sharing_skips_candidates_that_were_not_sampled(tmp_path, sharing):
    config = dataclasses.replace(TRAIN, epochs=1, batch_size=96, sharing=sharing, warmup_epochs=0)
    net = supernet(sharing=sharing)
    before = {name: w.detach().clone() for name, w in net.bank.items()}
    train(SupernetTask(net, config, 0), tmp_path, config)
    used = {name for name, _ in net.used(step_archs(SPACE, "uniform", 0, 0)[0])}
    moved = {name for name, w in net.bank.items() if not torch.equal(w, before[name])}
    assert moved and moved <= used


def test_in_place_distillation_lets_the_largest_teach_the_others():
    config = dataclasses.replace(TRAIN, sampling="sandwich", distil="inplace")
    net = supernet()
    task = SupernetTask(net, config, 0)
    generator = torch.Generator().manual_seed(0)
    parts = [
        (torch.randn(4, 1, 8, 8, generator=generator), torch.arange(4) + i, torch.arange(4) + 4 * i) for i in (0, 1)
    ]
    for step in (0, 1):
        largest, *others = task.models(step)
        answers = []
        for images, labels, rows in parts:
            torch.manual_seed(0)
            loss = task.loss(largest, images, labels, smoothing=0.1, step=step, rows=rows)
            torch.manual_seed(0)
            logits = largest(images)
            expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum")
            torch.testing.assert_close(loss, expected)  # by the labels alone
            answers.append(logits.detach())
        for model in others:
            for (images, labels, rows), said in zip(parts, answers, strict=True):
                torch.manual_seed(0)
                loss = task.loss(model, images, labels, smoothing=0.1, step=step, rows=rows)
                torch.manual_seed(0)
                expected = -(said.softmax(1) * model(images).log_softmax(1)).sum()  # by its answers alone
                torch.testing.assert_close(loss, expected)
        net.flat.data.mul_(1.1)  # the answers of another step are other answers
    with pytest.raises(ValueError, match="only a step of sampling 'sandwich'"):
        dataclasses.replace(TRAIN, distil="inplace")


def test_a_static_model_resumes_with_its_buffers(tmp_path):
    arch = glit_space(
        "g", 12, 3, depth=2, kernels=(3,), expansions=(1,), head_dims=(4,), mlp=(2,), patch_size=4
    ).sample(random.Random(0))

    def model():
        torch.manual_seed(1)
        return MODELS["glit"](arch, img_size=8, num_classes=10, in_chans=1, drop_path_rate=0.1)

    whole, cut = model(), model()
    train(ModelTask(whole), tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(ModelTask(cut), tmp_path / "cut", stop=StopAfter(4))
    again = model()
    train(ModelTask(again), tmp_path / "cut")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_a_loss_that_is_no_number_stops_with_a_sentence(tmp_path):
    net = supernet()
    config = dataclasses.replace(TRAIN, epochs=1)

    class Poisoned(SupernetTask):
        def models(self, step):
            if step == 2:
                net.flat.data.fill_(math.nan)
            return super().models(step)

    with pytest.raises(ValueError, match="loss became nan at step 2; the last good checkpoint is kept"):
        train(Poisoned(net, config, 0), tmp_path, config)
    tensors, state = checkpoint.load(tmp_path)
    assert state["step"] == 2 and all(t.isfinite().all() for t in tensors.values())


def test_a_gradient_that_is_no_number_changes_nothing(tmp_path):
    """The loss is finite, as is that of every step before; it is the last step, whose weights would be the result."""
    net = supernet()
    config = dataclasses.replace(TRAIN, epochs=1)

    class Poisoned(SupernetTask):
        def loss(self, model, inputs, targets, *, step, **options):
            loss = super().loss(model, inputs, targets, step=step, **options)
            if step < 2:
                return loss
            self.weights_before = net.flat.detach().clone()
            return loss + next(model.parameters()).flatten()[0].mul(0).sqrt()  # 0, with the derivative 0 * inf

    task = Poisoned(net, config, 0)
    with pytest.raises(ValueError, match="norm of the gradient became nan at step 2; the last good checkpoint is kept"):
        train(task, tmp_path, config)
    assert torch.equal(net.flat, task.weights_before) and net.flat.isfinite().all()
    tensors, state = checkpoint.load(tmp_path)
    assert state["step"] == 2 and all(t.isfinite().all() for t in tensors.values())


@pytest.mark.parametrize("case", ["weights", "images", "targets"])
def test_the_remedy_is_that_of_the_cause(tmp_path, one_thread, case):
    net = supernet()

    class Poisoned(ImageData):
        def mixup(self, images, targets, step, smoothing=0.0):
            targets = F.one_hot(targets, 10).float()
            return (images * math.nan, targets) if case == "images" else (images, targets * math.nan)

    if case == "weights":
        net.flat.data[0] = math.inf
    kind = ImageData if case == "weights" else Poisoned
    said = "weights that it began with" if case == "weights" else "images or labels .* data.mixup and data.cutmix"
    with pytest.raises(ValueError, match=f"nothing was saved yet in .*{said}") as error:
        fit(
            SupernetTask(net, TRAIN, 0), TRAIN, kind(DATA, 0), seed=0, ranks=ONE, folder=tmp_path, log=Log(None),
            name="test",
        )  # fmt: skip
    assert "earning rate" not in str(error.value)


def test_files_of_another_run_are_refused(tmp_path, one_thread):
    def go(run, stop=None):
        train(SupernetTask(supernet(), TRAIN, 0), tmp_path, run=run, stop=stop)

    with pytest.raises(Interrupted):
        go("mine", StopAfter(4))
    with pytest.raises(ValueError, match="is of another run .* give another --out"):
        go("yours")
    steps = list(tmp_path.glob("step-*"))
    for path in steps:
        path.rename(tmp_path / f"was-{path.name}")
    with pytest.raises(ValueError, match="epochs.jsonl is of another run"):
        go("yours")
    for path in steps:
        (tmp_path / f"was-{path.name}").rename(path)
    go("mine")


class HostReads(TorchDispatchMode):
    """Counts what makes the host wait for a device: values that are read back."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "options", [{}, {"sampling": "sandwich", "accumulate": 4}, {"clip_grad": 1.0, "ema": 0.9}], ids=str
)
def test_a_step_makes_the_host_wait_once_at_most(tmp_path, one_thread, options):
    config = dataclasses.replace(TRAIN, opt="momentum", checkpoint_seconds=99, **options)
    task = SupernetTask(supernet(), config, 0)
    data, reads = dataclasses.replace(DATA, mixup=0.8, cutmix=1.0), []

    class Counted(StopAfter):
        @property
        def asked(self) -> bool:  # asked in every step, before its values are read
            reads.append(mode.count)
            return False

    with HostReads() as mode:
        train(task, tmp_path, config, data, stop=Counted(99))
    steps = [after - before for before, after in itertools.pairwise(reads)]
    assert len(steps) == 5 and max(steps) <= 1


def float16_run(folder, stop=None, poisoned=(), **options):
    """On a CPU, with the type that older GPUs need; the gradient overflows in these steps."""

    class Overflowing(SupernetTask):
        def loss(self, model, inputs, targets, *, step, **rest):
            loss = super().loss(model, inputs, targets, step=step, **rest)
            if step in poisoned:
                loss = loss + next(model.parameters()).flatten()[0].mul(0).sqrt()  # 0, with an infinite derivative
            return loss

    net = supernet()
    rows = train(Overflowing(net, TRAIN, 0), folder, stop=stop, amp=torch.float16, **options)
    return net.flat.detach().clone(), rows


def test_float16_scales_its_loss_skips_what_overflows_and_resumes(tmp_path, one_thread):
    plain = supernet()
    train(SupernetTask(plain, TRAIN, 0), tmp_path / "plain")
    near, rows = float16_run(tmp_path / "near")
    assert rows[-1]["skipped"] == 0 and 0 < (near - plain.flat).abs().max() < 0.02
    whole, rows = float16_run(tmp_path / "whole", poisoned=(1, 4))
    assert [row["skipped"] for row in rows] == [1, 2] and whole.isfinite().all()
    state = checkpoint.load(tmp_path / "whole")[1]
    assert state["loss_scale"] == [2.0**14, 1, 2]  # halved twice; one good step since
    with pytest.raises(Interrupted):
        float16_run(tmp_path / "cut", StopAfter(3), poisoned=(1, 4))
    again, resumed = float16_run(tmp_path / "cut", poisoned=(1, 4))
    assert torch.equal(whole, again) and resumed == rows


def test_float16_gives_up_on_a_gradient_that_never_is_finite(tmp_path, one_thread):
    long = dataclasses.replace(TRAIN, epochs=9)
    with pytest.raises(ValueError, match="norm of the gradient became nan at step 16"):  # 2^16 halved to below 1
        float16_run(tmp_path, poisoned=range(99), config=long)


def test_the_loss_scale_grows_again():
    scale = LossScale(torch.float16)
    assert scale.overflowed() and scale.factor == 2.0**15
    for _ in range(2 * LossScale.PATIENCE):
        scale.went_well()
    assert scale.factor == 2.0**17 and LossScale(torch.bfloat16).factor == LossScale(None).factor == 1


def test_an_average_is_that_of_timm(tmp_path, one_thread):
    """Weights and batch-norm statistics; ModelEmaV3 follows a model that is trained in the same way."""

    def model():
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 10)
        )

    config = dataclasses.replace(TRAIN, ema=0.8)
    followed = model()
    oracle = ModelEmaV3(followed, decay=0.8)

    class Following(ModelTask):
        def models(self, step):
            if step:
                oracle.update(self.model)
            return super().models(step)

    train(Following(followed), tmp_path / "plain", TRAIN)
    oracle.update(followed)
    averaged = model()
    train(ModelTask(averaged), tmp_path / "ema", config)
    assert not torch.equal(averaged[1].running_var, followed[1].running_var)
    for name, value in oracle.module.state_dict().items():
        torch.testing.assert_close(averaged.state_dict()[name], value, rtol=1e-6, atol=1e-7, msg=name)


def test_ranks_leave_the_blocks_that_subnets_share_as_they_were(tmp_path):
    """Between steps subnets are calibrated, also such as were not trained; a group of one stands in for the ranks."""
    space = glit_space("g", 12, 3, depth=2, kernels=(3, 5), expansions=(1,), head_dims=(4,), mlp=(1, 2), patch_size=4)
    config = dataclasses.replace(TRAIN, accumulate=1)
    images = torch.rand(8, 1, 8, 8)
    nets, kinds = [], set()
    drawn = [space.sample(random.Random(seed)) for seed in range(20)]
    with_norms = [arch for arch in drawn if any(block.local_heads for block in arch.stages[0].blocks)][:4]

    def calibrated(epoch):
        for arch in with_norms:
            subnet = nets[-1].subnet(arch)
            assert recalibrate(subnet, [images])
            kinds.update(type(m) for m in subnet.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm))
            assert all(m.rows is None for m in subnet.modules() if isinstance(m, DropPath))
        return {}

    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for ranks in (ONE, Ranks(0, 2, torch.device("cpu"))):
            torch.manual_seed(0)
            nets.append(Supernet(space, img_size=8, num_classes=10, in_chans=1, drop_path_rate=0.2))
            fit(
                SupernetTask(nets[-1], config, 0), config, ImageData(DATA, 0), seed=0, ranks=ranks, log=Log(None),
                folder=tmp_path / str(ranks.world), name="test", at_epoch_end=calibrated,
            )  # fmt: skip
    finally:
        torch.distributed.destroy_process_group()
    assert kinds == {torch.nn.BatchNorm1d} or kinds == {torch.nn.BatchNorm2d}
    losses = [[row["loss"] for row in map(json.loads, open(tmp_path / w / "epochs.jsonl"))] for w in ("1", "2")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4) and len(losses[0]) == 2


def test_drop_path_masks_follow_the_sample_not_the_shard():
    layer = DropPath(0.5).train()
    torch.manual_seed(3)
    whole = layer(torch.ones(8, 2))
    parts = []
    for rows in (torch.tensor([0, 3, 4, 7]), torch.tensor([1, 2, 5, 6])):
        layer.batch, layer.rows = 8, rows
        torch.manual_seed(3)
        parts.append((rows, layer(torch.ones(4, 2))))
    for rows, part in parts:
        assert torch.equal(part, whole[rows])
    assert set(whole.unique().tolist()) == {0.0, 2.0}
