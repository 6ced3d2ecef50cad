"""Writes docs/api.md from signatures and docstrings, and docs/settings.md from the configs' fields and the comments at
them: `python docs/generate_api.py`."""

import ast
from inspect import cleandoc
from pathlib import Path
from textwrap import indent

ROOT = Path(__file__).resolve().parent.parent
# What a program of one's own is written with, in the order of the layers.
MODULES = {
    "Architectures and spaces": ("s3zoo.arch", "s3zoo.families", "s3zoo.space", "s3zoo.cost"),
    "Models": ("s3zoo.models._base", "s3zoo.models.open", "s3zoo.models.attention", "s3zoo.models.plain",
               "s3zoo.artefact", "s3zoo.supernet", "s3zoo.convert"),
    "Training": ("s3zoo.training.config", "s3zoo.training.run", "s3zoo.training.loop", "s3zoo.training.resumable"),
    "Search": ("s3zoo.search.config", "s3zoo.search.run", "s3zoo.search.phases", "s3zoo.search.context",
               "s3zoo.search.finish", "s3zoo.search.moves", "s3zoo.search.space_search",
               "s3zoo.search.s3", "s3zoo.search.s4", "s3zoo.search.glit", "s3zoo.search.evolution",
               "s3zoo.search.budget", "s3zoo.search.racing", "s3zoo.search.latency", "s3zoo.search.course",
               "s3zoo.search.report.data"),
    "Use": ("s3zoo.evaluate", "s3zoo.predict", "s3zoo.inspection", "s3zoo.export", "s3zoo.hub", "s3zoo.cards",
            "s3zoo.zoo", "s3zoo.drawing", "s3zoo.scored"),
    "Transfer": ("s3zoo.transfer.mm.backbone", "s3zoo.transfer.vqa.model"),
}  # fmt: skip
Function = ast.FunctionDef | ast.AsyncFunctionDef


def source(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def arguments(function: Function, bound: bool) -> str:
    """The parameters of a function as written, without `self` or `cls` where it is bound."""
    given = function.args
    if bound and (given.posonlyargs or given.args):
        first = given.posonlyargs or given.args
        rest = first[1:]
        given = ast.arguments(
            posonlyargs=rest if given.posonlyargs else [], args=given.args if given.posonlyargs else rest,
            vararg=given.vararg, kwonlyargs=given.kwonlyargs, kw_defaults=given.kw_defaults, kwarg=given.kwarg,
            defaults=given.defaults,
        )  # fmt: skip
    return ast.unparse(given)


def described(node: ast.AST) -> str:
    text = ast.get_docstring(node) if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else None
    return cleandoc(text) if text else ""


def decorators(node: ast.ClassDef | Function) -> set[str]:
    return {ast.unparse(decorator).partition("(")[0].rpartition(".")[2] for decorator in node.decorator_list}


def function(node: Function, bound: bool) -> str:
    """One function as an item of a list: its signature and its docstring."""
    kinds = decorators(node)
    if kinds & {"property", "cached_property"}:
        signature = node.name + (f": {ast.unparse(node.returns)}" if node.returns else "")
    else:
        result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        signature = f"{node.name}({arguments(node, bound and 'staticmethod' not in kinds)}){result}"
    text = described(node)
    return f"- `{signature}`" + (": " + indent(text, "  ").lstrip() if text else "")


def public(body: list[ast.stmt]) -> list[ast.stmt]:
    named = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in body if isinstance(node, named) and not node.name.startswith("_")]


def class_(node: ast.ClassDef) -> list[str]:
    """A class: its fields or constructor, its docstring, its public methods."""
    made = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
    fields = [ast.unparse(f).replace("_: KW_ONLY", "*") for f in node.body if isinstance(f, ast.AnnAssign)]
    fields = [field for field in fields if not field.startswith("_") and ": ClassVar[" not in field]
    given = arguments(made, True) if made else ", ".join(fields) if "dataclass" in decorators(node) else ""
    bases = [ast.unparse(base) for base in node.bases]
    head = f"### {node.name}" + (f" ({', '.join(bases)})" if bases else "")
    methods = "\n".join(function(f, True) for f in public(node.body) if isinstance(f, Function))
    parts = [head, f"```python\n{node.name}({given})\n```" if given else "", described(node), methods]
    return [part for part in parts if part]


def api() -> str:
    """The text of docs/api.md."""
    parts = [
        "# Python API",
        "Generated from the docstrings by `make zoo` (`docs/generate_api.py`); change those, not this file. Models are"
        " made with `timm.create_model` after `import s3zoo`; what follows is for programs that go further.",
    ]
    for title, modules in MODULES.items():
        parts.append(f"# {title}")
        for module in modules:
            tree = ast.parse(source(module).read_text(encoding="utf-8"))
            parts += [f"## {module}", cleandoc(ast.get_docstring(tree) or "")]
            found = public(tree.body)
            for node in found:
                if isinstance(node, ast.ClassDef):
                    parts += class_(node)
            functions = [node for node in found if isinstance(node, Function) and node.name != "main"]
            if functions and len(functions) < len(found):
                parts.append("### Functions")
            parts.append("\n".join(function(node, False) for node in functions))
    return "\n\n".join(part for part in parts if part) + "\n"


def settings() -> str:
    """The text of docs/settings.md."""
    from s3zoo.search.config import SearchRun
    from s3zoo.training.config import TrainRun
    from s3zoo.training.settings import table

    return f"""# Settings

Generated from the fields of the configs by `make zoo` (`docs/generate_api.py`); change the comments there, not this
file. A config is a Python file that sets some of these; `--set KEY=VALUE` changes one, and `s3zoo search CONFIG --show`
lists all with the values that a config gives them.

## A search: `s3zoo search`

{table(SearchRun(name="NAME"))}

## A training: `s3zoo train`

{table(TrainRun(name="NAME"))}
"""


if __name__ == "__main__":
    (ROOT / "docs" / "api.md").write_text(api(), encoding="utf-8")
    (ROOT / "docs" / "settings.md").write_text(settings(), encoding="utf-8")
