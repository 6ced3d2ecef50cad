"""Model cards, generated from a model's `config.json` and never typed: README.md and a picture of the genome.

`files(config)` gives both. Results are either measured by a run that the config records, and then also in the card's
metadata, or published by others (the family's JSON) and named with their source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from s3zoo.cards.facts import (
    TO_CONVERT,
    Facts,
    dataset,
    paper_figures,
    registered,
    registered_names,
    weights_source,
)
from s3zoo.drawing import mean_and_spread, quantity, told_control, told_latency
from s3zoo.models.s3 import timm_differs, timm_model_args
from s3zoo.picture import draw, feature_map, genes

__all__ = ["Facts", "files", "paper_figures", "registered", "registered_names", "render", "weights_source"]

PICTURE, SAMPLE = "genome.svg", "sample.png"
# Identifiers of the Hub; a licence that is not among them goes by "other".
LICENCES = (
    "apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "gpl-3.0", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0",
    "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "openrail", "other", "unknown",
)  # fmt: skip
SHOWN = 20  # classes by name
METRICS = {"top1": "top-1 accuracy (%)", "top5": "top-5 accuracy (%)"}


def files(config: dict[str, Any], repo_id: str | None = None) -> dict[str, str]:
    """The card and its picture, by file name."""
    facts = Facts(config, repo_id)
    title = f"Genome of {facts.title}: {', '.join(map(str, facts.arch.depths))} blocks"
    return {"README.md": render(config, repo_id), PICTURE: draw(facts.arch, facts.input_size[1:], title)}


def render(config: dict[str, Any], repo_id: str | None = None) -> str:
    """README.md of the model that a config describes: metadata, then the text."""
    facts = Facts(config, repo_id)
    sections = [
        f"# {facts.title}\n\n{_what(facts)}\n\n![The genome, a column per block]({PICTURE})",
        table("Size", "", ("", ""), _sizes(facts)),
        _measured(facts),
        _beside(facts),
        _published(facts),
        sample(facts.config["s3zoo"].get("sample")),
        _genome(facts),
        _search(facts),
        _use(facts),
        _limits(facts),
        _licence(facts),
        _sources(facts),
    ]
    return f"---\n{_metadata(facts).to_yaml()}\n---\n\n" + "\n\n".join(filter(None, sections)) + "\n"


def _metadata(facts: Facts) -> ModelCardData:
    data: dict[str, Any] = {"library_name": "timm", "pipeline_tag": "image-classification"}
    data["tags"] = ["image-classification", "timm", "s3zoo", facts.arch.family]
    if facts.licence:
        data["license"] = facts.licence
    if facts.dataset and facts.dataset.hub_id and facts.has_weights:
        data["datasets"] = [facts.dataset.hub_id]
    results = [
        EvalResult(
            task_type="image-classification", dataset_type=dataset(m["dataset"]).hub_id or m["dataset"],
            metric_type="accuracy", dataset_name=dataset(m["dataset"]).full, metric_value=_rounded(m["value"]),
            metric_name=METRICS.get(m["metric"], m["metric"]), dataset_split=m["split"],
            metric_args={"images": m.get("images"), "interval_95": [_rounded(m.get("low")), _rounded(m.get("high"))]},
        )
        for m in facts.metrics
        if m["split"] == "test"  # held-out images were used for selection
    ]  # fmt: skip
    if results:
        data |= {"metrics": ["accuracy"], "model_name": facts.title, "eval_results": results}
    return ModelCardData(**data)


# Sections


def _what(facts: Facts) -> str:
    kind = facts.family.summary
    if facts.generic:
        return f"{kind}. This name builds any architecture of the family; the one shown here is built if none is given."
    text = f"{kind}."
    if facts.provenance:
        made = {"search": "found by a search", "train": "trained"}.get(facts.provenance.get("kind", ""), "stored")
        text += f" Network `{facts.arch.key}`, {made} with s3zoo {facts.config['s3zoo'].get('version', '')}."
    if space := facts.space:
        text += (
            f" The whole supernet of space `{space.name}`: {space.size():,} networks in one file, of which this is the"
            " largest; `arch` chooses another (see Use)."
        )
    if facts.plain:
        text += " In timm's own layout: plain timm loads it, s3zoo is not needed."
    return text


def _sizes(facts: Facts) -> list[tuple[str, str]]:
    chans, height, width = facts.input_size
    rows = [("Parameters", f"{facts.params:,}")]
    macs = facts.macs()
    alone = " of the decoder (without the frozen encoder)" if facts.family.reads_tower else ""
    if macs:
        same = macs["macs_paper"] == macs["macs"]
        also = " and as the family's paper counts" if same and not alone else ""
        rows.append((f"MACs{alone}, as executed{also}", quantity(macs["macs"])))
        if not same:
            rows.append(("MACs, as the family's paper counts", quantity(macs["macs_paper"])))
    cfg = facts.cfg
    scaled = f"mean {_numbers(cfg['mean'])}, std {_numbers(cfg['std'])}"
    rows.append(("Input", f"{chans} x {height} x {width}; {scaled}, {cfg['interpolation']}, crop {cfg['crop_pct']}"))
    rows.append(
        ("Classes", named(facts.config["num_classes"], facts.config.get("label_names") or cfg.get("label_names")))
    )
    if took := facts.config["s3zoo"].get("latency"):
        rows.append(
            ("Latency", "{ms:.3g} ms an image on {device}, {threads} thread, batch {batch}, {runtime}".format(**took))
        )
    if facts.config["s3zoo"].get("sha256"):
        rows.append(("sha256 of the weights", f"`{facts.config['s3zoo']['sha256']}`"))
    return rows


def _measured(facts: Facts) -> str:
    rows = []
    for m in facts.metrics:
        low, high = m.get("low"), m.get("high")
        interval = "none (used for selection)" if low is None or high is None else f"{low:.2f} to {high:.2f}"
        what = dataset(m["dataset"]).full, m["split"], METRICS.get(m["metric"], m["metric"])
        rows.append((*what, f"{m['value']:.2f}", interval, m.get("images", "")))
    note = "Measured by the run that produced these weights; 95 % intervals are Wilson's."
    return table("Measured", note, ("Data", "Split", "Metric", "Value", "95 % interval", "Images"), rows)


def _beside(facts: Facts) -> str:
    """What the search bought: other networks that were trained alike, and where there are several seeds of a command
    their mean."""
    rows, seeds = [], {}
    own = [m["value"] for m in facts.metrics if m["split"] == "test" and m["metric"] == "top1"]
    if command := facts.provenance.get("command"):
        seeds[f"`{_seedless(command)}`"] = own
    for row in facts.provenance.get("controls") or []:
        test, made = row["test"], row.get("command") or ""
        costs = quantity(row["params"]), quantity(row["macs"]), f"{row['latency']:.3g}" if "latency" in row else ""
        interval = f"{test['low']:.2f} to {test['high']:.2f}"
        rows.append((told_control(row), f"{test['top1']:.2f}", interval, *costs, f"`{made}`" if made else ""))
        named = not made or " --from " in made  # a run of that seed, which is another command
        key = re.sub(r"-\d+$", "", told_control(row)) if named else f"`{_seedless(made)}`"
        seeds.setdefault(key, []).append(test["top1"])
    head = ("Network", "Test top-1", "95 % interval", "Parameters", "MACs", "Latency (ms)", "Command")
    used = [i for i in range(len(head)) if any(row[i] for row in rows)]
    shown = [tuple(row[i] for i in used) for row in rows]
    note = "Other networks with the same data and training."
    parts = [table("Beside it", note, tuple(head[i] for i in used), shown)]
    means = [(key, len(tests), mean_and_spread(tests)) for key, tests in seeds.items() if len(tests) > 1]
    about = "What has several seeds, this network's own included: mean ± standard deviation."
    return "\n\n".join(filter(None, [*parts, table("", about, ("Of", "Seeds", "Test top-1"), means)]))


def _seedless(command: str) -> str:
    return re.sub(r" --set seed=\S+", "", command)


def _published(facts: Facts) -> str:
    paper, sources = facts.paper, paper_figures()["sources"]
    if not paper:
        return ""
    rows = []
    for f in paper["figures"]:
        source = f"{sources[f['source']]['whose']}, {f['where']}"
        rows.append((f["dataset"], f["metric"], f["value"], source, f.get("note", "")))
    printed = [f"{paper['params_m']:g}M parameters"]
    if "macs_g" in paper:
        printed.append(f"{paper['macs_g']:g}G FLOPs (multiply-accumulates)")
    whose = sources[paper["source"]]["whose"]
    note = f"Published for {paper['name']}, **not measured by this project**. {whose}: {', '.join(printed)}."
    note += f" {paper['caveat']}" if "caveat" in paper else ""
    return table("Published results", note, ("Data", "Metric", "Value", "Source", "Setting"), rows)


def _genome(facts: Facts) -> str:
    arch, rows = facts.arch, []
    for i, stage in enumerate(arch.stages):
        for block, same in groupby(stage.blocks):
            values = tuple("" if v is None else f"{v:g}" for v in genes(block).values())
            where = feature_map(arch, i, facts.input_size[1:])
            rows.append((f"{i + 1}", where, f"{len(list(same))}", f"{stage.embed_dim}", *values))
    head = ("Stage", "Map", "Blocks", "embed_dim", *genes(arch.stages[0].blocks[0]))
    extra = f", stem_depth {arch.stem_depth}" if facts.family.has_stem_depth else ""
    return table("Genome", f"Key `{arch.key}`, patch_size {arch.patch_size}{extra}.", head, rows)


def _search(facts: Facts) -> str:
    if facts.provenance:
        title = "How it was trained" if facts.provenance.get("kind") == "train" else "How it was found"
        steps = _trajectory(facts.provenance.get("trajectory") or [])
        return table(title, "", ("", ""), _origin(facts)) + (f"\n\n{steps}" if steps else "")
    if not facts.paper:
        return ""
    text = facts.family.found.format(name=facts.name.removesuffix("_384"))
    if facts.paper.get("other_network"):
        text = "Not found by a search: this project chose the genome to match the size that the paper gives."
    return f"## How it was found\n\n{text}"


def _origin(facts: Facts) -> list[tuple[str, str]]:
    p = facts.provenance
    spent = p.get("cost") or {}
    cost = []
    if "seconds" in spent:
        cost.append(f"{_duration(spent['seconds'])} of work, without pauses")
    elif "elapsed_seconds" in spent:  # as earlier versions kept it, by the times of files
        cost.append(f"{_duration(spent['elapsed_seconds'])} wall-clock time, pauses included")
    cost += [f"{spent['subnets_scored']:,} subnets scored"] if spent.get("subnets_scored") else []
    cost += [f"on {spent['device']}"] if spent.get("device") else []
    cost += [f"{unit}: {spent[unit]}" for unit in ("threads", "processes") if spent.get(unit)]
    rows = {
        "Command": f"`{p['command']}`" if p.get("command") else "",
        "Config": p.get("config"),
        "Settings": "`s3zoo.provenance.settings` in config.json" if p.get("settings") else "",
        "Seed": p.get("seed"),
        "Budget": p.get("budget"),
        "Initial space": p.get("space"),
        "Finish": p.get("final"),
        "Trained on": "the held-out images, too" if p.get("use_held_out") else "",
        "Mode": p.get("mode"),
        "Initialised from": _base(p.get("base")),
        "Teacher": _teacher(p.get("teacher")),
        "Supernet": _file(p.get("supernet")),
        "Converted from": _file(p.get("converted_from")),
        "Latency": told_latency(p["latency"]) if p.get("latency") else "",
        "Cost": ", ".join(cost),
        "Data fingerprint": f"`{facts.data['fingerprint']}`" if facts.data.get("fingerprint") else "",
        "Versions": ", ".join(f"{name} {version}" for name, version in (p.get("versions") or {}).items()),
        "Commit": f"`{p['commit']}`" if p.get("commit") else "",
    }
    return [(what, str(value)) for what, value in rows.items() if value not in (None, "", {}, [])]


def _file(record: dict[str, str] | None) -> str:
    return f"{record['file']} (sha256 `{record['sha256']}`)" if record else ""


def _base(record: dict[str, Any] | None) -> str:
    if not record:
        return ""
    terms = record.get("license") or "not known"
    return f"{record['name']} (licence {terms}; sha256 of the network before the first step `{record['sha256']}`)"


def _teacher(record: dict[str, Any] | None) -> str:
    return f"{record['name']} ({record['kind']} labels; sha256 of its weights `{record['sha256']}`)" if record else ""


def _trajectory(visited: list[dict[str, Any]]) -> str:
    rows = []
    before: dict[str, Any] | None = None
    for step in visited:
        choices = step.get("choices") or {}
        was = choices if before is None else before
        both = {dim: (was.get(dim), choices.get(dim)) for dim in was | choices}
        moved = [_change(dim, *ends) for dim, ends in both.items() if ends[0] != ends[1]]
        spans = [" to ".join(quantity(v) for v in step[m]) if step.get(m) else "" for m in ("params", "macs")]
        rows.append((step.get("space", ""), f"{step.get('size', 0):.3g}", *spans, "; ".join(moved) or "-"))
        before = choices
    return table("", "Search spaces visited:", ("Space", "Networks", "Parameters", "MACs", "Changes"), rows)


def _change(dim: str, before: list[Any] | None, now: list[Any] | None) -> str:
    """Of a dimension with several choices in one of two spaces."""
    if now is None:
        return f"{dim} {before} fixed"
    return f"{dim} to {now}" if before is None else f"{dim} {before} to {now}"


def _use(facts: Facts) -> str:
    parts = ["## Use", "s3zoo is installed from its sources (`pip install .` in a clone)."]
    if facts.plain:
        parts = ["## Use", "timm is all that is needed."]
    parts.append(f"```python\n{snippet(facts)}\n```")
    if facts.space:
        name = f"hf-hub:{facts.repo_id}" if facts.repo_id else "local-dir:."
        smallest = json.dumps(facts.space.smallest().to_dict())
        code = f"arch = {smallest}\nmodel = timm.create_model({name!r}, pretrained=True, arch=arch)"
        parts.append(f"Any other network of the space, here the smallest:\n\n```python\n{code}\n```")
    if not facts.own and weights_source(facts.cfg) == TO_CONVERT:
        parts.append(
            "The authors' weights are behind a link that cannot be fetched automatically: get the file, run "
            "`s3zoo convert FILE --to FOLDER`, and load `local-dir:FOLDER` with `pretrained=True`."
        )
    elif not facts.has_weights:
        tower = " (`pretrained_tower=True` loads those of the CLIP encoder)" if facts.family.reads_tower else ""
        parts.append(f"No weights are published: this builds the network with random ones{tower}.")
    plain = _plain_timm(facts)
    return "\n\n".join(parts + ([plain] if plain else []))


def snippet(facts: Facts) -> str:
    """Python that loads the model and classifies an image; it runs as it stands (a folder's card: in that folder)."""
    name = f"hf-hub:{facts.repo_id}" if facts.repo_id else "local-dir:." if facts.own else facts.tagged
    trained = ", pretrained=True" if facts.has_weights else ""
    channels, height, width = facts.input_size
    mode = "L" if channels == 1 else "RGB"
    classes = facts.config["num_classes"]
    result = f"print(output.softmax(1).topk({min(5, classes)}))" if classes else "print(output.shape)  # features"
    return f"""import {"" if facts.plain else "s3zoo, "}timm, torch
from PIL import Image

model = timm.create_model("{name}"{trained}).eval()
transform = timm.data.create_transform(**timm.data.resolve_data_config(model=model))
image = Image.new("{mode}", ({width}, {height}))  # yours: Image.open("photo.jpg").convert("{mode}")
with torch.inference_mode():
    output = model(transform(image)[None])
{result}"""


def _plain_timm(facts: Facts) -> str:
    """Where plain timm builds the same network: how, and at which sizes it is the same."""
    if not facts.has_weights:
        return ""
    try:
        timm_model_args(facts.arch)
    except ValueError:
        return ""
    if timm_differs(facts.arch, facts.input_size[1:]):
        return ""
    hub_id = facts.cfg.get("hf_hub_id", "")
    square = facts.input_size[1]
    same = [side for side in range(square, 4 * square + 1, square // 7 or 1) if not timm_differs(facts.arch, side)]
    sizes = ", ".join(map(str, same[:4]))
    limit = (
        f"The logits are the same at sizes where no shifted window is padded (square inputs from {square} on: {sizes}, "
        "...): timm shifts before it pads, s3zoo pads first."
    )
    if facts.plain:
        return f"{limit} At other sizes load the network with s3zoo."
    if hub_id.startswith("timm/"):
        code = f'import timm\n\nmodel = timm.create_model("{hub_id.removeprefix("timm/")}", pretrained=True)'
        return f"Without s3zoo, plain timm loads the same weights:\n\n```python\n{code}\n```\n\n{limit}"
    source = f"hf-hub:{facts.repo_id}" if facts.repo_id else "FOLDER" if facts.own else facts.tagged
    code = 'import timm\n\nmodel = timm.create_model("local-dir:PLAIN", pretrained=True)'
    return f"For plain timm, `s3zoo export {source} --to timm --out PLAIN`, then:\n\n```python\n{code}\n```\n\n{limit}"


def _limits(facts: Facts) -> str:
    maps, decoders = "feature maps for dense tasks (`features_only=True`)", "decoders on a frozen CLIP encoder"
    use = decoders if facts.family.reads_tower else maps
    lines = [f"Image classification, {use}, and research on architectures."]
    if facts.has_weights and facts.dataset:
        lines.append(
            f"The weights were trained on {facts.dataset.full} only: they recognise its classes, in images like its"
            " own, and carry its biases. They were not evaluated for fairness or safety; do not use them for decisions"
            " about people."
        )
    if facts.dataset == dataset("digits"):
        lines.append("The images are 8 x 8 grey pixels: a demonstration of the pipeline, not a handwriting recogniser.")
    return "## Intended use and limits\n\n" + " ".join(lines)


def _licence(facts: Facts) -> str:
    if facts.has_weights or facts.licence == "unknown":
        named = {None: "no licence given", "unknown": "unknown; their repository names none"}
        text = f"Weights: {named.get(facts.licence, facts.licence)}."
        if data := facts.dataset:
            terms = data.terms or facts.data.get("license")
            text += f" Data: {data.full}, {terms or 'licence unknown: check before publishing'}."
    else:
        text = "There are no weights."
    beside = "" if facts.own else " Sources of weights and their terms: [NOTICE](../../NOTICE)."
    return f"## Licence\n\n{text} The code of s3zoo: apache-2.0.{beside}"


def _sources(facts: Facts) -> str:
    source = paper_figures()["sources"].get(facts.paper.get("source", facts.family.source))
    if source is None:
        return ""
    link = f"[{source['title']}]({source['url']})" if "url" in source else source["title"]
    origin = facts.cfg.get("origin_url")
    return f"## Paper\n\n{link}" + (f"; [authors' code]({origin})" if origin and not facts.own else "")


# Text


def named(count: int, names: Sequence[str] | None) -> str:
    """How many classes there are, and the first of them by name."""
    shown = ", ".join((names or [])[:SHOWN]) + (", …" if names and len(names) > SHOWN else "")
    return f"{count:,}: {shown}" if shown else f"{count:,}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _numbers(values: Any) -> str:
    return "(" + ", ".join(f"{value:.4g}" for value in values) + ")"


def sample(found: dict[str, Any] | None) -> str:
    """What a model says of an image that was given when it was published."""
    if not found:
        return ""
    picture = f"![The image that was asked about]({SAMPLE})"
    rows = table("", "", tuple(found["head"]), found["rows"]) or "Nothing was found on it."
    return f"## Sample\n\n{picture}\n\n{rows}"


def table(title: str, note: str, head: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> str:
    """A section with a table; nothing if it has no rows."""
    if not rows:
        return ""
    lines = [head, ("---",) * len(head), *rows]
    cells = [[" ".join(str(cell).split()).replace("|", "\\|") for cell in line] for line in lines]
    table = "\n".join(f"| {' | '.join(line)} |" for line in cells)
    return "\n\n".join(filter(None, (f"## {title}" if title else "", note, table)))
