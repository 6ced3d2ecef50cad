"""Which commands read which kind of input, and the cases that have a name."""

from __future__ import annotations

from typing import Any, NamedTuple

from mutations import DIGITS, EXTRA, GONE, KINDS, LONG, Add, Both, Copy, Cut, Detector, Edit, Make, Put, Rename, Weights
from seeds import SEGMENTING, SETTINGS, TAUGHT, TIMED

FINETUNE = f"--data data --out out {SETTINGS}"
AGAIN = "--data data --out out --no-report"
WORK = f"{SEGMENTING} --work-dir work --resume"
SAMPLE_MM = "publish segmenter --sample photo.jpg --out out"
PRETRAINED_MM = f"{SEGMENTING} --work-dir out --cfg-options model.backbone.pretrained=model"
# nursery -> what is damaged -> the commands that read it
READERS: dict[str, dict[str, list[str]]] = {
    "core": {
        "model": [
            "predict model image.png",
            "evaluate model --data data --no-speed",
            "export model --to timm --out out",
            "export model --to plain --out out",
            "publish model --out out",
            "publish model --layout timm --dry-run",
            "inspect model image.png --out out",
            "verify model --data data",
            f"train model {FINETUNE}",
            f"train train.py --weights model {FINETUNE}",
            f"train train.py --teacher model {FINETUNE}",
            f"search search.py --start model {AGAIN}",
            f"search search.py --around model --set space_search.method=none {AGAIN}",
        ],
        "timm": ["predict timm image.png", "publish timm --dry-run", "export timm --to onnx --out x.onnx"],
        "plain": [
            "predict plain image.png",
            "evaluate plain --data data --no-speed",
            f"train plain {FINETUNE}",
            "inspect plain image.png --out out",
            "search search.py --around plain --dry-run",
        ],
        "whole": ["predict whole image.png", f"search search.py --start whole {AGAIN}", "publish whole --dry-run"],
        "run": [
            "train train.py --data data --out run",
            "train train.py --data data --out run",
            "publish run --dry-run",
            "predict run image.png",
            "verify run --data data",
            "publish model --beside run --out out",
        ],
        "taught": [TAUGHT],
        "found": [
            "search search.py --data data --out found --no-report",
            "search search.py --data data --out found --no-report",
            "publish found --out out",
            "publish found --supernet --out out",
            "report found --out out",
            "python:report.read found",
            f"search search.py --start found {AGAIN}",
            "specialise found --budget params<=6K --data data --out out",
            "study study.py --out . --summary",
            "study study.py --out . --table out",
        ],
        "rich": [
            "search rich.py --start model --data data --out rich --no-report",
            "search rich.py --start model --data data --out rich --no-report",
            "search rich.py --replay --out rich",
            "report rich --out out",
            "python:report.read rich",
            "extract rich --pareto 2 --out out",
            "extract rich --budget params<=30K --out out",
            f"search --from rich --budget params<=30K {AGAIN}",
            "publish rich --budget 1 --dry-run",
            "publish model --beside rich --out out",
        ],
        "towered": ["search towered.py --data data --out towered --no-report", "extract towered --out out"],
        "planned": ["search --data data --out planned --no-report", "report planned --out out"],
        "official.pth": [
            "convert official.pth --arch arch.json --to out",
            "convert official.pth --to out",
            f"train model --weights official.pth {FINETUNE}",
        ],
        "supernet.pth": [
            "specialise supernet.pth --config supernet.py --budget params<=99K --data data --out out",
            "specialise supernet.pth --budget params<=99K --data data --out out",
            f"search supernet.py --start supernet.pth {AGAIN}",
            f"search supernet.py --set supernet_weights=supernet.pth {AGAIN}",
            "convert supernet.pth --to out",
        ],
        "arch.json": ["convert official.pth --arch arch.json --to out", "extract found --arch arch.json --out out"],
        "latency.json": [f"{TIMED} latency<=9ms {AGAIN}"],
        "table.jsonl.xz": ["python:scored.load table.jsonl.xz"],
        "study.jsonl": ["study study.py --out ."],
        "data": [
            "train train.py --data data --out out",
            "evaluate model --data data --no-speed",
            f"search search.py {AGAIN}",
            "search --data data --no-controls --dry-run",
            "predict model data",
            "inspect model data --out out",
        ],
        "tars": ["train train.py --data tars --out out", "evaluate model --data tars --no-speed"],
        "image.png": ["predict model image.png", "publish model --sample image.png --out out"],
        "speed.json": ["zoo --throughput-file speed.json --family s3"],
        "train.py": ["train train.py --data data --out out", "train train.py --data data --dry-run", "config train.py"],
        "search.py": ["search search.py --data data --dry-run", "config search.py"],
        "study.py": ["study study.py --out . --summary", "study study.py --out new --dry-run"],
    },
    "vqa": {
        "vqa/model": [
            "vqa ask vqa/model image.png what?",
            "vqa eval vqa/model --data vqa-data",
            "vqa predict vqa/model --data vqa-data --out out.json",
            "publish vqa/model --sample image.png --question what? --out out",
        ],
        "vqa": ["vqa train vqa.py --data vqa-data --out vqa", "publish vqa --dry-run"],
        "vqa-data": [
            "vqa train vqa.py --data vqa-data --out out",
            "vqa eval vqa/model --data vqa-data",
            "vqa predict vqa/model --data vqa-data --out out.json",
        ],
        "results.json": ["vqa eval --results results.json --data vqa-data"],
        "bert": ["vqa train vqa.py --data vqa-data --out out --set model.bert=bert"],
        "model": ["vqa train vqa.py --data vqa-data --out out --set model.backbone=local-dir:model"],
        "image.png": ["vqa ask vqa/model image.png what?"],
        "vqa.py": ["vqa train vqa.py --data vqa-data --out out", "config vqa.py"],
    },
    "mm": {
        "segmenter": [
            "predict_mm segmenter photo.jpg --out out",
            "test_mm segmenter --data ade --work-dir out",
            SAMPLE_MM,
        ],
        "detector": [
            "predict_mm detector photo.jpg --out out",
            "publish detector --dry-run",
            "publish detector --sample photo.jpg --out out",
        ],
        "segmenter.pth": [
            "predict_mm segmenter.py segmenter.pth photo.jpg --classes ground,disc,box --out out",
            "test_mm segmenter.py segmenter.pth --classes ground,disc,box --data ade --work-dir out",
        ],
        "work": [WORK],
        "model": [PRETRAINED_MM],
        "ade": ["test_mm segmenter --data ade --work-dir out"],
        "coco": ["test_mm detector --data coco --work-dir out"],
        "photo.jpg": ["predict_mm segmenter photo.jpg --out out"],
        "segmenter.py": ["flops_mm segmenter.py", "test_mm segmenter.py segmenter.pth --data ade --work-dir out"],
    },
}  # fmt: skip
# Of these, what takes seconds even if it is refused late: left to the random cases of `make slow`
SLOW = ("report found", "report rich", "report planned", "search rich.py --start")
# Options in whose place anything may be typed; `--set` takes any setting of the config besides.
OPTIONS: dict[str, dict[str, str]] = {
    "core": {
        f"train train.py {FINETUNE}": "--set --model --weights --teacher --img-size --epochs --data --root --out",
        f"search search.py {AGAIN}": "--set --budget --start --around --hours --seeds --runtime --data --out --from",
        "search --data data --dry-run": "--budget --hours --start --around --data",
        "search search.py --dry-run": "--set --budget --seeds",
        "specialise found --data data --out out": "--budget --set --config --data",
        "extract found --out out": "--budget --pareto --arch --data",
        "report found": "--out",
        "evaluate model --data data --no-speed":
            "--threads --limit --batch-size --workers --device --split --data --root --sort",
        "verify run --data data": "--tolerance --limit --batch-size --workers --split",
        "predict model image.png": "--top --device",
        "inspect model image.png --out out": "--layers --heads --top-k --at --device",
        "publish model --dry-run": "--to --title --license --beside --budget --tag --revision --layout --sample",
        "publish found --supernet --dry-run": "--title --license",
        "export model --to timm --out out": "--img-size --to",
        "export model --to onnx --out x.onnx": "--opset --img-size",
        "convert official.pth --to out": "--arch --model",
        "study study.py --out .": "--jobs --only --keep --table",
        "config search.py": "--set",
        "docs": "--",
        "zoo": "--family --throughput-file",
    },
    "vqa": {
        "vqa train vqa.py --data vqa-data --out out": "--set --seeds --data",
        "vqa eval vqa/model --data vqa-data": "--split --device --threads --results",
        "vqa predict vqa/model --data vqa-data --out out.json": "--split --device --threads",
        "vqa ask vqa/model image.png": "--",
    },
    "mm": {
        "predict_mm segmenter photo.jpg --out out": "--threshold --device --classes",
        "test_mm segmenter --data ade --work-dir out": "--data --classes --cfg-options",
        "flops_mm segmenter.py": "--size",
        "train_mm segmenter.py --data ade --work-dir out": "--classes --data --backbone --cfg-options",
    },
}  # fmt: skip


