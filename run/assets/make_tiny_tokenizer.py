"""Trains the tiny tokenizer: ``python -m run.assets.make_tiny_tokenizer [FOLDER]``.

The same code and the same version of ``tokenizers`` write the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from data.generated import problems
from env import errors

FOLDER = Path(__file__).with_name("tiny-tokenizer")
VOCAB_SIZE = 512
PAD, START, END = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LEVELS = range(5)
PROBLEMS_A_LEVEL = 1000
MAX_TOKENS = 2048

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def corpus() -> Iterator[str]:
    """Questions and solutions of every level, and the names that the chat template writes."""
    yield from ("system\n", "user\n", "assistant\n")
    for level in LEVELS:
        for problem in problems("train", PROBLEMS_A_LEVEL, seed=0, level=level):
            yield problem["question"]
            yield problem["answer"]


def train() -> Tokenizer:
    """Byte-level BPE: any text round-trips, no digit is ever merged, no token is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def files() -> dict[str, str]:
    """Every file of the tokenizer's folder, name to content."""
    special = {"eos_token": END, "pad_token": PAD}
    config = {
        **special,
        "added_tokens_decoder": {
            str(index): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for index, token in enumerate(SPECIAL)
        },
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        # Otherwise it makes token_type_ids too, which no decoder takes.
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": MAX_TOKENS,
        "padding_side": "left",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return {
        "tokenizer.json": train().to_str(pretty=True) + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
        "special_tokens_map.json": json.dumps(special, indent=2) + "\n",
    }


def command() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m run.assets.make_tiny_tokenizer",
        description="Trains the tiny tokenizer on generated problems.",
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files().items():
        beside = folder / f".{name}.new"
        with beside.open("w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(folder / name)


if __name__ == "__main__":
    errors.main(command)
