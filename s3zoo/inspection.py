"""`s3zoo inspect MODEL IMAGE…`: what a network attends to, as pictures and one page.

Attention maps of layers and heads with the keys of highest attention numbered, the distance to those keys by layer (S3,
Fig. 4), how alike heads are (S3, supplement, Fig. 1), and the mean of the output tokens over channels (GLiT, Fig. 6).
"""

from __future__ import annotations

import argparse
import base64
import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s3zoo import drawing
from s3zoo.files import check_writable, write_json, write_text
from s3zoo.images import read_image
from s3zoo.predict import find_images

if TYPE_CHECKING:
    from torch import Tensor

    from s3zoo.models.attention import Layer

SHOWN = 4  # layers, unless told
COLUMNS = 6  # tiles in a row
PAGE = "index.html"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo inspect",
        description="Draw what a network attends to, and how far and how alike its heads look.",
        epilog="example: s3zoo inspect s3_tiny cat.jpg --layers 1-1 3-7 --top-k 5 10 --at 0.1 0.1",
    )
    parser.add_argument("model", metavar="MODEL", help="timm name, hf-hub:…, or a folder with a model or a run")
    parser.add_argument("images", metavar="IMAGE", nargs="+", type=Path, help="image, or folder of images")
    parser.add_argument(
        "--layers", nargs="+", default=(), metavar="NAME",
        help="draw these: 7 is block 7, 3-7 block 7 of stage 3 (default: four, evenly spread)",
    )  # fmt: skip
    parser.add_argument("--heads", nargs="+", type=int, default=(), metavar="N", help="draw these (default: all)")
    parser.add_argument(
        "--top-k", nargs="+", type=int, default=(5,), metavar="K",
        help="distances to so many keys; the first number of them is marked (default: 5)",
    )  # fmt: skip
    parser.add_argument(
        "--at", nargs="+", default=("0.5", "0.5"), metavar=("X", "Y"),
        help="the query of the maps: its place from left and top as fractions, or `class` (default: the centre)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the pictures (default: inspect/MODEL)")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    arguments = parser.parse_args(argv)
    name = re.sub(r"[^\w.-]+", "-", arguments.model.removeprefix("hf-hub:")).strip("-.") or "model"
    out = (arguments.out or Path("inspect") / name).expanduser()
    found = inspect(
        arguments.model,
        list(find_images(arguments.images)),
        out,
        layers=arguments.layers,
        heads=arguments.heads,
        top_k=arguments.top_k,
        at=_place(arguments.at),
        device=arguments.device,
    )
    ks = found["top_k"]
    print(f"{'layer':8} heads  similarity  " + "  ".join(f"distance to top {k} (median, mean; pixels)" for k in ks))
    for layer in found["layers"]:
        cells = [f"{d['median']:8.1f} {d['mean']:8.1f}" if d else "-" for d in layer["distance"]]
        alike = "-" if layer["similarity"] is None else f"{layer['similarity']:.3f}"
        print(f"{layer['layer']:8} {layer['heads']:5}  {alike:>10}  " + "  ".join(cells))
    print(out / PAGE)
    return 0


def _place(words: Sequence[str]) -> tuple[float, float] | None:
    if list(words) == ["class"]:
        return None
    try:
        x, y = map(float, words)
    except ValueError:
        x = y = math.nan
    if not (0 <= x <= 1 and 0 <= y <= 1):
        raise ValueError(f"--at is {' '.join(words)!r}, but must be two fractions from 0 to 1 (x y), or `class`.")
    return x, y


