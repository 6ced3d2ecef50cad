"""The package as a whole: registration with timm, the command line, its errors, and documents that match the code."""

import importlib.metadata
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

import s3zoo
from s3zoo import cli, doctor, paths
from s3zoo.search.config import SearchRun
from s3zoo.training.config import load_config, overridden
from s3zoo.training.distributed import start

ROOT = Path(__file__).resolve().parent.parent


def python(code: str) -> str:
    return subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip()


# --- registration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order",
    [
        "import timm, s3zoo",
        "import s3zoo.models, timm",
        # Somebody may ask whether timm is installed before anybody imports it, and import a part of it first.
        "import s3zoo, importlib.util; importlib.util.find_spec('timm'); from timm.layers import DropPath; import timm",
    ],
)
def test_importing_s3zoo_registers_the_models(order: str) -> None:
    code = f"""
{order}
import sys
print(*timm.list_models(["s3_*", "autoformer_*", "glit_*"]))
print(sum(type(finder).__module__ == "s3zoo" for finder in sys.meta_path))
"""
    found, hooks_left = python(code).splitlines()
    assert {"s3_tiny", "s3_small", "s3_base", "autoformer_tiny", "glit_tiny"} <= set(found.split())
    assert hooks_left == "0"


def test_the_package_has_no_other_lazy_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        s3zoo.nonsense  # noqa: B018


# --- command line ---------------------------------------------------------------------------------------------------


def test_help_lists_what_exists_and_does_not_wait_for_torch() -> None:
    code = "import sys; from s3zoo.cli import main; assert main([]) == 0; print('torch' in sys.modules)"
    *text, torch_imported = python(code).splitlines()
    assert torch_imported == "False"
    listed = re.findall(r"^  (\w+)  +\S", "\n".join(text).partition("subcommands:")[2], re.M)
    assert listed == list(cli.COMMANDS)
    assert {"doctor", "convert"} <= set(listed)


@pytest.mark.parametrize("command", [[], ["zoo"], ["doctor"], ["search", "--help"]])
def test_what_lists_does_not_load_matplotlib(command: list[str]) -> None:
    code = f"""
import contextlib, io, sys
from s3zoo.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main({command!r})
print("matplotlib" in sys.modules)
"""
    assert python(code) == "False"


def test_windows_is_refused_in_one_sentence(monkeypatch, capsys) -> None:
    monkeypatch.setattr(cli.sys, "platform", "win32")
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == "s3zoo: Windows is not supported; run s3zoo on Linux, macOS or in WSL 2.\n"


def test_every_subcommand_can_be_called() -> None:
    for name, command in cli.COMMANDS.items():
        with pytest.raises(SystemExit) as exit:
            cli.main([name, "--help"])
        assert exit.value.code == 0, command


@pytest.mark.parametrize(("typed", "answer"), [("docter", "did you mean 'doctor'?"), ("xyzzy", "the subcommands are ")])
def test_unknown_subcommand_names_the_nearest(typed: str, answer: str, capsys) -> None:
    assert cli.main([typed]) == 2
    assert capsys.readouterr().err.startswith(f"s3zoo: there is no subcommand {typed!r}; {answer}")


def failing(error: BaseException):
    def command(argv: list[str]) -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("embed_dim is 7;\n  use a multiple of 8."), 2, "s3zoo: embed_dim is 7; use a multiple of 8.\n"),
        (FileNotFoundError("there is no x.json: name one"), 2, "s3zoo: there is no x.json: name one\n"),
        (
            NotADirectoryError(20, "Not a directory", "a/b"),
            2,
            "s3zoo: 'a/b' cannot be, as a part of it is a file and no folder; give another path.\n",
        ),
        (NotADirectoryError(), 2, "s3zoo: NotADirectoryError\n"),
        (KeyboardInterrupt(), 130, "s3zoo: interrupted\n"),
    ],
)
def test_a_mistake_is_one_line(error: BaseException, code: int, line: str, monkeypatch, capsys) -> None:
    monkeypatch.delenv("S3ZOO_DEBUG", raising=False)
    assert cli.run(failing(error), []) == code
    assert capsys.readouterr().err == line
    monkeypatch.setenv("S3ZOO_DEBUG", "1")
    with pytest.raises(type(error)):
        cli.run(failing(error), [])


def test_our_own_bugs_keep_their_traceback(monkeypatch) -> None:
    monkeypatch.delenv("S3ZOO_DEBUG", raising=False)
    with pytest.raises(ZeroDivisionError):
        cli.run(failing(ZeroDivisionError()), [])


