"""Image tokens and a question in one BERT encoder, answered from its first token (SOHO without visual dictionary)."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import timm
import torch
import transformers
from torch import Tensor, nn
from transformers import BertConfig, BertModel, BertTokenizer

from s3zoo import __version__
from s3zoo.checks import CLOSED, Interpolation, Range, Share, Text, typed
from s3zoo.files import CONFIG_BYTES, read_bytes, read_json
from s3zoo.models import ENTRYPOINTS
from s3zoo.models._base import ZooModel
from s3zoo.models.folder import (
    CONFIG,
    LARGEST,
    WEIGHTS,
    Kind,
    check_args,
    check_finite,
    check_safetensors,
    first_checksum,
    read_json_object,
)
from s3zoo.models.loading import check_fit
from s3zoo.models.official import read_checkpoint
from s3zoo.models.open import model_folder, open_model
from s3zoo.transfer.vqa.config import VqaModelConfig

ANSWERS, WORDS = "answers.json", "vocab.txt"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


KIND = Kind(
    "the model folder of a run of `s3zoo vqa train`", (WEIGHTS, ANSWERS, WORDS), 2, {1: first_checksum(ANSWERS, WORDS)},
    {"scores?": ({"overall": float, "by_type": dict[str, float]},)},
)  # fmt: skip
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# What config.json holds: fields and types
_Size = Annotated[int, Range(1, 1 << 16)]
_BERT: dict[str, Any] = {
    "vocab_size": Annotated[int, Range(1, LARGEST)],
    "hidden_size": Annotated[int, Range(1, 1 << 14)],
    "num_hidden_layers": Annotated[int, Range(1, 1000)],
    "num_attention_heads": _Size,
    "intermediate_size": _Size,
    "hidden_act": str,
    "hidden_dropout_prob": Share,
    "attention_probs_dropout_prob": Share,
    "max_position_embeddings": _Size,
    "type_vocab_size": _Size,
    "layer_norm_eps": Share,
    "pad_token_id": Annotated[int, Range(0, LARGEST)],
}
_PREPARED: dict[str, Any] = {
    "img_size": Annotated[int, Range(1, 1 << 14)],
    "max_tokens": Annotated[int, Range(3, LARGEST)],
    "mean": tuple[float, float, float],
    "std": Annotated[tuple[float, float, float], Range(0, above=True)],
    "interpolation": Interpolation,
}
_FIELDS: dict[str, Any] = CLOSED | {
    "model_type": Literal["s3zoo_vqa"], "s3zoo": dict, "lowercase": bool, "head_dropout": Share, "matching": bool,
    "backbone": CLOSED | {"architecture": str, "model_args": dict}, "bert": CLOSED | _BERT, "data": CLOSED | _PREPARED,
    "num_answers": Annotated[int, Range(1, LARGEST)],
}  # fmt: skip


# Words


class Words:
    """A BERT vocabulary, in the order of its ids, and its tokenizer."""

    def __init__(self, vocabulary: Sequence[str], lowercase: bool = True) -> None:
        missing = [token for token in SPECIAL[:4] if token not in vocabulary]
        if missing:
            raise ValueError(f"The word vocabulary lacks {', '.join(missing)}; it is not that of a BERT.")
        self.vocabulary, self.lowercase = list(vocabulary), lowercase
        # `vocab`, not the older `vocab_file`: that is ignored without a word, and every word becomes [UNK].
        ids = {word: index for index, word in enumerate(self.vocabulary)}
        self._tokenizer = BertTokenizer(vocab=ids, do_lower_case=lowercase)

    def __call__(self, questions: Sequence[str], max_tokens: int) -> tuple[Tensor, Tensor]:
        """Ids and mask, both (questions, max_tokens): [CLS] question [SEP], cut or padded."""
        coded = self._tokenizer(
            list(questions), padding="max_length", truncation=True, max_length=max_tokens, return_tensors="pt"
        )
        return coded["input_ids"], coded["attention_mask"].bool()

    def unknown(self, question: str) -> list[str]:
        """The words of a question that the vocabulary has no pieces for."""
        return [word for word in _words(self._tokenizer, question) if "[UNK]" in self._tokenizer.tokenize(word)]

    @classmethod
    def of(cls, questions: Iterable[str]) -> Words:
        """Whole words of these questions, the frequent ones first; a WordPiece vocabulary without pieces."""
        tokenizer = BertTokenizer(do_lower_case=True)
        counts: Counter[str] = Counter()
        for text, times in Counter(questions).items():
            counts.update({word: times * n for word, n in Counter(_words(tokenizer, text)).items()})
        return cls([*SPECIAL, *sorted(counts, key=lambda word: (-counts[word], word))])


def _words(tokenizer: BertTokenizer, text: str) -> list[str]:
    """What a tokenizer takes apart into pieces."""
    backend = tokenizer.backend_tokenizer
    text = backend.normalizer.normalize_str(text)
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


# BERT


def bert_folder(source: str) -> str:
    """`package:NAME` as the folder in that installed package which holds a BERT; other sources as they are."""
    if not source.startswith("package:"):
        return source
    name = source.removeprefix("package:")
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
    except ValueError:  # __main__ has none
        spec = None
    places = spec.submodule_search_locations or [] if spec else []
    for place in places:
        for config in sorted(Path(place).rglob(CONFIG)):
            if (config.parent / WORDS).is_file() and (config.parent / WEIGHTS).is_file():
                return str(config.parent)
    what = "has no folder with config.json, vocab.txt and model.safetensors" if spec else "is not installed"
    raise ValueError(f"model.bert is {source!r}, but the package {name!r} {what}; name a folder or a Hub id instead.")


def load_bert(source: str, layers: int) -> tuple[BertModel, Words]:
    """The first layers of a published BERT and its vocabulary, from the Hub, a folder or an installed package."""
    place = bert_folder(source)
    transformers.logging.set_verbosity_error()  # weights that are left out (pooler, later layers) are no news
    transformers.logging.disable_progress_bar()
    if Path(place).is_dir():
        known = _check_bert(Path(place), source)
        config: Any = _fetched(source, lambda: BertConfig(**known))
    else:
        config = _fetched(source, lambda: transformers.AutoConfig.from_pretrained(place, trust_remote_code=False))
    if not isinstance(config, BertConfig):
        raise ValueError(f"model.bert is {source!r}, a {config.model_type!r} model, but must be a BERT.")
    if layers > config.num_hidden_layers:
        raise ValueError(f"model.layers is {layers}, but {source!r} has only {config.num_hidden_layers} layers.")
    config.num_hidden_layers = layers
    options: dict[str, Any] = {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
    options["ignore_mismatched_sizes"] = True  # they are told below
    bert, info = _fetched(
        source, lambda: BertModel.from_pretrained(place, config=config, add_pooling_layer=False, **options)
    )
    tokenizer = _fetched(source, lambda: BertTokenizer.from_pretrained(place, trust_remote_code=False))
    if lacking := sorted([*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])]):
        raise ValueError(f"The weights of {source!r} lack {lacking[0]} as its config has it; they are no whole BERT.")
    check_finite(bert.state_dict(), repr(source))
    ids = tokenizer.get_vocab()
    if len(ids) > config.vocab_size:
        raise ValueError(f"{source!r} has {len(ids)} words, but its weights are for {config.vocab_size}; get it again.")
    return bert, Words(sorted(ids, key=ids.__getitem__), bool(tokenizer.do_lower_case))


def _check_bert(folder: Path, source: str) -> dict[str, Any]:
    """What of a folder's config makes its BERT; a damaged folder is refused before transformers says so in words of its
    own, or fills the memory.
    """
    files = (CONFIG, WORDS, WEIGHTS)
    if lost := [name for name in files if not (folder / name).is_file()]:
        raise ValueError(f"model.bert is {source!r}, a folder without {lost[0]}; it needs {', '.join(files)}.")
    for name in TOKENIZER:  # which need not be there
        if os.path.lexists(folder / name):
            read_json_object(folder / name)
    config = read_json_object(folder / CONFIG)
    if config.get("model_type") != "bert":
        raise ValueError(f"{str(folder)!r} is a {config.get('model_type')!r:.60} model, but model.bert must be a BERT.")
    known = {key: config[key] for key in _BERT if key in config}
    for key, value in known.items():
        typed(value, _BERT[key], f"{str(folder / CONFIG)!r}: {key}")
    check_safetensors(folder / WEIGHTS)
    words = read_bytes(folder / WORDS, CONFIG_BYTES).decode(errors="replace").split("\n")
    if lost := [token for token in SPECIAL[:4] if token not in words]:
        raise ValueError(f"{str(folder / WORDS)!r} has no word {lost[0]}, which every BERT has; get it again.")
    return known


def _fetched(source: str, fetch: Callable[[], Any]) -> Any:
    try:
        return fetch()
    except Exception as error:  # transformers trusts what it reads, and fails anywhere
        why = " ".join(str(error).split())[:160]
        raise ValueError(
            f"model.bert is {source!r}, which could not be loaded from the Hub or as a folder ({why} ...); give a"
            " folder, 'package:NAME' of an installed package, or '' for a small random one."
        ) from None


def small_bert(config: VqaModelConfig, words: int, max_tokens: int) -> BertModel:
    """A BERT with random weights."""
    shape = BertConfig(
        vocab_size=words,
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=4 * config.hidden,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.dropout,
        max_position_embeddings=max_tokens,
        initializer_range=0.02 * (768 / config.hidden) ** 0.5,  # activations vary as in BERT base, 768 wide
    )
    return BertModel(shape, add_pooling_layer=False)


# The network


def sine_position(height: int, width: int, dim: int) -> Tensor:
    """Fixed 2-D code (height * width, dim): rows in the first half of the channels, columns in the second."""
    if dim % 4:
        raise ValueError(f"BERT's width is {dim}, but the position code of image tokens needs a multiple of 4.")

    def axis(length: int) -> Tensor:
        place = torch.arange(1, length + 1, dtype=torch.float32) / (length + 1e-6) * 2 * math.pi
        index = torch.arange(dim // 2)
        angle = place[:, None] / 10_000 ** (2 * (index // 2) / (dim // 2))  # (length, dim / 2)
        return torch.where(index % 2 == 0, angle.sin(), angle.cos())

    rows = axis(height)[:, None].expand(height, width, dim // 2)
    columns = axis(width)[None].expand(height, width, dim // 2)
    return torch.cat([rows, columns], dim=-1).flatten(0, 1)  # (height * width, dim)


class VqaModel(nn.Module):
    """Logits of answers for the questions about each image.

    Args:
        backbone: a timm model; the map of its last stage becomes tokens, projected only where widths differ.
        matching: add a head that tells whether a question belongs to its image.
    """

    def __init__(
        self, backbone: nn.Module, bert: BertModel, num_answers: int, head_dropout: float = 0.5, matching: bool = False
    ) -> None:
        super().__init__()
        if not hasattr(backbone, "forward_intermediates"):
            raise ValueError(f"{type(backbone).__name__} cannot give the map of its last stage; use another backbone.")
        self.backbone, self.bert = backbone, bert
        width: int = backbone.feature_info[-1]["num_chs"]  # type: ignore[index, assignment]
        hidden: int = bert.config.hidden_size
        self.projection: nn.Module = nn.Identity() if width == hidden else nn.Linear(width, hidden)
        self.visual_norm = nn.LayerNorm(hidden)
        self.head = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), nn.ReLU(), nn.Dropout(head_dropout), nn.Linear(4 * hidden, num_answers)
        )
        self.matching = nn.Linear(hidden, 1) if matching else None
        for layer in self.head:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight)

    @property
    def num_answers(self) -> int:
        return self.head[-1].out_features  # type: ignore[return-value]

    def no_weight_decay(self) -> set[str]:
        return {f"backbone.{name}" for name in getattr(self.backbone, "no_weight_decay", set)()}

    def encode_images(self, images: Tensor) -> Tensor:
        """Visual tokens (B, h * w, hidden)."""
        (maps,) = self.backbone.forward_intermediates(  # type: ignore[operator]
            images, indices=1, norm=True, output_fmt="NCHW", intermediates_only=True
        )
        tokens = self.projection(maps.flatten(2).transpose(1, 2))  # (B, h * w, hidden)
        position = sine_position(maps.shape[2], maps.shape[3], tokens.shape[2]).to(tokens)
        return self.visual_norm(tokens + position)

    def encode(self, visual: Tensor | None, ids: Tensor, mask: Tensor) -> Tensor:
        """The encoder's last hidden states (B, text + image, hidden).

        The image's tokens join behind the embedding norm: they get no position and no segment of BERT's.
        """
        x = self.bert.embeddings(ids)  # (B, text, hidden)
        if visual is not None:
            x = torch.cat([x, visual], dim=1)
            mask = torch.cat([mask, mask.new_ones(visual.shape[:2])], dim=1)
        return self.bert.encoder(x, attention_mask=mask[:, None, None]).last_hidden_state

    def answer(self, visual: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Logits (B, answers) for one question on each image."""
        return self.head(self.encode(visual, ids, mask)[:, 0])

    def forward(self, images: Tensor, ids: Tensor, mask: Tensor, dropout_stream: int | None = None) -> Any:
        """Logits (B, questions, answers) of ids and mask (B, questions, text); with `matching`, its logits too.

        Args:
            dropout_stream: the loop seeds all parts of a batch alike, because drop path draws for the whole batch and
                picks; dropout does not, so parts that are told apart by this number draw their own masks.
        """
        visual = self.encode_images(images).repeat_interleave(ids.shape[1], 0)  # an image is encoded once
        if dropout_stream:
            torch.manual_seed(torch.initial_seed() + dropout_stream)
        first = self.encode(visual, ids.flatten(0, 1), mask.flatten(0, 1))[:, 0]
        logits = self.head(first).unflatten(0, ids.shape[:2])  # (B, questions, answers)
        if self.matching is None:
            return logits
        return logits, self.matching(first).reshape(ids.shape[:2])