def inspect(
    spec: str,
    paths: Sequence[Path],
    out: Path,
    *,
    layers: Sequence[str] = (),
    heads: Sequence[int] = (),
    top_k: Sequence[int] = (5,),
    at: tuple[float, float] | None = (0.5, 0.5),
    device: str = "auto",
) -> dict[str, Any]:
    """Write pictures, `inspect.json` and the page to the folder `out`; gives what the JSON has.

    Args:
        layers, heads: which maps are drawn, heads counted from 1; none: four layers, all heads.
        top_k: for each number a box plot of distances; as many keys as the first number are marked in maps.
        at: x and y of the maps' query as fractions of the image; None: the class token.
    """
    import torch

    from s3zoo.models.attention import capture
    from s3zoo.models.folder import check_finite
    from s3zoo.models.open import class_names, open_model
    from s3zoo.training.distributed import start
    from s3zoo.training.images import as_validated

    if any(number < 1 for number in (*top_k, *heads)):
        raise ValueError("--top-k and --heads have a number below 1; heads count from 1, and one key is the least.")
    check_writable(out, "--out", folder=True)
    where = start(device).device
    model = open_model(spec).to(where).eval()
    config, transform, mode = as_validated(model)
    names = class_names(model) if model.num_classes else []
    sections: list[str] = []
    distances: dict[str, list[list[Tensor]]] = {}
    similarities: dict[str, list[Tensor]] = {}
    images = [transform(read_image(path, mode)) for path in paths]
    for number, (path, image) in enumerate(zip(paths, images, strict=True), 1):
        with torch.inference_mode(), capture(model) as captured:
            logits = model(image.unsqueeze(0).to(where))
        check_finite({"its answers": logits}, spec)
        if not captured.layers:
            raise ValueError(f"{spec} computes no attention by a softmax, so there is nothing to show; take another.")
        if at is None and not all(layer.has_class_query for layer in captured.layers):
            raise ValueError(f"{spec} has no class token; give the query's place, as in --at 0.5 0.5.")
        shown = _choose(captured.layers, layers, heads, spec)
        out.mkdir(parents=True, exist_ok=True)
        pixels = _pixels(image, config)
        stem = f"{number}-" + re.sub(r"[^\w.-]+", "-", path.stem)
        figures = []
        if captured.tokens is not None:
            figures.append(_heat_map(pixels, captured.tokens[0], out / f"{stem}-tokens.png"))
        for layer in captured.layers:
            distances.setdefault(layer.name, []).append([layer.distance(k) for k in top_k])
            similarities.setdefault(layer.name, []).append(layer.similarity())
            if layer.name in shown:
                file = out / f"{stem}-attention-{layer.name}.png"
                figures.append(_maps(pixels, layer, heads, top_k[0], at, file))
        guess = f": {names[int(logits.argmax())]}" if names else ""
        sections.append(_section(path.name + guess, figures))

    alike = {name: torch.stack(matrices).mean(0) for name, matrices in similarities.items()}
    far = {name: [torch.cat(k, dim=1) for k in zip(*parts, strict=True)] for name, parts in distances.items()}
    figures = [_box_plot(far, i, k, out / f"distance-top{k}.png") for i, k in enumerate(top_k)]
    figures.append(_similarities(alike, out / "similarity.png"))
    figures += [_matrix(alike[name], name, out / f"similarity-{name}.png") for name in shown if len(alike[name]) > 1]
    sections.insert(0, _section("All layers", [figure for figure in figures if figure]))
    found = {
        "model": spec,
        "images": [str(path) for path in paths],
        "top_k": list(top_k),
        "layers": [
            {"layer": name, "heads": len(alike[name]), "similarity": _mean_apart(alike[name]), "distance": _summary(k)}
            for name, k in far.items()
        ],
    }
    write_json(out / "inspect.json", found)
    write_text(out / PAGE, _page(spec, sections, len(paths)))
    return found


def _choose(found: Sequence[Layer], layers: Sequence[str], heads: Sequence[int], spec: str) -> list[str]:
    """The names of the layers to draw: those that are asked for, or some."""
    names = [layer.name for layer in found]
    if not layers:
        steps = min(SHOWN, len(names))
        layers = list(dict.fromkeys(names[round(i * (len(names) - 1) / max(steps - 1, 1))] for i in range(steps)))
    if unknown := [name for name in layers if name not in names]:
        raise ValueError(f"{spec} has no attention layer {unknown[0]!r}; it has {', '.join(names)}.")
    for layer in found:
        if layer.name in layers and heads and max(heads) > layer.num_heads:
            raise ValueError(f"Layer {layer.name} of {spec} has no head {max(heads)}; it has {layer.num_heads}.")
    return list(layers)


def _mean_apart(matrix: Tensor) -> float | None:
    """The mean similarity of two heads that are not the same."""
    n = len(matrix)
    return round((matrix.sum() - matrix.trace()).item() / (n * (n - 1)), 4) if n > 1 else None


def _summary(distances: Sequence[Tensor]) -> list[dict[str, float] | None]:
    """Per number of keys; None where no query has a place."""
    import numpy as np

    return [
        {"median": round(float(np.median(d)), 3), "mean": round(float(np.mean(d)), 3)} if d.size else None
        for d in (distance.numpy() for distance in distances)
    ]


# Pictures


def _pixels(image: Tensor, config: dict[str, Any]) -> Any:
    """What the network sees, values from 0 to 1: (height, width, channels)."""
    import torch

    mean, std = (torch.tensor(config[key]).view(-1, 1, 1) for key in ("mean", "std"))
    return (image * std + mean).clamp(0, 1).permute(1, 2, 0).numpy()


def _tiles(count: int, height: int, width: int) -> tuple[Any, list[Any]]:
    """A figure with so many square-ish axes, each with room for a title and without a scale."""
    from matplotlib.figure import Figure

    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    wide, high = 150, 150 * height / width + 22
    figure = Figure(figsize=(columns * wide / 72, rows * high / 72), dpi=144)
    axes = []
    for i in range(count):
        row, column = divmod(i, columns)
        place = (column / columns, 1 - (row + 1) / rows, 1 / columns - 0.02 / columns, (high - 22) / high / rows)
        ax = figure.add_axes(place)
        ax.set_axis_off()
        axes.append(ax)
    return figure, axes


