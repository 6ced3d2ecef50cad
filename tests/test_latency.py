"""The latency table: which parts there are, that they add up to a network's time, JSON, refusals, and in a search."""

import dataclasses
import json
import random
import time
from pathlib import Path

import pytest
import torch
from test_search import ONE, quick, search, toy

from s3zoo import cards
from s3zoo.arch import Arch, AutoFormerBlock, S3Block, Stage
from s3zoo.artefact import load_model_config
from s3zoo.drawing import told_latency
from s3zoo.families.autoformer import plain_space
from s3zoo.files import Records
from s3zoo.models import MODELS
from s3zoo.search import latency, latency_runtime
from s3zoo.search import run as search_run
from s3zoo.search.config import ArchSearch
from s3zoo.search.latency import LatencyTable, Part, covering_archs, parts, space_parts
from s3zoo.space import GLIT_TINY, S3_INITIAL, S4_SWIN, Space, glit_details, glit_space, s3_space
from s3zoo.training.log import Log
from s3zoo.training.loop import Interrupted, Stop

pytestmark = pytest.mark.usefixtures("one_thread")

S3_SPACE = s3_space(
    "small_s3", (1, 2, 3), (48, 64), (4, 8), (2,), (2, 4), steps=(1, 16, 4, 1, 1), head_dim=16, num_stages=2
)
AUTOFORMER_SPACE = plain_space("small_autoformer", (2, 3, 4), (64, 96), (1, 2), (2, 4), head_dim=32, patch_size=4)
GLIT_SPACE = glit_space(
    "small_glit", 48, 3, depth=3, kernels=(3, 5), expansions=(1, 2), head_dims=(16,), mlp=(2, 4), patch_size=4
)
SHAPE = {"img_size": 32, "num_classes": 10, "in_chans": 3}


TOLERANCE = latency.TOLERANCE


@pytest.fixture(autouse=True)
def as_for_users(monkeypatch):
    """What conftest.py changes for all other tests."""
    monkeypatch.setattr(latency, "TOLERANCE", TOLERANCE)


@pytest.fixture
def calm(monkeypatch):
    """No machine is too busy: what is tested is another thing, and two passes are few."""
    monkeypatch.setattr(latency, "TOLERANCE", 1e9)
    monkeypatch.setattr(latency_runtime, "SECONDS", 0.1)


def filled(space: Space, **shape) -> LatencyTable:
    """A table with made-up entries, the i-th part taking i + 1 ms."""
    table = LatencyTable.empty(space, **{**SHAPE, **shape})
    table.entries = {part: 1.0 + i for i, part in enumerate(table.missing(space))}
    return table


def seconds(archs: list[Arch], passes: int = 15) -> list[float]:
    """The least times of whole networks, nothing hooked into them."""
    models = [MODELS[arch.family](arch, **SHAPE).eval() for arch in archs]
    images = torch.randn(4, 3, 32, 32)
    times: list[list[float]] = [[] for _ in models]
    with torch.inference_mode():
        for _ in range(passes):
            for model, own in zip(models, times, strict=True):
                start = time.process_time()
                model(images)
                own.append(time.process_time() - start)
    return [min(own) for own in times]


# Parts


def test_parts_of_a_network():
    a, b = S3Block(7, 2, 32, 3.0), S3Block(14, 3, 32, 4.0)
    arch = Arch("s3", (Stage(64, (a, b)), Stage(96, (b,))))
    expected = [Part(0, (64,)), Part(0, (64,), a), Part(0, (64,), b), Part(1, (64, 96)), Part(1, (96,), b)]
    assert list(parts(arch)) == [*expected, Part(2, (96,))]


def test_number_of_parts():
    """Counted by hand. S3 at 224 pixels: 18 blocks of 3 widths, but in stage 4 (7 x 7) both windows are one.

    GLiT's distinct blocks: 27 all local, 9 all global, 81 for each of two mixed splits.
    """
    frame = 3 + 3 * 9 + 3
    assert len(space_parts(S3_INITIAL, 224)) == 3 * 54 + 27 + frame
    assert len(space_parts(GLIT_TINY, 224)) == 27 + 9 + 2 * 81 + 2
    assert len(space_parts(S4_SWIN, 224)) == 4 * 9 + 5 * 3  # one width and one ratio for all stages


