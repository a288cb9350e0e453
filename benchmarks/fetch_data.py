"""Fetch the data of the benchmarks from where their authors published it, and check what came.

    python benchmarks/fetch_data.py [--tasks data/tasks] [--recorded data/recorded] [--research]

Without `--research`: what its licence gives to everybody. With it, you say that your use is research: the other texts,
and the recorded answers, which hold these texts. The rows are those that the published figures were measured on
(`selected_rows.json` names them by place or by digest), and every file is compared with its SHA-256 before it is
written.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from _data import BANKING, GEPA, OPTIONS, SMS, TERMS

from calibrant.core._files import write_atomically

_SERVER: Final = "https://raw.githubusercontent.com"
_MOST: Final = 20_000_000  # bytes of a source; the largest has 2 million
_PROMPTS: Final = ("baseline", "default", "confidence")
SHA256: Final = {
    "tasks/ag_news.jsonl": "76586cec11af27542b72b279fa7ac4d7a4ceb3758ee463e59fc621abc20f1cde",
    "tasks/banking77.jsonl": "9962c47f465d9dfe8510ea4f535eee2d2c0e5ba509e96de2d67e429b4c53dc31",
    "tasks/emotion.jsonl": "0da257d0e4c897fd36dabd4d73faf67ab77ef5a8c4efa905e357578ce2105db8",
    "tasks/rotten_tomatoes.jsonl": "a44ed775a4837b9f38af4a09dc3b0fd36520ad6e6578a5d9cfa701061743d801",
    "tasks/sms_spam.jsonl": "98f94daa34213fdd137effaa7bdd9ca92933d718934f96c474bc2cbcc66d4519",
    "recorded/ag_news.csv": "786d1b071d8aab3b1cf21910e65aac68caa5beeff84d42711bb716e6317d50dd",
    "recorded/emotion.csv": "bfd45e220023ae18fbc933d368701140c7f559137a64ca2ace89a11145afe963",
    "recorded/rotten_tomatoes.csv": "adbac93d71fe6e9ef0d355923738a2dd5dfde88920c45a20d60a8013d90cac67",
}
_SELECTED: Final = Path(__file__).with_name("selected_rows.json")


class WrongDataError(Exception):
    """A source cannot be reached, or holds something else than expected."""


def fetched(server: str, path: str) -> str:
    """Return the text of a file on a server.

    Raises
    ------
    WrongDataError
        It cannot be read, is too long or is not UTF-8.
    """
    url = f"{server}/{path}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 (a server that was named)
            data: bytes = answer.read(_MOST + 1)
    except (OSError, urllib.error.URLError) as error:
        raise WrongDataError(f"{url}: cannot be read ({error})") from error
    if len(data) > _MOST:
        raise WrongDataError(f"{url}: expected at most {_MOST:,} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise WrongDataError(f"{url}: expected UTF-8 ({error.reason})") from error


def recorded(source: str) -> str:
    """Return gepa's table, one row a text, as one row for each text and prompt."""
    rows = list(csv.DictReader(io.StringIO(source, newline="")))
    columns = ("text", "expected", "prompt", "predicted", "probability", "top_alternative")
    columns += ("top_alternative_probability", "correct", "row")
    found = io.StringIO()
    writer = csv.writer(found, lineterminator="\n")
    writer.writerow(columns)
    for prompt in _PROMPTS:
        for number, row in enumerate(rows):
            others = [row.get(f"{prompt}_{name}", "") for name in ("top_alt", "top_alt_score")]
            answer, score = row[f"{prompt}_predicted"], row[f"{prompt}_score"]
            correct = row[f"{prompt}_correct"].lower()
            writer.writerow([row["text"], row["expected"], prompt, answer, score, *others, correct, number])
    return found.getvalue()


