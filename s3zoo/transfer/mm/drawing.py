"""What a detector or segmenter finds on an image: a picture with boxes, masks or segments, and plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, VISUALIZERS
from pycocotools.mask import encode
from torch import Tensor

from s3zoo.images import read_image
from s3zoo.models.loading import load_weights
from s3zoo.transfer.mm.config import classes_of, first_label, register, without_pretrained


class Predictor:
    """A model with its weights, that takes an image file, draws on it, and tells what it drew.

    Args:
        source: what the weights are called in an error message.
        threshold: least score of a detected object.
    """

    def __init__(
        self, cfg: Config, weights: Mapping[str, Tensor], source: str, device: str = "cpu", threshold: float = 0.3
    ) -> None:
        register(cfg)
        cfg = cfg.copy()
        without_pretrained(cfg)
        self.threshold = threshold
        model = revert_sync_batchnorm(MODELS.build(cfg.model))
        load_weights(model, weights, source)
        self.model = model.to(device).eval()
        meta = classes_of(cfg.test_dataloader.dataset)
        self.classes = meta["classes"]
        self.first = first_label(cfg.test_dataloader.dataset)
        steps = [step for step in cfg.test_dataloader.dataset.pipeline if not step.type.endswith("LoadAnnotations")]
        self.pipeline = Compose(steps)
        self.visualizer = VISUALIZERS.build({**cfg.visualizer, "vis_backends": None, "name": f"predict-{id(self)}"})
        self.visualizer.dataset_meta = meta
        self.names: set[str] = set()

    def __call__(self, image: Path, folder: Path) -> dict[str, Any]:
        """Write the picture into `folder`; boxes are [x1, y1, x2, y2] in pixels, masks are COCO's run lengths."""
        read_image(image, "RGB")  # what is none is refused here: OpenCV's decoders print, or fail an assertion
        pixels = mmcv.imread(str(image))
        if pixels is None:
            raise ValueError(f"{str(image)!r} is not an image that OpenCV can read; leave it out.")
        pixels = mmcv.bgr2rgb(pixels)
        with torch.no_grad():
            batch = pseudo_collate([self.pipeline({"img_path": str(image), "img_id": 0})])
            found = self.model.test_step(batch)[0].cpu()
        if "pred_sem_seg" in found:
            found = found.numpy()  # a tensor of one pixel would be an index to mmseg's drawing
        folder.mkdir(parents=True, exist_ok=True)
        name = image.stem
        while name in self.names:  # an image of the same name from another folder
            name += "_"
        self.names.add(name)
        extra = {"pred_score_thr": self.threshold} if "pred_instances" in found else {}
        picture = folder / f"{name}_drawn.png"
        self.visualizer.add_datasample(name, pixels, found, draw_gt=False, out_file=str(picture), **extra)
        row = {"image": str(image), "height": pixels.shape[0], "width": pixels.shape[1], "picture": picture.name}
        if "pred_instances" in found:
            return {**row, "objects": self._objects(found.pred_instances)}
        labels = found.pred_sem_seg.data[0] + self.first
        labels = labels.astype(np.uint8 if len(self.classes) + self.first <= 256 else np.uint16)
        mmcv.imwrite(labels, str(folder / f"{name}_labels.png"))
        return {**row, "labels": f"{name}_labels.png", "segments": self._segments(labels)}

    def _objects(self, found: Any) -> list[dict[str, Any]]:
        found = found[found.scores >= self.threshold]
        rows = []
        for i in range(len(found)):
            label = int(found.labels[i])
            row: dict[str, Any] = {
                "class": self.classes[label],
                "label": label,
                "score": round(float(found.scores[i]), 4),
                "box": [round(float(v), 2) for v in found.bboxes[i]],
            }
            if "masks" in found:
                runs = encode(np.asfortranarray(found.masks[i].numpy().astype(np.uint8)))
                row["mask"] = {"size": runs["size"], "counts": runs["counts"].decode("ascii")}
            rows.append(row)
        return rows

    def _segments(self, labels: np.ndarray) -> list[dict[str, Any]]:
        """The classes in the image by the share of its pixels."""
        which, pixels = np.unique(labels, return_counts=True)
        rows = [
            {"class": self.classes[label - self.first], "label": int(label), "share": round(float(n / labels.size), 4)}
            for label, n in zip(which, pixels, strict=True)
        ]
        return sorted(rows, key=lambda row: -row["share"])
