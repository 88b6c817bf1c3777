"""Docker's engine and NVIDIA's container toolkit. Training needs neither: .venv does without."""

from __future__ import annotations

from collections.abc import Iterator

from env.doctor.facts import Facts
from env.doctor.finding import Finding, Level, wants_card

WITHOUT = "make train takes .venv; the image needs an engine"


def check_engine(facts: Facts, profile: str) -> Iterator[Finding]:
    engine = facts.engine
    if engine.state == "answers":
        what = f"Docker {engine.version} answers"
        if engine.missing_plugins:
            missing = " and ".join(engine.missing_plugins)
            packages = " ".join(f"docker-{name}-plugin" for name in engine.missing_plugins)
            why = "make build needs buildx; docker compose up needs compose"
            cure = f"install {packages} (Docker's packages; Debian's lack -plugin)"
            yield Finding("engine", "warning", f"{what}, without {missing}", why, cure)
        else:
            yield Finding("engine", "ok", what)
        return
    if engine.state == "no client":
        if facts.is_container:
            yield Finding("engine", "ok", "none in this container, and none needed")
            return
        what, cure = "Docker is not installed", "for the image: install Docker Engine"
    elif engine.state == "no permission":
        what = "this user may not reach the Docker engine"
        cure = "sudo usermod -aG docker $USER, then log in anew; that group is as good as root"
    elif engine.state == "not running":
        what, cure = "the Docker engine does not run", "sudo systemctl start docker"
    else:
        what, cure = "the Docker engine does not answer", "docker version tells more"
    why = f"{engine.error} ({WITHOUT})" if engine.error else WITHOUT
    yield Finding("engine", "warning", what, why, cure)


def check_toolkit(facts: Facts, profile: str) -> Iterator[Finding]:
    engine = facts.engine
    if engine.state != "answers" or not wants_card(facts):
        return
    if engine.has_nvidia_runtime is None:
        why = "whether containers get the card could not be asked"
        yield Finding("toolkit", "warning", "the engine does not list its runtimes", why)
        return
    if engine.has_nvidia_runtime:
        yield Finding("toolkit", "ok", "NVIDIA's runtime is registered: containers get the card")
        return
    register = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
    cure = register if engine.has_toolkit else f"install nvidia-container-toolkit, then {register}"
    why = 'a container with a GPU fails: could not select device driver "nvidia"'
    level: Level = "warning"
    if engine.images:
        level = "problem"
        why += "; make train takes the image, and there the CPU"
        cure += "; until then make train WHERE=host"
    yield Finding("toolkit", level, "the engine lacks NVIDIA's runtime", why, cure)