def chosen(name: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return the rows of a task as JSON Lines: those that were selected, named by digest of the text or by place.

    Raises
    ------
    WrongDataError
        A row is missing.
    """
    known: dict[str, tuple[str, str]] = {}
    for number, (text, answer) in enumerate(rows):
        known[str(number)] = text, answer
        known.setdefault("#" + hashlib.sha256(text.encode()).hexdigest()[:8], (text, answer))
    lines = []
    for split, keys in json.loads(_SELECTED.read_text(encoding="utf-8"))[name].items():
        for key in keys.split():
            place = f"#{key}" if not TERMS[name].needs_consent else key
            if place not in known:
                raise WrongDataError(f"{name}: row {key} is not in the source")
            text, answer = known[place]
            lines.append(json.dumps({"input": text, "answer": answer, "split": split}) + "\n")
    return "".join(lines)


def banking77(server: str) -> dict[str, str]:
    """Return the task of 77 intents."""
    rows = []
    for part in ("train", "test"):
        table = csv.DictReader(io.StringIO(fetched(server, f"{BANKING}/{part}.csv"), newline=""))
        rows += [(row["text"].strip(), row["category"]) for row in table]
    return {"tasks/banking77.jsonl": chosen("banking77", rows)}


def sms_spam(server: str) -> dict[str, str]:
    """Return the task of unwanted messages; the copy has a line of headings."""
    lines = fetched(server, f"{SMS}/SMSSpamCollection").split("\n")[1:]
    pairs = (line.partition("\t") for line in lines if line.strip())
    return {"tasks/sms_spam.jsonl": chosen("sms_spam", [(text.strip(), label) for label, _, text in pairs])}


def answers(name: str) -> Callable[[str], dict[str, str]]:
    """Return the function that makes the recorded answers of a set, and its task."""

    def make(server: str) -> dict[str, str]:
        table = recorded(fetched(server, f"{GEPA}/{name}_combined.csv"))
        rows = [row for row in csv.DictReader(io.StringIO(table, newline="")) if row["prompt"] == _PROMPTS[0]]
        task = chosen(name, [(row["text"], row["expected"]) for row in rows])
        return {f"recorded/{name}.csv": table, f"tasks/{name}.jsonl": task}

    return make


MAKERS: Final[dict[str, Callable[[str], dict[str, str]]]] = {
    "banking77": banking77,
    "sms_spam": sms_spam,
    **{name: answers(name) for name in ("ag_news", "emotion", "rotten_tomatoes")},
}


def fetch(name: str, *, server: str, folders: dict[str, Path]) -> None:
    """Make the files of a set; write them if all have the right digest.

    Raises
    ------
    WrongDataError
        A source cannot be read, or a file has another digest: nothing is written.
    """
    try:
        files = MAKERS[name](server)
    except (KeyError, csv.Error) as error:
        raise WrongDataError(f"{name}: the source has another form ({error!r})") from error
    for path, text in files.items():
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest != SHA256[path]:
            raise WrongDataError(f"{path}: expected SHA-256 {SHA256[path]}, got {digest}: not written")
    for path, text in files.items():
        folder, _, file = path.partition("/")
        folders[folder].mkdir(parents=True, exist_ok=True)
        write_atomically(folders[folder] / file, text)
        print(f"wrote {folders[folder] / file}")


def main() -> None:
    """Fetch what may be fetched; describe the rest."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=Path, default=Path("data/tasks"))
    parser.add_argument("--recorded", type=Path, default=Path("data/recorded"))
    parser.add_argument("--research", action="store_true", help="your use is research, and not commercial")
    parser.add_argument("--only", nargs="+", choices=list(MAKERS), default=list(MAKERS))
    parser.add_argument("--server", default=_SERVER, help="a mirror of GitHub's raw files")
    options = parser.parse_args()
    failed = False
    for name in options.only:
        terms = TERMS[name]
        print(f"{name}: {terms.origin}; {terms.licence}.")
        if terms.needs_consent and not options.research:
            print("  not fetched: say --research if your use is research.")
            continue
        try:
            fetch(name, server=options.server, folders={"tasks": options.tasks, "recorded": options.recorded})
        except WrongDataError as error:
            print(f"  {error}.")
            failed = True
    print(f"recorded options: not fetched; {OPTIONS}.")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
