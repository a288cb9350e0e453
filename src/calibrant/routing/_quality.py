"""Detection of empty, repetitive, incoherent, cut-off or declined answers, without a model."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from calibrant.routing._replies import without_thinking

_EMPTY: Final = 0.0
_REFUSED: Final = 0.1
_INCOHERENT: Final = 0.2
_TRUNCATED: Final = 0.3
# Up to this share of repeated trigrams an answer is not degenerate; the score crosses 0.5 there.
_MOST_REPEATED: Final = 0.5
# "No, no, no, no!" is an answer: fewer words than this are never repetitive.
_FEWEST_WORDS: Final = 8

_CUT_OFF: Final = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
_FILTERED: Final = frozenset(
    {"content_filter", "content_filtered", "refusal", "safety", "prohibited_content"}
)
_CALLS: Final = frozenset({"tool_calls", "function_call"})  # what was said is in the calls
_TOKEN = re.compile(r"<\|[^<>|\s]{1,40}\|>|</?s>|<(?:pad|unk|eos|bos)>")
_CODE_FENCE = re.compile(r"```[\w+-]*\s*(?:```)?")
_UNSEEN = re.compile("[\x00-\x08\x0e-\x1f\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
_FILLERS: Final = frozenset(".…·•-–—_*#?!,;:\"'`“”„=~")

# Where words are not spaced, pieces about as long as a word take their place: two characters of Chinese
# and Japanese, four of Thai, Lao, Burmese and Khmer.
_HAN: Final = "\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_THAI: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_MARKS: Final = (
    re.escape('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~') + "\u00a1-\u00bf\u2010-\u2027\u2030-\u205e\u3000-\u303f"
    "\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
)
_WORD = re.compile(rf"[{_HAN}]{{1,2}}|[{_THAI}]{{1,4}}|[^\s{_HAN}{_THAI}{_MARKS}]+")
_LETTERS = re.compile(r"[^\W\d_]")
_ONE_WORD_LOOP: Final = 32  # characters
_LONGEST_PERIOD: Final = 8

_JSON_BEGINS = re.compile(r'\{\s*(?:"|\Z)|\[\s*(?:["{\[]|-?\d+\s*(?:,|\Z)|\Z)')
_JSON_PART = re.compile(r'"(?:[^"\\]|\\.)*"|(")|([{\[])|([}\]])', re.DOTALL)

_LOST = re.compile("[\ufffd\ud800-\udfff\x00-\x08\x0e-\x1a\x7f]")
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
_FEWEST_FRAGMENTS: Final = 6
_LATIN_WORD = re.compile(r"[a-z]{4,}")
_VOWELS = re.compile("[aeiouy]")
_FEWEST_NOISE_WORDS: Final = 8
_FEWEST_SYMBOLS: Final = 40
# English words that make no sentence without others.
_GLUE: Final = frozenset(
    "a an and are as at be been but by for from had has have if in into is its of on or so than that the "  # noqa: SIM905
    "their then there these they this those to was were when where which while who whose will with would".split()
)

_MOST_REFUSAL_WORDS: Final = 150
_REFUSAL_BEGINNING: Final = 400  # characters in which a refusal has to begin

# Written for this project. A word for inability alone proves nothing ("I cannot activate my card" is what
# customers write, and may be a label or a translation): what the speaker is unable to do has to be what
# assistants do, and without an apology it has to be done to the request.
_CANNOT: Final = (
    r"i\s?(?:can't|cannot|can not|won't|will not|(?:am|'m) (?:unable|not able|not allowed) to|"
    r"(?:am|'m) not comfortable|won't be able to|will not be able to)(?: \w+ly)?"
)
_SERVE: Final = (
    r"(?:assist|help|comply|fulfil|answer|respond|provid|creat|generat|produc|writ|discuss|engag|participat|"
    r"support|shar|continu|complet|giv|offer|process|classify|translat|do that|do this)(?:l?ing|e|l)?\b"
)
_REQUEST: Final = (
    r"(?: you)?(?: with| in| to| on| about)? (?:(?:that|this|it|these|those)(?=\s*[.,;:!]|$| because\b| as\b)|"
    r"(?:that|this|these|those|such|your|the)(?: an?)? "
    r"(?:request|question|task|topic|text|image|conversation|content|information|instruction)s?\b|"
    r"(?:any )?(?:medical |legal |financial )?"
    r"(?:content|information|instructions|guidance|advice|details|assistance|help)\b)"
)
_REFUSALS: Final = (
    rf"(?:(?:i'm|i am) )?(?:(?:very|so|truly|really) )?(?:sorry|afraid)\b.{{0,60}}?\b{_CANNOT} {_SERVE}",
    rf"(?:i apologi[sz]e|my apologies|unfortunately|regrettably)\b.{{0,60}}?\b{_CANNOT} {_SERVE}{_REQUEST}",
    rf"as an? (?:\w+ ){{0,3}}(?:ai|language model)\b.{{0,80}}?\b{_CANNOT} ",
    rf"{_CANNOT} (?:assist|help|comply)(?: you)?(?: with\b| there\b|\s*[.!,]|$)",
    rf"{_CANNOT} {_SERVE}{_REQUEST}",
    r"i (?:must|have to|need to) (?:\w+ly )?decline(?:[.,!]|$| to (?:answer|help|assist)| (?:this|your) request)",
    r"(?:that's|that is|this is) not something i can (?:help|assist)\b",
    r"i (?:do not|don't) (?:think i can (?:help|assist)|feel comfortable (?:answer|help|assist|discuss|shar)ing)\b",
    r"i(?:'d| would) (?:rather|prefer) not (?:to )?(?:answer|discuss|say|respond|engage)\b",
    r"(?:es )?tut mir leid\b.{0,60}?\bnicht (?:dabei |damit )?(?:weiter)?(?:helfen|beantworten|unterstützen|erfüllen)",
    r"(?:je suis )?désolée?\b.{0,40}?\bne (?:peux|suis) pas\b.{0,40}?(?:aider|répondre|fournir|mesure)",
    r"lo siento\b.{0,40}?\bno puedo (?:ayudar|asistir|responder|proporcionar|cumplir)",
    r"(?:很|非常)?(?:抱歉|对不起).{0,12}?(?:无法|不能|没办法).{0,12}?(?:帮助|协助|回答|提供|满足|完成)",
    r"(?:大変)?(?:申し訳|すみません|ごめん).{0,60}?(?:手伝い|答え|回答|対応|提供).{0,12}?(?:できません|できかね)",
)
_DECLINES = re.compile("|".join(_REFUSALS), re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class AnswerQuality:
    """Quality of one answer, by its text alone.

    Attributes
    ----------
    score : float
        In [0, 1]; below 0.5 it is degenerate.
    reasons : tuple of str
        Why it is: of ``empty``, ``refused``, ``truncated``, ``incoherent`` and ``repetitive`` those that
        hold. None if and only if the score is at least 0.5.

    Examples
    --------
    >>> AnswerQuality(score=0.5, reasons=("short",)).score
    0.5
    """

    score: float
    reasons: tuple[str, ...] = ()


def answer_quality(
    text: str, *, finish_reason: str | None = None, refusal: str | None = None, window_size: int | None = None
) -> AnswerQuality:
    """Return the quality of an answer by its form; its correctness is not judged.

    An answer is taken to be sound until something speaks against it, however short it is: ``Paris.``, a
    label, a number or ``{"category": "Sports"}`` score 1. The score is the least of what applies:

    ========== ===== =========================================================================
    empty      0     nothing but space, special tokens, thoughts, an empty code block, one kind of
                     punctuation, or a JSON document without a value, where no tools are called
    refused    0.1   the provider says so (`refusal`, `finish_reason`), or the text begins like one; a
                     text of more than 150 words is never taken for one by its wording
    incoherent 0.2   characters that were lost in decoding, letters or symbols at random, or sentences of
                     nothing but English function words
    truncated  0.3   `finish_reason` is ``length`` and the text is no whole JSON document; or JSON that
                     ends before its brackets or quotes are closed
    repetitive 1 - r r is the share of word trigrams that came before, if more than half did: a text said
                     twice is not repetitive, one said three times is
    ========== ===== =========================================================================

    With r of one half or less, 1 - r is the score of an answer that nothing else speaks against. In a JSON
    document, repetition is looked for in each text by itself, so that rows alike are no repetition.

    Parameters
    ----------
    text : str
        The answer.
    finish_reason : str, optional
        Finish reason in OpenAI's terms, in upper or lower case.
    refusal : str, optional
        The refusal, where the provider reports one.
    window_size : int, optional
        Words in a window: r is then that of the worst window anywhere in the text, which shows a loop at
        the end of a long answer. By default it is that of the whole text.

    Returns
    -------
    AnswerQuality
        The score and what it rests on. It takes time in proportion to the text's length.

    Examples
    --------
    >>> answer_quality("Paris.").score
    1.0
    >>> answer_quality("The capital of France is", finish_reason="length").reasons
    ('truncated',)
    """
    reason = (finish_reason or "").lower()
    body = _unwrapped(_TOKEN.sub("", without_thinking(text)))
    document = _document(body)
    texts = [body] if document is None else list(_texts(document.value))
    found: dict[str, float] = {}
    if reason not in _CALLS and _is_empty(body, document):
        found["empty"] = _EMPTY
    if (refusal or "").strip() or reason in _FILTERED or _is_declined(document, texts):
        found["refused"] = _REFUSED
    if (reason in _CUT_OFF and document is None) or _is_cut_json(body):
        found["truncated"] = _TRUNCATED
    if any(_is_noise(part) or _is_fragmented(part) for part in texts):
        found["incoherent"] = _INCOHERENT
    repeated = max((repetition(part, window_size=window_size) for part in texts), default=0.0)
    if repeated > _MOST_REPEATED:
        found["repetitive"] = 1.0 - repeated
    return AnswerQuality(score=min(found.values(), default=1.0 - repeated), reasons=tuple(found))


def repetition(text: str, *, window_size: int | None) -> float:
    """Return the share of repeated word trigrams (seq-rep-3 of [1]_).

    A word is what stands between spaces and punctuation, in any case; where a script sets no spaces, two
    characters (Chinese, Japanese) or four (Thai and its neighbours) count as one. Trigrams without a letter
    never count as having come before: tables of numbers are no repetition.

    Parameters
    ----------
    text : str
        Any text.
    window_size : int or None
        Words in a window, at least 4; the window where the share is largest counts. None takes the whole text.

    Returns
    -------
    float
        In [0, 1]; 0 for fewer than 8 words, and 1 for one endless word.

    References
    ----------
    .. [1] S. Welleck et al., "Neural Text Generation With Unlikelihood Training", 2020, arXiv 1908.04319.
    """
    words = _WORD.findall(text.casefold())
    if _is_one_loop(words):
        return 1.0
    if len(words) < _FEWEST_WORDS:
        return 0.0
    spelt = [_LETTERS.search(word) is not None for word in words]
    trigrams = [
        words[at] + " " + words[at + 1] + " " + words[at + 2]
        if spelt[at] or spelt[at + 1] or spelt[at + 2]
        else None
        for at in range(len(words) - 2)
    ]
    width = len(trigrams) if window_size is None else min(window_size - 2, len(trigrams))
    return _most_repeated(trigrams, width) / width


def _most_repeated(trigrams: Sequence[str | None], width: int) -> int:
    """Return the greatest number of repeated trigrams in any window of `width` of them."""
    counts: Counter[str] = Counter()
    repeated = most = 0
    for at, entering in enumerate(trigrams):
        if entering is not None:
            repeated += counts[entering] > 0
            counts[entering] += 1
        leaving = trigrams[at - width] if at >= width else None
        if leaving is not None:
            counts[leaving] -= 1
            repeated -= counts[leaving] > 0
        if at >= width - 1:
            most = max(most, repeated)
    return most


def _is_one_loop(words: Sequence[str]) -> bool:
    """Return True if most of a text is one long word with a short period, such as lalala."""
    longest = max(words, key=len, default="")
    if len(longest) < _ONE_WORD_LOOP or 2 * len(longest) <= sum(map(len, words)):
        return False
    periods = range(1, _LONGEST_PERIOD + 1)
    return bool(_LETTERS.search(longest)) and any(longest[n:] == longest[:-n] for n in periods)


@dataclass(frozen=True)
class _JsonText:
    value: Any


def _unwrapped(text: str) -> str:
    """Return the text without a Markdown code fence around the whole of it."""
    body = text.strip().removeprefix("\ufeff")
    if not body.startswith("```"):
        return body
    opening, _, inside = body.partition("\n")
    if _CODE_FENCE.fullmatch(opening) is None or "```" in inside.removesuffix("```"):
        return body
    return inside.removesuffix("```").strip()


def _document(body: str) -> _JsonText | None:
    """Parse `body` as a JSON object, array, string or null."""
    if body[:1] not in {"{", "[", '"'} and body != "null":
        return None
    try:
        return _JsonText(json.loads(body, strict=False))
    except (ValueError, RecursionError):
        return None


def _texts(document: object) -> Iterator[str]:
    """Yield the strings among the values of a JSON document, without its keys."""
    left = [document]
    while left:
        node = left.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, dict):
            left.extend(node.values())
        elif isinstance(node, list):
            left.extend(node)


def _is_empty(body: str, document: _JsonText | None) -> bool:
    if document is None:
        return _says_nothing(body)
    value = document.value
    if isinstance(value, dict):  # an empty list, or null under a key, says that there is nothing
        return all(isinstance(entry, str) and _says_nothing(entry) for entry in value.values())
    return value is None or (isinstance(value, str) and _says_nothing(value))


def _is_declined(document: _JsonText | None, texts: Sequence[str]) -> bool:
    """Return True if the only text begins like a refusal, in one of six languages.

    Only its beginning counts, so that a text that quotes a refusal is none; nor is a text in quotes, which is
    somebody else's, and one of more than 150 words, which says more than no.
    """
    quoted = document is not None and isinstance(document.value, str)
    if len(texts) != 1 or quoted or len(texts[0].split()) > _MOST_REFUSAL_WORDS:
        return False
    beginning = texts[0].strip()[:_REFUSAL_BEGINNING].lstrip("*_ ").replace("\u2019", "'")
    return _DECLINES.match(beginning) is not None


def _says_nothing(text: str) -> bool:
    shown = set("".join(_UNSEEN.sub("", text).split()))
    return not shown or (len(shown) == 1 and shown <= _FILLERS)


def _is_cut_json(body: str) -> bool:
    """Return True if `body` begins as JSON and ends within a text, an object or an array."""
    if _JSON_BEGINS.match(body) is None:
        return False
    depth = 0
    for part in _JSON_PART.finditer(body):
        if part[1]:
            return True
        depth += 1 if part[2] else -1 if part[3] else 0
        if depth <= 0:
            return False  # prose behind a whole document, if anything
    return depth > 0


def _is_noise(text: str) -> bool:
    """Return True if much of a text is lost characters, or letters or symbols at random."""
    shown = "".join(text.split())
    if len(_LOST.findall(shown)) > 0.1 * len(shown):
        return True
    symbols = [char for char in shown if char.isascii() and not char.isalnum()]
    is_mostly_symbols = len(shown) >= _FEWEST_SYMBOLS and len(symbols) > 0.9 * len(shown)
    if is_mostly_symbols and len(set(symbols)) >= 10:
        return True
    words = _WORD.findall(text)
    lower = [word.casefold() for word in words if not word.isupper()]
    latin = list(filter(_LATIN_WORD.fullmatch, lower))
    if len(latin) < _FEWEST_NOISE_WORDS or 2 * len(latin) <= len(words):
        return False
    return 2 * sum(_VOWELS.search(word) is None for word in latin) > len(latin)


def _is_fragmented(text: str) -> bool:
    """Return True if most of at least six sentences hold nothing but function words."""
    parts = _SENTENCE_END.split(text.casefold())
    sentences = list(filter(None, map(_WORD.findall, parts)))
    if len(sentences) < _FEWEST_FRAGMENTS:
        return False
    return 2 * sum(_GLUE.issuperset(sentence) for sentence in sentences) > len(sentences)
