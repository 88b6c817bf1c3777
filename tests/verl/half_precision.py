"""Records which dtypes a run computes in, in every process that it starts.

A recorder sits on torch's dispatcher, below autograd and autocast, so that it meets the operators
of forward and backward alike, and the casts that nobody wrote. Python runs ``sitecustomize`` when
it starts, wherever ``PYTHONPATH`` has one: so no process of a run needs to know of it, whether Ray,
torchrun or anything else starts it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = "VERL_P40_RECORDED_DTYPES"
FULL = {"float32", "float64", "complex64", "complex128"}


@dataclass(frozen=True)
class Recorded:
    """An operator with the dtypes of its floating inputs and outputs, once a process.

    Args:
        process: id of the process.
        op: name with overload, as ``aten.mm.default``.
        dtypes: names of dtypes, sorted.
        where: ``file:line`` of the nearest caller outside torch; in a thread of autograd's, "".
    """

    process: int
    op: str
    dtypes: tuple[str, ...]
    where: str

    @property
    def is_half(self) -> bool:
        """Whether a floating dtype of less than 32 bits is among them."""
        return not FULL.issuperset(self.dtypes)


def environment(folder: Path) -> dict[str, str]:
    """Variables for a process that is to be recorded, with all that it starts, in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(
        "from tests.verl import half_precision\n\nhalf_precision.record_after_import_of_torch()\n"
    )
    path = [str(folder), os.environ.get("PYTHONPATH", ""), str(ROOT)]
    return {FOLDER: str(folder), "PYTHONPATH": os.pathsep.join(filter(None, path))}


def recorded(folder: Path) -> list[Recorded]:
    """What the processes that ran with :func:`environment` of ``folder`` computed."""
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            op, dtypes, where = json.loads(line)
            found.append(Recorded(int(file.stem), op, tuple(dtypes), where))
    return found


class _TorchLoader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports torch as it would be imported, then starts recording."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        assert spec is not None
        self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)  # type: ignore[union-attr]

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)  # type: ignore[union-attr]
        _record(Path(os.environ[FOLDER]))


def record_after_import_of_torch() -> None:
    """Have this process record as soon as it has torch, which many never import."""
    sys.meta_path.insert(0, _TorchLoader())


def _record(folder: Path) -> None:
    """Record in this thread and in those that start from now on."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    seen: set[tuple[int, str, frozenset[torch.dtype]]] = set()

    class Recorder(TorchDispatchMode):
        # Autograd takes the modes of the thread that calls backward() to its own threads.
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            leaves = tree_leaves((args, kwargs, out))
            dtypes = frozenset(
                leaf.dtype
                for leaf in leaves
                if isinstance(leaf, torch.Tensor)
                and (leaf.is_floating_point() or leaf.is_complex())
            )
            key = (os.getpid(), str(func), dtypes)
            if key not in seen:
                seen.add(key)
                names = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)
                with (folder / f"{os.getpid()}.jsonl").open("a") as file:
                    file.write(json.dumps([str(func), names, _caller()]) + "\n")
            return out

    Recorder().__enter__()
    start = threading.Thread.start

    def recorded_start(thread: threading.Thread) -> None:
        run = thread.run

        def recorded_run() -> None:
            with Recorder():
                run()

        thread.run = recorded_run  # type: ignore[method-assign]
        start(thread)

    threading.Thread.start = recorded_start  # type: ignore[method-assign]


def _caller() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if f"{os.sep}torch{os.sep}" not in file and not file.startswith("<"):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