def test_a_reader_that_leaves_early_is_no_error() -> None:
    code = "import sys; from s3zoo import cli; sys.exit(cli.run(lambda argv: print('x\\n' * 10**6) or 0, []))"
    pipe = f'{sys.executable} -c "{code}" | head -1'
    shell = subprocess.run(pipe, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert (shell.stdout, shell.stderr) == ("x\n", "")


def test_a_script_that_imports_only_timm_finds_the_models(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 's3_tiny'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nimport timm\nfrom beside import NAME\n"
        "if __name__ == '__main__':\n"
        "    model = timm.create_model(NAME, device='meta', num_classes=int(sys.argv[1]))\n"
        "    print(type(model).__module__, model.num_classes, __file__ == sys.argv[0])\n    sys.exit(3)\n"
    )
    command = [sys.executable, "-m", "s3zoo.run", str(script)]
    ran = subprocess.run([*command, "7"], cwd=ROOT, capture_output=True, text=True)
    assert (ran.stdout, ran.returncode) == ("s3zoo.models.s3 7 True\n", 3), ran.stderr
    for name in ("missing.py", "x" * 300, str(tmp_path)):
        ran = subprocess.run([*command[:3], name], cwd=ROOT, capture_output=True, text=True)
        assert ran.returncode == 2 and ran.stderr.count("\n") == 1
        assert ran.stderr.startswith(f"s3zoo: {name!r} was given")


# --- doctor ---------------------------------------------------------------------------------------------------------


def test_doctor_reports_what_is_installed(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    import timm
    import torch

    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["torch"] == importlib.metadata.version("torch")
    assert found["packages"]["timm"] == timm.__version__
    assert found["threads"]["torch"] == torch.get_num_threads()
    assert found["devices"][0] == "cpu" and len(found["devices"]) == 1 + torch.cuda.device_count()
    assert found["problems"] == []
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert f"torch                    {found['packages']['torch']}\n" in text and "mmdet [mm]" in text
    assert "mps (Apple's GPU is not used: " in text
    with pytest.raises(ValueError, match="device is 'mps' .Apple's GPU is not used.* must be 'auto', 'cpu' or 'cuda'"):
        start("mps")


def test_doctor_says_what_is_missing(monkeypatch, capsys) -> None:
    monkeypatch.setattr(doctor, "packages_distributions", lambda: {"torch": ["torch"]})
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were broken: importing it raises
    assert cli.main(["doctor"]) == 1
    problems = capsys.readouterr().out.partition("problems\n")[2]
    assert "timm is not installed." in problems and "cannot be used" in problems


def test_commit_is_the_clone_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path / "s3zoo")
    assert paths.commit() is None
    (tmp_path / "s3zoo").mkdir()
    file = tmp_path / "s3zoo" / "a.py"
    file.write_text("1")
    who = {f"GIT_{role}_{what}": "x@y" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for command in ("init -q", "add .", "commit -q -m first"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True, env=os.environ | who)
    first = paths.commit()
    assert first and re.fullmatch(r"[0-9a-f]{40}", first)
    file.write_text("2")
    assert paths.commit() == f"{first}+changes"


# --- doors, documents, make -----------------------------------------------------------------------------------------


def test_tools_are_doors_to_subcommands() -> None:
    doors = sorted((ROOT / "tools").glob("*.py"))
    assert {"doctor", "convert"} <= {door.stem for door in doors}
    for door in doors:
        assert f'sys.exit(main(["{door.stem}", *sys.argv[1:]]))' in door.read_text(), door
        assert len(door.read_text().splitlines()) < 10, door
        assert door.stem in cli.COMMANDS, door
    help = subprocess.check_output([sys.executable, "tools/doctor.py", "--help"], cwd=ROOT, text=True)
    assert help.startswith("usage: s3zoo doctor")


def test_one_version_everywhere() -> None:
    assert f"\nversion: {s3zoo.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {s3zoo.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]


def test_readme_example_runs() -> None:
    example = (ROOT / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    assert 3 <= len(example.strip().splitlines()) <= 8
    offline = example.replace("pretrained=True", "pretrained=False")
    assert offline != example  # the example shows real weights; the test must not need the network
    python(offline)


DOCUMENTS = sorted(str(path.relative_to(ROOT)) for pattern in ("*.md", "docs/*.md") for path in ROOT.glob(pattern))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_between_documents_lead_somewhere(document: str) -> None:
    path = ROOT / document
    for link in re.findall(r'(?:\]\(|<img src=")([^)"\s]+)[)"]', path.read_text()):
        assert "://" in link or (path.parent / link.partition("#")[0]).exists(), link


def test_the_map_of_the_code_names_every_module() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("| to change |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([\w/<>]+(?:\.py|/))`", table))
    names = {path.stem for path in (ROOT / "s3zoo/families").glob("*.json")}
    named |= {path.replace("<family>", name) for path in named if "<family>" in path for name in names}
    package = ROOT / "s3zoo"
    assert {path for path in named if "<" not in path and not (package / path).exists()} == set()
    modules = {str(path.relative_to(package)) for path in package.rglob("*.py")}
    folders = tuple(path for path in named if path.endswith("/"))
    told = {path for path in modules if path in named or path.startswith(folders)}
    assert {path for path in modules - told if not path.endswith(("__init__.py", "__main__.py"))} == set()
    units = {path.stem for path in package.iterdir()} - {"__init__", "__pycache__", "weights", "tables"}
    layers = text.partition("## Layers")[2].partition("## Habits")[0]
    assert units <= set(re.findall(r"`(\w+)`", layers))


def test_the_api_reference_is_up_to_date() -> None:
    """If this fails: `make zoo`."""
    generator = runpy.run_path(str(ROOT / "docs/generate_api.py"))
    assert (ROOT / "docs/api.md").read_text() == generator["api"]()
    assert "`effective(img_size: int | tuple[int, int]) -> Arch`" in (ROOT / "docs/api.md").read_text()


def test_every_setting_has_an_effect(capsys: pytest.CaptureFixture[str]) -> None:
    """On the page (if it is old: `make zoo`) and in `s3zoo search CONFIG --show`: every key that --set knows."""
    generator = runpy.run_path(str(ROOT / "docs/generate_api.py"))
    page = (ROOT / "docs/settings.md").read_text()
    assert page == generator["settings"]()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 200 and all(len(row) == 3 and len(row[2]) > 5 for row in rows)
    assert cli.main(["search", "debug_s3", "--set", "supernet.lr=0.125", "--show"]) == 0
    said = capsys.readouterr().out
    keys = [row[0].strip("| `") for row in rows[: said.count(" = ")]]
    for key in keys:
        assert f"\n{key} = " in f"\n{said}"
    assert "supernet.lr = 0.125  (default: 0.001)" in said
    run = load_config("debug_s3", SearchRun, "search")
    for key in ("arch_search.parents", "final.train.epochs", "data.mixup", "seed"):
        assert key in keys and overridden(run, [f"{key}=7" if key != "data.mixup" else f"{key}=0.5"]) != run


def test_notice_has_a_row_for_every_source_of_weights() -> None:
    rows = [line for line in (ROOT / "NOTICE").read_text().splitlines() if line.startswith("| ")]
    for source in ("Cream", "GLiT", "Shunted", "CLIP", "timm"):
        assert any(source in row for row in rows), source


def test_the_oldest_versions_are_the_same_everywhere() -> None:
    """What an installation may have, what `make floors` installs, and what docs/works_with.md says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed, extras = project["dependencies"], project["optional-dependencies"]
    allowed = [*allowed, *extras["mm"], *extras["vqa"], *extras["tensorboard"]]
    floors = {name: Version(oldest) for name, oldest in (requirement.split(">=") for requirement in allowed)}
    pinned = (ROOT / "tests/floors.txt").read_text().split()
    assert {name: Version(oldest) for name, oldest in (pin.split("==") for pin in pinned)} == floors
    floors["Python"] = Version(project["requires-python"].removeprefix(">="))
    table = (ROOT / "docs/works_with.md").read_text().partition("| | oldest |")[2].partition("\n\n")[0]
    said = {}
    for row in table.splitlines()[2:]:
        names, oldest, _ = (cell.strip().split(", ") for cell in row.strip("| ").split(" | "))
        said |= zip(names, map(Version, oldest), strict=True)
    assert said == floors


def test_what_works_has_a_test() -> None:
    table = (ROOT / "docs/works_with.md").read_text().partition("| tool |")[2].partition("\n\n")[0]
    rows = [row.strip("| ").rpartition(" | ")[2] for row in table.splitlines()[2:]]
    assert len(rows) > 10
    for row in rows:
        first, *tests = re.findall(r"`([\w/.]+)`", row)
        text = (ROOT / "tests" / first).read_text()
        assert all(f"\ndef {test}(" in text for test in tests), row


def test_make_help_names_every_target() -> None:
    listed = subprocess.check_output(["make", "-s", "help"], cwd=ROOT, text=True)
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert phony and all(f"make {target} " in listed for target in phony[1].split())


def test_make_refuses_a_python_it_cannot_use(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    old = tmp_path / "python3.10"
    old.write_text(f'#!/bin/sh\nshift; exec {sys.executable} -c "import sys; sys.version_info = (3, 10, 2); $1"\n')
    old.chmod(0o755)
    made = subprocess.run(["make", "-s", "test", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode != 0 and not (tmp_path / ".venv").exists()
    assert "is Python 3.10, but s3zoo needs 3.11 or newer" in made.stderr
