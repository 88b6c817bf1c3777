"""The tokenizer that the project ships: how it was made, and what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from data.generated import problems
from env import paths
from run.assets.make_tiny_tokenizer import FOLDER, VOCAB_SIZE

TOKENIZER = AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)


def test_making_it_again_in_a_process_of_its_own_gives_the_committed_bytes(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        folder = tmp_path / seed
        subprocess.run(
            [sys.executable, "-m", "run.assets.make_tiny_tokenizer", str(folder)],
            cwd=paths.ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": seed},
            check=True,
        )
        made = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert made == {path.name: path.read_bytes() for path in FOLDER.iterdir()}


def test_it_loads_as_a_fast_tokenizer_of_the_promised_size() -> None:
    assert isinstance(TOKENIZER, PreTrainedTokenizerFast)
    assert len(TOKENIZER) == TOKENIZER.vocab_size == VOCAB_SIZE == 512
    assert sorted(TOKENIZER.get_vocab().values()) == list(range(512))


def test_pad_and_eos_are_two_valid_tokens() -> None:
    assert (TOKENIZER.pad_token, TOKENIZER.pad_token_id) == ("<|endoftext|>", 0)
    assert (TOKENIZER.eos_token, TOKENIZER.eos_token_id) == ("<|im_end|>", 2)
    assert TOKENIZER.decode([0, 2], skip_special_tokens=True) == ""


@given(st.text())
@settings(derandomize=True, deadline=None)
def test_any_text_round_trips(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@pytest.mark.parametrize("text", ["18", "1,234.50", "<<16-3-4=9>>9", "x2y34", "#### 1000000", " 7"])
def test_every_digit_is_a_token_of_its_own(text: str) -> None:
    tokens = [TOKENIZER.decode([token]) for token in TOKENIZER.encode(text)]
    assert [token for token in tokens if any(c.isdecimal() for c in token)] == [
        c for c in text if c.isdecimal()
    ]


def test_no_token_of_the_vocabulary_holds_a_digit_and_more() -> None:
    for token in TOKENIZER.get_vocab():
        assert len(token) == 1 or not any(c.isdecimal() for c in token), token


def test_it_has_learned_the_words_of_the_generated_problems() -> None:
    problem = next(problems("test", 1, seed=1, level=2))
    text = problem["question"] + problem["answer"]
    assert len(TOKENIZER.encode(text)) < 0.6 * len(text)


def test_the_template_ends_with_the_header_of_the_assistant() -> None:
    messages = [{"role": "user", "content": "What is 9 + 9?"}]
    prompt = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert prompt == "<|im_start|>user\nWhat is 9 + 9?<|im_end|>\n<|im_start|>assistant\n"
    ids = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True)
    assert TOKENIZER.decode(ids) == prompt
    assert (ids.count(1), ids.count(2)) == (2, 1)


def test_a_conversation_with_its_answer_closes_every_turn() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "9 + 9?"},
        {"role": "assistant", "content": "#### 18"},
    ]
    ids = TOKENIZER.apply_chat_template(messages)
    assert (ids.count(1), ids.count(2)) == (3, 3)


def test_it_makes_what_a_decoder_takes_and_nothing_else() -> None:
    assert set(TOKENIZER("9 + 9")) == {"input_ids", "attention_mask"}
