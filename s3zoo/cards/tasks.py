"""Cards of detectors, segmenters and models that answer questions, from the `config.json` of their folders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from huggingface_hub import ModelCardData

from s3zoo.cards import named, sample, table

TASKS = {
    "mmdet": ("object-detection", "A detector of mmdet", "predict_mm FOLDER IMAGE --out pictures"),
    "mmseg": ("image-segmentation", "A segmenter of mmseg", "predict_mm FOLDER IMAGE --out pictures"),
    "vqa": (
        "visual-question-answering",
        "A model that answers questions about images",
        "vqa ask FOLDER IMAGE QUESTION",
    ),
}


def task_of(config: dict[str, Any]) -> str:
    """Of the config of a folder: mmdet, mmseg or vqa."""
    return config["config"]["default_scope"] if "config" in config else "vqa"


def title_of(config: dict[str, Any], repo_id: str | None = None) -> str:
    made = config["s3zoo"].get("provenance", {}).get("config") or task_of(config)
    return config["s3zoo"].get("title") or (repo_id.rpartition("/")[2] if repo_id else made)


def render(config: dict[str, Any], classes: Sequence[str], repo_id: str | None = None) -> str:
    """README.md of a folder; `classes` are what a model tells apart, or its answers to questions."""
    ours, task = config["s3zoo"], task_of(config)
    tag, what, command = TASKS[task]
    origin = ours.get("provenance") or {}
    if task == "vqa":
        words = config["bert"]["num_hidden_layers"]
        parts = f"backbone {config['backbone']['architecture']}, BERT with {words} layers"
    else:
        network = config["config"]["model"]
        parts = f"{network['type']}, backbone {network['backbone'].get('model', network['backbone']['type'])}"
    sizes = [("Parts", parts), ("Parameters", f"{ours['params']:,}" if "params" in ours else "")]
    sizes += [("Answers" if task == "vqa" else "Classes", named(len(classes), classes))]
    sizes += [(f"sha256 of {name}", f"`{value}`") for name, value in ours["sha256"].items() if value]
    scores = origin.get("scores" if task == "vqa" else "metrics") or {}
    if task == "vqa" and scores:
        by_type = {f"accuracy (%), {kind}": value for kind, value in scores["by_type"].items()}
        scores = {"accuracy (%)": scores["overall"], **by_type}
    where = origin.get("val_split", "the validation images")
    measured = table("Measured", f"By the run that made these weights, on {where}.", ("Metric", "Value"),
                     [(name, f"{value:.4g}") for name, value in scores.items()])  # fmt: skip
    rows = [
        (name, str(value)) for name, value in origin.items() if isinstance(value, str | int | float) and value != ""
    ]
    get = f"hf download {repo_id} --local-dir FOLDER\n" if repo_id else ""
    use = f"## Use\n\n```sh\npip install 's3zoo[{'vqa' if task == 'vqa' else 'mm'}]'\n{get}s3zoo {command}\n```"
    if task != "vqa":
        door = "mmdet.apis.DetInferencer" if task == "mmdet" else "mmseg.apis.MMSegInferencer"
        use += f'\n\n`{door}("FOLDER/config.py", "FOLDER/model.safetensors")` opens it, too, and runs `config.py`.'
    licence = ours.get("license")
    data = {"library_name": "s3zoo", "pipeline_tag": tag, "tags": ["s3zoo", tag, *([task] if task != "vqa" else [])]}
    metadata = ModelCardData(**data, **({"license": licence} if licence else {}))  # type: ignore[arg-type]
    sections = [
        f"# {title_of(config, repo_id)}\n\n{what}, trained with s3zoo {ours.get('version', '')}.",
        table("Size", "", ("", ""), [row for row in sizes if row[1]]),
        measured,
        sample(ours.get("sample")),
        table("How it was trained", "", ("", ""), rows),
        use,
        f"## Licence\n\nWeights: {licence or 'no licence given'}. The code of s3zoo: apache-2.0.",
    ]
    return f"---\n{metadata.to_yaml()}\n---\n\n" + "\n\n".join(filter(None, sections)) + "\n"
