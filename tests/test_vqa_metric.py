"""The official VQA v2 accuracy, against cases worked out by hand from its rules."""

import pytest

from s3zoo.transfer.vqa import metric

# answer as typed -> answer as compared, one row per rule and quirk
NORMALISED = [
    # A mark becomes a space ...
    ("red;blue", "red blue"),
    ("red/blue", "red blue"),
    ("[red]", "red"),
    ('"stop"', "stop"),
    ("{x}", "x"),
    ("(left)", "left"),
    ("x=y", "x y"),
    ("2+2", "2 2"),
    ("back\\slash", "back slash"),
    ("snow_board", "snow board"),
    ("t-shirt", "t shirt"),
    ("x>y", "x y"),
    ("x<y", "x y"),
    ("me@home", "me home"),
    ("`quoted`", "quoted"),
    ("yes,no", "yes no"),
    ("really?", "really"),
    ("stop!", "stop"),
    # ... unless the same mark stands beside a space somewhere: then all of them vanish,
    ("red, blue", "red blue"),
    ("t -shirt", "t shirt"),
    ("left-right - up", "leftright up"),
    ("left-right, up", "left right up"),
    # a space that an earlier mark left does not count,
    ("up/-down-left", "up down left"),
    # or there is a digit, a comma and a digit anywhere: then every mark vanishes.
    ("1,000", "1000"),
    ("1,000-2,000 ft", "10002000 ft"),
    ("1,000/day", "1000day"),
    ("yes/no 1,5", "yesno 15"),
    ("1, 000", "1 000"),
    # Other marks stay.
    ("5:30", "5:30"),
    ("men's", "men's"),
    ("salt & pepper", "salt & pepper"),
    ("100%", "100%"),
    ("$5 #1 *", "$5 #1 *"),
    # Periods go unless a digit follows; what is before them does not matter; at most 32 of them.
    ("5.", "5"),
    ("u.s.a", "usa"),
    ("u.s.a.", "usa"),
    ("4.5", "4.5"),
    ("4.5.", "4.5"),
    ("no.5", "no.5"),
    (".5", ".5"),
    ("3.a", "3a"),
    ("mr. smith", "mr smith"),
    ("...", ""),
    ("." * 33 + "x", ".x"),
    # Lower case, number words, articles, spaces.
    ("YES", "yes"),
    ("none", "0"),
    ("zero", "0"),
    ("one two three four five six seven eight nine ten", "1 2 3 4 5 6 7 8 9 10"),
    ("Two Dogs", "2 dogs"),
    ("eleven", "eleven"),
    ("twenty one", "twenty 1"),
    ("ten-year-old", "10 year old"),
    ("a dog", "dog"),
    ("An apple", "apple"),
    ("on the THE table", "on table"),
    ("a", ""),
    ("the.", ""),
    ("t.h.e", ""),
    ("another", "another"),
    ("x=a", "x"),
    ("  spaced   out ", "spaced out"),
    # Contractions get the one apostrophe they lack, if the table has them.
    ("dont", "don't"),
    ("DONT", "don't"),
    ("don't", "don't"),
    ("5 oclock", "5 o'clock"),
    ("couldnt've", "couldn't've"),
    ("couldn'tve", "couldn't've"),
    ("couldntve", "couldntve"),
    ("'ows'at", "'ow's'at"),
    ("twas", "'twas"),
    ("y'alld've", "y'all'd've"),
    ("theyre hes", "they're he's"),
    ("somebody'd", "somebodyd"),
    ("somebodyd", "somebodyd"),
    ("Im", "im"),
    ("Ive", "ive"),
    ("shes", "shes"),
    ("lets", "lets"),
    ("were", "were"),
]