@pytest.mark.parametrize("space", [S3_SPACE, AUTOFORMER_SPACE, GLIT_SPACE, S4_SWIN], ids=lambda s: s.name)
def test_every_network_has_its_parts_in_the_table_and_few_networks_show_them(space):
    size = 224 if space is S4_SWIN else 32
    wanted = space_parts(space, size)
    rng = random.Random(0)
    for _ in range(200):
        assert set(parts(space.sample(rng).effective(size))) <= set(wanted)
    archs = covering_archs(space, wanted)
    assert {part for arch in archs for part in parts(arch)} >= set(wanted)
    most = max(sum(p.stage == s and p.genes is not None for p in wanted) for s in range(space.num_stages))
    assert len(archs) == most  # as many as the most varied stage has blocks


def test_genes_that_are_fixed_for_single_blocks():
    details = glit_details(GLIT_SPACE, GLIT_SPACE.sample(random.Random(1)))
    wanted = set(space_parts(details, 32))
    for seed in range(50):
        assert set(parts(details.sample(random.Random(seed)).effective(32))) <= wanted


# Times


@pytest.mark.parametrize("space", [S3_SPACE, AUTOFORMER_SPACE, GLIT_SPACE], ids=lambda s: s.name)
def test_parts_add_up_to_whole_networks(space, calm):
    """Against the clock around whole networks. A machine may be busy, so one of five attempts must hold."""
    archs = [space.smallest(), space.largest(), space.sample(random.Random(5))]
    worst = 0.0
    for _ in range(5):
        table = LatencyTable.empty(space, **SHAPE, batch_size=4)
        table.cover(space, repeats=5)
        ratios = [table(arch) / (1e3 * whole) for arch, whole in zip(archs, seconds(archs), strict=True)]
        worst = max(max(ratio, 1 / ratio) for ratio in ratios)
        if worst < 1.35:
            return
    raise AssertionError(f"the table is off by a factor of {worst:.2f}")


def test_segments_are_the_times_of_their_modules(monkeypatch):
    """A clock that each part of the network moves by a known time."""
    now = [0.0]
    blocks = (S3Block(4, 2, 16, 2.0),) * 2
    arch = Arch("s3", (Stage(48, blocks), Stage(64, blocks[:1])))
    model = MODELS["s3"](arch, **SHAPE).eval()

    def takes(module, ms):
        module.register_forward_hook(lambda *_: now.__setitem__(0, now[0] + ms / 1e3))

    takes(model.patch_embed, 1)
    takes(model.stages[0].blocks[0], 20)
    takes(model.stages[0].blocks[1], 40)
    takes(model.stages[1].downsample, 300)
    takes(model.stages[1].blocks[0], 5000)
    takes(model.norm, 10_000)
    takes(model.head, 60_000)
    for times in latency.timed_segments(model, torch.zeros(1, 3, 32, 32), 2, lambda: now[0]):
        assert times == pytest.approx([1, 20, 40, 300, 5000, 70_000])

    # A plain and a shifted block of equal genes are one part: their mean.
    monkeypatch.setattr(latency, "timed_segments", lambda *_: iter([[1.0, 20.0, 40.0, 300.0, 5000.0, 70_000.0]]))
    found = dict(LatencyTable.empty(S3_SPACE, **SHAPE)._timed(arch, 1))
    assert found[Part(0, (48,), blocks[0])] == 30.0
    assert found[Part(1, (64,), blocks[0])] == 5000.0