def _show(ax: Any, pixels: Any, title: str, heat: Any = None) -> None:
    """The image, or in grey below a map of heat from 0 to 1."""
    height, width, channels = pixels.shape
    extent = (0, width, height, 0)
    grey = heat is not None or channels == 1
    ax.imshow(pixels.mean(2) if grey else pixels, cmap="gray", vmin=0, vmax=1, extent=extent)
    if heat is not None:
        ax.imshow(heat, cmap="inferno", alpha=0.65, vmin=0, vmax=1, extent=extent)
    ax.set_title(title, fontsize=8, fontweight="normal", loc="left", pad=3)


def _heat_map(pixels: Any, tokens: Tensor, file: Path) -> str:
    """Output tokens, mean over channels, resized to the image (GLiT, Fig. 6)."""
    import torch.nn.functional as F

    height, width, _ = pixels.shape
    heat = F.interpolate(tokens.mean(-1)[None, None], (height, width), mode="bilinear", align_corners=False)[0, 0]
    heat = (heat - heat.min()) / (heat.max() - heat.min()).clamp(min=1e-12)
    with drawing.style():
        figure, axes = _tiles(2, height, width)
        _show(axes[0], pixels, "input")
        _show(axes[1], pixels, "output tokens", heat.numpy())
    return _picture(figure, file, "Output tokens of the last block, mean over channels")


def _maps(
    pixels: Any, layer: Layer, heads: Sequence[int], top_k: int, at: tuple[float, float] | None, file: Path
) -> str:
    """The attention of one query, head by head, with the keys of highest attention numbered."""
    import numpy as np
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    height, width, _ = pixels.shape
    seen = layer.seen_from(None if at is None else (at[1] * height, at[0] * width))
    chosen = [head - 1 for head in heads] or list(range(len(seen)))
    outline = [withStroke(linewidth=1.5, foreground="black")]
    query = seen[0][2].numpy()
    with drawing.style():
        figure, axes = _tiles(1 + len(chosen), height, width)
        top, left, bottom, right = _view([(w.numpy(), keys.numpy()) for w, keys, _ in seen], query)
        _show(axes[0], pixels, "input")
        axes[0].add_patch(
            Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor="white", linewidth=1)
        )
        for ax, head in zip(axes[1:], chosen, strict=True):
            weights, keys = seen[head][0].numpy(), seen[head][1].numpy()
            heat = np.full((height, width), np.nan)
            real = ~np.isnan(keys).any(1)
            most = max(weights[real].max(initial=0), 1e-12)
            for weight, box in zip(weights[real], keys[real].round().astype(int), strict=True):
                heat[box[0] : box[2], box[1] : box[3]] = weight / most
            _show(ax, pixels, f"head {head + 1}", heat)
            order = np.argsort(-np.where(real, weights, -1), kind="stable")[:top_k]
            for rank, key in enumerate(order, 1):
                if weights[key] > 1e-30 and real[key]:
                    y, x = (keys[key][:2] + keys[key][2:]) / 2
                    ax.text(x, y, str(rank), color="white", fontsize=8, ha="center", va="center", path_effects=outline)
            ax.set_xlim(left, right)
            ax.set_ylim(bottom, top)
        if not np.isnan(query).any():
            for ax in axes:
                y, x = (query[:2] + query[2:]) / 2
                ax.plot(x, y, "+", color="#4fd1ff", markersize=10, markeredgewidth=2, path_effects=outline)
    whose = "the class token" if np.isnan(query).any() else "the query at +"
    caption = f"Layer {layer.name}: attention of {whose}; 1 to {top_k}: where it is highest; framed: what is drawn"
    return _picture(figure, file, caption, "wide")


def _view(seen: Sequence[tuple[Any, Any]], query: Any) -> tuple[float, float, float, float]:
    """The part of the image that has all keys with attention, and the query: a window, say."""
    import numpy as np

    boxes = np.concatenate([keys[weights > 1e-30] for weights, keys in seen] + [query[None]])
    boxes = boxes[~np.isnan(boxes).any(1)]
    (top, left), (bottom, right) = boxes[:, :2].min(0), boxes[:, 2:].max(0)
    return top, left, bottom, right


def _matrix(similarity: Tensor, name: str, file: Path) -> str:
    n = len(similarity)
    with drawing.style():
        figure, ax = drawing.figure(360, 330)
        ax.grid(visible=False)
        mesh = ax.imshow(similarity.numpy(), cmap="viridis", vmin=0, vmax=1)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_ticks(range(n), [str(head) for head in range(1, n + 1)], fontsize=min(9, 180 / n))
        ax.set_title(f"Layer {name}: similarity of heads")
        figure.colorbar(mesh)
    caption = f"Layer {name}: cosine between the attention of two heads, mean over queries and images"
    return _picture(figure, file, caption, "small")