def make_backbone(config: VqaModelConfig, img_size: int, drop_path: float = 0.0) -> nn.Module:
    """The backbone without its classifier, for square images of this size."""
    args = ({"drop_path_rate": drop_path} if drop_path else {}) | config.backbone_args
    if timm.is_model(config.backbone) and timm.get_pretrained_cfg(config.backbone).fixed_input_size:  # type: ignore[union-attr]
        args.setdefault("img_size", img_size)
    try:
        backbone = open_model(config.backbone, pretrained=config.pretrained, num_classes=0, **args)
    except ValueError as error:
        raise ValueError(
            f"The backbone {config.backbone!r} could not be made ({str(error).rstrip('.')}); set model.pretrained=false"
            " to begin with random weights, or name a folder with model.backbone=local-dir:FOLDER."
        ) from None
    if isinstance(backbone, ZooModel) and "img_size" not in args:
        backbone.set_input_size(img_size)  # type: ignore[operator]
    return backbone


def make_model(
    config: VqaModelConfig, questions: Iterable[str], num_answers: int, img_size: int, max_tokens: int,
    drop_path: float = 0.0,
) -> tuple[VqaModel, Words]:  # fmt: skip
    """The network of a run and its word vocabulary."""
    if config.bert:
        bert, words = load_bert(config.bert, config.layers)
        for layer in bert.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = config.dropout
        bert.config.hidden_dropout_prob = bert.config.attention_probs_dropout_prob = config.dropout
    else:
        words = Words.of(questions)
        bert = small_bert(config, len(words.vocabulary), max_tokens)
    backbone = make_backbone(config, img_size, drop_path)
    return VqaModel(backbone, bert, num_answers, config.head_dropout, config.matching > 0), words


