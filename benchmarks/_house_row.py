"""Counts what one warm row crosses in an adapter for GEPA, and prints it as JSON; started by bench_house.py.

A profiler stays in the threads it entered, so this is a process of its own.

    python benchmarks/_house_row.py {calibrant,gepa} [--traces]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

LABELS = ("cat", "dog")
FIELD = "category"
SCHEMA: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {FIELD: {"type": "string", "enum": list(LABELS)}},
            "required": [FIELD],
            "additionalProperties": False,
        },
    },
}
CANDIDATE = {"system_prompt": "Which animal?"}
WARM_UP = 3  # rows before the one that counts
# The library is what gepa's adapter reads answers with; calibrant's own reader is part of it.
FOLDERS = {"calibrant": ("calibrant",), "gepa": ("gepa", "llm_structured_confidence")}
_ANONYMOUS = frozenset(
    {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
)  # functions in some Pythons only


class Recorder:
    """A profiler that notes the functions of some packages that are entered, in all threads.

    Parameters
    ----------
    folders : sequence of Path
        The packages' folders.
    """

    def __init__(self, *folders: Path) -> None:
        self._prefixes = tuple(f"{folder}/" for folder in folders)
        self._on = False
        self._functions: set[tuple[str, int, str]] = set()
        self._frames = {"calling": 0, "waiting": 0, "suspended": 0}

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Note the function of a call; a coroutine that goes on is called, too."""
        code = frame.f_code
        if self._on and event == "call" and self._is_ours(frame) and code.co_name not in _ANONYMOUS:
            self._functions.add((code.co_filename, code.co_firstlineno, code.co_qualname))

    def record(self, row: Callable[[], object]) -> dict[str, Any]:
        """Run `row` and return its counts."""
        self._on = True
        row()
        self._on = False
        return {
            "modules": sorted({file for file, _, _ in self._functions}),
            "functions": [f"{file}:{line} {name}" for file, line, name in sorted(self._functions)],
            "frames": self._frames,
        }

    def note_frames(self) -> None:
        """Count the frames that stand between a caller of the adapter and the model, where they are most.

        Those of the thread that calls the model, those of the threads that wait for it, and those of coroutines that
        are suspended.
        """
        if not self._on:
            return
        calling = threading.get_ident()
        stacks = {thread: list(_stack(frame)) for thread, frame in sys._current_frames().items()}  # noqa: SLF001 (documented)
        counts = {
            "calling": self._count(stacks[calling]),
            "waiting": sum(self._count(stack) for thread, stack in stacks.items() if thread != calling),
            "suspended": self._count(
                [frame for stack in stacks.values() for frame in _suspended(stack)],
            ),
        }
        self._frames = max(self._frames, counts, key=lambda frames: sum(frames.values()))

    def _count(self, frames: list[FrameType]) -> int:
        return sum(self._is_ours(frame) for frame in frames)

    def _is_ours(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(self._prefixes)


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of a stack, from the innermost."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _suspended(stack: list[FrameType]) -> Iterator[FrameType]:
    """Yield the frames of suspended coroutines on the event loop that a stack runs, if it runs one."""
    loops = [frame.f_locals["self"] for frame in stack if frame.f_code.co_name == "run_forever"]
    for loop in loops:
        for task in asyncio.all_tasks(loop):
            coroutine: Any = task.get_coro()
            while (
                isinstance(coroutine, Coroutine)
                and (frame := getattr(coroutine, "cr_frame", None)) is not None
            ):
                yield frame
                coroutine = getattr(coroutine, "cr_await", None)


def open_adapter(side: str, model: Callable[..., object]) -> Any:
    """Return the adapter of a side around a callable model."""
    if side == "calibrant":
        from calibrant.adapters import ConfidenceAdapter

        return ConfidenceAdapter(model, FIELD, SCHEMA)
    from gepa.adapters.confidence_adapter import ConfidenceAdapter as ReferenceAdapter

    return ReferenceAdapter(model, FIELD, SCHEMA, SCHEMA["json_schema"]["schema"])


def main() -> None:
    """Ask some rows, then count one more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=sorted(FOLDERS))
    parser.add_argument(
        "--traces", action="store_true", help="evaluate with capture_traces, as on a minibatch"
    )
    options = parser.parse_args()
    specs = [find_spec(name) for name in FOLDERS[options.side]]
    recorder = Recorder(*(Path(spec.origin).parent for spec in specs if spec is not None and spec.origin))
    threading.setprofile(recorder)  # of every thread that starts from now on
    sys.setprofile(recorder)
    from calibrant.testing import fake_response

    response = fake_response("cat", LABELS, (0.9, 0.1), field=FIELD)

    def model(_messages: object) -> object:
        recorder.note_frames()
        return response

    adapter = open_adapter(options.side, model)

    def ask(number: int) -> None:
        row = {"input": f"meow {number}", "answer": "cat", "additional_context": {}}
        (score,) = adapter.evaluate([row], CANDIDATE, capture_traces=options.traces).scores
        if score <= 0:
            raise RuntimeError(f"Expected the adapter to score a right answer above 0, got {score}.")

    for number in range(WARM_UP):
        ask(number)
    print(json.dumps(recorder.record(lambda: ask(WARM_UP))))


if __name__ == "__main__":
    main()
