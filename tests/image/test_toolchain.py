"""The toolchain stage of cu118: CUDA 11.8's own compiler, whose code is for a P40.

``TARGET=toolchain bash env/image/build.sh cu118`` makes the image, on any base.
"""

from __future__ import annotations

import struct

import pytest
import testinfra

from tests.image.engine import Engine
from tests.image.test_runtime import compilers

TAG = "verl-p40:cu118-toolchain"

COMPILE = """
cd /tmp
echo '__global__ void twice(float *x) { x[threadIdx.x] *= 2; }' >kernel.cu
nvcc -arch=sm_61 -cubin -o kernel.cubin kernel.cu
od -An -v -tx1 kernel.cubin | tr -d ' \\n'
"""


@pytest.fixture(scope="module", autouse=True)
def _is_there(engine: Engine) -> None:
    if not engine.has(TAG):
        how = "TARGET=toolchain bash env/image/build.sh cu118, with BASE_IMAGE where none is pulled"
        pytest.fail(f"no image {TAG} is here: {how}", pytrace=False)


def test_nvcc_is_that_of_cuda_11_8(engine: Engine) -> None:
    done = engine.run(["nvcc", "--version"], tag=TAG)
    assert done.code == 0, done.err
    assert "V11.8.89" in done.out


def test_nvcc_makes_code_for_a_p40(engine: Engine) -> None:
    done = engine.run(["sh", "-euc", COMPILE], tag=TAG)
    assert done.code == 0, done.err
    cubin = bytes.fromhex(done.out)
    assert cubin[:4] == b"\x7fELF"
    (flags,) = struct.unpack_from("<I", cubin, 0x30)
    assert flags & 0xFF == 61


def test_the_search_that_finds_no_compiler_in_the_image_finds_these(engine: Engine) -> None:
    with engine.container(["sleep", "infinity"], tag=TAG) as container:
        found = compilers(testinfra.get_host(f"docker://{container.id}"))
    names = {path.rpartition("/")[2] for path in found}
    assert {"nvcc", "cicc", "x86_64-linux-gnu-gcc-11", "cc1plus", "make", "git"} <= names


def test_it_is_said_where_the_code_goes(engine: Engine) -> None:
    (value,) = (
        line.partition("=")[2]
        for line in engine.client.images.get(TAG).attrs["Config"]["Env"]
        if line.startswith("TORCH_CUDA_ARCH_LIST=")
    )
    assert value == "6.1"