class Case(NamedTuple):
    command: str
    damage: Any = None  # nothing: the command itself is the mistake
    codes: tuple[int, ...] = (2,)
    late: bool = False  # the mistake can only be seen when work was done already


def each(command: str, *changes: Any, **how: Any) -> list[Case]:
    return [Case(command, change, **how) for change in changes]


def puts(path: str, contents: str) -> list[Put]:
    return [Put(path, content) for content in contents.split()]


def commands(lines: str) -> list[Case]:
    """Commands that are a mistake whatever they are given, one a line; LONG stands for a name that no file has."""
    return [Case(line.strip().replace("LONG", LONG)) for line in lines.strip().splitlines()]


def settings(command: str, words: str) -> list[Case]:
    """Settings that are refused, each with `--set` behind the command."""
    return [Case(f"{command} --set {word.replace(',--set,', ' --set ')}") for word in words.split()]


DOCUMENTS = "empty html nul utf-16 latin-1 deep list number null"
TENSORS = "empty html pickle torch-zip zip nul huge-header no-tensors other-tensors huge-tensor"
SECRET, WEB = "secret/file", "http://127.0.0.1:9/x"

# config.json of a model
FIELDS = [
    ("architecture", GONE), ("architecture", 3), ("architecture", "no_such_model"), ("architecture", "../secret"),
    ("num_classes", "x"), ("num_classes", -1), ("num_classes", 10**12), ("model_args", []), ("model_args", "x"),
    ("model_args.arch", None), ("model_args.arch", "../secret/arch.json"), ("model_args.arch.stages", {}),
    ("model_args.arch.stages.0.blocks", "x"), ("model_args.arch.stages.0.embed_dim", 10**12),
    ("model_args.img_size", "x"), ("model_args.img_size", [8]), ("model_args.img_size", [10**9, 10**9]),
    ("model_args.img_size", [-8, -8]), ("model_args.global_pool", 5), ("model_args.checkpoint_path", SECRET),
    ("model_args.pretrained_cfg_overlay", {"url": WEB}), ("model_args.features_only", True),
    ("pretrained_cfg", GONE), ("pretrained_cfg", 3), ("pretrained_cfg", []), ("pretrained_cfg.mean", "x"),
    ("pretrained_cfg.mean", [float("nan")] * 3), ("pretrained_cfg.std", [0, 0, 0]), ("pretrained_cfg.std", []),
    ("pretrained_cfg.input_size", [3]), ("pretrained_cfg.input_size", "x"), ("pretrained_cfg.input_size", [3, 0, 0]),
    ("pretrained_cfg.input_size", [3, 10**6, 10**6]), ("pretrained_cfg.interpolation", "x"),
    ("pretrained_cfg.interpolation", 3), ("pretrained_cfg.crop_pct", 0), ("pretrained_cfg.crop_pct", "x"),
    ("pretrained_cfg.crop_pct", -1), ("pretrained_cfg.label_names", 3), ("pretrained_cfg.label_names", [1, 2, 3]),
    ("s3zoo.sha256", 3), ("s3zoo.schema_version", DIGITS), ("label_names", 3), ("label_descriptions", ["x"]),
    ("pretrained_cfg.label_names", ["\x1b]0;x\x07", "b", "c"]), ("model_args.tower", "../secret"),
    ("model_args.pretrained_tower", True), ("model_args.pretrained_tower", SECRET),
]  # fmt: skip
LURES = [  # which may be ignored or refused, but not followed
    ("pretrained_cfg.url", WEB), ("pretrained_cfg.file", SECRET), ("pretrained_cfg.hf_hub_id", "some/where"),
    ("pretrained_cfg.custom_load", True), ("s3zoo", []), ("s3zoo.sha256", GONE),
]  # fmt: skip
# config.json of a VQA model
VQA_FIELDS = [
    ("backbone", GONE), ("backbone", []), ("backbone.architecture", 3), ("backbone.model_args", "x"),
    ("backbone.architecture", "local-dir:../secret"), ("backbone.model_args.arch", "../secret/arch.json"),
    *((f"backbone.model_args.{key}", EXTRA[key]) for key in ("checkpoint_path", "pretrained_cfg_overlay", "url")),
    ("backbone.model_args.pretrained", True), ("bert", GONE), ("bert", 3), ("bert.hidden_size", 10**9),
    ("bert.hidden_size", "x"), ("bert.num_attention_heads", 0), ("bert.auto_map", {"AutoModel": "planted.x"}),
    ("bert.vocab_size", -1), ("lowercase", "x"), ("head_dropout", "x"), ("head_dropout", 7), ("matching", 3),
    ("data", GONE), ("data", []), ("data.img_size", 0), ("data.img_size", 10**6), ("data.img_size", "x"),
    ("data.mean", []), ("data.std", [0, 0, 0]), ("data.max_tokens", 10**9), ("data.interpolation", "x"),
    ("data.x", 1), ("s3zoo", GONE), ("s3zoo.sha256", "x"), ("num_answers", 10**9),
]  # fmt: skip
BERT_FIELDS = [("pad_token_id", "x"), ("pad_token_id", ["x"]), ("type_vocab_size", "x"), ("hidden_act", 3)]
COCO_FIELDS = [
    ("images", GONE), ("images.0", 3), ("images.0.file_name", "../secret/file"), ("images.0.height", 2**31),
    ("annotations", {}), ("annotations.0.id", 2), ("annotations.0.bbox", [1]),
    ("annotations.0.segmentation", {"size": [10**6, 10**6], "counts": "x"}),
    ("annotations.0.segmentation", [[1e9, 0, 0, 1e9, 1, 1]]), ("annotations.0.segmentation.counts", "1"),
    ("annotations.0.segmentation.counts", "P"), ("annotations.0.iscrowd", "x"), ("categories", 3),
    ("categories.0.name", 3), ("categories.0.id", "x"),
]  # fmt: skip
# config of a detector or segmenter
SYSTEM = {"type": "os.system", "command": "touch executed"}
POPEN = {"type": "subprocess.Popen", "args": ["touch", "executed"]}
PRETRAINED = {"type": "Pretrained", "checkpoint": WEB}
DETECTOR_LURES = [
    ("model.backbone", POPEN), ("model.data_preprocessor", SYSTEM), ("model.type", "builtins.eval"),
    ("model.backbone.type", "os.system"), ("model.decode_head.type", "planted.Head"), ("model.init_cfg", PRETRAINED),
    ("model.decode_head.loss_decode", SYSTEM), ("model.decode_head.init_cfg", PRETRAINED),
    ("model.backbone.init_cfg", PRETRAINED), ("model.backbone.pretrained", "secret"),
    ("model.backbone.model", "local-dir:secret"), ("model.backbone.model", "hf-hub:some/where"),
    ("model.backbone.model_args.checkpoint_path", SECRET), ("default_scope", "planted"),
    ("custom_imports", {"imports": ["planted"]}), ("test_dataloader.dataset.pipeline.0", SYSTEM),
    ("test_dataloader.dataset.type", "planted.Dataset"), ("test_pipeline.0", SYSTEM), ("test_evaluator", SYSTEM),
]  # fmt: skip
RUN_LURES = [
    ("visualizer", SYSTEM), ("custom_hooks", [SYSTEM]), ("env_cfg", SYSTEM), ("load_from", WEB), ("test_cfg", SYSTEM),
    ("log_processor", SYSTEM),
]  # fmt: skip

