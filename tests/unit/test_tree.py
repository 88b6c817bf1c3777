"""What holds for every file of the checkout."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomli

from env.paths import ROOT
from env.pins import pins

# Written in parts, so that this file does not name them itself.
HOSTS = [
    "pypi" + ".org",
    "pythonhosted" + ".org",
    "deb.debian" + ".org",
    "archive.ubuntu" + ".com",
    "registry.npmjs" + ".org",
    "pypi.tuna" + ".tsinghua",
    "mirrors" + ".aliyun",
    "mirrors.cloud" + ".tencent",
    "hf-mirror" + ".com",
]
FOLDERS = [
    "/ho" + r"me/[a-z]",
    "/ro" + "ot/",
    "/Us" + "ers/",
    "/wo" + r"rk/[a-z]",
    "/opt/py" + "pi",
]
# Not in Python 3.10: module or name -> what has it.
TOO_NEW = {
    "tomllib": "tomli",
    "enum.StrEnum": "str, Enum",
    "typing.Self": "a string annotation",
    "typing.assert_never": "an assertion",
    "typing.LiteralString": "str",
    "datetime.UTC": "datetime.timezone.utc",
    "contextlib.chdir": "a cwd argument",
    "hashlib.file_digest": "a loop",
    "asyncio.TaskGroup": "gather",
    "asyncio.timeout": "wait_for",
    "builtins.ExceptionGroup": "a list of problems",
}


def git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [name for name in done.stdout.split("\0") if name]


def files() -> list[Path]:
    """Committed files and new ones that git does not ignore."""
    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def matches(pattern: str) -> list[str]:
    found = []
    for path in files():
        text = path.read_bytes().decode("utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    return found


def test_no_file_names_a_registry_or_a_mirror() -> None:
    assert matches("|".join(map(re.escape, HOSTS))) == []


def test_no_file_names_a_folder_of_a_developers_machine() -> None:
    assert matches("(?<![A-Za-z0-9_.$}])(" + "|".join(FOLDERS) + ")") == []


@pytest.mark.parametrize("folder", ["env", "data", "run", "tests", "verl-patches"])
def test_git_ignores_no_source_file(folder: str) -> None:
    ignored = git("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--", folder)
    made = ("__pycache__/", "env/downloads/")
    assert [name for name in ignored if not any(part in name for part in made)] == []


def test_the_packages_import_from_another_folder(tmp_path: Path) -> None:
    code = "import env, data, run; print(env.__file__, data.__file__, run.__file__, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [
        str(ROOT / name / "__init__.py") for name in ("env", "data", "run")
    ], done.stderr


def test_the_oldest_python_served_is_the_same_everywhere() -> None:
    project = tomli.loads((ROOT / "pyproject.toml").read_text())
    oldest = pins()["locks"]["python"]
    assert project["project"]["requires-python"].startswith(f">={oldest},")
    assert project["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")
    assert project["tool"]["mypy"]["python_version"] == oldest


def names_used(tree: ast.AST) -> set[str]:
    """Modules imported, and names taken from modules, in dotted form; bare names as builtins."""
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            used |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Name):
            used.add(f"builtins.{node.id}")
    return used


def test_the_code_runs_on_the_oldest_python_served() -> None:
    major, minor = map(int, pins()["locks"]["python"].split("."))
    found = []
    for path in files():
        if path.suffix == ".py":
            tree = ast.parse(
                path.read_text(encoding="utf-8"), str(path), feature_version=(major, minor)
            )
            found += [(path.name, name) for name in names_used(tree) & TOO_NEW.keys()]
            if any(type(node).__name__ == "TryStar" for node in ast.walk(tree)):
                found.append((path.name, "except*"))
    assert found == []
