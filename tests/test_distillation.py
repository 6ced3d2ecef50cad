"""Distillation: the loss by hand, a student that agrees with its teacher, kept answers, refusals."""

import dataclasses
import math
import os
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from toy_train import DIGITS, config

from s3zoo.training.config import Distil
from s3zoo.training.data import ImageData
from s3zoo.training.distil import Student, Teacher, distil_loss
from s3zoo.training.distributed import Ranks
from s3zoo.training.log import Log
from s3zoo.training.loop import Interrupted, Stop
from s3zoo.training.run import Training

pytestmark = pytest.mark.usefixtures("one_thread")

ONE = Ranks(0, 1, torch.device("cpu"))
STILL = dataclasses.replace(DIGITS, random_crop_pad=0, scale=(1.0, 1.0), ratio=(1.0, 1.0))


def train(run, folder: Path) -> dict:
    torch.set_num_threads(1)
    return Training(run, folder, ONE, Log(None, speaks=False), Stop())()


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    """A network whose answers are its own: trained on few images, it is wrong about many."""
    folder = tmp_path_factory.mktemp("teacher")
    steps = dataclasses.replace(config.train, epochs=12, ema=0.0, checkpoint_seconds=60)
    result = train(dataclasses.replace(config, train=steps, seed=5), folder)
    assert 30 < result["test"]["top1"] < 90
    return folder


def softmax(row: list[float], temperature: float) -> list[float]:
    powers = [math.exp(value / temperature) for value in row]
    return [power / sum(powers) for power in powers]


STUDENT, TEACHER = [[1.0, -0.5, 0.25], [0.0, 2.0, -1.0]], [[0.5, 0.75, -1.0], [3.0, 1.0, 0.0]]


def test_the_hard_loss_by_hand():
    # The teacher's first choices are classes 1 and 0.
    by_hand = -math.log(softmax(STUDENT[0], 1)[1]) - math.log(softmax(STUDENT[1], 1)[0])
    loss = distil_loss(torch.tensor(STUDENT), torch.tensor(TEACHER), "hard", 4.0)  # the temperature does not matter
    assert float(loss) == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_soft_loss_by_hand(temperature):
    by_hand = 0.0
    for s, t in zip(STUDENT, TEACHER, strict=True):
        p, q = softmax(t, temperature), softmax(s, temperature)
        by_hand += temperature**2 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    loss = distil_loss(torch.tensor(STUDENT), torch.tensor(TEACHER), "soft", temperature)
    assert float(loss) == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_a_students_loss_is_labels_and_teacher_by_weight(teacher, kind):
    """Smoothed labels, logits of both networks, in plain Python; the teacher has another normalisation."""
    distil = Distil(teacher=str(teacher), kind=kind, weight=0.3, temperature=2.0)
    seen = dataclasses.replace(STILL, mean=(0.1,), std=(0.5,))
    data = ImageData(seen, 0)
    student = timm.create_model("s3", arch=config.model_args["arch"], img_size=8, in_chans=1, num_classes=10)
    task = Student(student, Teacher(distil, seen, data.classes, ONE.device), data, 32)
    images, targets, rows = next(data.train_batches(0, 32))
    with torch.no_grad():
        loss = task.loss(student.eval(), images, targets, smoothing=0.1, step=0, rows=rows)
        pixels = images.double() * 0.5 + 0.1
        answers = timm.create_model(f"local-dir:{teacher}/model", pretrained=True).eval()
        t_logits = answers(((pixels - 0.3) / 0.35).float()).tolist()
        s_logits = student(images).tolist()
    total = 0.0
    for s, t, label in zip(s_logits, t_logits, targets.tolist(), strict=True):
        q = softmax(s, 1)
        labels = -sum((0.9 * (k == label) + 0.01) * math.log(q[k]) for k in range(10))
        if kind == "hard":
            other = -math.log(q[t.index(max(t))])
        else:
            pairs = zip(softmax(t, 2), softmax(s, 2), strict=True)
            other = 4 * sum(a * math.log(a / b) for a, b in pairs)
        total += 0.7 * labels + 0.3 * other
    assert float(loss) == pytest.approx(total, rel=1e-4)


def agreement(folder: Path, teacher: Path) -> float:
    models = [timm.create_model(f"local-dir:{place}/model", pretrained=True).eval() for place in (folder, teacher)]
    images = torch.cat([x for x, _ in ImageData(DIGITS, 0).test_batches()])
    with torch.no_grad():
        first, second = (model(images).argmax(1) for model in models)
    return float((first == second).float().mean())


def test_a_student_agrees_more_with_its_teacher_than_one_of_labels_alone(teacher, tmp_path):
    """After 192 steps; after 64 the student of hard labels has learned too little to agree with anybody."""
    steps = dataclasses.replace(config.train, epochs=12, lr=1e-2, ema=0.0, drop_path=0.0, checkpoint_seconds=60)
    data = dataclasses.replace(DIGITS, train_limit=512)
    labels = dataclasses.replace(config, data=data, train=steps)
    train(labels, tmp_path / "labels")
    found = {"labels": agreement(tmp_path / "labels", teacher)}
    for kind in ("hard", "soft"):
        distil = Distil(teacher=str(teacher), kind=kind, weight=0.9, temperature=2.0)
        train(dataclasses.replace(labels, distil=distil), tmp_path / kind)
        found[kind] = agreement(tmp_path / kind, teacher)
    assert min(found["hard"], found["soft"]) > found["labels"] + 0.05, found


