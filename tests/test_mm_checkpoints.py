"""Checkpoints of mmengine are read without running them, resume as they were, and become safetensors."""

import http.server
import pickle
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

pytest.importorskip("mmengine")

from mmengine.logging import HistoryBuffer  # noqa: E402
from mmengine.model import BaseModel  # noqa: E402
from mmengine.runner import Runner, load_checkpoint  # noqa: E402

import s3zoo.transfer.mm  # noqa: E402, F401
from s3zoo.models.loading import load_weights  # noqa: E402
from s3zoo.transfer.mm import checkpoints  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Toy(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, *x: Any, mode: str = "tensor") -> Any:
        loss = (self.linear(torch.stack(x)) - 1).square().mean()
        return dict(loss=loss) if mode == "loss" else loss


class Evil:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


class EvilCall:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return eval, (f"open({str(self.path)!r}, 'w')",)


@pytest.fixture(params=[Evil, EvilCall])
def evil(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    mark, file = tmp_path / "was here", tmp_path / "evil.pth"
    torch.save({"state_dict": Toy().state_dict(), "meta": request.param(mark)}, file)
    yield file
    assert not mark.exists()
    torch.load(file, weights_only=False)
    assert mark.exists()  # the file is as bad as it should be


def test_a_foreign_checkpoint_is_refused_and_not_run(evil: Path, tmp_path: Path) -> None:
    sentence = r"evil.pth' wants to run code while it is read \(.+\), which is refused; give a file that holds tensors"
    for load in (
        lambda: load_checkpoint(Toy(), str(evil)),
        lambda: checkpoints.read(evil),
        lambda: checkpoints.read(str(evil), weights_only=False),
        lambda: checkpoints.read_weights(evil),
        lambda: runner(tmp_path / "run", resume=False, load_from=str(evil)).train(),
        lambda: runner(tmp_path / "run", resume=True, load_from=str(evil)).train(),
    ):
        with pytest.raises(ValueError, match=sentence):
            load()


def test_a_foreign_checkpoint_from_the_web_is_refused(
    evil: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Serve(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *args: Any) -> None:
            pass

    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    with http.server.HTTPServer(("127.0.0.1", 0), Serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(ValueError, match="evil.pth' wants to run code while it is read"):
                load_checkpoint(Toy(), f"http://127.0.0.1:{server.server_port}/evil.pth")
            assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]  # nor kept for the next time
            with pytest.raises(ValueError, match="Could not download .*/gone.pth"):
                load_checkpoint(Toy(), f"http://127.0.0.1:{server.server_port}/gone.pth")
        finally:
            server.shutdown()


class Attribute:
    """`getattr` in a checkpoint, which mmengine's own need, for something else."""

    def __init__(self, owner: Any, name: str) -> None:
        self.what = owner, name

    def __reduce__(self) -> Any:
        return getattr, self.what


def test_getattr_reaches_nothing_but_statistics(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.pth", tmp_path / "bad.pth"
    torch.save({"x": Attribute(HistoryBuffer, "mean")}, good)
    HistoryBuffer()
    assert checkpoints.read(good)["x"] is HistoryBuffer.mean
    for owner, name in ((np.ndarray, "tofile"), (HistoryBuffer, "__init__"), (HistoryBuffer, "register_statistics")):
        torch.save({"x": Attribute(owner, name)}, bad)
        with pytest.raises(ValueError, match="wants to run code"):
            checkpoints.read(bad)


def runner(folder: Path, max_iters: int = 3, **kwargs: Any) -> Runner:
    data = [torch.tensor([float(i), 1.0]) for i in range(8)]
    return Runner(
        model=Toy(),
        work_dir=str(folder),
        train_dataloader=dict(batch_size=2, dataset=data, sampler=dict(type="InfiniteSampler", shuffle=True)),
        train_cfg=dict(by_epoch=False, max_iters=max_iters),
        optim_wrapper=dict(type="OptimWrapper", optimizer=dict(type="AdamW", lr=0.1)),
        param_scheduler=[dict(type="PolyLR", by_epoch=False, begin=0, end=6)],
        default_hooks=dict(checkpoint=dict(type="CheckpointHook", interval=3, by_epoch=False)),
        randomness=dict(seed=0),
        experiment_name=uuid.uuid4().hex,  # mmengine keeps loggers and the like by this name
        log_level="ERROR",
        **kwargs,
    )


def test_training_resumes(tmp_path: Path) -> None:
    """A checkpoint of mmengine's runner holds curves (HistoryBuffer, numpy) besides tensors."""
    first = runner(tmp_path / "run")
    first.train()
    content = checkpoints.read(tmp_path / "run" / "iter_3.pth")
    losses = content["message_hub"]["log_scalars"]["train/loss"]
    assert isinstance(losses, HistoryBuffer) and len(losses.data[0]) == 3 and losses.mean() > 0
    with pytest.raises(pickle.UnpicklingError):  # what torch says to it without help
        torch.load(tmp_path / "run" / "iter_3.pth")

    second = runner(tmp_path / "run", max_iters=6, resume=True)
    second.train()
    assert second.iter == 6
    curve = second.message_hub.get_scalar("train/loss").data[0]
    assert len(curve) == 6 and curve[:3].tolist() == losses.data[0].tolist()
    state = second.optim_wrapper.optimizer.state[second.model.linear.weight]
    assert int(state["step"]) == 6
    weights = checkpoints.read_weights(tmp_path / "run" / "iter_6.pth")
    assert torch.equal(weights["linear.weight"], second.model.linear.weight)


def test_safetensors_load_everywhere(tmp_path: Path) -> None:
    weights = {"linear.weight": torch.tensor([[1.0, 2.0]]), "linear.bias": torch.tensor([3.0])}
    save_file(weights, tmp_path / "toy.safetensors")
    model = Toy()
    load_checkpoint(model, str(tmp_path / "toy.safetensors"), map_location="cpu")
    assert model.linear.weight.tolist() == [[1, 2]] and model.linear.bias.tolist() == [3]
    assert checkpoints.read_weights(tmp_path / "toy.safetensors").keys() == weights.keys()


def test_a_checkpoint_of_which_nothing_fits_is_an_error(tmp_path: Path) -> None:
    torch.save({"state_dict": {"conv.weight": torch.zeros(1)}}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match="Nothing in the checkpoint .its first weight is 'conv.weight'. fits the Toy"):
        load_checkpoint(Toy(), str(tmp_path / "other.pth"))
    wrapped = nn.DataParallel(Toy())
    torch.save({"module.linear.weight": torch.ones(1, 2), "module.linear.bias": torch.ones(1)}, tmp_path / "dp.pth")
    load_checkpoint(wrapped, str(tmp_path / "dp.pth"))
    assert wrapped.module.linear.bias.item() == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w: w.pop("linear.bias"), "x.pth does not fit the model: 'linear.bias' is missing; give the config"),
        (lambda w: w.update(extra=torch.zeros(1)), "'extra' is not part of the model"),
        (lambda w: w.update({"linear.bias": torch.zeros(2)}), r"'linear.bias' has shape \[2\] instead of \[1\]"),
    ],
)
def test_weights_fit_or_are_refused(change: Any, sentence: str) -> None:
    weights = Toy().state_dict()
    model = Toy()
    load_weights(model, weights)
    assert torch.equal(model.linear.weight, weights["linear.weight"])
    change(weights)
    with pytest.raises(ValueError, match=sentence):
        load_weights(model, weights, "x.pth")
