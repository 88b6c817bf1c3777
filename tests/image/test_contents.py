"""Pins, manifest and what is really installed say the same; verl is patched and can be patched."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from testinfra.host import Host

from env import verl
from env.archives import archives
from env.hashing import sha256
from env.paths import ROOT
from env.pins import pins
from tests.image.conftest import Inside
from tests.image.engine import HOME, Engine

INSTALLED = """
import json, platform
from importlib import metadata
print(json.dumps({
    "python": platform.python_version(),
    "packages": {d.metadata["Name"]: d.version for d in metadata.distributions()},
}))
"""

# sha256 of every file below a folder that is not made by running or installing it.
TREE = """
import hashlib, json, pathlib, sys
top = pathlib.Path(sys.argv[1])
files = [p for p in top.rglob("*") if p.is_file() and p.suffix != ".pyc"]
print(json.dumps({
    str(p.relative_to(top)): hashlib.sha256(p.read_bytes()).hexdigest()
    for p in files if not any(part.endswith(".egg-info") for part in p.parts)
}))
"""


def normal(packages: dict[str, str]) -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in packages.items()}


def locked(text: str, python: str) -> dict[str, str]:
    """Name and version of every package that a lock names for this Python."""
    found: dict[str, str] = {}
    machine = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    for line in re.findall(r"^[A-Za-z].*?(?=\s*\\?$)", text, re.M):
        requirement = Requirement(re.sub(r"(#sha256=[0-9a-f]{64}) ;", r"\1  ;", line))
        if requirement.marker is None or requirement.marker.evaluate(machine):
            found[canonicalize_name(requirement.name)] = str(requirement.specifier).removeprefix(
                "=="
            ) or version_in(requirement.url)
    return found


def version_in(url: str | None) -> str:
    """The version in the name of a wheel."""
    return (url or "").rpartition("/")[2].split("-")[1].replace("%2B", "+")


def differences(found: dict[str, str], expected: dict[str, str]) -> list[str]:
    return sorted(
        f"{name}: {found.get(name, 'missing')}, expected {expected.get(name, 'none')}"
        for name in found.keys() | expected.keys()
        if found.get(name) != expected.get(name)
    )


@pytest.fixture(scope="module")
def installed(inside: Inside) -> dict[str, Any]:
    found: dict[str, Any] = inside(INSTALLED)
    return {**found, "packages": normal(found["packages"])}


@pytest.fixture(scope="module")
def lock(engine: Engine, installed: dict[str, Any]) -> dict[str, str]:
    text = (ROOT / "env" / "locks" / f"{engine.profile}.txt").read_text()
    return locked(text, installed["python"])


def test_the_image_holds_this_checkouts_code_and_nothing_else_of_it(inside: Inside) -> None:
    folders = ("data", "env", "run", "verl-patches")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    here = {
        name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
        for name in names.splitlines()
        if (ROOT / name).is_file()
    }
    code = """
