"""Data sets of the benchmarks: where they come from, under which terms, and which are here."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GEPA: Final = (
    "gepa-ai/gepa/b265bf9ca77fd8e8d82039d9f74911b8780fe1ce/examples/confidence_adapter/outputs/evaluation"
)
BANKING: Final = "PolyAI-LDN/task-specific-datasets/57ec275d8078af65b7731c2a98be812d844a6d6b/banking_data"
SMS: Final = "hamzaaacodes/sms-spam-collection/f3e73e1e74e6330b62d1ee1983bba2a063184c26"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Terms of a data set, with its origin.

    Attributes
    ----------
    origin : str
        Authors and title.
    licence : str
        What is allowed.
    needs_consent : bool
        True if it is fetched only for whoever says that the use is research.
    """

    origin: str
    licence: str
    needs_consent: bool = False


TERMS: Final = {
    "ag_news": Terms(
        origin="AG's corpus of news articles (A. Gulli; Zhang, Zhao and LeCun 2015)",
        licence="no formal licence; for research and other non-commercial use",
        needs_consent=True,
    ),
    "emotion": Terms(
        origin="Emotion (Saravia et al. 2018)",
        licence="no formal licence; for educational and research use",
        needs_consent=True,
    ),
    "rotten_tomatoes": Terms(
        origin="sentence polarity data set 1.0 (Pang and Lee 2005)",
        licence="unknown licence; taken for research only",
        needs_consent=True,
    ),
    "banking77": Terms(origin="Banking77 (Casanueva et al. 2020)", licence="CC BY 4.0"),
    "sms_spam": Terms(
        origin="SMS Spam Collection 1 (Almeida, Gomez Hidalgo and Yamakami 2011)",
        licence="free for all purposes, as its authors say; UCI lists CC BY 4.0",
    ),
}
"""Terms by name. The answers recorded for the first three are gepa's, under the MIT licence."""

OPTIONS: Final = (
    "github.com/smartyfh/LLM-Uncertainty-Bench (MIT) at 5d189dcc has the log-probabilities as pickles, which this "
    "project does not open: write the options of a data set to an .npz file, one array of shape (rows, 6) a model"
)


def available(
    folder: Path | None,
    names: Iterable[str],
    *,
    ending: str = ".jsonl",
    without_file: Iterable[str] = (),
    all_of_them: bool = False,
) -> list[str]:
    """Return the names whose file is in a folder; print a sentence on each other one, and end if none is left.

    Parameters
    ----------
    folder : Path or None
        The folder; None has no files.
    names : iterable of str
        Names of files, without their ending.
    ending : str, default ".jsonl"
        The ending.
    without_file : iterable of str
        Names that need no file.
    all_of_them : bool, default False
        True to end if any is missing.
    """
    names = list(names)
    found = []
    for name in names:
        if name in without_file or (folder is not None and (folder / f"{name}{ending}").is_file()):
            found.append(name)
            continue
        how = ""
        if name in TERMS:
            terms = TERMS[name]
            command = "make data RESEARCH=--research" if terms.needs_consent else "make data"
            how = f": {terms.origin}, {terms.licence}; `{command}` fetches it"
        print(f"skipped {name}: no {name}{ending} in {folder}{how}.")
    if not found or (all_of_them and len(found) < len(names)):
        sys.exit(0)
    return found
