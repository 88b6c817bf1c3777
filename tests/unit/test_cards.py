from pathlib import Path

import pytest

from env import cards
from env.errors import Refused

GIVEN = {
    "tesla-p40": ((6, 1), 22919, 24576),
    "tesla-p100-16gb": ((6, 0), 16280, 16280),
    "gtx-1080-ti": ((6, 1), None, 11264),
    "titan-xp": ((6, 1), None, 12288),
    "tesla-v100-16gb": ((7, 0), 16160, 16160),
    "tesla-v100-32gb": ((7, 0), 32510, 32510),
    "tesla-t4": ((7, 5), 15109, 16127),
    "rtx-2080-ti": ((7, 5), None, 11264),
    "a100-40gb": ((8, 0), 40536, 40536),
    "a100-80gb": ((8, 0), 81920, 81920),
    "h100": ((9, 0), 81559, 81559),
    "h200": ((9, 0), 143771, 143771),
}

OPT_IN = {
    (6, 0): 49152,
    (6, 1): 49152,
    (7, 0): 98304,
    (7, 5): 65536,
    (8, 0): 166912,
    (9, 0): 232448,
}


def test_every_card_has_its_capability_and_memory() -> None:
    found = {
        name: (card.capability, card.memory_ecc_on_mib, card.memory_ecc_off_mib)
        for name, card in cards.load().items()
    }
    assert found == GIVEN


def test_a_p40_has_what_the_planner_counts_on() -> None:
    p40 = cards.load()["tesla-p40"]
    assert (p40.bandwidth_gb_s, p40.fp32_tflop_s, p40.fp16_rate) == (347.0, 12.0, 1 / 64)
    assert (p40.bf16, p40.tensor_cores) == (False, False)
    assert (p40.shared_memory_optin, p40.pcie, p40.last_driver_branch) == (49152, 3, 580)
    assert p40.driver_min == "450.80.02"


@pytest.mark.parametrize("name", GIVEN)
def test_shared_memory_bf16_and_driver_branch_follow_the_capability(name: str) -> None:
    card = cards.load()[name]
    assert card.shared_memory_optin == OPT_IN[card.capability]
    assert card.bf16 == (card.capability >= (8, 0))
    assert card.tensor_cores == (card.capability >= (7, 0))
    assert card.last_driver_branch == (580 if card.capability < (7, 5) else None)


@pytest.mark.parametrize(
    ("nvml_name", "memory_mib", "name", "ecc"),
    [
        ("Tesla P40", 22919, "tesla-p40", True),
        ("Tesla P40", 23040, "tesla-p40", True),
        ("Tesla P40", 24576, "tesla-p40", False),
        ("Tesla P40", 24451, "tesla-p40", False),
        ("GeForce GTX 1080 Ti", 11178, "gtx-1080-ti", False),
        ("NVIDIA GeForce GTX 1080 Ti", 11264, "gtx-1080-ti", False),
        ("NVIDIA TITAN Xp", 12288, "titan-xp", False),
        ("Tesla V100-SXM2-32GB", 32768, "tesla-v100-32gb", True),
        ("NVIDIA A100-SXM4-80GB", 81251, "a100-80gb", True),
        ("NVIDIA H200", 143771, "h200", True),
    ],
)
def test_a_card_is_found_under_every_driver(
    nvml_name: str, memory_mib: int, name: str, ecc: bool
) -> None:
    card = cards.find(nvml_name, memory_mib)
    assert card is not None
    assert card.name == name
    assert card.ecc(memory_mib) is ecc


@pytest.mark.parametrize(
    ("nvml_name", "memory_mib"),
    [("Tesla P40", 11520), ("Tesla K80", 11441), ("NVIDIA H200", 16384), ("", 22919)],
)
def test_a_part_of_a_card_and_an_unknown_card_are_not_found(
    nvml_name: str, memory_mib: int
) -> None:
    assert cards.find(nvml_name, memory_mib) is None


def test_every_known_size_is_found_under_every_known_name() -> None:
    for card in cards.load().values():
        sizes = {card.memory_ecc_off_mib, *card.also_shown_ecc_on_mib, *card.also_shown_ecc_off_mib}
        if card.memory_ecc_on_mib:
            sizes.add(card.memory_ecc_on_mib)
        for nvml_name in card.nvml_names:
            assert {cards.find(nvml_name, size) for size in sizes} == {card}


def test_every_wrong_field_is_named_at_once(tmp_path: Path) -> None:
    text = cards.CARDS.read_text(encoding="utf-8")
    text = text.replace("bandwidth_gb_s = 347", 'bandwidth_gb_s = "347"')
    text = text.replace("memory_mib = { ecc_on = 22919, ecc_off = 24576 }", "memory_mib = 24")
    text = text.replace('nvml_names = ["TITAN Xp"]', 'nvml_names = ["Tesla P40"]')
    text = text.replace('capability = "8.0"', 'capability = "8.9"', 1)
    text = text.replace("fp32_tflop_s = 67.0\n", "fp32_tflops = 67.0\n")
    text = text.replace("shared_memory_optin = 98304", "shared_memory_optin = 96")
    wrong = tmp_path / "cards.toml"
    wrong.write_text(text, encoding="utf-8")

    with pytest.raises(Refused) as refused:
        cards.load(wrong)

    assert {(problem.where, problem.what) for problem in refused.value.problems} == {
        (f"{wrong}, capability 7.0, shared_memory_optin", "is 96"),
        (f"{wrong}, card tesla-p40, bandwidth_gb_s", "is '347'"),
        (f"{wrong}, card tesla-p40, memory_mib", "is 24"),
        (f"{wrong}, card titan-xp, nvml_names", "'Tesla P40' is also a name of tesla-p40"),
        (f"{wrong}, card a100-40gb, capability", "'8.9' has no table of its own"),
        (f"{wrong}, card h200, fp32_tflops", "is not a known field"),
        (f"{wrong}, card h200, fp32_tflop_s", "is missing"),
    }
    assert all(problem.expected and problem.do for problem in refused.value.problems)


@pytest.mark.parametrize(
    "text", ["[card", "", "\x00", "card = 3\ncapability = 4", "[card]\nx = 1\n[capability]"]
)
def test_a_file_that_is_no_table_of_cards_is_refused(tmp_path: Path, text: str) -> None:
    wrong = tmp_path / "cards.toml"
    wrong.write_text(text, encoding="utf-8")
    with pytest.raises(Refused, match=r"cards\.toml"):
        cards.load(wrong)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is missing"):
        cards.load(tmp_path / "cards.toml")