import hashlib, json, pathlib, sys
files = [
    p for name in sys.argv[1:] for p in pathlib.Path(name).rglob("*")
    if p.is_file() and p.suffix != ".pyc"
]
print(json.dumps({str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}))
"""
    there = inside(code, *folders)
    assert differences(there, here) == [], "the image is older than the checkout: make build"


def test_the_manifest_names_what_is_installed(
    engine: Engine, manifest: dict[str, Any], installed: dict[str, Any], host: Host
) -> None:
    assert differences(normal(manifest["packages"]), installed["packages"]) == []
    assert manifest["python"] == installed["python"]
    assert manifest["profile"] == engine.profile
    assert manifest["base"]["system"] in host.file("/etc/os-release").content_string
    # the parts are rounded to a megabyte each
    size = int(engine.image.attrs["Size"]) / 1e6
    assert 0.5 * size < sum(manifest["megabytes"].values()) < size + len(manifest["megabytes"])


def test_the_manifest_names_what_it_was_made_from(engine: Engine, manifest: dict[str, Any]) -> None:
    names = (f"{engine.profile}.txt", "tools.txt", "uv.txt")
    assert manifest["locks"] == {name: sha256(ROOT / "env" / "locks" / name) for name in names}
    wanted = [found for found in archives() if found.group in ("data", engine.profile)]
    found = manifest["archives"]
    assert {archive.file for archive in wanted} <= found.keys()
    for archive in wanted:
        assert re.fullmatch("[0-9a-f]{64}", found[archive.file]["sha256"])
        assert found[archive.file]["pinned"] == (archive.sha256 != "-")
        assert archive.sha256 in ("-", found[archive.file]["sha256"]), archive.file


def test_every_locked_package_is_there_and_no_other(
    engine: Engine, installed: dict[str, Any], lock: dict[str, str]
) -> None:
    more = {"verl": pins()["verl"]["version"], "pip": pins()["tools"]["pip"]}
    more["uv"] = pins()["uv"]["version"]
    found = dict(installed["packages"])
    # the optional group is there whole or not at all
    media = dict(pins()["media"])
    if found.keys() & media.keys():
        own = pins()["profiles"][engine.profile]
        more |= {name: own.get(name, {}).get("version", media[name]) for name in media}
    if engine.profile == "cu118":
        more["apex"] = found.get("apex", "any")  # the tests of apex look into it
    assert differences(found, {**lock, **more}) == []


def test_the_lock_holds_what_the_pins_ask_for(
    engine: Engine, installed: dict[str, Any], lock: dict[str, str]
) -> None:
    wanted = dict(pins()["python"])
    own = pins()["profiles"][engine.profile]
    if "torch" in own:
        wanted["torch"] = own["torch"]["version"]
        wanted |= own["torch"]["requires"]["linux"]
    assert {name: lock.get(name) for name in wanted} == wanted
    assert installed["python"].rpartition(".")[0] in own["python"]


def test_a_package_of_another_version_is_told() -> None:
    hashed = "torch @ https://host/torch-2.6.0%2Bcu118-cp310-cp310-linux_x86_64.whl#sha256="
    lock = locked(
        "# made by hand\nnumpy==1.26.4 ; python_full_version < '3.12' \\\n    --hash=sha256:ab\n"
        "tomli==2.5.0 ; python_full_version < '3.11' \\\n    # via\n    #   numpy\n"
        f"{hashed}{'0' * 64} ; python_full_version < '3.12' \\\n",
        "3.11.2",
    )
    assert lock == {"numpy": "1.26.4", "torch": "2.6.0+cu118"}
    assert differences({"numpy": "2.0", "evil": "1"}, lock) == [
        "evil: 1, expected none",
        "numpy: 2.0, expected 1.26.4",
        "torch: missing, expected 2.6.0+cu118",
    ]


def test_what_an_old_card_cannot_use_is_not_importable(inside: Inside) -> None:
    code = """