def test_typical_times_of_what_was_missing(monkeypatch, calm):
    """What a table has stays; one slow pass in each round does not count."""
    seen = []

    def timed(self, arch, passes):
        seen.append(arch)
        for i in range(passes):
            yield from ((part, 1000.0 if i == 0 else 2.0) for part in dict.fromkeys(parts(arch)))

    monkeypatch.setattr(LatencyTable, "_timed", timed)
    monkeypatch.setattr(latency._Measurement, "_sweep", lambda self: [1.0] * len(self.whole))
    table = LatencyTable.empty(AUTOFORMER_SPACE, **SHAPE)
    first = table.missing(AUTOFORMER_SPACE)
    table.entries[first[1]] = 7.0
    table.cover(AUTOFORMER_SPACE, repeats=9)
    assert table.entries.pop(first[1]) == 7.0
    assert set(table.entries.values()) == {2.0} and len(table.entries) == len(first) - 1
    assert [seen[i] for i in range(len(seen) // 3)] * 3 == seen  # round by round, not network by network
    seen.clear()
    table.entries[first[1]] = 7.0
    table.cover(AUTOFORMER_SPACE)
    assert not seen


def test_sum_of_entries_and_depth():
    table = filled(AUTOFORMER_SPACE)
    block, other = AutoFormerBlock(1, 32, 2.0), AutoFormerBlock(2, 32, 4.0)
    arch = Arch("autoformer", (Stage(64, (block, other)),), 4)
    entry = table.entries
    a, b = entry[Part(0, (64,), block)], entry[Part(0, (64,), other)]
    assert a != b
    assert table(arch) == entry[Part(0, (64,))] + a + b + entry[Part(1, (64,))]
    deeper = Arch("autoformer", (Stage(64, (block, other, block)),), 4)
    assert table(deeper) == table(arch) + a


def test_windows_beyond_the_map_are_one_entry():
    table = filled(S3_SPACE)  # 8 x 8 in stage 1, 4 x 4 in stage 2
    arch = S3_SPACE.smallest()
    wide = dataclasses.replace(
        arch, stages=(arch.stages[0], Stage(48, (dataclasses.replace(arch.stages[1].blocks[0], window_size=8),)))
    )
    assert wide != arch and table(wide) == table(arch)


# Whole networks


def test_a_correction_is_found_again():
    """Times made of known coefficients, one of which is 0."""
    terms = [(1.0, float(3 + i % 4), float(i % 3), 0.5 * i) for i in range(10)]
    found = latency.fitted(terms, [0.7 + 2.5 * t[2] + 4.0 * t[3] + 0.0 * t[1] + (3.0 * t[1]) for t in terms])
    assert (found.fixed, found.parts, found.blocks, found.gmacs) == pytest.approx((0.7, 3.0, 2.5, 4.0), rel=1e-4)
    assert found.error < 1e-6 and found(terms[4]) == pytest.approx(0.7 + 3 * 3 + 2.5 + 8.0, rel=1e-4)
    faster = latency.fitted(terms, [10.0 + t[1] - 0.5 * t[2] for t in terms])  # more blocks are never a gain
    assert min(dataclasses.astuple(faster)) >= 0 and faster.error > 0
    alone = latency.fitted([(1.0, 4.0, 2.0, 0.1)], [6.0])
    assert (alone.parts, alone.error) == (1.5, 0.0)


@pytest.mark.parametrize(
    "sweeps, block, sentence",
    [
        ([1.0, 1.2], 1.0, "two measurements of the same networks differ by 20% on average"),
        ([1.0, 1.0], 0.5, "the largest blocks of stages take 50% of the time of the smallest"),
        ([1.0, 1.0, 3.0], 1.0, "whole networks differ from what their parts predict by"),
    ],
)
def test_noise_is_measured_again_and_then_refused(sweeps, block, sentence, monkeypatch):
    """Whole networks that take other times, blocks that take less than smaller ones, a sum that tells nothing."""
    attempts, taken = [], iter(sweeps[:2] * 3 * (latency.SWEEPS // 2))
    odd = sweeps[2] if len(sweeps) > 2 else 1.0

    def timed(self, arch, passes):
        attempts.append(passes)
        large = AutoFormerBlock(2, 32, 4.0)
        yield from ((part, block if part.genes == large else 1.0) for part in dict.fromkeys(parts(arch)))

    def sweep(self):
        factor = next(taken)
        times = [factor * (2 + sum(arch.depths)) for arch in self.whole]
        return [ms * (odd if i % 2 else 1.0) for i, ms in enumerate(times)]

    monkeypatch.setattr(LatencyTable, "_timed", timed)
    monkeypatch.setattr(latency._Measurement, "_sweep", sweep)
    table = LatencyTable.empty(AUTOFORMER_SPACE, **SHAPE)
    with pytest.raises(ValueError, match=f"cannot be trusted: {sentence}.*limit macs or params instead") as error:
        table.cover(AUTOFORMER_SPACE, repeats=3)
    assert "\n" not in str(error.value) and not table.entries and table.correction is None
    assert sorted(set(attempts)) == [1, 2, 4]  # with twice as many passes each time


def test_a_second_measurement_that_agrees_is_taken(monkeypatch):
    half = latency.SWEEPS // 2
    taken = iter([1.0, 1.5] * half + [1.3, 1.35] + [1.0, 1.05] + [1.2, 1.05] * (half - 2))  # a slow while does no harm
    one = lambda self, arch, passes: ((part, 1.0) for part in dict.fromkeys(parts(arch)))  # noqa: E731
    monkeypatch.setattr(LatencyTable, "_timed", one)
    monkeypatch.setattr(
        latency._Measurement, "_sweep",
        lambda self: (lambda f: [f * (4 + 2 * sum(arch.depths)) for arch in self.whole])(next(taken)),
    )  # fmt: skip
    table = LatencyTable.empty(AUTOFORMER_SPACE, **SHAPE)
    table.cover(AUTOFORMER_SPACE, repeats=1)
    arch = AUTOFORMER_SPACE.largest()
    assert table(arch) == pytest.approx(4 + 2 * sum(arch.depths), rel=1e-4)  # twice the sum of the parts


def test_the_fastest_of_many_passes_counts(monkeypatch):
    """Two networks in turns under a clock that they move: first passes and busy whiles are slow, none is too fast."""
    now, order = [0.0], []
    monkeypatch.setattr(latency_runtime, "clock", lambda device, threads: lambda: now[0])

    def network(name, times):
        waiting = list(times)

        def run():
            order.append(name)
            now[0] += 1e-3 * (waiting.pop(0) if waiting else times[-1])

        return run

    # A call warms up. Then each turn has a pass that does not count, since the other network had the caches, and one
    # that does: 9, 8 and 7 ms of the first network.
    runs = [network("a", [99, 1, 9, 1, 8, 1, 7, 50]), network("b", [99, 30, 20])]
    assert latency_runtime.timed_in_turns(runs, 3, "cpu", 1, 0.0) == [7.0, 20.0]
    assert "".join(order) == "ab" + 3 * "aabb"
    order.clear()
    assert latency_runtime.timed_in_turns([network("a", [99, 30])], 3, "cpu", 1, 0.5) == [30.0]
    assert len(order) == 1 + 2 * 17  # 17 x 30 ms are half a second
    order.clear()
    assert latency_runtime.timed_in_turns([network("a", [99, 0.01])], 3, "cpu", 1, 0.5) == [0.01]
    assert len(order) == 1 + 2 * 3 * latency_runtime.MOST


def test_the_network_is_run_as_its_runtime_does(monkeypatch):
    model, images = MODELS["autoformer"](AUTOFORMER_SPACE.smallest(), **SHAPE), torch.randn(1, 3, 32, 32)
    seen = []
    monkeypatch.setattr(torch, "compile", lambda given, **_: lambda x: seen.append(given) or given(x))
    with torch.inference_mode():
        plain, compiled = (latency_runtime.runner(model, images, runtime, 1)() for runtime in ("torch", "compile"))
    assert torch.equal(plain, compiled) and seen == [model] and not model.training
    with pytest.raises(ValueError, match="those of a CPU"):
        latency_runtime.check_runtime("onnx", "cuda")


class Machine:
    """One whose speed is known: a block takes 2 ms, all else 4 ms, times what is next in `slower` (then 1)."""

    def __init__(self, monkeypatch) -> None:
        self.slower: list[float] = []
        self.turns = 0
        monkeypatch.setattr(latency, "runner", lambda model, *_: model)
        monkeypatch.setattr(latency, "timed_in_turns", self.timed)
        monkeypatch.setattr(LatencyTable, "_timed", self.parts)

    def timed(self, models, *_):
        self.turns += 1
        slower = self.slower.pop(0) if self.slower else 1.0
        return [slower * (4.0 + 2.0 * sum(model.arch.depths)) for model in models]

    def parts(self, arch, passes):
        slower = self.slower[0] if self.slower else 1.0
        return ((part, 2.0 * slower) for part in dict.fromkeys(parts(arch)))


def test_a_machine_that_became_slower_is_known_by_a_network_of_the_table(monkeypatch, tmp_path):
    machine = Machine(monkeypatch)
    table = LatencyTable.empty(AUTOFORMER_SPACE, **SHAPE)
    table.cover(AUTOFORMER_SPACE, repeats=1)
    table.save(tmp_path / "table.json")
    table = LatencyTable.load(tmp_path / "table.json")
    arch = AUTOFORMER_SPACE.largest()
    assert table(arch) == pytest.approx(4 + 2 * sum(arch.depths), rel=1e-4)
    calm_then = table.measured(arch)
    assert (calm_then.ms, calm_then.slower) == pytest.approx((table(arch), 1.0), rel=1e-4)
    machine.slower = [1.9, 1.6, 1.5]  # a busy while is waited for
    assert table.measured(arch) == calm_then
    machine.turns, machine.slower = 0, [1.9, *[1.6] * 99]  # but not for ever
    busy = table.measured(arch)
    assert machine.turns == latency.PATIENCE and busy.slower == pytest.approx(1.6, rel=1e-3)
    assert busy.ms == pytest.approx(1.6 * table(arch), rel=1e-3) and busy.then == pytest.approx(calm_then.ms, rel=1e-3)
    machine.slower = [0.5] * 99
    assert table.measured(arch).slower == 0.5
    changed = table.to_dict()
    changed["reference"]["ms"] = 0.0
    with pytest.raises(ValueError, match="measure it again"):
        LatencyTable.from_dict(changed)
    del changed["reference"], changed["others"]  # a table of an earlier release
    old = LatencyTable.from_dict(changed)
    machine.slower = [1.6]
    assert old.measured(arch) == (1.6 * calm_then.ms, None) and old.measured(arch).then == calm_then.ms


def test_what_is_measured_later_is_put_down_as_of_then(monkeypatch, tmp_path):
    machine = Machine(monkeypatch)
    table = LatencyTable.empty(AUTOFORMER_SPACE, **SHAPE)
    table.cover(AUTOFORMER_SPACE, repeats=1)
    before, reference = dict(table.entries), table.reference
    wider = AUTOFORMER_SPACE.replaced({"embed_dim": (96, 128)}, name="wider")
    machine.slower = [1.6] * 99
    table.cover(wider, repeats=1, log=Log(tmp_path, tracks=False))
    assert table.entries.items() > before.items() and table.reference == reference
    assert set(table.entries.values()) == {2.0}
    assert "1.6 times as slow" in (tmp_path / "log.txt").read_text()


def test_what_others_take_of_the_processors(monkeypatch):
    """Of two processors and 10 s, 8 s were used: 2 s by this process, 1 s by the hypervisor."""
    stat, own = ["cpu 100 0 100 1000 0 0 0 50 0 0\ncpu0 ..."], [5.0]
    monkeypatch.setattr(latency_runtime.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(latency_runtime.time, "process_time", lambda: own[0])

    class Stat:
        def __init__(self, path):
            assert path == "/proc/stat"

        def read_text(self, **_):
            if not stat:
                raise FileNotFoundError
            return stat[0]

    monkeypatch.setattr(latency_runtime, "Path", Stat)
    others = latency_runtime.watch_others()
    assert others() == 0
    stat[0], own[0] = "cpu 500 100 200 2100 100 50 50 150 0 0", 7.0
    assert others() == pytest.approx((8 - 2) / 20)
    stat.clear()  # a system without that file
    assert latency_runtime.watch_others()() == 0


@pytest.mark.parametrize("check, words", [
    ({}, set()),
    ({"slower": None, "others": 0.0}, set()),
    ({"slower": 1.05, "others": 0.05}, set()),
    ({"slower": 1.6, "others": 0.0}, {"1.6 times as slow", "5 ms"}),
    ({"slower": 0.8, "others": 0.5}, {"1.2 times as fast", "10 ms", "50%"}),
])  # fmt: skip
def test_doubts_are_told(check, words):
    where = {"device_name": "A Phone", "threads": 1, "batch_size": 1, "runtime": "torch"}
    told = told_latency({"promised": 5.0, "measured": 8.0, **where, **check})
    assert told.startswith("5 ms promised, 8 ms measured (A Phone") and told.endswith(")") == (not words)
    assert all(word in told.partition(")")[2] for word in words)


def test_networks_are_timed_as_they_are_deployed(monkeypatch, calm):
    """Their weights are ordinary tensors wherever they are timed: tensors of inference mode are faster."""
    seen = set()

    def run(model, images, *_):
        seen.add(("whole", *{tensor.is_inference() for tensor in (images, *model.parameters())}))
        return lambda: None

    def segments(model, images, *_):
        seen.add(("parts", *{tensor.is_inference() for tensor in (images, *model.parameters())}))
        return iter(())

    monkeypatch.setattr(latency, "runner", run)
    monkeypatch.setattr(latency, "timed_segments", segments)
    table = filled(AUTOFORMER_SPACE)
    arch = AUTOFORMER_SPACE.smallest()
    table.reference = latency.Reference(arch, 1.0)
    assert not list(table._timed(arch, 1)) and table.measured(arch).ms > 0
    latency._Measurement(table, AUTOFORMER_SPACE, [], 1, 0, [])._sweep()
    assert seen == {("whole", False), ("parts", False)}


def test_in_onnx_runtime(monkeypatch):
    """Predicted and measured in that runtime, which is faster than PyTorch for networks this small."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(latency, "WHOLE", 1)
    monkeypatch.setattr(latency, "TOLERANCE", 1e9)
    table = LatencyTable.empty(AUTOFORMER_SPACE, **SHAPE, runtime="onnx", threads=1)
    table.cover(AUTOFORMER_SPACE, repeats=2)
    assert table.correction is not None and table.correction.parts < 1
    assert "ONNX Runtime" in str(table.setting)
    arch = AUTOFORMER_SPACE.smallest()
    assert table.measured(arch).ms == pytest.approx(table(arch), rel=0.6)
    assert LatencyTable.from_dict(table.to_dict()).correction == table.correction


def test_onnx_runtime_that_is_not_there(monkeypatch):
    monkeypatch.setattr("s3zoo.models.as_onnx.WRITES_ONNX", True)  # an older torch is refused first
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs onnx, onnxruntime, onnxscript; install with"):
        LatencyTable.empty(AUTOFORMER_SPACE, runtime="onnx")


# JSON


def test_json_round_trip(tmp_path):
    table = filled(S3_SPACE)
    table.save(tmp_path / "t.json")
    again = LatencyTable.load(tmp_path / "t.json", **SHAPE, batch_size=1, device="cpu", threads=1)
    assert again.setting == table.setting and again.entries == table.entries
    stored = json.loads((tmp_path / "t.json").read_text())
    assert stored["torch"] == torch.__version__ and stored["threads"] == 1 and stored["device_name"]
    glit = filled(GLIT_SPACE, img_size=(32, 16))
    assert LatencyTable.from_dict(json.loads(json.dumps(glit.to_dict()))).__dict__ == glit.__dict__


def test_refusals(tmp_path):
    table = filled(S3_SPACE)
    path = tmp_path / "t.json"
    table.save(path)
    with pytest.raises(ValueError, match="img_size 32, but 64 is needed"):
        LatencyTable.load(path, img_size=64)
    with pytest.raises(ValueError, match="device_name '.*', but 'A Phone' is needed"):
        LatencyTable.load(path, device_name="A Phone")
    wider = S3_SPACE.replaced({"stage2.embed_dim": (48, 80)}, name="wider")
    with pytest.raises(ValueError, match=r"no entry for the way to stage 2 with widths \(48, 80\)"):
        table(wider.largest().__class__("s3", (S3_SPACE.smallest().stages[0], wider.largest().stages[1])))
    with pytest.raises(ValueError, match="family 's3' with patch size 4, not for 'autoformer' with 4"):
        table(AUTOFORMER_SPACE.smallest())
    elsewhere = LatencyTable(dataclasses.replace(table.setting, device_name="A Phone"), table.entries)
    elsewhere.cover(S3_SPACE)  # complete: nothing to measure
    with pytest.raises(ValueError, match=r"measured on A Phone \(1 thread\) and lacks .*; measure it there"):
        elsewhere.cover(wider)
    if not torch.cuda.is_available():
        gpu = dataclasses.replace(table.setting, device="cuda", device_name="A Large One", threads=0)
        assert LatencyTable(gpu, table.entries).measured(S3_SPACE.smallest()) is None
        with pytest.raises(ValueError, match=r"measured on A Large One and lacks .*, but this is .*; measure it there"):
            LatencyTable(gpu, table.entries).cover(wider)
    for broken in ("[]", "{}", json.dumps(table.to_dict() | {"schema_version": 9}), '{"a'):
        path.write_text(broken)
        with pytest.raises(ValueError, match="measure it again|cannot be read"):
            LatencyTable.load(path)
    with pytest.raises(ValueError, match="at least 1"):
        ArchSearch(latency_batch=0)
    with pytest.raises(ValueError, match="'mps'"):
        LatencyTable.empty(S3_SPACE, device="mps")


# In a search


def with_budget(budget: str, **changes):
    run = quick(toy())
    return dataclasses.replace(
        run, arch_search=dataclasses.replace(run.arch_search, budgets=(budget,), latency_repeats=2, **changes)
    )


def test_a_search_within_a_latency_budget_measures_once(tmp_path: Path, monkeypatch, calm):
    run = with_budget("latency<=1000ms")
    result = search(run, tmp_path / "a")
    stored = (tmp_path / "a" / "latency.json").read_text()
    table = LatencyTable.load(tmp_path / "a" / "latency.json", img_size=8, batch_size=1)
    assert not table.missing(run.space)
    winner = result["winners"][0]
    assert winner["latency"] == table(Arch.from_dict(winner["arch"])) > 0
    (timed,) = [json.loads(line) for line in (tmp_path / "a" / "timed.jsonl").read_text().splitlines()]
    assert timed["arch"] == winner["arch"] and timed["predicted"] == winner["latency"]
    promised = {"promised": timed["ms"], "threads": 1, "batch_size": 1, "runtime": "torch", "device": "cpu"}
    assert winner["latency_check"].items() >= promised.items() and winner["latency_check"]["measured"] > 0
    assert winner["latency_check"]["slower"] > 0 and 0 <= winner["latency_check"]["others"] <= 1
    kept = json.loads((tmp_path / "a" / "model" / "config.json").read_text())["s3zoo"]["provenance"]
    assert kept["latency"] == winner["latency_check"]
    card = cards.render(load_model_config(tmp_path / "a" / "model"))
    log = (tmp_path / "a" / "log.txt").read_text()
    for text in (card, log):
        assert told_latency(winner["latency_check"]) in text
    assert "from {:.3g} to {:.3g} ms".format(*run.space.extent(table, measured=True)) in log
    archive = json.loads((tmp_path / "a" / "space0" / "search-0" / "pareto.json").read_text())
    assert archive["latency"]

    def measured(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr(LatencyTable, "_timed", measured)
    (tmp_path / "a" / "result.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(LatencyTable, "measured", measured)
        again = search(run, tmp_path / "a")
    assert again == result and (tmp_path / "a" / "latency.json").read_text() == stored

    # The budget is a filter, and a table from another device is taken as it is.
    table.setting = dataclasses.replace(table.setting, device_name="A Phone")
    table.save(tmp_path / "phone.json")
    latencies = sorted(table(arch) for arch in (run.space.smallest(), run.space.largest()))
    middle = sum(latencies) / 2
    run = with_budget(f"latency<={middle}ms", latency_table=str(tmp_path / "phone.json"))
    (elsewhere,) = search(run, tmp_path / "b")["winners"]
    check = elsewhere["latency_check"]
    assert (check["promised"], check["measured"]) == (elsewhere["latency"], None)
    assert not (tmp_path / "b" / "timed.jsonl").exists()
    scored = {}
    for name in "ab":
        lines = (tmp_path / name / "space0" / "evaluated.jsonl").read_text().splitlines()
        scored[name] = [json.loads(line)["latency"] for line in lines]
    assert max(scored["b"]) <= middle < max(scored["a"])


class Odd:
    """Whole networks take what is predicted times the next of `factors`, and half as much again: so much slower the
    machine has become. `timed` has the networks in their order, and after `most` of them the process is killed."""

    def __init__(self, monkeypatch, *factors: float, most: int = 99) -> None:
        Machine(monkeypatch)
        self.factors, self.most, self.timed = list(factors), most, []
        monkeypatch.setattr(LatencyTable, "measured", lambda table, arch, repeats: self.measured(table, arch))

    def measured(self, table: LatencyTable, arch: Arch) -> latency.Timing:
        if len(self.timed) == self.most:
            raise KeyboardInterrupt
        factor = self.factors[min(len(self.timed), len(self.factors) - 1)]
        self.timed.append(arch)
        return latency.Timing(1.5 * factor * table(arch), 1.5)


def are_best(archs: list[Arch], folder: Path) -> bool:
    """Whether these are different networks, best first, and none that was scored is better."""
    rows = [json.loads(line) for line in (folder / "space0" / "evaluated.jsonl").read_text().splitlines()]
    scores = {Arch.from_dict(row["arch"]): row["accuracy"] for row in rows}
    best = sorted(scores.values(), reverse=True)[: len(archs)]
    return len(set(archs)) == len(archs) and [scores[arch] for arch in archs] == best


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("budget, factors", [("latency<=100ms", (20, 20, 1)), ("4ms<=latency", (0.1, 0.1, 1))])
def test_a_network_that_breaks_the_limit_as_a_whole_is_passed_over(tmp_path, monkeypatch, budget, factors, top):
    """Also if the process is killed meanwhile; what was timed is not timed again, and is what is promised."""
    run = with_budget(budget)
    run = dataclasses.replace(run, final=dataclasses.replace(run.final, top=top))
    killed = Odd(monkeypatch, *factors, most=1)
    with pytest.raises(KeyboardInterrupt):
        search(run, tmp_path)
    odd = Odd(monkeypatch, *factors[1:])
    result = search(run, tmp_path)
    *timed, last = [*killed.timed, *odd.timed]  # the last is the winner again, at the end
    passed_over, taken = timed[:2], timed[2:]
    assert len(taken) == top and are_best(timed, tmp_path)
    (winner,) = result["winners"]
    table = LatencyTable.load(tmp_path / "latency.json")
    assert last == Arch.from_dict(winner["arch"]) and last in taken
    assert winner["latency_check"]["promised"] == pytest.approx(table(last))
    assert winner["latency_check"]["measured"] == pytest.approx(1.5 * table(last))
    log = (tmp_path / "log.txt").read_text()
    for arch, factor in zip(passed_over, factors, strict=False):
        sizes = f"{table(arch):.3g} ms predicted, but {factor * table(arch):.3g} ms as a whole"
        assert f"{arch.key} is passed over: {sizes}" in log
    kept = json.loads((tmp_path / "space0" / "search-0" / "winner.json").read_text())
    assert [row["key"] for row in kept["chosen"]] == [arch.key for arch in taken]

    (tmp_path / "result.json").unlink()
    assert search(run, tmp_path) == result and len(odd.timed) == top + 2


def test_where_no_network_keeps_the_limit_as_a_whole_the_nearest_is_taken(tmp_path, monkeypatch):
    odd = Odd(monkeypatch, 50, 50, 50, 30, 50)
    (winner,) = search(with_budget("latency<=100ms"), tmp_path)["winners"]
    *timed, last = odd.timed
    assert len(timed) == 10 and are_best(timed, tmp_path) and Arch.from_dict(winner["arch"]) == last
    table = LatencyTable.load(tmp_path / "latency.json")
    whole = {arch: table(arch) * (30 if i == 3 else 50) for i, arch in enumerate(timed)}
    assert last == min(whole, key=lambda arch: whole[arch])
    assert winner["latency_check"]["promised"] == pytest.approx(whole[last])
    assert "none of the 10 networks timed as a whole keeps latency <= 100 ms" in (tmp_path / "log.txt").read_text()


def test_a_choice_by_prediction_stays_when_the_run_goes_on_where_it_can_be_timed(tmp_path, monkeypatch):
    """Its winner may be trained by now."""
    odd, run = Odd(monkeypatch, 20, 1), with_budget("latency<=100ms")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("s3zoo.search.phases.choose_winners", lambda context, hunt, *_: hunt.engine.top(1))
        first = search(run, tmp_path)
    (tmp_path / "result.json").unlink()
    assert search(run, tmp_path) == first and len(odd.timed) == 1  # at the end of the first


def test_an_infeasible_latency_is_answered_before_the_training(tmp_path: Path, calm):
    with pytest.raises(ValueError, match=r"within latency <= 0\.00001 ms was found .* latency from .* ms to .* ms"):
        search(with_budget("latency<=1e-5ms"), tmp_path)
    assert not (tmp_path / "run.json").exists()


def test_a_stop_while_measuring(tmp_path: Path, monkeypatch, calm):
    """Half a measurement is no table, and the same command goes on where it was."""
    stop, timed, calls = Stop(), LatencyTable._timed, []
    run = with_budget("latency<=1000000ms")

    def counted(*args):
        calls.append(args)
        stop.asked = len(calls) == 2
        return timed(*args)

    monkeypatch.setattr(LatencyTable, "_timed", counted)
    with pytest.raises(Interrupted, match="same command"):
        search_run.search(run, tmp_path, ONE, Log(tmp_path, tracks=False), stop)
    part = tmp_path / "latency.part.jsonl"
    rows = [json.loads(line) for line in part.read_text().splitlines()]
    assert len(rows) == 3 and not (tmp_path / "latency.json").exists()  # whole networks, and two to show their parts

    # What was measured counts: the first network's parts, as fast as we say in one of the two rounds.
    fast = {number for number, _ in rows[1]["ms"]}
    rows[1]["ms"] = [(number, 1e-9) for number in fast]
    part.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert search(run, tmp_path)["winners"]
    missing = space_parts(run.space, 8)
    assert len(calls) == 2 * len(covering_archs(run.space, missing)) and not part.exists()
    entries = LatencyTable.load(tmp_path / "latency.json").entries
    blocks = {number for number in fast if missing[number].genes is not None}  # in no other network
    others = [entries[part] for number, part in enumerate(missing) if part.genes is not None and number not in blocks]
    assert blocks and all(entries[missing[number]] < min(others) / 2 for number in blocks)

    # That of another setting does not.
    other = LatencyTable.empty(run.space, img_size=8, num_classes=10, in_chans=1, batch_size=2)
    part.write_text(json.dumps(rows[1]) + "\n")
    other.cover(run.space, 2, measured=Records(part))
    assert min(other.entries.values()) > 1e-6


def test_spaces_that_a_search_moves_to_are_measured_when_visited(tmp_path: Path, calm):
    """Entries of the first space stay; the second adds its own."""
    run = toy()
    options = dataclasses.replace(run.arch_search, budgets=("latency<=1000ms",), latency_repeats=1)
    run = dataclasses.replace(run, arch_search=options, final=quick(run).final)
    result = search(run, tmp_path)
    assert len(result["spaces"]) == 2
    table = LatencyTable.load(tmp_path / "latency.json")
    moved = Space.from_dict(json.loads((tmp_path / "space1" / "space.json").read_text()))
    assert set(space_parts(moved, 8)) - set(space_parts(run.space, 8))
    assert not table.missing(moved) and not table.missing(run.space)
