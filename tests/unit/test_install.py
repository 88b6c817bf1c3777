"""The install steps: refusals that name the cure, repair after interruption, nothing twice."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from env.paths import ROOT

SCRIPTS = Path(sysconfig.get_path("scripts"))
BASH = shutil.which("bash") or "/bin/bash"


def run(
    *command: str | Path, cwd: Path = ROOT, env: Mapping[str, str | Path] | None = None
) -> subprocess.CompletedProcess[str]:
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = {**inherited, **{name: str(value) for name, value in (env or {}).items()}}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True
    )


def executable(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{BASH}\n{body}\n")
    path.chmod(0o755)


def test_shellcheck_finds_nothing() -> None:
    scripts = sorted((ROOT / "env" / "install").glob("*.sh"))
    assert scripts
    found = run(SCRIPTS / "shellcheck", *scripts, ROOT / ".ci" / "run")
    assert found.returncode == 0, found.stdout


# --- venv.sh: which Python


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A folder for PATH with the tools of a bare machine, and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("bash", "cut", "dirname", "grep", "realpath", "sed"):
        (folder / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    return folder


def fake_python(path: Path, version: str, with_venv: bool) -> None:
    # answers the two questions that venv.sh asks before it makes anything
    body = f"case $2 in *version_info*) echo {version} ;; *) exit {0 if with_venv else 1} ;; esac"
    executable(path, body)


def venv_sh(bare_path: Path, *arguments: str, **variables: str) -> str:
    where = {"PATH": bare_path, "VERL_P40_VENV": bare_path.parent / "venv"}
    done = run(BASH, ROOT / "env/install/venv.sh", *arguments, env={**where, **variables})
    assert done.returncode == 1
    assert not (bare_path.parent / "venv").exists()
    return done.stderr


def test_a_machine_without_python_is_told_what_to_install(bare_path: Path) -> None:
    said = venv_sh(bare_path)
    assert "no Python 3.10 or 3.11" in said
    assert "python3=none" in said
    assert "apt install python3.11 python3.11-venv" in said


def test_a_python_that_is_too_old_is_named_with_its_version(bare_path: Path) -> None:
    fake_python(bare_path / "python3", "3.9", with_venv=True)
    said = venv_sh(bare_path)
    assert "python3=3.9" in said
    assert "make env PYTHON=" in said


def test_profile_cu118_asks_for_python_3_10(bare_path: Path) -> None:
    fake_python(bare_path / "python3", "3.11", with_venv=True)
    said = venv_sh(bare_path, "cu118")
    assert "no Python 3.10 for profile cu118" in said
    assert "python3=3.11" in said


def test_a_python_without_venv_is_told_the_package(bare_path: Path) -> None:
    fake_python(bare_path / "python3", "3.11", with_venv=False)
    said = venv_sh(bare_path)
    assert "venv or ensurepip is missing" in said
    assert "apt install python3.11-venv" in said


def test_a_python_that_is_asked_for_is_the_only_one_tried(bare_path: Path) -> None:
    fake_python(bare_path / "python3", "3.11", with_venv=False)
    said = venv_sh(bare_path, PYTHON="python3.8")
    assert "found: python3.8=none\n" in said


# --- uv.sh: pip's settings reach uv


def uv_sees(tmp_path: Path, **variables: str) -> dict[str, str]:
    executable(tmp_path / "venv/bin/uv", "env")
    executable(tmp_path / "venv/bin/python", f'exec "{sys.executable}" "$@"')
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://index.example/simple\ncert = /ca.pem\n"
    )
    settings = {"VERL_P40_VENV": tmp_path / "venv", "PIP_CONFIG_FILE": tmp_path / "pip.conf"}
    done = run(BASH, ROOT / "env/install/uv.sh", env={**settings, **variables})
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def test_uv_uses_the_index_and_certificates_of_pips_settings(tmp_path: Path) -> None:
    seen = uv_sees(tmp_path)
    assert seen["UV_DEFAULT_INDEX"] == "https://index.example/simple"
    assert seen["SSL_CERT_FILE"] == "/ca.pem"


def test_a_variable_of_pip_wins_over_its_settings(tmp_path: Path) -> None:
    seen = uv_sees(tmp_path, PIP_INDEX_URL="https://mirror.example/", PIP_CERT="/other.pem")
    assert seen["UV_DEFAULT_INDEX"] == "https://mirror.example/"
    assert seen["SSL_CERT_FILE"] == "/other.pem"


def test_a_variable_of_uv_wins_over_pips(tmp_path: Path) -> None:
    seen = uv_sees(tmp_path, UV_DEFAULT_INDEX="https://own.example/", PIP_INDEX_URL="https://no/")
    assert seen["UV_DEFAULT_INDEX"] == "https://own.example/"


# --- python.sh: the environment becomes what the locks name


def wheel(folder: Path, name: str) -> str:
    """A wheel of one module; the line of a lock that names it."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    information = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "here = True\n")
        archive.writestr(
            f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{information}/RECORD", "")
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout, in a folder with a space, whose locks name two wheels that lie beside it."""
    root = tmp_path / "check out"
    shutil.copytree(ROOT / "env" / "install", root / "env" / "install")
    (root / "env" / "locks").mkdir()
    (tmp_path / "wheels").mkdir()
    (root / "env/locks/cu124.txt").write_text(wheel(tmp_path / "wheels", "stack"))
    (root / "env/locks/tools.txt").write_text(wheel(tmp_path / "wheels", "tool"))
    shutil.copy(ROOT / "env/locks/archives.txt", root / "env" / "locks")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / ".venv"], check=True)
    (root / ".venv/bin/uv").symlink_to(SCRIPTS / "uv")
    return root


def sync(checkout: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    parent = checkout.parent
    script = checkout / "env/install/python.sh"
    env: dict[str, str | Path] = {"UV_OFFLINE": "1", "UV_NO_INDEX": "1"}
    env |= {"UV_FIND_LINKS": parent / "wheels", "UV_CACHE_DIR": parent / "cache"}
    return run(BASH, script, "cu124", cwd=parent, env={**env, **variables})


def site(checkout: Path) -> Path:
    (found,) = checkout.glob(".venv/lib/python3*/site-packages")
    return found


def test_the_environment_holds_what_the_locks_name_and_nothing_else(checkout: Path) -> None:
    assert sync(checkout).returncode == 0
    assert {path.name for path in site(checkout).glob("*.py")} >= {"stack.py", "tool.py"}
    (checkout / "env/locks/cu124.txt").write_text("")
    assert sync(checkout).returncode == 0
    assert (site(checkout) / "tool.py").exists()
    assert not (site(checkout) / "stack.py").exists()


def test_an_interrupted_installation_is_repaired_by_the_next_run(checkout: Path) -> None:
    assert sync(checkout).returncode == 0
    # what a kill in the middle leaves: a package that looks installed but is not whole
    (site(checkout) / "stack.py").unlink()
    (checkout / ".venv/.sync-unfinished").touch()
    assert sync(checkout).returncode == 0
    assert (site(checkout) / "stack.py").exists()
    assert not (checkout / ".venv/.sync-unfinished").exists()


def test_a_package_with_another_hash_is_refused_and_the_run_stays_unfinished(
    checkout: Path,
) -> None:
    lock = checkout / "env/locks/cu124.txt"
    lock.write_text(lock.read_text()[:-9] + "00000000\n")
    done = sync(checkout)
    assert done.returncode != 0
    assert "Hash mismatch" in done.stderr
    assert not (site(checkout) / "stack.py").exists()
    assert (checkout / ".venv/.sync-unfinished").exists()


def test_all_but_torch_can_be_installed_first(checkout: Path) -> None:
    lock = checkout / "env/locks/cu124.txt"
    lock.write_text(lock.read_text() + wheel(checkout.parent / "wheels", "torch"))
    assert sync(checkout, TORCH="no").returncode == 0
    assert (site(checkout) / "stack.py").exists()
    assert not (site(checkout) / "torch.py").exists()
    assert sync(checkout).returncode == 0
    assert (site(checkout) / "torch.py").exists()


def test_a_torch_that_is_laid_by_hand_is_taken_by_its_hash(checkout: Path) -> None:
    line = wheel(checkout.parent, "torch")
    digest = line.split("--hash=")[1]
    downloads = checkout / "env" / "downloads"
    downloads.mkdir()
    (checkout.parent / "torch-1.0-py3-none-any.whl").rename(
        downloads / "torch-1.0+cu118-py3-none-any.whl"
    )
    lock = checkout / "env/locks/cu124.txt"
    address = "https://127.0.0.1:9/torch-1.0%2Bcu118-py3-none-any.whl"
    lock.write_text(f"{lock.read_text()}torch @ {address} --hash={digest}")
    listed = checkout / "env/locks/archives.txt"
    listed.write_text("cu118 torch-1.0+cu118-py3-none-any.whl - - TORCH_URL nowhere\n")
    done = sync(checkout)
    assert done.returncode == 0, done.stderr
    assert (site(checkout) / "torch.py").exists()
    lock.write_text(lock.read_text().replace(digest.strip(), f"sha256:{'0' * 64}"))
    (site(checkout) / "torch.py").unlink()
    (checkout / ".venv/.sync-unfinished").touch()
    assert "Hash mismatch" in sync(checkout).stderr


def test_the_media_group_is_installed_when_it_is_asked_for(checkout: Path) -> None:
    media = checkout / "env/locks/media.txt"
    media.write_text(wheel(checkout.parent / "wheels", "torchvision"))
    assert sync(checkout).returncode == 0
    assert not (site(checkout) / "torchvision.py").exists()
    assert sync(checkout, MEDIA="yes").returncode == 0
    assert (site(checkout) / "torchvision.py").exists()


def test_packages_that_cannot_be_had_are_told_with_the_cure(checkout: Path) -> None:
    (checkout.parent / "wheels" / "stack-1.0-py3-none-any.whl").unlink()
    done = sync(checkout)
    assert done.returncode == 1
    assert "PIP_INDEX_URL names a mirror" in done.stderr


def test_an_unknown_profile_is_refused(checkout: Path) -> None:
    done = run(BASH, checkout / "env/install/python.sh", "cu999")
    assert done.returncode == 1
    assert "profile cu999 has no lock" in done.stderr


# --- all.sh: once, and again only when something changed


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """A checkout whose steps only write down that they ran."""
    install = tmp_path / "env" / "install"
    for step in ("venv", "python", "verl"):
        executable(install / f"{step}.sh", f'echo {step} "$@" >>ran; [ ! -e fail-{step} ]')
    shutil.copy(ROOT / "env/install/all.sh", install)
    for name in ("env/locks/uv.txt", "env/pins.toml", "env/verl.py", "verl-patches/0001-a.patch"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    return tmp_path


def all_sh(checkout: Path, *arguments: str) -> tuple[int, list[str], str]:
    (checkout / "ran").write_text("")
    done = run(BASH, checkout / "env/install/all.sh", *arguments)
    return done.returncode, (checkout / "ran").read_text().split("\n")[:-1], done.stdout


def test_the_second_run_does_nothing_and_says_nothing(steps: Path) -> None:
    code, ran, said = all_sh(steps)
    assert (code, ran) == (0, ["venv cu124", "python cu124", "verl"])
    assert said.splitlines()[-1].startswith("environment: ")
    assert all_sh(steps) == (0, [], "")


@pytest.mark.parametrize(
    "changed", ["env/locks/uv.txt", "env/pins.toml", "env/verl.py", "verl-patches/0001-a.patch"]
)
def test_a_changed_input_runs_the_steps_again(steps: Path, changed: str) -> None:
    all_sh(steps)
    (steps / changed).write_text("changed")
    assert len(all_sh(steps)[1]) == 3
    assert all_sh(steps)[1] == []


def test_a_failed_step_ends_the_run_and_is_taken_up_by_the_next(steps: Path) -> None:
    (steps / "fail-python").touch()
    code, ran, _ = all_sh(steps)
    assert (code, ran) == (1, ["venv cu124", "python cu124"])
    (steps / "fail-python").unlink()
    assert len(all_sh(steps)[1]) == 3


def test_the_profile_stays_what_the_environment_was_made_with(steps: Path) -> None:
    all_sh(steps, "cu118")
    assert json.loads((steps / ".venv/verl-p40.json").read_text())["profile"] == "cu118"
    assert all_sh(steps)[1] == []
    assert all_sh(steps, "cu124")[1][0] == "venv cu124"


def test_an_environment_whose_python_is_gone_is_made_again(steps: Path) -> None:
    all_sh(steps)
    (steps / ".venv/bin/python").unlink()
    assert len(all_sh(steps)[1]) == 3
