"""What a hub says about a repository: Hugging Face, a mirror of it, or ModelScope.

HF_ENDPOINT and MODELSCOPE_ENDPOINT name a mirror, HF_TOKEN (or the login that huggingface_hub
keeps) opens a gated repository, HF_HUB_OFFLINE forbids both hubs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import requests

from env.errors import UNREACHABLE, Problem, Refused
from env.models.download import RemoteFile, TransientError, get, host, shown, with_retries
from env.models.names import Wanted, is_revision

MODELSCOPE = "https://modelscope.cn"

_ODD = re.compile(r'[\x00-\x1f\\:*?"<>|]')


@dataclass(frozen=True)
class Listing:
    """What a hub says about one revision of a repository."""

    url: str
    revision: str
    license: str | None
    files: Mapping[str, RemoteFile]


def list_files(wanted: Wanted) -> Listing:
    """Ask the hub of ``wanted.source`` what there is.

    Raises:
        Refused: (exit code 3) offline, unreachable, not there, or closed.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise Refused(
            Problem(wanted.name, "is not here, and HF_HUB_OFFLINE forbids to fetch it"), UNREACHABLE
        )
    listing = _list_modelscope(wanted) if wanted.source == "modelscope" else _list_hf(wanted)
    if not is_revision(listing.revision):
        what = f"calls its revision {listing.revision!r}"
        do = "do not trust this server"
        raise Refused(Problem(listing.url, what, "a commit, branch or tag", do))
    odd = [name for name in listing.files if _leaves_the_folder(name)]
    if odd:
        raise Refused(
            Problem(
                listing.url,
                f"names files outside the repository: {', '.join(map(repr, odd))}",
                "plain names",
                "do not trust this server",
            )
        )
    return listing


def _list_hf(wanted: Wanted) -> Listing:
    # Slow to import, and only needed here.
    from huggingface_hub import HfApi, constants, get_token, hf_hub_url
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    endpoint = _endpoint(wanted, "HF_ENDPOINT", constants.ENDPOINT)
    repo = str(wanted.repo)
    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    where = f"{shown(endpoint)}/{repo}" + (f" at {wanted.revision}" if wanted.revision else "")

    def ask() -> Listing:
        try:
            info = HfApi(endpoint=endpoint).model_info(
                repo,
                revision=wanted.revision,
                files_metadata=True,
                timeout=15,
                token=token or False,
            )
        except (GatedRepoError, RepositoryNotFoundError) as error:
            raise Refused(_closed(where, type(error).__name__), UNREACHABLE) from None
        except RevisionNotFoundError:
            what, do = "the repository has no such revision", "correct --revision"
            raise Refused(
                Problem(where, what, "a commit, branch or tag", do), UNREACHABLE
            ) from None
        except HFValidationError as error:
            raise Refused(Problem(where, str(error), "ORGANISATION/NAME")) from None
        except HfHubHTTPError as error:
            raise TransientError(f"{host(endpoint)} answered {_status(error)}") from None
        except (requests.RequestException, ValueError) as error:
            raise TransientError(f"{host(endpoint)}: {type(error).__name__}") from None
        revision = info.sha or wanted.revision or "main"
        files = {
            one.rfilename: RemoteFile(
                name=one.rfilename,
                url=hf_hub_url(repo, one.rfilename, revision=revision, endpoint=endpoint),
                bytes=one.lfs.size if one.lfs else one.size,
                sha256=one.lfs.sha256 if one.lfs else None,
                git_sha1=None if one.lfs else one.blob_id,
                headers=headers,
            )
            for one in info.siblings or []
        }
        named = [tag for tag in info.tags or [] if tag.startswith("license:")]
        return Listing(where, revision, named[0].removeprefix("license:") if named else None, files)

    return with_retries(ask, where)


def _list_modelscope(wanted: Wanted) -> Listing:
    endpoint = _endpoint(wanted, "MODELSCOPE_ENDPOINT", MODELSCOPE)
    revision = wanted.revision or "master"
    repo = str(wanted.repo)
    where = f"{shown(endpoint)}/models/{repo} at {revision}"
    url = f"{endpoint}/api/v1/models/{repo}/repo/files"

    def ask() -> Listing:
        with requests.Session() as session:
            query = {"Revision": revision, "Recursive": "true"}
            try:
                table = get(session, url, {}, query).json()
                rows = table["Data"]["Files"] or []
                files = {
                    row["Path"]: RemoteFile(
                        name=row["Path"],
                        url=f"{endpoint}/models/{repo}/resolve/{quote(revision, safe='')}/"
                        f"{quote(row['Path'])}",
                        bytes=row.get("Size"),
                        sha256=row.get("Sha256") or None,
                    )
                    for row in rows
                    if row.get("Type") != "tree"
                }
            except (ValueError, KeyError, TypeError, requests.RequestException) as error:
                what = f"{host(url)} sent no list of files ({type(error).__name__})"
                raise TransientError(what) from None
        return Listing(where, revision, None, files)

    return with_retries(ask, where)


def _endpoint(wanted: Wanted, variable: str, default: str) -> str:
    """The hub's address, without a slash at its end."""
    said = wanted.endpoint or os.environ.get(variable) or default
    try:
        parts = urlsplit(said)
        # A port that is no number is an error only when it is asked for.
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        # The address itself is not shown: it may hold a password.
        where = "--endpoint" if wanted.endpoint else variable
        raise Refused(
            Problem(where, "is no address of a hub", "such as https://HOST", "correct it")
        )
    return said.rstrip("/")


def _leaves_the_folder(name: str) -> bool:
    parts = name.split("/")
    return bool(_ODD.search(name)) or any(part in ("", ".", "..") for part in parts)


def _closed(where: str, kind: str) -> Problem:
    if kind == "GatedRepoError":
        what, do = "is gated", "accept the model's terms on its page, and set HF_TOKEN"
    else:
        what, do = "is not there, or is private", "check the name; for a private one set HF_TOKEN"
    return Problem(where, what, "a repository that may be read", do)


def _status(error: requests.RequestException) -> str:
    return str(error.response.status_code) if error.response is not None else "nothing"