# run.json and result.json of a search, which reports, tables and other searches read
RUN_FIELDS = [
    ("config.name", "../escaped"), ("config.name", "a\x1b[2J"), ("config.seed", "x"), ("config.space", 3),
    ("config.space.dims", {}), ("config.space.dims.0.choices", [10**9]), ("config.space.dims.0.step", "x"),
    ("config.space.dims.0.scale", []), ("config.data", None), ("config.data.img_size", "x"),
    ("config.arch_search.budgets", ["x"]), ("config.arch_search.budgets", 3), ("config.supernet.epochs", -1),
    ("config.space_search.lower", "nan"), ("data", 3), ("versions", []),
]  # fmt: skip
RESULT_FIELDS = [
    ("winners", []), ("winners", {}), ("winners.0", None), ("winners.0.test", 3), ("winners.0.test.top1", "x"),
    ("winners.0.test.low", 10**9), ("winners.0.params", "x"), ("winners.0.params", -1), ("winners.0.arch", {}),
    ("winners.0.arch.stages", [3]), ("winners.0.accuracy", DIGITS), ("winners.0.budget", GONE), ("controls", 3),
]  # fmt: skip
TOLD_FIELDS = [  # what a card tells of a network
    ("s3zoo.title", 3), ("s3zoo.sample", {"head": 3}), ("s3zoo.latency", {"ms": "x"}), ("s3zoo.provenance", []),
    ("num_classes", GONE), ("num_classes", None), ("pretrained_cfg", GONE), ("pretrained_cfg.mean", None),
    ("pretrained_cfg.crop_pct", GONE), ("s3zoo.params", GONE), ("model_args.img_size", [8]),
    *((f"s3zoo.provenance.{key}", value) for key, value in (
        ("kind", []), ("command", 3), ("data", 3), ("versions", 3), ("cost.seconds", "x"),
        ("cost.elapsed_seconds", "x"), ("metrics", 3),
        ("metrics.0", {}), ("metrics.0.value", "x"), ("trajectory", [3]), ("controls", [{"control": "x"}]),
        ("latency", {"promised": 1}), ("teacher", "x"), ("supernet", {}))),
]  # fmt: skip
LATENCY_FIELDS = [
    ("entries", 3), ("entries.0", 3), ("entries.0.ms", "x"), ("entries.0.ms", -1), ("entries.0.embed_dims", [[]]),
    ("entries.0.genes", {"x": 1}), ("entries.0.stage", None), ("img_size", "x"), ("img_size", [8]), ("family", "x"),
    ("correction.fixed", None), ("correction.x", 1), ("device", 3), ("device", "nan"), ("runtime", "x"),
    ("schema_version", 99), ("num_classes", True),
]  # fmt: skip

