"""One network trained, finetuned, probed or distilled, in a folder that resumes.

    run.json        config as resolved, fingerprints of data, first weights and teacher; versions, commit
    clock.json      how many seconds it took, without pauses
    train/          checkpoints and epochs.jsonl
    teacher/        where distil.cache is set: logits.npy, what the teacher said of every training image
    test.json       how many test images it gets right
    unreadable-0.jsonl    images that could not be read, if there are any
    model/          the network: model.safetensors and config.json
    result.json     accuracy on the test images, opened once; written last
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.models import group_parameters
from timm.models._hub import save_for_hf
from torch import nn

from s3zoo.artefact import save_model
from s3zoo.files import read_json, write_json
from s3zoo.models.open import digest, model_with, open_model, reset_head, seen
from s3zoo.training.accuracy import hits, resumable_accuracy
from s3zoo.training.clock import Clock
from s3zoo.training.config import Data, TrainRun
from s3zoo.training.data import ImageData
from s3zoo.training.distil import Student, Teacher
from s3zoo.training.distributed import Ranks, mixed_precision
from s3zoo.training.folder import check_folder, claim_folder
from s3zoo.training.log import Log
from s3zoo.training.loop import ModelTask, Stop, check, fit, layer_scales, seed_from
from s3zoo.training.provenance import provenance


class Training:
    """One run in its folder."""

    def __init__(
        self, run: TrainRun, folder: Path, ranks: Ranks, log: Log, stop: Stop, *, check_data: bool = False
    ) -> None:
        self.folder, self.ranks, self.log, self.stop = folder, ranks, log, stop
        torch.set_num_threads(run.threads)
        self.amp = mixed_precision(run.amp, ranks.device, run.amp_dtype)
        data = resolved(run)
        self.data = ImageData(
            data, run.seed, rank=ranks.rank, world=ranks.world, say=log.say, folder=folder, device=ranks.device
        )
        self.data.check_splits(check_data)
        check(run.train, self.data, ranks)  # says at once what cannot be
        # From here on the config says everything, so that what the model says of itself may change later.
        self.run = dataclasses.replace(run, data=dataclasses.replace(data, num_classes=self.data.num_classes))
        if (folder / "result.json").exists() and (folder / "run.json").exists():
            check_folder(folder, self.run, data=self.data.fingerprint)
            return
        self.model, self.new_head = self._first()
        identity: dict[str, Any] = {"data": self.data.fingerprint, "start": digest(self.model)}
        self.model.to(ranks.device)
        self.teacher = None
        if self.run.distil.teacher:
            self.teacher = Teacher(self.run.distil, self.run.data, self.data.classes, ranks.device)
            identity["teacher"] = self.teacher.identity
        self.name = check_folder(folder, self.run, **identity)
        claim_folder(folder, self.run, ranks, **identity)
        self.clock = Clock(folder, write=ranks.first, run=self.name)

    def _first(self) -> tuple[Any, bool]:
        """The network before the first step; whether its classifier is new."""
        run, data = self.run, self.run.data
        options: dict[str, Any] = {
            "num_classes": self.data.num_classes,
            "img_size": data.img_size,
            "drop_path_rate": run.train.drop_path,
            **({"in_chans": data.in_chans} if data.in_chans != 3 else {}),
            **run.model_args,
        }
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_from(run.seed, "init"))
            if run.mode == "scratch":
                return open_model(run.model, pretrained=False, **options), True
            model = model_with(run.model, run.weights, **options) if run.weights else open_model(run.model, **options)
            new = reset_head(model, self.data.classes)
        return model, new or model.pretrained_cfg.get("num_classes") != self.data.num_classes

    # What is trained

    def _task(self) -> ModelTask:
        run, model = self.run, self.model
        frozen: list[nn.Module] = []
        if run.mode == "probe":
            classifier = {id(p) for p in model.get_classifier().parameters()}
            frozen = [model]
            for parameter in model.parameters():
                parameter.requires_grad_(id(parameter) in classifier)
        elif run.freeze:
            frozen = freeze(model, run.freeze)
        if run.compile:
            model.compile()
        options: dict[str, Any] = {"frozen": frozen}
        if run.layer_decay < 1 and run.mode != "probe":
            options["lr_scale"] = layer_scales(model, run.layer_decay)
        if self.teacher is None:
            return ModelTask(model, **options)
        return Student(model, self.teacher, self.data, run.train.batch_size, **options)

    def __call__(self) -> dict[str, Any]:
        path = self.folder / "result.json"
        if path.exists():
            self.log.say(f"This run is finished; its result is in {path}")
            return read_json(path, {"name": str, "seed": int})
        self.log.clock = self.clock
        with self.clock.phase("train"):
            return self._train()

    def _train(self) -> dict[str, Any]:
        run, model = self.run, self.model
        if self.teacher is not None and run.distil.cache:
            self.teacher.keep(self.data, self.folder / "teacher", self.ranks, self.log, self.stop)
        task = self._task()
        weights = sum(p.numel() for p in task.weights.values())
        total = sum(p.numel() for p in model.parameters())
        head = "new" if self.new_head else "kept"
        self.log.say(
            f"{run.mode} {run.model}: {weights:,} of {total:,} weights are trained, classifier {head}, on"
            f" {self.data.train_size:,} images of {self.data.num_classes} classes at"
            f" {run.data.img_size} x {run.data.img_size}"
            + (f"; teacher {run.distil.teacher} ({run.distil.kind})" if self.teacher else "")
        )
        fit(
            task, run.train, self.data, seed=run.seed, ranks=self.ranks, folder=self.folder / "train", log=self.log,
            name=run.mode, stop=self.stop, amp=self.amp, at_epoch_end=self._held_out if run.data.holdout else None,
            run=self.name,
        )  # fmt: skip
        return self._conclude()

    def _held_out(self, epoch: int | None = None) -> dict[str, float]:
        """Accuracy on the held-out images, shared by the ranks."""
        self.model.eval()
        places = np.arange(self.data.search_size)[self.ranks.rank :: self.ranks.world]
        right = torch.zeros(1, device=self.ranks.device)
        for part in np.array_split(places, max(1, -(-len(places) // 256))):
            right += hits(self.model, *self.data.search_at(part), self.ranks.device).sum()
        self.ranks.sum(right)
        return {"held_out": 100 * float(right) / self.data.search_size}

    # The end

    def _conclude(self) -> dict[str, Any]:
        run, model, folder = self.run, self.model, self.folder / "model"
        measured: dict[str, dict[str, float]] = {}
        if run.data.holdout:
            measured["held-out"] = {"top1": self._held_out()["held_out"], "images": self.data.search_size}
        test = resumable_accuracy(
            self.folder / "test.json", model, self.data.test_batches, self.ranks, self.stop, run=self.name
        )  # fmt: skip
        measured["test"] = test
        params = sum(p.numel() for p in model.parameters())
        self.log.say(
            f"{run.mode} {run.model}: {test['top1']:.2f} % of {test['images']} test images ({test['low']:.2f} to"
            f" {test['high']:.2f}), {params / 1e6:.3g}M parameters; in {folder}"
        )
        result = {key: getattr(run, key) for key in ("name", "seed", "model", "mode")} | {"params": params, **measured}
        self.ranks.wait()  # all have listed what they could not read
        result |= self.data.lost()
        if self.ranks.first:
            self.clock.save()
            record = provenance("train", run, self.folder, self.ranks, metrics=dict(reversed(measured.items())))
            begun = read_json(self.folder / "run.json")
            record |= {"mode": run.mode}
            # The licence of the weights is for whoever publishes them to say; the tag is that of other weights.
            licence = model.pretrained_cfg.pop("license", None)
            model.pretrained_cfg.pop("tag", None)
            if run.mode != "scratch":
                base = {"name": _last_name(run.weights or run.model), "sha256": begun["start"], "license": licence}
                record["base"] = base
            if self.teacher is not None:
                record["teacher"] = begun["teacher"] | {"name": _last_name(run.distil.teacher), "kind": run.distil.kind}
            self._save(folder, record)
            write_json(self.folder / "result.json", result | {"run": self.name})
        self.ranks.wait()
        return result

    def _save(self, folder: Path, record: dict[str, Any]) -> None:
        data, model = self.run.data, self.model
        fields: dict[str, Any] = {key: getattr(data, key) for key in ("mean", "std", "interpolation", "crop_pct")}
        fields["label_names"] = list(self.data.classes)
        if hasattr(model, "arch"):
            save_model(folder, model, provenance=record, pretrained_cfg=fields)
            return
        # A network that is timm's own, in timm's own layout.
        args = dict(self.run.model_args)
        fields |= {"input_size": (data.in_chans, data.img_size, data.img_size), "num_classes": model.num_classes}
        if data.in_chans != 3:
            args["in_chans"] = data.in_chans
            fields["first_conv"] = None
        if getattr(getattr(model, "patch_embed", None), "img_size", None) is not None:  # built for one size
            args.setdefault("img_size", data.img_size)
        model.pretrained_cfg |= fields
        for key in ("test_input_size", "test_crop_pct", "label_descriptions"):
            model.pretrained_cfg.pop(key, None)
        save_for_hf(model, str(folder), {"s3zoo": {"provenance": record}}, args, safe_serialization=True)


def resolved(run: TrainRun) -> Data:
    """The data config with the model's own preprocessing where nothing was said."""
    data = run.data
    if data.classes:
        data = dataclasses.replace(data, num_classes=len(data.classes))
    keys = ("img_size", "in_chans", "mean", "std", "interpolation", "crop_pct")
    if blank := [key for key in keys if not getattr(data, key)]:
        own = seen(run.model)
        own["in_chans"], own["img_size"], _ = own["input_size"]
        own["interpolation"] = own["interpolation"].replace("random", "bicubic")
        data = dataclasses.replace(data, **{key: own[key] for key in blank})
    return data


def freeze(model: Any, parts: int) -> list[nn.Module]:
    """Freeze parts from the input on, as timm groups them; the modules to keep in evaluation mode."""
    groups = group_parameters(model, model.group_matcher(coarse=True), reverse=False)
    if not 0 < parts < len(groups):
        raise ValueError(
            f"freeze is {parts}, but {type(model).__name__} has {len(groups)} parts, of which the last must stay free;"
            f" use 0 to {len(groups) - 1}, or mode=probe."
        )
    frozen = {name for group in sorted(groups)[:parts] for name in groups[group]}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return [
        module
        for module in model.modules()
        if (own := list(module.parameters())) and not any(p.requires_grad for p in own)
    ]


def _last_name(spec: str) -> str:
    """Of a folder or file its last name: the record names no place on this machine."""
    path = Path(spec.removeprefix("local-dir:")).expanduser()
    return path.resolve().name if path.exists() else spec
