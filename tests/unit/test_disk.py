"""What the operating system refuses is told in this project's words, whoever asked it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from env.disk import refusals_told
from env.errors import Refused


def test_a_full_disk_is_told_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused, refusals_told(tmp_path):
        os.write(os.open("/dev/full", os.O_WRONLY), b"x")
    (problem,) = refused.value.problems
    assert problem.what == os.strerror(errno.ENOSPC)
    assert "VERL_P40_OUT" in problem.do


def test_what_a_library_in_rust_cannot_read_stays_what_it_is() -> None:
    with pytest.raises(SafetensorError, match="os error 2"), refusals_told(Path("/proc")):
        save_file({"x": np.zeros(1)}, "/proc/none/model.safetensors")


def test_a_full_disk_of_such_a_library_is_told_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused, refusals_told(tmp_path):
        raise RuntimeError("Error while serializing: No space left on device (os error 28)")
    (problem,) = refused.value.problems
    assert (problem.where, problem.what) == (str(tmp_path), os.strerror(errno.ENOSPC))
    assert "VERL_P40_OUT" in problem.do


def test_any_other_error_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError), refusals_told(tmp_path):
        raise KeyError("no error of the system")
