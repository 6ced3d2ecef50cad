"""The official VQA v2 accuracy, its normalisation of answers with every quirk, and the submission file.

The order of the steps, the marks, the number words and the spellings of contractions are those of the official
evaluation (GT-Vision-Lab/VQA, BSD-2-Clause, Copyright (c) 2014 Aishwarya Agrawal), which is Python 2.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MARKS = ';/[]"{}()=+\\_-><@`,?!'
NUMBERS = {"none": "0", "zero": "0"} | {
    word: str(value) for value, word in enumerate("one two three four five six seven eight nine ten".split(), start=1)
}
ARTICLES = {"a", "an", "the"}

# Spelled right; what lacks one of the apostrophes is replaced. Words of the official table whose keys have capitals
# (Im, Ive, I'dve) are left out: answers are lower case when they are looked up, so those never match.
_CONTRACTIONS = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've he's
how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've needn't not've o'clock
oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd
someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've there're there's
they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've when's
where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've wouldn't wouldn't've
y'all y'all'll y'all'd've you'd you'd've you'll you're you've
"""
CONTRACTIONS = {
    word[:place] + word[place + 1 :]: word
    for word in _CONTRACTIONS.split()
    for place, letter in enumerate(word)
    if letter == "'"
} | {"somebody'd": "somebodyd"}  # the wrong way round in the official table

_DIGITS_WITH_COMMA = re.compile(r"\d,\d")
_PERIOD = re.compile(r"\.(?!\d)")  # the official pattern also means to look behind, but does not
_MOST_PERIODS = 32  # re.UNICODE, given by the official code where the number of replacements stands


def cleaned(answer: str) -> str:
    """What is done to every answer."""
    return answer.replace("\n", " ").replace("\t", " ").strip()


def compared_form(answer: str) -> str:
    """What is done besides where the ten humans do not all agree."""
    numbers = _DIGITS_WITH_COMMA.search(answer) is not None
    text = answer
    for mark in MARKS:
        beside_space = f"{mark} " in answer or f" {mark}" in answer  # in the answer as it was given
        text = text.replace(mark, "" if beside_space or numbers else " ")
    text = _PERIOD.sub("", text, count=_MOST_PERIODS)
    words = (NUMBERS.get(word, word) for word in text.lower().split())
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def vocabulary_form(answer: str) -> str:
    """An answer as the usual vocabularies of answers hold it."""
    return compared_form(answer).replace(",", "")


def accuracy(answer: str, humans: Sequence[str]) -> float:
    """Each human is left out once: min(1, agreeing others / 3), averaged. For ten humans 0, .3, .6, .9 or 1."""
    answer, humans = cleaned(answer), [cleaned(human) for human in humans]
    if len(set(humans)) > 1:
        answer, humans = compared_form(answer), [compared_form(human) for human in humans]
    agree = humans.count(answer)
    others = len(humans) - agree
    return (agree * min(3, agree - 1) + others * min(3, agree)) / (3 * len(humans)) if agree else 0.0


def soft_score(count: int) -> float:
    """The accuracy of an answer that `count` of ten humans gave."""
    return (0.0, 0.3, 0.6, 0.9)[count] if count < 4 else 1.0


def soft_targets(humans: Iterable[str], labels: Mapping[str, int]) -> tuple[list[int], list[float]]:
    """Labels and scores of the human answers that are in the vocabulary; answers are taken as they were typed."""
    counts = Counter(human for human in humans if human in labels)
    return [labels[answer] for answer in counts], [soft_score(count) for count in counts.values()]


def scores(answers: Mapping[int, str], humans: Mapping[int, tuple[Sequence[str], str]]) -> dict[str, Any]:
    """Accuracy in percent over all questions and by answer type; `humans` has each question's answers and type."""
    check_ids(answers, humans)
    by_type: dict[str, list[float]] = defaultdict(list)
    for question, (given, kind) in humans.items():
        by_type[kind].append(accuracy(answers[question], given))
    every = [score for values in by_type.values() for score in values]
    percent = {kind: round(100 * sum(values) / len(values), 2) for kind, values in sorted(by_type.items())}
    return {"overall": round(100 * sum(every) / len(every), 2), "by_type": percent, "questions": len(every)}


def check_ids(answers: Iterable[int], questions: Iterable[int]) -> None:
    """Every question must be answered and no other; the official loader asks for the same."""
    given, asked = set(answers), set(questions)
    if not asked:
        raise ValueError("There are no questions to answer; check the questions file.")
    for ids, what in ((given - asked, "do not exist"), (asked - given, "have no answer")):
        if ids:
            some = ", ".join(map(str, sorted(ids)[:3]))
            raise ValueError(f"{len(ids)} question ids {what} (first: {some}); every question needs one answer.")


def submission(answers: Mapping[int, str], questions: Iterable[int]) -> list[dict[str, Any]]:
    """The list that the EvalAI server takes."""
    order = list(questions)
    check_ids(answers, order)
    return [{"question_id": question, "answer": answers[question]} for question in order]


def read_submission(results: Any, where: str) -> dict[int, str]:
    """Answers by question id from a submission's list."""
    answers: dict[int, str] = {}
    if not isinstance(results, list):
        raise ValueError(f"{where} must hold a list of question_id and answer; it holds a {type(results).__name__}.")
    for row in results:
        if not isinstance(row, dict) or not isinstance(row.get("question_id"), int) or not isinstance(
            row.get("answer"), str
        ):  # fmt: skip
            raise ValueError(f"{where} has the entry {row!r}; each needs an integer question_id and an answer, a text.")
        if row["question_id"] in answers:
            raise ValueError(f"{where} answers question {row['question_id']} twice; keep one answer.")
        answers[row["question_id"]] = row["answer"]
    return answers