# Lines of a config of the user's own that ask for parts or arguments that there are none of
BUILT = """
    model['no_such'] = 1
    model['type'] = 'NoSuch'
    model['backbone']['no_such'] = 1
    model['backbone']['type'] = 'NoSuch'
    model['backbone']['model'] = 3
    model['backbone']['model_args']['no_such'] = 1
    model['backbone'] = 3
    model['neck'] = dict(type='FPN', no_such=1)
    model['decode_head']['no_such'] = 1
    model['decode_head']['type'] = 'NoSuch'
    model['decode_head']['in_channels'] = [1]
    model['auxiliary_head'] = dict(type='NoSuch')
    model['data_preprocessor']['no_such'] = 1
    test_dataloader = 3
    custom_imports = dict(imports=['no_such'])
"""
TRAINED = """
    model['backbone']['no_such'] = 1
    model['decode_head']['in_channels'] = [24, 48, 96, 191]
    train_dataloader['dataset']['no_such'] = 1
    train_pipeline[0] = dict(type='NoSuch')
    optim_wrapper['optimizer']['no_such'] = 1
    val_evaluator = dict(type='NoSuch')
    load_from = 'nowhere.pth'
    load_from = 3
"""
BASES = ("'nowhere.py'", "'ade'", "3", "['nowhere.py']", "''")


def adds(path: str, lines: str) -> list[Add]:
    return [Add(path, line.strip()) for line in lines.strip().splitlines()]


PREDICT, TRAIN, SEARCH = "predict model image.png", "train train.py --data data", "search search.py --data data"
ASK, VQA_TRAIN = "vqa ask vqa/model image.png what?", "vqa train vqa.py --data vqa-data"
SEGMENT, TEST_MM = "predict_mm segmenter photo.jpg --out out", "test_mm segmenter --data ade --work-dir out"
CONVERT, TARS = "convert official.pth --arch arch.json --to out", "train train.py --data tars --out out"
CONFIG, WEIGHTS, SPEED = "model/config.json", "model/model.safetensors", "zoo --throughput-file speed.json"
REPORT, TABLE_OF = "report found --out out", "study study.py --out . --table out"
LATENCY = f"{TIMED} latency<=9ms {AGAIN}"
PLANNED, CUT_PLAN = "search --data data --out planned --no-report", Make("planned/result.json", "nothing")
PUBLISH, IMPORTS = "publish model --out out", Put("planned/config.py", "import planted")
SHORTENED = '{"phase": "space0: supernet", "left": 1, "needed": 2, "set": ["%s"]}\n'
CUT_RUN = Make("run/result.json", "nothing")
STEP = "run/train/step-00000004"
LABELS = "ade/annotations/validation"
COCO, TEST_COCO = "coco/annotations/instances_val2017.json", "test_mm detector --data coco --work-dir out"
TRAIN_COCO = "train_mm detector.py --data coco --classes disc,box --work-dir out"
TRAIN_MM, MM_WEIGHTS = f"{SEGMENTING} --work-dir out", "segmenter/model.safetensors"
SEGMENT_PTH = "predict_mm segmenter.py segmenter.pth photo.jpg --classes ground,disc,box --out out"

