"""A run: train, evaluate, export. Resumed by the same command, bit for bit on a CPU."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s3zoo.files import read_json, write_json
from s3zoo.training.distributed import Ranks, mixed_precision
from s3zoo.training.folder import check_folder, claim_folder
from s3zoo.training.images import normalised
from s3zoo.training.log import Log
from s3zoo.training.loop import ModelTask, Stop, fit, seed_from
from s3zoo.training.splits import hashed
from s3zoo.transfer.vqa import metric, model
from s3zoo.transfer.vqa.config import VqaData, VqaRun
from s3zoo.transfer.vqa.data import (
    Images,
    VqaSplit,
    VqaTrainData,
    answer_vocabulary,
    fingerprint,
    joined,
    limited,
    read_split,
)
from s3zoo.transfer.vqa.model import VqaModel, Words, make_model


class VqaTask(ModelTask):
    """Binary cross-entropy against soft targets: summed over answers, mean over the questions of an image."""

    def __init__(self, network: VqaModel, backbone_lr_scale: float, matching: float) -> None:
        scales = {n: backbone_lr_scale for n, _ in network.named_parameters() if n.startswith("backbone.")}
        super().__init__(network, lr_scale=scales)
        self.matching = matching

    def loss(
        self, model: nn.Module, inputs: dict[str, Tensor], targets: Tensor, *, smoothing: float, step: int, rows: Tensor
    ) -> Tensor:
        assert isinstance(model, VqaModel)
        matched = inputs["matched"].float()  # (B, questions)
        output = model(inputs["images"], inputs["ids"], inputs["mask"], dropout_stream=int(rows[0]))
        logits, match_logits = output if self.matching else (output, None)
        losses = F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none").sum(-1)
        loss = (losses * matched / matched.sum(1, keepdim=True)).sum()
        if match_logits is not None:
            belongs = F.binary_cross_entropy_with_logits(match_logits.float(), matched, reduction="none")
            loss = loss + self.matching * belongs.mean(1).sum()
        return loss


class VqaTraining:
    """One run in its folder."""

    def __init__(self, run: VqaRun, folder: Path, ranks: Ranks, log: Log, stop: Stop) -> None:
        self.run, self.folder, self.ranks, self.log, self.stop = run, folder, ranks, log, stop
        torch.set_num_threads(run.threads)
        data = run.data
        names = dict.fromkeys([*data.train_splits, *data.vocabulary_splits])
        splits = {name: read_split(data, name) for name in names}
        self.test = read_split(data, data.val_split) if data.val_split else None
        used = splits if self.test is None else splits | {data.val_split: self.test}
        unanswered = [name for name, split in used.items() if not split.questions[0].answers]
        if unanswered:
            raise ValueError(f"The split {unanswered[0]!r} has no answers; train on and evaluate with train and val.")
        everything = itertools.chain.from_iterable(splits[name].questions for name in data.vocabulary_splits)
        self.answers = answer_vocabulary(everything, data.min_occurrences)
        self.split = limited(joined([splits[name] for name in data.train_splits]), data.train_limit)
        identity = {"data": fingerprint(self.split, self.answers)}
        self.name = check_folder(folder, run, **identity)
        claim_folder(folder, run, ranks, **identity)

    def __call__(self) -> dict[str, Any]:
        """Train to the end, write the model, evaluate it; the result as in result.json."""
        run, path = self.run, self.folder / "result.json"
        if path.exists():
            self.log.say(f"This run is finished; its result is in {path}")
            return read_json(path, {"name": str, "seed": int})
        torch.manual_seed(seed_from(run.seed, "init"))
        texts = (question.text for question in self.split.questions)
        network, words = make_model(
            run.model, texts, len(self.answers), run.data.img_size, run.data.max_tokens, run.train.drop_path
        )
        network.to(self.ranks.device)
        data = VqaTrainData(
            self.split, run.data, words, self.answers, run.seed, swap=run.model.matching > 0, rank=self.ranks.rank,
            world=self.ranks.world,
        )  # fmt: skip
        size = sum(p.numel() for p in network.parameters())
        self.log.say(
            f"{run.name}: {len(self.split.questions):,} questions on {len(self.split.by_image):,} images,"
            f" {len(self.answers):,} answers, {size / 1e6:.2f}M parameters"
        )
        task = VqaTask(network, run.backbone_lr_scale, run.model.matching)
        clock = time.process_time()
        fit(
            task, run.train, data, seed=run.seed, ranks=self.ranks, folder=self.folder / "train", log=self.log,
            name=run.name, stop=self.stop, amp=mixed_precision(run.amp, self.ranks.device),
            run=self.name,
        )  # fmt: skip
        cpu = time.process_time() - clock  # of this process since it was last started
        result: dict[str, Any] = {"name": run.name, "seed": run.seed, "params": size, "cpu_seconds": round(cpu, 1)}
        if self.test is not None:
            answers = predict(network, words, self.answers, self.test, run.data, self.ranks)
            result["scores"] = metric.scores(answers, self.test.humans)
            self.log.say(f"{run.name}: {run.data.val_split}: {scores_line(result['scores'])}")
        if self.ranks.first:
            kept = {key: getattr(run.data, key) for key in ("img_size", "max_tokens", "mean", "std", "interpolation")}
            begun = read_json(self.folder / "run.json")
            origin = {"config": run.name, "seed": run.seed, "data": run.data.name, "splits": run.data.train_splits}
            origin |= {"fingerprint": begun["data"], "versions": begun["versions"], "commit": begun["commit"]}
            bert = Path(run.model.bert).name if Path(run.model.bert).is_dir() else run.model.bert
            origin |= {"scores": result.get("scores"), "val_split": run.data.val_split, "bert": bert}
            model.save(self.folder / "model", network, words, self.answers, run.model, kept, origin)
            write_json(path, result)
            self.log.say(f"{run.name}: the model is in {self.folder / 'model'}")
        self.ranks.wait()
        return result


# Evaluation


def scores_line(scores: dict[str, Any]) -> str:
    kinds = ", ".join(f"{kind} {value:.2f}" for kind, value in scores["by_type"].items())
    return f"{scores['overall']:.2f} % of {scores['questions']:,} questions ({kinds})"


def donors(images: Sequence[int], control: str) -> dict[int, int]:
    """Which image is shown for which: itself or, where images are shuffled, another one."""
    if control != "shuffle":
        return {image: image for image in images}
    if len(images) < 2:
        raise ValueError("Images can be shuffled only where there are two or more.")
    order = [images[i] for i in np.argsort(hashed(0, np.arange(len(images))), kind="stable")]
    return dict(zip(order, order[1:] + order[:1], strict=True))


@torch.no_grad()
def predict(
    network: VqaModel, words: Words, answers: Sequence[str], split: VqaSplit, config: VqaData, ranks: Ranks, *,
    control: str = "", batch_size: int = 32,
) -> dict[int, str]:  # fmt: skip
    """The likeliest answer to every question; each image is encoded once.

    Args:
        control: "blank" shows an image of the mean colour, "shuffle" that of another question.
    """
    network.eval()
    images = Images(split.images, config)
    shown = donors(list(split.by_image), control)
    own: list[tuple[int, str]] = []
    for part in _parts(ranks.share(list(split.by_image.items())), batch_size):
        pixels = normalised(np.stack([images[shown[image]] for image, _ in part]), config)  # type: ignore[arg-type]
        visual = network.encode_images((torch.zeros_like(pixels) if control == "blank" else pixels).to(ranks.device))
        places = np.concatenate([places for _, places in part])
        row = torch.repeat_interleave(torch.arange(len(part)), torch.tensor([len(places) for _, places in part]))
        questions = [split.questions[place] for place in places]
        ids, mask = words([question.text for question in questions], config.max_tokens)
        for some in torch.arange(len(questions)).split(8 * batch_size):
            where = row[some].to(ranks.device)
            logits = network.answer(visual[where], ids[some].to(ranks.device), mask[some].to(ranks.device))
            for place, label in zip(some.tolist(), logits.argmax(1).tolist(), strict=True):
                own.append((questions[place].question_id, answers[label]))
    return dict(itertools.chain.from_iterable(ranks.gather([own])))


def _parts(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


@torch.no_grad()
def ask(
    network: VqaModel, words: Words, answers: Sequence[str], pixels: np.ndarray, question: str, config: VqaData,
    top: int = 5,
) -> list[tuple[str, float]]:  # fmt: skip
    """The likeliest answers with the probability that a human gives each (answers are judged one by one)."""
    network.eval()
    visual = network.encode_images(normalised(pixels[None], config))  # type: ignore[arg-type]
    ids, mask = words([question], config.max_tokens)
    best = network.answer(visual, ids, mask)[0].sigmoid().topk(min(top, len(answers)))
    return [(answers[i], p) for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
