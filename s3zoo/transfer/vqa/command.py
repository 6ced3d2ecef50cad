"""`s3zoo vqa train|eval|predict|ask`: visual question answering."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import statistics
from pathlib import Path
from typing import Any, Literal

from s3zoo.checks import Threads, typed
from s3zoo.training.config import load_config, overridden
from s3zoo.training.registry import names
from s3zoo.transfer.vqa.config import VqaData, VqaRun

DEFAULT = "easy_vqa"
EXAMPLES = """examples:
  s3zoo vqa train                                    easy-VQA, from its package, on a laptop
  s3zoo vqa eval runs/easy_vqa/model                 accuracy, overall and by answer type
  s3zoo vqa eval runs/easy_vqa/model --blank-images  what is left without looking
  s3zoo vqa ask runs/easy_vqa/model shape.png "what color is the shape?"
  torchrun --nproc-per-node 8 -m s3zoo vqa train vqa_v2_s3_tiny --data /path/to/vqa_v2
  s3zoo vqa predict runs/vqa_v2_s3_tiny/model --data /path/to/vqa_v2 --split test-std
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo vqa",
        description="Train, evaluate and ask: image tokens of any backbone and a question in one BERT encoder.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="train|eval|predict|ask")

    train = verbs.add_parser("train", help="train, evaluate, export; the same command resumes an interrupted run")
    config_help = f"name of a config in configs/vqa, or a .py file (default: {DEFAULT})"
    train.add_argument("config", nargs="?", default=DEFAULT, help=config_help)
    train.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting, e.g. train.lr=1e-4"
    )
    train.add_argument("--data", metavar="ROOT", help="folder of VQA v2 (short for --set data.root=ROOT)")
    train.add_argument("--out", type=Path, help="folder of the run (default: runs/<name of the config>)")
    train.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="N runs with seeds from the config's on, and a table"
    )
    train.add_argument("--dry-run", action="store_true", help="show what would be done; needs no data")
    train.set_defaults(run=_train)

    evaluate = verbs.add_parser("eval", help="official accuracy, overall and by answer type")
    evaluate.add_argument("model", nargs="?", type=Path, help="model folder of a run")
    evaluate.add_argument("--results", type=Path, metavar="JSON", help="score this results file; no model is needed")
    _add_data(evaluate, "val (VQA v2) or test (easy-VQA)")
    evaluate.add_argument("--blank-images", action="store_true", help="control: show an image of the mean colour")
    evaluate.add_argument("--shuffle-images", action="store_true", help="control: show the image of another question")
    evaluate.add_argument("--out", type=Path, metavar="JSON", help="also write the scores here")
    evaluate.set_defaults(run=_evaluate)

    predict = verbs.add_parser("predict", help="write the results file that the EvalAI server takes")
    predict.add_argument("model", type=Path, help="model folder of a run")
    _add_data(predict, "test-std (VQA v2; the server scores test-dev from it too) or test (easy-VQA)")
    predict.add_argument("--out", type=Path, metavar="JSON", help="(default: vqa_<split>_results.json)")
    predict.set_defaults(run=_predict)

    question = verbs.add_parser("ask", help="answer a typed question about an image")
    question.add_argument("model", type=Path, help="model folder of a run")
    question.add_argument("image", type=Path)
    question.add_argument("question", help='in quotes, e.g. "what color is the shape?"')
    question.set_defaults(run=_ask)

    arguments = parser.parse_args(argv)
    if importlib.util.find_spec("transformers") is None:
        raise ValueError("Visual question answering needs transformers: pip install 's3zoo[vqa]'.")
    return arguments.run(arguments)


def _add_data(parser: argparse.ArgumentParser, splits: str) -> None:
    parser.add_argument("--data", metavar="ROOT", default="", help="folder of VQA v2; without it easy-VQA is used")
    parser.add_argument("--split", default="", help=f"default: {splits}")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=int, default=2)


# train


def _train(arguments: argparse.Namespace) -> int:
    settings = arguments.set + ([f"data.root={arguments.data}"] if arguments.data else [])
    run = overridden(load_config(arguments.config, VqaRun, "vqa"), settings)
    if run.data.name == "easy_vqa" and run.data.root:
        raise ValueError(
            f"data.root is {run.data.root!r}, but the config {arguments.config!r} takes easy-VQA from its package; name"
            f" a config for VQA v2's files, such as {_for_files()}, or leave --data out."
        )
    if arguments.dry_run:
        print(plan(run))
        return 0
    from s3zoo.training.session import run_job
    from s3zoo.transfer.vqa.run import VqaTraining

    out = arguments.out or Path("runs") / run.name
    return run_job(run, out, lambda *args: VqaTraining(*args)(), seeds=arguments.seeds, table=seeds_table)


def _for_files() -> str:
    """The first shipped config that reads a folder."""
    found = (name for name in names("vqa") if load_config(name, VqaRun, "vqa").data.name != "easy_vqa")
    return repr(next(found))


def plan(run: VqaRun) -> str:
    """What a run would do."""
    data, model, train = run.data, run.model, run.train
    return "\n".join((
        f"run       {run.name}, seed {run.seed}: {model.backbone} and {model.bert}",
        f"data      {data.name} {data.root}, {', '.join(data.train_splits)}, {data.img_size} x {data.img_size}",
        f"train     {train.epochs} epochs, batch {train.batch_size}, {train.opt}, lr {train.lr:g} ({train.schedule}),"
        f" the backbone's times {run.backbone_lr_scale:g}",
    ))  # fmt: skip