TABLE: dict[str, list[Case]] = {
    "core": [
        *each(PREDICT, *(Edit(CONFIG, *field) for field in FIELDS)),
        *(
            Case(command, Edit(CONFIG, *field))  # finite themselves, but what the network makes of them is not
            for command in (PREDICT, "inspect model image.png --out out", "evaluate model --data data --no-speed")
            for field in (("pretrained_cfg.mean", [1e30] * 3), ("pretrained_cfg.std", [1e-320] * 3))
        ),
        *each(PREDICT, *(Edit(CONFIG, *field) for field in LURES), codes=(0, 2)),
        *each(PREDICT, *puts(CONFIG, DOCUMENTS), *puts(WEIGHTS, TENSORS)),
        *each(PREDICT, *(Make(path, kind) for path in (CONFIG, WEIGHTS, "image.png") for kind in KINDS)),
        *each(PREDICT, Cut(WEIGHTS, 0.5), Cut(WEIGHTS, 0.001), Cut(WEIGHTS, 0.95, True), Put("image.png", "html")),
        *each("predict plain image.png", Edit("plain/config.json", "pretrained_cfg.pretrained_strict", False)),
        *each("predict plain image.png", Edit("plain/config.json", "model_args.patch_size", True)),
        *each("predict plain image.png", Edit("plain/config.json", "model_args.depth", 10**5)),
        *each(f"train plain --scratch {FINETUNE}", Edit("plain/config.json", "model_args.depth", 10**5)),
        *each(
            f"train plain --scratch {FINETUNE}",
            Both(Make("plain/model.safetensors", "nothing"), Edit("plain/config.json", "model_args.depth", 10**5)),
        ),
        *each(CONVERT, *puts("official.pth", TENSORS), *puts("arch.json", DOCUMENTS)),
        *each(CONVERT, Cut("official.pth", 0.7), Cut("official.pth", 0.5, True)),
        *each(CONVERT, *(Make(path, kind) for path in ("official.pth", "arch.json") for kind in KINDS)),
        *each(TARS, *(Make("tars/train.tar", kind) for kind in KINDS)),
        *each(f"{TRAIN} --out run", *(Edit("run/run.json", "config", value) for value in (GONE, None, 3, []))),
        *each(f"{TRAIN} --out run", *(Edit("run/run.json", "config.data", value) for value in (None, 3, []))),
        *each(f"{TRAIN} --out run", *puts("run/run.json", DOCUMENTS), *puts("run/result.json", "list empty html")),
        *each(f"{SEARCH} --out found", *puts("found/run.json", DOCUMENTS), *puts("found/result.json", "list empty")),
        *each(PREDICT, Make(CONFIG, "sparse"), Make(CONFIG, "socket")),
        *each(REPORT, Make("found/run.json", "sparse"), Make("found/space_search.jsonl", "sparse")),
        *each(REPORT, *(Edit("found/run.json", *field) for field in RUN_FIELDS)),
        *each(REPORT, *(Edit("found/result.json", *field) for field in RESULT_FIELDS)),
        *each(
            REPORT, *puts("found/run.json", "list deep"), *puts("found/clock.json", "list html"),
            Edit("found/clock.json", "phases.0.seconds", -1), Edit("found/clock.json", "latency", [1]),
            Edit("found/test-0.json", "right", 10**6), Edit("found/space0/space.json", "num_stages", 10**9),
            *(Put("found/space_search.jsonl", rows) for rows in ("[1, 2]\n", f"{'[' * 99999}\n{{}}\n")),
            Put("found/space0/scores.jsonl", '{"arch": {}}\n'), Make("found/clock.json", "fifo"),
            Put("found/space_search.jsonl", '{"decision": {"dims": 3}}\n'),
        ),
        *each(  # without the figures, which take seconds
            "python:report.read found", Copy("found/space0", "found/spacex"), Copy("found/space0", "found/space-1"),
            Copy("found/model", "found/model-x"), Cut("found/space_search.jsonl", 0.5), codes=(0,),
        ),
        *each(TABLE_OF, *(Edit("found/result.json", *field) for field in RESULT_FIELDS[:4])),
        *each("study study.py --out . --summary", *(Edit("found/result.json", *field) for field in RESULT_FIELDS[:9])),
        *each("publish run --dry-run", *(Edit("run/model/config.json", *field) for field in TOLD_FIELDS)),
        *each(
            "publish run --dry-run", Edit("run/model/config.json", "model_args.img_size", 8),
            Edit("run/model/config.json", "s3zoo.provenance.metrics.0.high", GONE), codes=(0,),
        ),
        *each(f"{PUBLISH} --beside run", *puts("run/result.json", "list"), Edit("run/result.json", "test", 3)),
        *each("search --from found --data data", Edit("found/run.json", "config.name", "../escaped")),
        *each(
            "extract found --out out", Edit("found/run.json", "config", 3), Make("found/space1/space.json", "loop"),
            Make("found/space1", "nothing"), Put("found/space1/evaluated.jsonl", '{"arch": 3, "accuracy": 1}\n'),
        ),
        *each(LATENCY, *(Edit("latency.json", *field) for field in LATENCY_FIELDS), *puts("latency.json", "deep list")),
        *each("python:scored.load table.jsonl.xz", *puts("table.jsonl.xz", "empty html"), Cut("table.jsonl.xz", 0.5)),
        *each(PLANNED, IMPORTS, Both(CUT_PLAN, IMPORTS)),
        *each(PLANNED, Both(CUT_PLAN, Put("planned/plan.json", "list"))),
        *each(
            PLANNED, *(Both(CUT_PLAN, Put("planned/hours.jsonl", SHORTENED % setting)) for setting in (
                "start=secret", "data.root=secret", "tower.cache_dir=x", "supernet.epochs=x", "supernet.epochs=-1")),
        ),
        *each(
            f"{TRAIN} --out run", *(Both(CUT_RUN, Make(f"run/{name}", "fifo")) for name in (
                "run.json", "log.txt", "train/epochs.jsonl", "test.json")),
        ),
        *each(
            f"{TRAIN} --out run", *(Both(CUT_RUN, Make(f"{STEP}/{name}", "fifo")) for name in (
                "state.json", "tensors.safetensors")), codes=(0, 2), late=True,
        ),
        *each(f"{TRAIN} --out run", Both(CUT_RUN, Edit("run/test.json", "right", 10**6)), late=True),
        *each(f"{TRAIN} --out run", Both(CUT_RUN, Edit(f"{STEP}/state.json", "running", ["x"])), late=True),
        *each(PREDICT, *puts("image.png", "bomb narrow"), Weights(WEIGHTS, 0, "nan"), Weights(WEIGHTS, 1, "deep")),
        *each(f"{TRAIN} --out out", Rename("data/train/ant", b"caf\xe9"), Rename("data/train/ant", b"\x1b[2J")),
        *each("evaluate model --data data --no-speed", Rename("data/test/ant/0.png", b"\xe9\x1b[2J.png"), codes=(0,)),
        *each(SPEED, *puts("speed.json", DOCUMENTS), Edit("speed.json", "models", 3)),
        *each(SPEED, Edit("speed.json", "models.s3_tiny", 3), Edit("speed.json", "machine", GONE)),
        *each(SPEED, Edit("speed.json", "models.s3_tiny.images_per_second", "x")),
        *each(
            f"{TRAIN} --out out",
            Make("data/train/ant", "loop"), Make("data/train/ant", "nothing"),
            Make("data/test", "nothing"), Make("data/train", "loop"), Make("data/test", "folder"),
            Make("data/train/ant", "folder"), Put(f"data/train/dog/{'y' * 250}.png", "html"),
            *puts("train.py", "x=( config=3 import(planted) 1/0 nul"), Make("train.py", "folder"),
            Make("train.py", "nothing"),
        ),
        *each("config train.py", *puts("train.py", "x=3 config=3 config=int")),
        *each(f"{TRAIN} --out out", *(Make("data/train/ant/0.png", kind) for kind in KINDS), codes=(0, 2), late=True),
        *each(TARS, *(Cut("tars/train.tar", part) for part in (0.0, 0.3))),
        *each(TARS, *puts("tars/test.tar", "empty html zip"), late=True),
        *settings(
            f"{TRAIN} --out out",
            """
            threads=0 threads=100000 threads=x data.workers=9999999 data.random_crop_pad=100000 data.img_size=-1
            data.img_size=1000000 data.mixup=inf data.mixup=nan data.cutmix=-1 data.mean=(0,) data.std=(0,0,0)
            data.std=x data.holdout=-1 data.train_limit=-1 data.scale=(0,1) data.crop_pct=nan data.interpolation=x
            data.auto_augment=x data.test_split=train data.test_split=./train data.classes=('ant','ant') train.lr=nan
            train.lr=-1 train.epochs=-1 train.batch_size=0 train.batch_size=1000000000000 train.opt=x train.schedule=x
            train.milestones=(nan,) train.ema=1 train.momentum=nan layer_decay=0 freeze=-1 model=x model=../secret
            weights=../secret mode=x distil.weight=2 distil.temperature=nan seed=x seed=-1 device=x a.b.c.d=1 data=1
            train.lr x=1 =1 model_args={'x':1} model_args=3
            """,
        ),
        *settings(
            f"{SEARCH} --out out",
            """
            arch_search.population=0 arch_search.budgets=x arch_search.budgets=('params<=x',) hierarchy=x final.mode=x
            arch_search.latency_table=nowhere.json,--set,arch_search.budgets=latency<=1ms space_search.method=x
            space_search.samples=-1 space_search.tau=-1 final.top=0 supernet_weights=nowhere.pth supernet.sampling=x
            data.holdout=1000000 data.num_classes=0 arch_search.p_depth=nan space=x tower.cache=x supernet.lr=inf
            """,
        ),
        *settings(
            f"{TRAIN} --model vit_tiny_patch16_224 --set mode=finetune --out out",
            "model_args={'pretrained_cfg_overlay':{'file':'image.png'}} model_args={'pretrained_cfg_overlay':3}",
        ),
        *each(f"train model --out model {SETTINGS} --data data", None),
        *commands(
            """
            predict LONG image.png
            predict model LONG
            predict image.png image.png
            predict model image.png --top 0
            predict model image.png --device x
            evaluate LONG
            evaluate model --threads -1
            evaluate model --threads 100000
            evaluate model --workers -1
            evaluate model --batch-size 1000000000000
            evaluate model --limit -1
            evaluate model --device x --no-speed
            evaluate model --data cifar10 --no-speed
            train LONG
            train image.png --data data
            train train.py --data LONG
            train train.py --data data --out LONG
            train train.py --data cifar10
            train train.py --data tars/test.tar --out out
            train model --data cifar10
            train model --data data --img-size -1
            search LONG
            search LONG.py
            search image.png
            search --seeds 0
            search search.py --data data --out out --seeds 1000000000000
            search search.py --data data --out data
            search search.py --data data --out data/train/ant/out
            search --data data/train --no-controls --hours 0.001 --out data/train/runs
            extract found --pareto 0 --out out
            extract found --out found
            extract found --out found/model
            study study.py --out . --keep .
            study study.py --out . --table study.jsonl
            study study.py --out . --jobs 0
            study study.py --out . --only LONG
            study LONG.py
            report LONG
            report data
            specialise LONG --budget params<=6K
            specialise image.png --budget params<=6K
            inspect model image.png --out image.png
            inspect model image.png --out out --at 2 2
            inspect model image.png --out out --top-k 0
            inspect model image.png --out out --layers x
            verify model --data data
            verify model --data data --tolerance nan
            config LONG
            config image.png
            docs LONG
            search --data data --around LONG --dry-run
            search --data data --start LONG --dry-run
            search search.py --data data --out out --start image.png
            search search.py --data data --out out --from found
            search supernet.py --data data --out out --set supernet_weights=image.png
            train train.py --data data --out data
            search search.py --data data --seeds -1
            publish LONG --dry-run
            publish model --out model
            publish model --out image.png
            export LONG --to timm --out out
            export model --to timm --out LONG
            export model --to timm --out model
            export model --to timm --out image.png
            export model --to onnx --out model/config.json
            export model --to timm --img-size 1000000 --out out
            export model --to onnx --opset 3 --out x.onnx
            convert LONG --to out
            convert official.pth --to official.pth
            convert official.pth --model resnet50 --to out
            zoo --throughput-file LONG
            zoo --html image.png/x.html
            zoo --cards image.png
            doctor image.png
            publish found --supernet --out found
            publish found --supernet --out found/model
            publish model --beside run --out run/model
            publish model --out out/LONG
            publish model --beside LONG --out out
            publish model --beside data --out out
            publish model --sample LONG --out out
            publish model --title \x1b[2J --out out
            """
        ),
    ],
    "vqa": [
        *each(ASK, *(Edit("vqa/model/config.json", *field) for field in VQA_FIELDS)),
        *each(ASK, *puts("vqa/model/config.json", DOCUMENTS), *puts("vqa/model/answers.json", DOCUMENTS)),
        *each(ASK, *puts("vqa/model/vocab.txt", "empty html nul"), *puts("vqa/model/model.safetensors", TENSORS)),
        *each(ASK, Cut("vqa/model/model.safetensors", 0.5), Weights("vqa/model/model.safetensors", 0, "nan")),
        *each(ASK, *(Make(f"vqa/model/{name}", kind) for name in ("config.json", "vocab.txt") for kind in KINDS)),
        *each(ASK, *(Make("image.png", kind) for kind in KINDS), *puts("image.png", "html empty")),
        *each("publish vqa --dry-run", Edit("vqa/model/config.json", "s3zoo.provenance.scores", 3)),
        *each("publish vqa --dry-run", Edit("vqa/model/config.json", "s3zoo.provenance.scores.by_type", ["x"])),
        *each("vqa eval --results results.json --data vqa-data", *puts("results.json", DOCUMENTS)),
        *each(f"{VQA_TRAIN} --out vqa", *puts("vqa/run.json", "list null"), *puts("vqa/result.json", "list")),
        *each(
            f"{VQA_TRAIN} --out out --set model.bert=bert",
            Edit("bert/config.json", "model_type", "planted"), Edit("bert/config.json", "hidden_size", 10**9),
            *puts("bert/config.json", DOCUMENTS), *puts("bert/model.safetensors", TENSORS),
            *puts("bert/vocab.txt", "empty"), Make("bert/model.safetensors", "nothing"),
            *(Edit("bert/config.json", *field) for field in BERT_FIELDS),
            Make("bert/tokenizer.json", "fifo"),
        ),
        *each(
            f"{VQA_TRAIN} --out out --set model.bert=bert",
            Edit("bert/config.json", "auto_map", {"AutoConfig": "planted.Config", "AutoModel": "planted.Model"}),
            codes=(0, 2),
        ),
        *settings(
            f"{VQA_TRAIN} --out out",
            """
            backbone_lr_scale=-1 model.layers=0 data.train_limit=-1 model.heads=0 model.hidden=-1 model.hidden=7
            model.hidden=1000000000 model.dropout=2 model.head_dropout=nan model.matching=-1 model.bert=./nowhere
            model.backbone=x data.img_size=1000000 data.max_tokens=1000000000 data.std=(0,0,0) data.mean=(nan,nan,nan)
            data.workers=-1 threads=0 threads=100000 data.random_crop_pad=100000 data.questions_per_image=1000000000
            data.min_occurrences=1000000 data.train_splits=('x',) data.val_split=x data.interpolation=x train.lr=nan
            device=x seed=-1
            """,
        ),
        *commands(
            """
            vqa train LONG
            vqa train vqa.py --data vqa-data --seeds 0
            vqa ask LONG image.png what?
            vqa ask vqa/model LONG what?
            vqa ask vqa/model image.png -- --
            vqa eval
            vqa eval vqa/model --device x
            vqa eval vqa/model --data nowhere
            vqa eval vqa/model --data vqa-data --split x
            vqa eval vqa/model --data vqa-data --threads -1
            vqa eval vqa/model --data vqa-data --threads 100000
            vqa eval vqa/model --data vqa-data --out image.png/x
            vqa eval vqa/model --data vqa-data --out vqa/model/config.json
            vqa eval --results results.json --data vqa-data --out results.json
            vqa predict vqa/model --data vqa-data --out vqa/model/model.safetensors
            vqa predict vqa/model --data vqa-data --out LONG
            vqa predict vqa/model --data vqa-data --out image.png/x.json
            """
        ),
    ],
    "mm": [
        *each(SEGMENT, *(Detector("segmenter", *field) for field in DETECTOR_LURES), codes=(0, 2)),
        *each(TEST_MM, *(Detector("segmenter", *lure) for lure in DETECTOR_LURES + RUN_LURES), codes=(0, 2), late=True),
        *each(SEGMENT, *puts("segmenter/config.json", DOCUMENTS), *puts("segmenter/config.py", DOCUMENTS)),
        *each(SEGMENT, *puts(MM_WEIGHTS, TENSORS), Cut(MM_WEIGHTS, 0.5), Weights(MM_WEIGHTS, 0, "inf")),
        *each(SEGMENT, *(Make("photo.jpg", kind) for kind in KINDS), *puts("photo.jpg", "html empty narrow bomb")),
        *each(
            "publish detector --dry-run", Edit("detector/config.json", "s3zoo.provenance", {"metrics": ["x"]}),
            Edit("detector/config.json", "config", 0.5), Edit("detector/config.json", "config.model.type", "x"),
        ),
        *each("flops_mm segmenter.py", *puts("segmenter.py", "x=( model=3 nul"), Cut("segmenter.py", 0.353)),
        *each(TEST_COCO, Make("coco/val2017/000000000000.jpg", "fifo")),
        *each(TEST_COCO, Cut("coco/val2017/000000000001.jpg", 0.0007, True), late=True),
        *each(TEST_MM, *(Put("ade/images/validation/shapes_00000001.jpg", c) for c in ("empty", "html")), late=True),
        *each(TEST_MM, *(Put(f"{LABELS}/shapes_00000001.png", c) for c in ("empty", "html", "bomb")), late=True),
        *each(TEST_MM, Cut(f"{LABELS}/shapes_00000001.png", 0.5), late=True),
        *(
            Case(command, Detector("segmenter", *field)) for command in (SEGMENT, SAMPLE_MM)
            for field in (("model.data_preprocessor.mean.0", []), ("model.decode_head.num_classes", 4))
        ),
        *(
            Case(command, Edit("segmenter/config.json", *field)) for command in (SEGMENT, SAMPLE_MM)
            for field in (("dataset_meta.classes", ["ground"]), ("dataset_meta.palette", [[1, 2, 3]]))
        ),
        *each(TEST_COCO, *puts(COCO, DOCUMENTS), *(Make(COCO, kind) for kind in KINDS)),
        *each(TEST_COCO, *(Edit(COCO, *field) for field in COCO_FIELDS), Make("coco/val2017", "nothing")),
        *each(TRAIN_COCO, *puts(COCO.replace("val", "train"), "deep list"), Make(COCO.replace("val", "train"), "fifo")),
        *each(TRAIN_MM, Make("ade/images/training", "folder"), Make("ade/annotations/training", "loop")),
        *each(TEST_MM, Make("ade/images/validation/shapes_00000001.jpg", "dangling")),
        *each(f"{TRAIN_MM} --cfg-options load_from={MM_WEIGHTS}", Weights(MM_WEIGHTS, 0, "nan"), late=True),
        *each(WORK, Make("work/segmenter.py", "fifo"), Make("work/iter_1.pth", "fifo")),
        *each(WORK, *puts("work/last_checkpoint", f"{SECRET} {WEB} nul empty"), late=True),
        *each(PRETRAINED_MM, *puts(CONFIG, "html utf-16"), Make(CONFIG, "nothing"), Make(CONFIG, "fifo"), late=True),
        *each(PRETRAINED_MM, *puts(WEIGHTS, "html"), Make(WEIGHTS, "nothing"), Make("model", "loop"), late=True),
        *each("flops_mm segmenter.py", *(Put("segmenter.py", f"_base_ = {base}") for base in BASES)),
        *each(SEGMENT_PTH, *adds("segmenter.py", BUILT)),
        *each(TRAIN_MM, *adds("segmenter.py", TRAINED), late=True),
        *commands(
            """
            flops_mm LONG
            flops_mm segmenter.py --size -1 0
            flops_mm segmenter.py --size 1000000000 1000000000
            predict_mm LONG photo.jpg --out out
            predict_mm segmenter LONG --out out
            predict_mm photo.jpg photo.jpg --out out
            predict_mm segmenter photo.jpg --out photo.jpg
            predict_mm segmenter photo.jpg --out out --threshold nan
            predict_mm segmenter photo.jpg --out out --device x
            train_mm LONG
            train_mm segmenter.py --data LONG
            train_mm segmenter.py --data ade --classes a,a
            test_mm LONG x
            test_mm segmenter --data ade --work-dir photo.jpg
            test_mm segmenter --data ade --work-dir out --cfg-options x.y=1
            """
        ),
    ],
}  # fmt: skip