# answer, the human answers with how often each was given, accuracy
ACCURACY = [
    ("yes", {"yes": 10}, 1.0),
    ("Yes", {"yes": 10}, 0.0),  # all agree, so nothing is normalised
    ("yes.", {"yes": 10}, 0.0),
    ("2", {"two": 10}, 0.0),
    ("a", {"the": 10}, 0.0),
    (" yes\n", {"yes": 10}, 1.0),  # but newlines, tabs and outer spaces
    ("yes", {"yes\t": 6, "yes": 4}, 1.0),
    ("two\tdogs", {"two dogs": 10}, 1.0),
    ("Yes", {"yes": 9, "no": 1}, 1.0),
    ("2", {"two": 9, "three": 1}, 1.0),
    ("two", {"2": 2, "two": 1, "3": 7}, 0.9),
    ("red", {"blue": 9, "green": 1}, 0.0),
    ("red", {"red": 1, "blue": 9}, 0.3),
    ("red", {"red": 2, "blue": 8}, 0.6),
    ("red", {"red": 3, "blue": 7}, 0.9),
    ("red", {"red": 4, "blue": 6}, 1.0),
    ("red", {"red": 9, "blue": 1}, 1.0),
    ("a", {"the": 3, "dog": 7}, 0.9),  # both are nothing
    ("dont", {"don't": 2, "do": 8}, 0.6),
    ("t-shirt", {"t shirt": 1, "T-Shirt": 1, "shirt": 8}, 0.6),
    ("1,000", {"1000": 1, "1 000": 1, "many": 8}, 0.3),
    ("the dog", {"dog": 4, "cat": 6}, 1.0),
]


@pytest.mark.parametrize(("typed", "compared"), NORMALISED)
def test_normalised(typed, compared):
    assert metric.compared_form(typed) == compared


@pytest.mark.parametrize(("answer", "humans", "expected"), ACCURACY)
def test_accuracy(answer, humans, expected):
    given = [text for text, times in humans.items() for _ in range(times)]
    assert len(given) == 10
    assert metric.accuracy(answer, given) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("agree", range(11))
def test_leaving_one_human_out(agree):
    humans = ["red"] * agree + ["blue"] * (10 - agree)
    others = [humans[:i] + humans[i + 1 :] for i in range(10)]
    by_hand = sum(min(1.0, rest.count("red") / 3) for rest in others) / 10
    expected = [0, 0.3, 0.6, 0.9, 1, 1, 1, 1, 1, 1, 1][agree]
    assert by_hand == pytest.approx(expected)
    assert metric.accuracy("red", humans) == pytest.approx(expected)
    assert metric.soft_score(agree) == expected


def test_soft_targets_count_answers_as_typed():
    labels = {"red": 0, "": 1, "2": 2}
    humans = ["red"] * 3 + ["Red", "two", "2", "", "", "blue", "the"]
    assert dict(zip(*metric.soft_targets(humans, labels), strict=True)) == {0: 0.9, 1: 0.6, 2: 0.3}
    assert metric.soft_targets(["blue"] * 10, labels) == ([], [])


def test_scores_by_answer_type():
    humans = {
        1: (["yes"] * 10, "yes/no"),
        2: (["no"] * 10, "yes/no"),
        3: (["2"] * 2 + ["3"] * 8, "number"),
        4: (["red"] * 10, "other"),
    }
    got = metric.scores({1: "yes", 2: "yes", 3: "2", 4: "red"}, humans)
    # yes/no: (1 + 0) / 2; number: .6; other: 1; all: 2.6 / 4
    assert got == {"overall": 65.0, "by_type": {"number": 60.0, "other": 100.0, "yes/no": 50.0}, "questions": 4}


def test_a_submission_answers_every_question_once():
    assert metric.submission({7: "yes", 5: ""}, [5, 7]) == [
        {"question_id": 5, "answer": ""},
        {"question_id": 7, "answer": "yes"},
    ]
    with pytest.raises(ValueError, match="1 question ids have no answer .first: 7"):
        metric.submission({5: "no"}, [5, 7])
    with pytest.raises(ValueError, match="1 question ids do not exist .first: 9"):
        metric.submission({5: "no", 7: "no", 9: "no"}, [5, 7])
    with pytest.raises(ValueError, match="no questions"):
        metric.submission({}, [])
    assert metric.read_submission([{"question_id": 1, "answer": "x"}], "f") == {1: "x"}
    for rows, said in [
        ({"a": 1}, "list"),
        ([{"question_id": "1", "answer": "x"}], "integer question_id"),
        ([{"question_id": 1}], "an answer"),
        ([{"question_id": 1, "answer": "x"}] * 2, "question 1 twice"),
    ]:
        with pytest.raises(ValueError, match=said):
            metric.read_submission(rows, "f.json")