import importlib.util, json, sys
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name)]))
"""
    absent = ["flash_attn", "flash_attn_2_cuda", "xformers", "vllm", "sglang", "liger_kernel"]
    assert inside(code, *absent, "torch", "env", "data", "run") == ["torch", "env", "data", "run"]


def test_verl_is_the_pinned_one_with_this_queue(manifest: dict[str, Any], host: Host) -> None:
    wanted = verl.wanted(verl.queue())
    tree = f"{HOME}/.venv/src/verl"
    assert json.loads(host.file(f"{tree}/{verl.RECORD}").content_string) == wanted
    assert manifest["verl"] == wanted
    assert host.file(f"{tree}/verl/version/version").content_string.strip() == wanted["verl"]


def test_verls_tree_is_the_one_that_this_checkout_makes(inside: Inside) -> None:
    here = Path(sys.prefix) / "src" / "verl"
    assert verl.recorded(here) == verl.wanted(verl.queue()), "make env"
    expected = json.loads(subprocess.check_output([sys.executable, "-c", TREE, str(here)]))
    assert len(expected) > 250
    assert differences(inside(TREE, f"{HOME}/.venv/src/verl"), expected) == []


def test_verl_is_installed_editable(inside: Inside, site_packages: str, host: Host) -> None:
    # found without importing it: that takes as long as torch and transformers do
    code = "import importlib.util as u, json; print(json.dumps(u.find_spec('verl').origin))"
    assert inside(code) == f"{HOME}/.venv/src/verl/verl/__init__.py"
    assert not host.file(f"{site_packages}/verl").exists
    version = pins()["verl"]["version"]
    record = host.file(f"{site_packages}/verl-{version}.dist-info/direct_url.json").content_string
    expected = {"url": f"file://{HOME}/.venv/src/verl", "dir_info": {"editable": True}}
    assert json.loads(record) == expected


def test_a_file_mounted_over_verls_is_the_one_that_runs(engine: Engine, tmp_path: Path) -> None:
    target = f"{HOME}/.venv/src/verl/verl/utils/hardware.py"
    with engine.container(["cat", target]) as container:
        container.wait()
        own = container.logs().decode()
    patched = tmp_path / "hardware.py"
    patched.write_text(own + '\nHOT = "patched"\n')
    command = ["python", "-c", "import verl.utils.hardware as here; print(here.HOT)"]
    done = engine.run(command, mounts={target: str(patched)})
    assert (done.code, done.out) == (0, "patched\n"), done.err
    assert "HOT" not in own


def test_the_projects_packages_are_found_from_any_folder(host: Host) -> None:
    code = "import data.prepare, env.paths, run.preset; print(env.paths.ROOT)"
    assert host.check_output("cd / && python -c %s", code) == HOME


@pytest.fixture(scope="module")
def gsm8k(inside: Inside) -> dict[str, Any]:
    """Of every file: rows and sha256; of the raw ones also that of JSONL made of their rows."""
    code = """
import hashlib, json, pathlib, sys
import pyarrow.parquet as pq
folder, found = pathlib.Path(sys.argv[1]), {}
for path in sorted(folder.rglob("*.parquet")):
    table, name = pq.read_table(path), str(path.relative_to(folder))
    found[name] = {"rows": len(table), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    if path.parent.name == "raw":
        lines = "".join(json.dumps(row) + "\\n" for row in table.to_pylist())
        found[name]["published"] = hashlib.sha256(lines.encode()).hexdigest()
print(json.dumps(found))
"""
    found: dict[str, Any] = inside(code, f"{HOME}/share/gsm8k")
    return found


def test_gsm8k_is_whole_and_as_published(gsm8k: dict[str, Any]) -> None:
    rows = {name: file["rows"] for name, file in gsm8k.items()}
    train, test = 7473, 1319
    assert rows == {
        "raw/test.parquet": test,
        "raw/train.parquet": train,
        "test.parquet": test,
        "train.parquet": train,
    }
    pin = pins()["data"]["gsm8k"]
    assert gsm8k["raw/train.parquet"]["published"] == pin["train_sha256"]
    assert gsm8k["raw/test.parquet"]["published"] == pin["test_sha256"]


def test_gsm8ks_files_are_those_of_both_manifests(
    gsm8k: dict[str, Any], manifest: dict[str, Any], host: Host
) -> None:
    hashes = {name: file["sha256"] for name, file in gsm8k.items()}
    assert manifest["gsm8k"] == hashes
    own = json.loads(host.file(f"{HOME}/share/gsm8k/manifest.json").content_string)
    assert {name: own["files"][name]["sha256"] for name in hashes} == hashes
    assert own["source"]["commit"] == pins()["data"]["gsm8k"]["commit"]
    assert own["source"]["license"] == pins()["data"]["gsm8k"]["license"]
