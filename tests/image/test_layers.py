"""What the image is made of: its layers, history, environment, labels, certificates and size."""

from __future__ import annotations

import base64
import os
import platform
import random
import re
import ssl
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from testinfra.host import Host

from tests.image.engine import HOME, Engine
from tests.image.layers import SECRETS, Layers, planted, read, saved

GIGABYTES = {"cu124": 9.0, "cu118": 12.0}  # cu118: cuDNN 8.9.7 and the CUDA of its base on top
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.S)
_TELLING = re.compile(r"TOKEN|PASSWORD|PASSWD|SECRET|API_?KEY|CREDENTIAL")
# In the history stand commands; a secret's mount is there by its name, never by what it holds.
_WORDS = re.compile(r"token|passw|api_?key|BEGIN CERT|BEGIN [A-Z ]*PRIVATE|://[^/\s]*@", re.I)


def certificates(pem: str) -> set[bytes]:
    return {base64.b64decode("".join(body.split())) for body in _CERTIFICATE.findall(pem)}


def as_needles(certificates: Iterable[bytes]) -> dict[str, bytes]:
    """A piece of each certificate as it stands in a PEM file, and one as in a DER file."""
    found = {}
    for number, der in enumerate(sorted(certificates)):
        lines = base64.encodebytes(der).replace(b"\n", b"")
        found[f"certificate {number} of the builder (PEM)"] = lines[256:320]
        found[f"certificate {number} of the builder (DER)"] = der[192:240]
    return found


