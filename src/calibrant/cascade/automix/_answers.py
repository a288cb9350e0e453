"""Free-form answers: brought to one spelling, and scored by the words they share with the right one."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

from calibrant.core._errors import ConfigurationError

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalised_answer(answer: object) -> str:
    """Return an answer in lower case, without punctuation and English articles, single-spaced.

    Punctuation of every script counts; letters and digits of every script stay.

    Raises
    ------
    ConfigurationError
        Not a string.
    """
    if not isinstance(answer, str):
        msg = f"Expected an answer to be text, got {answer!r} ({type(answer).__name__})."
        raise ConfigurationError(msg)
    plain = "".join(
        c for c in answer.lower() if not unicodedata.category(c).startswith("P") and c not in "`^$+<=>|~"
    )
    return " ".join(_ARTICLES.sub(" ", plain).split())


def token_f1(prediction: str, reference: str) -> float:
    """Return the F1 of the words two answers share, in [0, 1].

    Parameters
    ----------
    prediction, reference : str
        Compared after `normalised_answer`; words count as often as they occur. Where one of them is empty then,
        the score is 1 if both are, else 0.

    Raises
    ------
    ConfigurationError
        Not strings.

    References
    ----------
    Rajpurkar et al. (2016). SQuAD: 100,000+ Questions for Machine Comprehension of Text. EMNLP.
    """
    predicted, right = (normalised_answer(text).split() for text in (prediction, reference))
    if not predicted and not right:
        return 1.0
    shared = (Counter(predicted) & Counter(right)).total()
    return 2.0 * shared / (len(predicted) + len(right))
