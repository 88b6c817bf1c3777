"""Counts tokens with the model's own tokenizer and chat template, as verl will see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from data.manifest import Tokens
from env.errors import Problem, Refused

_DO = "give --tokenizer the folder of an instruction-tuned model"


class Counter:
    """Token counts of whole batches.

    Args:
        folder: of a tokenizer with a chat template; nothing is fetched.

    Raises:
        Refused: no tokenizer there, or one without a chat template.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        if not folder.is_dir():
            raise Refused(Problem(str(folder), "is no folder", "a tokenizer's folder", _DO))
        # Seconds of import, and only needed here.
        from transformers.models.auto.tokenization_auto import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(
                str(folder),
                local_files_only=True,
                # Neither run a model's own code nor ask a person whether to.
                trust_remote_code=False,
            )
        # The tokenizers library raises bare Exceptions for a damaged file.
        except Exception as error:
            what = f"holds no tokenizer that can be read: {error}"
            raise Refused(Problem(str(folder), what, "a tokenizer", _DO)) from error
        if not self._tokenizer.is_fast:
            raise Refused(Problem(str(folder), "has no fast tokenizer", "tokenizer.json", _DO))
        if not self._tokenizer.chat_template:
            raise Refused(Problem(str(folder), "has no chat template", "a chat template", _DO))
        # tokenizer.json may say to cut or pad; a count must do neither.
        self._backend = self._tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()

    def prompts(self, messages: Sequence[list[dict[str, str]]]) -> list[int]:
        """Tokens of each conversation, rendered with the template and a generation prompt."""
        try:
            texts = [
                self._tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True)
                for one in messages
            ]
        # A template is a program of the model's and raises what it likes.
        except Exception as error:
            what = f"has a chat template that fails: {error}"
            expected = "one that renders a single question"
            raise Refused(Problem(self._folder, what, expected, _DO)) from error
        return self._lengths(texts)

    def answers(self, answers: Sequence[str]) -> list[int]:
        """Tokens of each text by itself, without special tokens."""
        return self._lengths(answers)

    def _lengths(self, texts: Iterable[str]) -> list[int]:
        # Not the tokenizer's own call: this one leaves out character offsets, half of the time.
        encoded = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(one.ids) for one in encoded]


def summary(lengths: Sequence[int]) -> Tokens:
    """Mean and nearest-rank quantiles of at least one length."""
    ordered = sorted(lengths)

    def quantile(percent: int) -> int:
        return ordered[-(-len(ordered) * percent // 100) - 1]

    mean = round(sum(ordered) / len(ordered), 2)
    return Tokens(mean, quantile(50), quantile(90), quantile(99), ordered[-1])