def test_kept_answers_are_the_teachers(teacher, tmp_path):
    """Asked once or every time, under micro-batches too: the same training."""
    steps = dataclasses.replace(config.train, epochs=2, ema=0.0, accumulate=2, drop_path=0.0, checkpoint_seconds=60)
    run = dataclasses.replace(config, data=STILL, train=steps, distil=Distil(teacher=str(teacher), kind="soft"))
    train(run, tmp_path / "asked")
    kept = dataclasses.replace(run, distil=dataclasses.replace(run.distil, cache=True))
    train(kept, tmp_path / "kept")
    assert (tmp_path / "kept/teacher/logits.npy").exists() and not (tmp_path / "asked/teacher").exists()
    first, second = (timm.create_model(f"local-dir:{tmp_path}/{k}/model", pretrained=True) for k in ("asked", "kept"))
    for (name, a), b in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=name)


def test_asking_the_teacher_can_be_stopped(teacher, tmp_path, monkeypatch):
    """In groups of 50 of 128 images: one is asked before the stop, the others by the next process."""
    data, log, stop, seen = ImageData(STILL, 0), Log(None, speaks=False), Stop(), []
    asked = Teacher(Distil(teacher=str(teacher), cache=True), STILL, data.classes, ONE.device)
    answer = Teacher.__call__
    monkeypatch.setattr(Teacher, "__call__", lambda self, x: seen.append(len(x)) or answer(self, x))
    path, stop.asked = tmp_path / "logits.npy", True
    with pytest.raises(Interrupted, match="teacher: stopped after 50 of 128 images; the same command resumes there"):
        asked.keep(data, tmp_path, ONE, log, stop, batch=50)
    assert not path.exists()
    asked.keep(data, tmp_path, ONE, log, Stop(), batch=50)
    asked.keep(data, tmp_path, ONE, log, Stop(), batch=50)
    assert seen == [50, 50, 28] and [p.name for p in tmp_path.iterdir()] == [path.name]
    images = torch.cat([x for x, _ in data.train_groups([np.arange(128)])])
    torch.testing.assert_close(asked.kept, answer(asked, images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("damage", ["html", "other images", "pipe"])
def test_damaged_answers_are_said(teacher, tmp_path, damage):
    data, log, path = ImageData(STILL, 0), Log(None, speaks=False), tmp_path / "logits.npy"
    asked = Teacher(Distil(teacher=str(teacher), cache=True), STILL, data.classes, ONE.device)
    if damage == "other images":
        np.save(path, np.zeros((127, 10), np.float32))
    elif damage == "pipe":
        os.mkfifo(path)  # whoever opens it waits for ever
    else:
        path.write_bytes(b"<html>")
    with pytest.raises(ValueError, match="logits.npy is .*; remove it, and the teacher is asked again") as error:
        asked.keep(data, tmp_path, ONE, log, Stop())
    assert "\n" not in str(error.value)


def test_answers_are_not_kept_of_images_that_change(teacher):
    for change in ({"random_crop_pad": 1}, {"hflip": 0.5}, {"mixup": 0.2}, {"reprob": 0.1}, {"scale": (0.5, 1.0)}):
        data = dataclasses.replace(STILL, **change)
        with pytest.raises(ValueError, match=rf"distil.cache is true, but .*data\.{next(iter(change))}"):
            Teacher(Distil(teacher=str(teacher), cache=True), data, tuple("0123456789"), ONE.device)
    Teacher(Distil(teacher=str(teacher), cache=True), STILL, tuple("0123456789"), ONE.device)


def test_a_run_belongs_to_its_teacher(teacher, tmp_path):
    run = dataclasses.replace(config, distil=Distil(teacher=str(tmp_path / "copy")))
    model = timm.create_model(f"local-dir:{teacher}/model", pretrained=True)
    from s3zoo.artefact import save_model

    save_model(tmp_path / "copy", model)
    Training(run, tmp_path / "run", ONE, Log(None, speaks=False), Stop())
    with torch.no_grad():
        model.head.fc.bias.add_(0.01)
    save_model(tmp_path / "copy", model)
    with pytest.raises(ValueError, match="another teacher"):
        Training(run, tmp_path / "run", ONE, Log(None, speaks=False), Stop())


def test_a_teacher_of_other_classes_is_refused(teacher):
    with pytest.raises(ValueError, match="has 10 classes and reads 1 channels, but the data has 2 classes and 3 chann"):
        Teacher(Distil(teacher=str(teacher)), dataclasses.replace(STILL, in_chans=3), ("a", "b"), ONE.device)
    with pytest.raises(ValueError, match="in another order"):
        Teacher(Distil(teacher=str(teacher)), STILL, tuple("1023456789"), ONE.device)
    with pytest.raises(ValueError, match=r"has other classes than the data.*\(0, 1, 2, … and not a, b, c, …\)"):
        Teacher(Distil(teacher=str(teacher)), STILL, tuple("abcdefghij"), ONE.device)