# The folder that is a model


def save(
    folder: Path, model: VqaModel, words: Words, answers: Sequence[str], config: VqaModelConfig, data: dict[str, Any],
    provenance: dict[str, Any],
) -> None:  # fmt: skip
    """Write weights, config, answers and words; `data` says how images and questions are prepared."""
    backbone: Any = model.backbone
    if isinstance(backbone, ZooModel):  # whatever name it was made by, its architecture makes it again
        size: Any = getattr(backbone, "img_size", None) or backbone.patch_embed.img_size  # type: ignore[union-attr]
        args: dict[str, Any] = {"arch": backbone.arch.to_dict(), "img_size": list(size)}
        name = ENTRYPOINTS[backbone.arch.family]
        if getattr(backbone, "dynamic_img_size", False):
            args["dynamic_img_size"] = True
        args |= getattr(backbone, "model_args", dict)()
    else:
        name = backbone.pretrained_cfg["architecture"]
        args = dict(config.backbone_args)
        if backbone.pretrained_cfg.get("fixed_input_size"):
            args.setdefault("img_size", data["img_size"])
    content: dict[str, Any] = {
        "model_type": "s3zoo_vqa",
        "backbone": {"architecture": name, "model_args": args},
        "bert": {key: getattr(model.bert.config, key) for key in _BERT},
        "lowercase": words.lowercase,
        "head_dropout": model.head[2].p,
        "matching": model.matching is not None,
        "num_answers": len(answers),
        "data": data,
        "s3zoo": {"schema_version": KIND.schema_version, "version": __version__, "provenance": provenance},
    }
    texts = {
        ANSWERS: json.dumps(list(answers), indent=0) + "\n",
        WORDS: "".join(word + "\n" for word in words.vocabulary),
    }
    KIND.write(folder, model.state_dict(), content, texts)