def _picture(figure: Any, file: Path, caption: str, kind: str = "") -> str:
    """Write a figure as PNG; gives it for the page."""
    _save(figure, file)
    data = base64.b64encode(file.read_bytes()).decode()
    return (
        f'<figure class="{kind}"><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _save(figure: Any, file: Path) -> None:
    with drawing.style():
        figure.savefig(file, dpi=144, facecolor="white", metadata={"Software": None})


# Plots of all layers


def _box_plot(far: dict[str, list[Tensor]], i: int, k: int, file: Path) -> str:
    """Distances by layer: box and whiskers, the median an amber line, the mean a green triangle, as in S3, Fig. 4."""
    from matplotlib.cbook import boxplot_stats

    shown = {name: distances[i].flatten().numpy() for name, distances in far.items() if distances[i].numel()}
    if not shown:
        return ""
    with drawing.style():
        figure, ax = drawing.figure(max(460, 34 * len(shown) + 80), 380)
        ax.set_title(f"Distance to the top {k} keys (pixels)")
        ax.set_xlabel("layer")
        ink, mean = drawing.colour("ink"), drawing.colour("green")
        stats = [boxplot_stats(values)[0] | {"label": name} for name, values in shown.items()]
        drawn = ax.bxp(
            stats, showfliers=False, showmeans=True, patch_artist=True, widths=0.6,
            boxprops={"facecolor": drawing.colour("card"), "edgecolor": ink}, whiskerprops={"color": ink},
            capprops={"color": ink}, medianprops={"color": drawing.colour("amber"), "linewidth": 2},
            meanprops={"marker": "^", "markerfacecolor": mean, "markeredgecolor": mean, "markersize": 6},
        )  # fmt: skip
        for box, stat in zip(drawn["boxes"], stats, strict=True):
            said = f"median {stat['med']:.1f}, mean {stat['mean']:.1f}\nquartiles {stat['q1']:.1f}, {stat['q3']:.1f}"
            drawing.tag(box, "point", f"Layer {stat['label']}\n{said}", name=stat["label"])
        ax.set_ylim(bottom=0)
        ax.grid(visible=False, axis="x")
        return _plot(figure, file, f"Distance of queries to the {k} keys of highest attention, by layer")


def _similarities(alike: dict[str, Tensor], file: Path) -> str:
    """How alike the heads of each layer are."""
    shown = {name: mean for name, matrix in alike.items() if (mean := _mean_apart(matrix)) is not None}
    if not shown:
        return ""
    with drawing.style():
        figure, ax = drawing.figure(max(460, 34 * len(shown) + 80), 380)
        ax.set_title("Similarity of two heads (cosine)")
        ax.set_xlabel("layer")
        ax.plot(range(len(shown)), list(shown.values()), color=drawing.colour("blue"), alpha=0.5)
        for place, (name, value) in enumerate(shown.items()):
            (mark,) = ax.plot(place, value, "o", color=drawing.colour("blue"))
            drawing.tag(mark, "point", f"Layer {name}\n{value:.3f}, {len(alike[name])} heads", name=name)
        ax.set_xticks(range(len(shown)), list(shown))
        ax.set_ylim(0, 1.05)
        ax.grid(visible=False, axis="x")
        return _plot(figure, file, "Similarity between heads, by layer")


def _plot(figure: Any, file: Path, label: str) -> str:
    _save(figure, file)
    return f"<figure>{drawing.svg(figure, file.stem, label=label)}</figure>"


# The page

STYLE = """
h1, h2 { overflow-wrap: anywhere; }
.figures > .wide { grid-column: 1 / -1; }
.figures > .small img { max-width: min(22rem, 100%); }
figure img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: .3rem; }
figcaption { color: var(--soft); font-size: .875rem; margin-top: .5rem; }
"""


def _section(title: str, figures: Sequence[str]) -> str:
    inside = "\n".join(figures)
    return f'<h2>{escape(title)}</h2>\n<section class="figures" aria-label="{escape(title)}">\n{inside}\n</section>\n'


def _page(spec: str, sections: Sequence[str], count: int) -> str:
    title = f"What {spec} attends to"
    body = f"""<h1>{escape(title)}</h1>
<p>Of {count} image{"s" if count > 1 else ""}. The box plot has one value for each query and head: the mean distance, in
pixels of the input, to the keys that it attends to most; class tokens and padding have no place and are left out. The
line in a box is the median, the triangle the mean. Point at a mark, or reach it with the keyboard, for its numbers.</p>
"""
    return drawing.page(title, body + "".join(sections), styles=STYLE)
