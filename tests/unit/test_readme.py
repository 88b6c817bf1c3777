"""The README against the checkout: what it names exists, its tables are whole, its texts are real.

A fence of ``$ command`` lines below ``<!-- tested -->`` is run, and must print what stands there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from env import cards, hardware, models, paths, verl
from run import config, preset, reward

README = (paths.ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (paths.ROOT / "Makefile").read_text(encoding="utf-8")
# Made by commands; the README tells where, a fresh checkout lacks them.
MADE = ("out/", "env/downloads/")


def table(first_column: str) -> list[list[str]]:
    """Cells of each row of the table whose header begins with ``first_column``."""
    _, found, rest = README.partition(f"\n| {first_column} |")
    assert found, f"no table {first_column}"
    rows = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def plain(cell: str) -> str:
    return cell.strip().strip("`")


def sources() -> str:
    """The code's text, with strings that run over several lines joined.

    Texts of the engine are among them by the tests of the image, which wait for them.
    """
    files = [
        path
        for room in ("env", "data", "run", "tests/image")
        for suffix in ("*.py", "*.sh")
        for path in (paths.ROOT / room).rglob(suffix)
    ]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return re.sub(r'"\s*\n\s*f?"', "", text)


def marked_blocks() -> Iterator[tuple[str, str]]:
    """(command, what it prints) of every marked fence."""
    for block in re.findall(r"<!-- tested -->\n```console\n(.*?)```", README, re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed


def test_every_make_target_exists() -> None:
    named = set(re.findall(r"(?:^\$ |`|^  )make ([a-z][a-z-]*)", README, re.M))
    targets = set(re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.M))
    assert named == targets


def test_every_preset_has_a_row_with_its_model_and_place() -> None:
    rows = {plain(row[0]): row for row in table("preset")}
    assert sorted(rows) == preset.names()
    for name, row in rows.items():
        loaded = preset.load(name)
        settings = config.build(loaded, [])
        algorithm = {"grpo": "GRPO", "gae": "PPO"}[settings.algorithm.adv_estimator]
        assert row[1].startswith(algorithm), name
        wanted = "random" if loaded.model == "tiny" else loaded.model.removesuffix("-instruct")
        assert row[2].lower().startswith(wanted), name
        assert (row[4] == "CPU") == (settings.trainer.device == "cpu"), name
        steps = settings.trainer.total_training_steps
        assert steps is None or f"{steps} steps" in row[1], name
        prompts, samples = settings.data.train_batch_size, settings.actor_rollout_ref.rollout.n
        said = "1 prompt " if prompts == 1 else f"{prompts} prompts"
        assert said + (f" x {samples}" if samples > 1 else "") in row[1], name


def test_presets_that_are_named_in_commands_exist() -> None:
    named = set(re.findall(r"PRESET=([a-z0-9-]+)", README))
    assert named <= set(preset.names())


def test_every_patch_of_the_queue_has_a_row_that_links_it() -> None:
    linked = [
        re.fullmatch(r"\[(\d{4})\]\(verl-patches/(\1-.*\.patch)\)", row[0])
        for row in table("patch")
    ]
    assert [link and link[2] for link in linked] == [patch.name for patch in verl.queue()]


def test_every_card_has_a_row_with_its_figures_and_what_the_profile_decides() -> None:
    expected = []
    for card in cards.load().values():
        on, off = card.memory_ecc_on_mib, card.memory_ecc_off_mib
        # what the locks install, whatever else this machine has
        decided = hardware.profile_module().detect(
            "cuda", card.capability, has_flash_attn=False, has_triton=True
        )
        assert decided.attn_implementation == "sdpa"
        expected.append(
            [
                f"`{card.name}`",
                "{}.{}".format(*card.capability),
                f"{on} (ECC off: {off})" if on not in (None, off) else f"{off}",
                f"{card.bandwidth_gb_s:.0f}",
                f"{card.fp32_tflop_s}",
                decided.dtype,
                "on" if decided.torch_compile else "off",
                f"R{card.last_driver_branch}" if card.last_driver_branch else "",
            ]
        )
    assert table("card") == expected


def test_every_model_is_listed() -> None:
    for name in models.catalogue():
        assert re.search(rf"^{re.escape(name)} ", README, re.M), name


@pytest.mark.parametrize("row", table("response"), ids=lambda row: plain(row[0]))
def test_rewards_are_what_the_table_says(row: list[str]) -> None:
    given = [getattr(reward, name)("", plain(row[0]), "18") for name in preset.REWARDS]
    assert [round(score["score"], 3) for score in given] == [float(cell) for cell in row[1:]]


@pytest.mark.parametrize("row", table("text"), ids=lambda row: plain(row[0]))
def test_every_text_of_the_troubleshooting_is_one_of_the_code(row: list[str]) -> None:
    pieces = [piece.strip() for piece in plain(row[0]).split("…")]
    code = sources()
    missing = [piece for piece in pieces if piece not in code]
    assert missing == []


def test_every_path_and_link_that_is_named_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    named = re.findall(r"`((?:env|data|run|tests|docs|verl-patches|\.ci)/[\w./-]*)`", README)
    rooms = re.findall(r"^([\w-]+/) {3,}", README, re.M)
    assert len(links) >= len(verl.queue())
    for name in [*links, *named, *rooms]:
        if not name.startswith(MADE):
            assert (paths.ROOT / name).exists(), name


def test_every_heading_that_is_linked_exists() -> None:
    headings = re.findall(r"^#+ (.*)$", README, re.M)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", README)) <= anchors


def test_every_module_that_is_started_exists() -> None:
    for module in set(re.findall(r"-m ((?:env|data|run)[\w.]*)", README)):
        place = paths.ROOT.joinpath(*module.split("."))
        assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), module


def test_every_variable_that_may_be_set_is_read() -> None:
    code = sources()
    for name in set(re.findall(r"`((?:GSM8K|PIP|HF|VERL_P40)_[A-Z_]+)(?:=1)?`", README)):
        assert name in code, name


@pytest.mark.parametrize(("command", "printed"), list(marked_blocks()))
def test_a_marked_command_prints_what_the_page_says(command: str, printed: str) -> None:
    # a make that runs this test must not hand its own flags on
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["bash", "-c", command.replace(".venv/", f"{sys.prefix}/")],
        cwd=paths.ROOT,
        env=inherited,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == printed


def test_the_picture_needs_nothing_from_elsewhere() -> None:
    picture = Path(paths.ROOT, "docs", "demo.svg")
    text = picture.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    outside = re.sub(r'xmlns="[^"]*"', "", text)
    assert not re.search(r"https?:|@import|@font-face|<image|<script", outside)