def load(folder: Path) -> tuple[VqaModel, Words, list[str], dict[str, Any]]:
    """Model in evaluation mode, words, answers and config of a folder that `save` wrote; it reaches nothing else."""
    folder = model_folder(folder) or folder
    content = KIND.read(folder)
    answers = read_json(folder / ANSWERS)
    try:
        vocabulary = read_bytes(folder / WORDS, CONFIG_BYTES).decode().split("\n")[:-1]
        _check(content, answers, vocabulary)
    except ValueError as error:
        said = str(error).rstrip(".")
        raise ValueError(f"{str(folder)!r} is no model of `s3zoo vqa train`: {said}; copy it again.") from None
    words = Words(vocabulary, content["lowercase"])
    made = content["backbone"]
    weights = read_checkpoint(folder / WEIGHTS)

    def build() -> VqaModel:
        backbone = open_model(made["architecture"], pretrained=False, num_classes=0, **made["model_args"])
        bert = BertModel(BertConfig(**content["bert"]), add_pooling_layer=False)
        return VqaModel(backbone, bert, len(answers), content["head_dropout"], content["matching"])

    with torch.device("meta"):  # before memory is taken, it is sure that the weights are all that is asked for
        check_fit(build(), weights, f"{str(folder)!r}")
    model = build()
    model.load_state_dict(weights)
    return model.eval(), words, answers, content


