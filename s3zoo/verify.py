"""`s3zoo verify MODEL… --data DATA`: whether weights have the accuracy that their card promises.

What the card names is downloaded, evaluated as by `s3zoo evaluate`, and compared with the card's top-1, the paper's or
a measured one.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from s3zoo.cards.facts import Facts, registered, registered_names, weights_source
from s3zoo.evaluate import add_options, check_options, chosen_split, score
from s3zoo.models.open import described, digest, open_model, source
from s3zoo.training.distributed import start
from s3zoo.training.splits import Split

TOLERANCE = 0.2  # per cent of images: papers round to 0.1, and decoders and resizing differ a little
IMAGES = {"ImageNet-1k": 50_000}  # of the whole test set, where a folder may hold a part


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo verify",
        description="Compare the accuracy of published weights with the one on their card; 0: they pass, 1: they fail.",
        epilog="example: s3zoo verify s3_tiny s3_small s3_base --data /path/to/imagenet --workers 8",
    )
    add = parser.add_argument
    add("models", metavar="MODEL", nargs="+", help="name of the zoo, hf-hub:…, or a folder with a model or a run")
    add_options(parser, limit="only N images: the 95 %% interval must hold the figure", required=True)
    add(
        "--tolerance", type=float, default=TOLERANCE, help=f"how far top-1 may be off, in points (default: {TOLERANCE})"
    )
    add("--json", action="store_true", help="a JSON list instead of sentences")
    arguments = parser.parse_args(argv)
    check_options(arguments)
    if not 0 <= arguments.tolerance <= 100:
        raise ValueError(f"--tolerance is {arguments.tolerance}, but must be from 0 to 100 points.")
    promised = {spec: promise(spec) for spec in arguments.models}
    device = start(arguments.device).device
    split = chosen_split(arguments)
    rows = []
    for spec, figure in promised.items():
        model = open_model(spec).to(device).eval()
        row = score(model, spec, split, device, arguments.batch_size, arguments.workers, arguments.limit)
        rows.append(
            {"model": spec, "sha256": digest(model), **figure, **compare(row, figure, split, arguments.tolerance)}
        )
        if not arguments.json:
            print(sentence(rows[-1]), flush=True)
    if arguments.json:
        print(json.dumps(rows, indent=1))
    return 0 if all(row["pass"] for row in rows) else 1


def promise(spec: str) -> dict[str, Any]:
    """What the card of a model says of its weights, before anything is downloaded but the card."""
    name = spec.partition(".")[0]
    if name in registered_names():
        config = registered(name)
    else:
        config = described(source(spec))
        if "s3zoo" not in config:
            raise ValueError(
                f"{spec} is no model of this zoo, so it has no card with a figure; `s3zoo evaluate` measures."
            )
    facts = Facts(config)
    if not facts.has_weights:
        raise ValueError(
            f"The weights of {spec} cannot be downloaded ({weights_source(facts.cfg)}); where the authors have a file, "
            "turn it into a folder with `s3zoo convert` and verify that."
        )
    found = facts.accuracy()
    if found is None:
        raise ValueError(f"The card of {spec} has no top-1 to compare with; `s3zoo evaluate` measures it.")
    measured = [m for m in facts.metrics if m["value"] == found["value"] and m["split"] == "test"]
    images = measured[0].get("images") if measured else IMAGES.get(found["dataset"])
    return {"card": found["value"], "dataset": found["dataset"], "whose": found["whose"], "card_images": images}


def compare(row: dict[str, Any], figure: dict[str, Any], split: Split, tolerance: float) -> dict[str, Any]:
    """Whether a measured row is what the card says: within the tolerance on all images; of a part of them, the 95 %
    interval must come that near."""
    whole = row["images"] == (figure["card_images"] or len(split))
    low, high = (row["top1"], row["top1"]) if whole else (row["top1_low"], row["top1_high"])
    passed = low - tolerance <= figure["card"] <= high + tolerance
    kept = {key: row[key] for key in ("top1", "top1_low", "top1_high", "images", "unreadable")}
    return kept | {"whole": whole, "tolerance": tolerance, "pass": passed}


def sentence(row: dict[str, Any]) -> str:
    """What was found, in one line."""
    how = f"{row['tolerance']:g} points are allowed"
    if not row["whole"]:
        count = f" of {row['card_images']:,}" if row["card_images"] else ""
        how = f"of {row['images']:,}{count} images, so the interval decides"
    return (
        f"{row['model']}: {'pass' if row['pass'] else 'FAIL'}: top-1 {row['top1']:.2f} ({row['top1_low']:.2f} to "
        f"{row['top1_high']:.2f}), the card says {row['card']:.2f} on {row['dataset']} ({row['whose']}; {how}); "
        f"weights {row['sha256'][:16]}"
    )