def builders_index() -> dict[str, bytes]:
    """Hosts of the package index that this machine was told to use, if it was."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    settings = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    urls = [*re.findall(r"index-url='([^']+)'", settings), os.environ.get("PIP_INDEX_URL", "")]
    hosts = {urlsplit(url).hostname for entry in urls for url in entry.split()}
    return {f"the builder's package index {host}": host.encode() for host in hosts if host}


def secrets_of_environment() -> dict[str, bytes]:
    return {
        f"the value of {name}": value.encode()
        for name, value in os.environ.items()
        if _TELLING.search(name) and len(value) >= 8 and not Path(value).exists()
    }


@pytest.fixture(scope="module")
def own_bundle(host: Host) -> set[bytes]:
    return certificates(host.file(BUNDLE).content_string)


@pytest.fixture(scope="module")
def layers(
    engine: Engine, host: Host, site_packages: str, own_bundle: set[bytes], host_bundle: Path
) -> Layers:
    public = own_bundle | certificates(
        host.file(f"{site_packages}/certifi/cacert.pem").content_string
    )
    # what this host's distribution ships is public too, and may be older or newer
    for shipped in Path("/usr/share/ca-certificates").rglob("*.crt"):
        public |= certificates(shipped.read_text())
    added = certificates(host_bundle.read_text()) - public if host_bundle.is_file() else set()
    return saved(engine.tag, {**as_needles(added), **secrets_of_environment()})


def test_no_layer_holds_a_secret(layers: Layers) -> None:
    assert layers.paths
    assert layers.secrets == []


def test_no_layer_holds_what_is_not_for_running(layers: Layers) -> None:
    assert layers.unwanted() == []


def test_no_layer_names_the_host_or_the_resolver_of_its_builder(layers: Layers) -> None:
    text = b"\n".join(layers.of_one_host).decode()
    assert platform.node() not in text.split()
    assert "nameserver" not in text


def test_apts_sources_and_the_certificates_are_the_bases(layers: Layers) -> None:
    above = layers.above(f"{HOME}/env/image/system.sh".lstrip("/"))
    assert [path for path in above if path.startswith(f"{HOME}/.venv".lstrip("/"))]
    assert [path for path in above if path.startswith("etc/apt/sources")] == []
    assert [path for path in above if path.startswith("usr/local/share/ca-certificates/")] == []


def test_a_planted_secret_is_found_in_the_layer_that_hides_it() -> None:
    key = b"-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA"
    login = b"url = https://me:hunter2@mirror.example/simple"
    one = {"root/.netrc": b"machine", "etc/key": key, "./etc/pip.conf": login, "usr/lib/x": key}
    two = {"root/.wh..netrc": b"", "usr/lib/y": b"..needle..", "etc/hostname": b"mine\n"}
    layers = read(planted([one, two]), {"it": b"needle"})
    assert layers.paths == [["root/.netrc", "etc/key", "etc/pip.conf", "usr/lib/x"], [*two]]
    assert [found.partition(" ")[2] for found in layers.secrets] == [
        "etc/key: a private key",
        "etc/pip.conf: a password in an address",
        "usr/lib/y: it",
    ]
    assert len(layers.unwanted()) == 2
    assert layers.above("etc/key") == [*two]
    assert layers.of_one_host == [b"mine\n"]


@pytest.mark.parametrize("form", ["PEM", "DER"])
def test_a_certificate_of_the_builder_is_found_in_either_form(form: str) -> None:
    der = random.Random(0).randbytes(900)
    content = der if form == "DER" else ssl.DER_cert_to_PEM_cert(der).encode()
    layers = read(planted([{"usr/share/it": b"x" + content}]), as_needles([der]))
    (told,) = layers.secrets
    assert told.endswith(f"certificate 0 of the builder ({form})")
    assert certificates(ssl.DER_cert_to_PEM_cert(der)) == {der}


@pytest.mark.parametrize("number", range(len(SECRETS)))
def test_every_kind_of_secret_is_known(number: int) -> None:
    shapes = [
        b"-----BEGIN PRIVATE KEY-----\nMIIEpAIBAAKCAQEA",
        b"hf_" + b"a" * 34,
        b"ghp_" + b"b" * 36,
        b"AKIA" + b"C" * 16,
        b"http://user:word@host/",
    ]
    (what,) = (found for found in read(planted([{"etc/x": shapes[number]}]), {}).secrets)
    assert what.endswith(list(SECRETS)[number])


def telling(history: Iterable[dict[str, Any]]) -> list[str]:
    return [entry["CreatedBy"] for entry in history if _WORDS.search(entry["CreatedBy"])]


def test_the_history_tells_no_secret(engine: Engine) -> None:
    history = engine.image.history()
    assert len(history) > 10
    assert telling(history) == []
    values = {**secrets_of_environment(), **builders_index()}
    text = "\n".join(entry["CreatedBy"] for entry in history)
    assert [what for what, value in values.items() if value.decode() in text] == []
    assert telling([{"CreatedBy": "RUN |1 APT_MIRROR=http://me:word@host/debian"}])


def test_its_environment_tells_no_secret(engine: Engine) -> None:
    entries = engine.image.attrs["Config"]["Env"]
    assert [entry for entry in entries if _TELLING.search(entry) or _WORDS.search(entry)] == []
    names = {entry.partition("=")[0] for entry in entries}
    assert names & {"SSL_CERT_FILE", "PIP_CERT", "PIP_INDEX_URL", "HTTPS_PROXY", "NETRC"} == set()


def test_no_secret_of_the_build_is_mounted_or_left(root: Host) -> None:
    assert root.check_output("ls -A /run/secrets 2>/dev/null || true") == ""
    config = root.check_output("python -m pip config list")
    assert config == ""


def test_every_certificate_is_the_distributions(root: Host, own_bundle: set[bytes]) -> None:
    folder = "/usr/share/ca-certificates"
    shipped = certificates(root.check_output(f"find {folder} -name '*.crt' -exec cat {{}} +"))
    assert len(own_bundle) > 100
    assert own_bundle <= shipped
    sums = "/var/lib/dpkg/info/ca-certificates.md5sums"
    assert root.run(f"cd / && md5sum --quiet -c {sums}").rc == 0
    listed = set(root.check_output(f"cut -c35- {sums}").splitlines())
    found = root.check_output("cd / && find usr/share/ca-certificates -type f").splitlines()
    assert set(found) <= listed


def test_the_packages_certificates_are_the_wheels(root: Host, site_packages: str) -> None:
    code = """
import base64, hashlib, pathlib, sys
from importlib import metadata
for name in ("certifi", "pip"):
    for file in metadata.distribution(name).files:
        if file.name.endswith(".pem"):
            digest = hashlib.sha256(pathlib.Path(file.locate()).read_bytes()).digest()
            found = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            print(name, file.hash is not None and file.hash.value == found)
"""
    assert root.check_output("python -c %s", code).splitlines() == ["certifi True", "pip True"]


def test_its_labels_tell_what_it_is(engine: Engine, manifest: dict[str, Any]) -> None:
    prefix = "org.opencontainers.image."
    labels = {
        key.removeprefix(prefix): value
        for key, value in engine.image.labels.items()
        if key.startswith(prefix)
    }
    assert {"title", "description", "version", "revision", "created", "base.name"} <= labels.keys()
    assert labels["title"] == "verl-p40"
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels["revision"])
    assert labels["revision"] == manifest["revision"]
    assert labels["base.name"] == manifest["base"]["image"]
    assert labels["licenses"] == "Apache-2.0 AND MIT"
    assert re.fullmatch(r"\d+\.\d+\.\d+", labels["version"])
    assert re.match(r"20\d\d-\d\d-\d\dT", labels["created"])
    assert "unknown" not in labels.values()


def test_it_is_small_enough(engine: Engine) -> None:
    assert engine.image.attrs["Size"] / 1e9 < GIGABYTES[engine.profile]
