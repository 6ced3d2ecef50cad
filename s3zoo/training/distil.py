"""Distillation: a network that learns a teacher's answers beside the labels.

Of timm.task, `DistillationTeacher` is used: a network in evaluation mode that sees images in its own normalisation.
timm's task around it is not: it has no hard labels for networks without a distillation token, takes means over its own
batch where the loop sums over micro-batches and ranks, and asks the teacher anew each time.

With logits s and t of student and teacher, label y, weight w and temperature T, a sample's loss is
    hard   (1 - w) CE(s, y) + w CE(s, argmax t)                                  DeiT eq. 3, AutoFormer 4.4
    soft   (1 - w) CE(s, y) + w T² KL(softmax(t / T) || softmax(s / T))          DeiT eq. 2
Label smoothing is for the labels alone. After Mixup the teacher sees the mixed image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from timm.task import DistillationTeacher
from torch import Tensor, nn

from s3zoo.models.open import digest, label_names, open_model
from s3zoo.training.config import Data, Distil
from s3zoo.training.data import ImageData
from s3zoo.training.distributed import Ranks
from s3zoo.training.features import check_not_augmented
from s3zoo.training.log import Log
from s3zoo.training.loop import Inputs, ModelTask, Stop, cross_entropy
from s3zoo.training.resumable import fill_arrays, open_array, row_groups


def distil_loss(student: Tensor, teacher: Tensor, kind: str, temperature: float) -> Tensor:
    """The teacher's part, summed over samples."""
    if kind == "hard":
        return F.cross_entropy(student, teacher.argmax(1), reduction="sum")
    log_s, log_t = F.log_softmax(student / temperature, 1), F.log_softmax(teacher / temperature, 1)
    return F.kl_div(log_s, log_t, reduction="sum", log_target=True) * temperature**2


class Teacher:
    """The network that is asked, or what it said of every training image."""

    def __init__(self, config: Distil, data: Data, classes: Sequence[str], device: torch.device) -> None:
        if config.cache:
            check_not_augmented(data, "distil.cache is true", "the teacher's answers", "distil.cache=false")
        model = open_model(config.teacher, img_size=data.img_size)
        chans = getattr(model, "in_chans", None) or model.pretrained_cfg["input_size"][0]
        names = label_names(model)
        if (model.num_classes, chans) != (len(classes), data.in_chans):
            raise ValueError(
                f"The teacher {config.teacher} has {model.num_classes} classes and reads {chans} channels, but the data"
                f" has {len(classes)} classes and {data.in_chans} channels; give a teacher that was trained on such"
                " data."
            )
        # Names that timm infers (ImageNet's synsets) may be written otherwise in the data; recorded ones must be these.
        recorded = bool(model.pretrained_cfg.get("label_names"))
        if names is not None and names != list(classes) and (recorded or sorted(names) == sorted(classes)):
            raise ValueError(
                f"The teacher {config.teacher} has other classes than the data, or has them in another order"
                f" ({', '.join(names[:3])}, … and not {', '.join(classes[:3])}, …); give a teacher that was trained on"
                " such data."
            )
        self.config = config
        self.classes = len(classes)
        self.identity = {"name": config.teacher, "sha256": digest(model)}
        self.net = DistillationTeacher(model.to(device).requires_grad_(False), device=device)
        shape = (1, -1, 1, 1)
        self.mean, self.std = (torch.tensor(v, device=device).view(shape) for v in (data.mean, data.std))
        self.kept: Tensor | None = None

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        return self.net(self.net.normalize_input(images, self.mean, self.std)).float()

    def keep(self, data: ImageData, folder: Path, ranks: Ranks, log: Log, stop: Stop, *, batch: int = 64) -> None:
        """Ask about every training image once; the answers are `logits.npy` in a folder of the run."""
        path, column = folder / "logits.npy", ("<f4", (data.train_size, self.classes))
        if not ranks.from_first(path.exists()):
            log.say("teacher: asking it about every training image, once")
            meter = log.progress("teacher", data.train_size)

            def answered(own: list[range]) -> Iterator[dict[str, np.ndarray]]:
                for images, _ in data.train_groups([np.arange(group.start, group.stop) for group in own]):
                    yield {"logits": self(images.to(ranks.device)).cpu().numpy()}

            if ranks.first:
                folder.mkdir(parents=True, exist_ok=True)
            groups = row_groups(data.train_size, batch)
            fill_arrays(folder, {"logits": column}, groups, answered, ranks, stop, name="teacher", meter=meter)
            log.close_progress()
        answers = open_array(path, column, "remove it, and the teacher is asked again")
        self.kept = torch.from_numpy(np.array(answers))


class Student(ModelTask):
    """A model with a teacher."""

    def __init__(self, model: nn.Module, teacher: Teacher, data: ImageData, batch_size: int, **options: Any) -> None:
        super().__init__(model, **options)
        self.teacher, self.data, self.batch_size = teacher, data, batch_size
        self._order: tuple[int, Any] = (-1, None)

    def loss(
        self, model: nn.Module, inputs: Inputs, targets: Tensor, *, smoothing: float, step: int, rows: Tensor
    ) -> Tensor:
        config = self.teacher.config
        answers = self.teacher(inputs) if self.teacher.kept is None else self._kept(step, rows).to(inputs.device)
        logits = model(inputs).float()
        labels = cross_entropy(logits, targets, smoothing)
        return (1 - config.weight) * labels + config.weight * distil_loss(
            logits, answers, config.kind, config.temperature
        )

    def _kept(self, step: int, rows: Tensor) -> Tensor:
        """What the teacher said of the images at these places of the step's batch."""
        assert self.teacher.kept is not None
        epoch, batch = divmod(step, self.data.train_size // self.batch_size)
        if self._order[0] != epoch:
            positions, places = self.data.batch_positions(epoch, self.batch_size)
            number = {int(row): k for k, row in enumerate(places)}
            self._order = epoch, (positions, number)
        positions, number = self._order[1]
        return self.teacher.kept[torch.from_numpy(positions[batch][[number[int(row)] for row in rows]])]