def seeds_table(results: list[dict[str, Any]]) -> str:
    """Accuracy over seeds, with mean and standard deviation; nothing where answers are not known."""
    if "scores" not in results[0]:
        return ""
    values = [result["scores"]["overall"] for result in results]
    lines = [f"{'seed':>6}  {'accuracy':>8}", *(f"{r['seed']:>6}  {r['scores']['overall']:>8.2f}" for r in results)]
    return "\n".join([*lines, f"  mean  {statistics.fmean(values):>8.2f} +- {statistics.stdev(values):.2f}"])


# eval and predict


def _opened(arguments: argparse.Namespace, splits: tuple[str, str]) -> tuple[Any, VqaData, str]:
    """A loaded model, how its images are prepared, and the name of the split."""
    import torch

    from s3zoo.transfer.vqa import model

    torch.set_num_threads(typed(arguments.threads, Threads, "--threads"))
    loaded = model.load(arguments.model)
    trained = loaded[3]["s3zoo"].get("provenance", {}).get("data", "")
    if trained == "vqa_v2" and not arguments.data:
        raise ValueError(
            f"{arguments.model} was trained on VQA v2, and without --data easy-VQA would be asked; give VQA v2's folder"
            " as --data."
        )
    return loaded, *_data(arguments, splits, loaded[3]["data"])


def _data(arguments: argparse.Namespace, splits: tuple[str, str], prepared: dict[str, Any]) -> tuple[VqaData, str]:
    name: Literal["easy_vqa", "vqa_v2"] = "vqa_v2" if arguments.data else "easy_vqa"
    split = arguments.split or splits[name == "easy_vqa"]
    return dataclasses.replace(_prepared(prepared), name=name, root=arguments.data), split


def _prepared(stored: dict[str, Any]) -> VqaData:
    """How a model's images and questions are prepared, from its config.json."""
    plain: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in stored.items()}
    return VqaData(**plain)


def _answered(split: Any, name: str) -> Any:
    if not split.questions[0].answers:
        raise ValueError(f"The split {name!r} has no answers to compare with; use `s3zoo vqa predict` for it.")
    return split


def _check_out(out: Path, read: Path) -> None:
    from s3zoo.files import check_not_read, check_writable
    from s3zoo.models.folder import CONFIG
    from s3zoo.models.open import model_folder
    from s3zoo.transfer.vqa.model import KIND

    check_writable(out, "--out")
    check_not_read(out, "--out", [read, *((model_folder(read) or read) / name for name in (*KIND.files, CONFIG))])


def _evaluate(arguments: argparse.Namespace) -> int:
    from s3zoo.files import read_json, write_json
    from s3zoo.training import distributed
    from s3zoo.transfer.vqa import metric
    from s3zoo.transfer.vqa.data import read_split
    from s3zoo.transfer.vqa.run import predict, scores_line

    if arguments.blank_images and arguments.shuffle_images:
        raise ValueError("--blank-images and --shuffle-images are two controls; give one of them.")
    if (arguments.model is None) == (arguments.results is None):
        raise ValueError("eval needs a model folder or --results FILE, one of the two.")
    if arguments.out is not None:
        _check_out(arguments.out, arguments.results or arguments.model)
    ranks = distributed.start(arguments.device)
    try:
        if arguments.results is not None:
            config, name = _data(arguments, ("val", "test"), {})
            split = _answered(read_split(config, name), name)
            answers = metric.read_submission(read_json(arguments.results), str(arguments.results))
        else:
            (network, words, vocabulary, _), config, name = _opened(arguments, ("val", "test"))
            split = _answered(read_split(config, name), name)
            control = "blank" if arguments.blank_images else "shuffle" if arguments.shuffle_images else ""
            network.to(ranks.device)
            answers = predict(network, words, vocabulary, split, config, ranks, control=control)
        scores = metric.scores(answers, split.humans)
        if ranks.first:
            print(f"{config.name} {name}: {scores_line(scores)}")
            if arguments.out is not None:
                write_json(arguments.out, scores)
    finally:
        distributed.stop()
    return 0


def _predict(arguments: argparse.Namespace) -> int:
    from s3zoo.files import write_json
    from s3zoo.training import distributed
    from s3zoo.transfer.vqa import metric
    from s3zoo.transfer.vqa.data import read_split
    from s3zoo.transfer.vqa.run import predict

    _check_out(arguments.out or Path("vqa_results.json"), arguments.model)
    ranks = distributed.start(arguments.device)
    try:
        (network, words, vocabulary, _), config, name = _opened(arguments, ("test-std", "test"))
        split = read_split(config, name)
        answers = predict(network.to(ranks.device), words, vocabulary, split, config, ranks)
        rows = metric.submission(answers, [question.question_id for question in split.questions])
        path = arguments.out or Path(f"vqa_{name}_results.json")
        if ranks.first:
            write_json(path, rows)
            print(f"{path}: answers to all {len(rows):,} questions of {config.name} {name}")
    finally:
        distributed.stop()
    return 0


def _ask(arguments: argparse.Namespace) -> int:
    for answer, probability in answered(arguments.model, arguments.image, arguments.question or ""):  # of "--": a list
        print(f"{probability:6.1%}  {answer}")
    return 0


def answered(folder: Path, image: Path, question: str) -> list[tuple[str, float]]:
    """The likeliest answers of the model in a folder, with their probabilities."""
    from s3zoo.transfer.vqa import model
    from s3zoo.transfer.vqa.data import decode
    from s3zoo.transfer.vqa.run import ask

    if not question.strip():
        raise ValueError('The question is empty; write it in quotes, e.g. "what color is the shape?".')
    network, words, answers, content = model.load(folder)
    config = _prepared(content["data"])
    pixels = decode(image, config)
    if unknown := words.unknown(question):
        print(f"(words that the model never saw: {', '.join(dict.fromkeys(unknown))})")
    return ask(network, words, answers, pixels, question, config)
