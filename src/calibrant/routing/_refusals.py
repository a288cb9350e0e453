"""Openings of refusals in several languages."""

from __future__ import annotations

import re
from typing import Final

_MOST_WORDS: Final = 150
_LOOKED_AT: Final = 400  # characters

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
_BEGINNINGS: Final = (
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
_DECLINES = re.compile("|".join(_BEGINNINGS), re.IGNORECASE | re.DOTALL)


def declines(text: str) -> bool:
    """Return whether a text begins like a refusal, in English, German, French, Spanish, Chinese or Japanese.

    Only its beginning counts, so that a text that quotes a refusal, or has one in quotes, is none; and
    one of more than 150 words says more than no.
    """
    if len(text.split(maxsplit=_MOST_WORDS)) > _MOST_WORDS:
        return False
    beginning = text.strip()[:_LOOKED_AT].lstrip("*_ ").replace("\u2019", "'")
    return _DECLINES.match(beginning) is not None