def _check(content: dict[str, Any], answers: Any, vocabulary: list[str]) -> None:
    """Refuse a config with other fields or types than `save` writes."""
    typed(content, _FIELDS, "")
    made, bert, data = content["backbone"], content["bert"], content["data"]
    if len(typed(answers, tuple[Text, ...], ANSWERS)) != content["num_answers"]:
        raise ValueError(f"{ANSWERS} has {len(answers)} answers, but num_answers is {content['num_answers']}")
    if not re.fullmatch(r"\w+", made["architecture"]) or not timm.is_model(made["architecture"]):
        raise ValueError(f"its backbone {made['architecture'][:60]!r} is no model of timm or s3zoo")
    check_args(made["architecture"], made["model_args"])
    if bert["hidden_act"] not in transformers.activations.ACT2FN:
        raise ValueError(f"bert.hidden_act is {bert['hidden_act'][:60]!r}, which transformers does not know")
    if bert["vocab_size"] != len(vocabulary) or bert["hidden_size"] % bert["num_attention_heads"]:
        raise ValueError("bert does not have a vector for each word, or its width is no multiple of its heads")
    if bert["pad_token_id"] >= bert["vocab_size"] or data["max_tokens"] > bert["max_position_embeddings"]:
        raise ValueError("bert has no vector for the word that pads, or fewer positions than data.max_tokens")
