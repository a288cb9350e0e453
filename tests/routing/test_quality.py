"""Tests of the heuristic quality of answers."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.routing import AnswerQuality, CascadeRouter

LOOP = "The model is trained on the data and the model is trained on the data and " * 12
LETTER = (
    "Dear Ms Keller, thank you for your message of 3 May. We have checked the meter reading you sent us and "
    "found that your January invoice was too high by 41.20 euros. The amount will be credited to your account "
    "within ten days. You do not need to do anything. Should you have further questions, our service team is "
    "glad to help you on weekdays between eight and six. Kind regards, the customer service of your supplier."
)

SOUND = {
    "word": "Paris.",
    "letter": "B",
    "no": "No.",
    "label": "Bills/Gas & Oil",
    "label that denies": "I cannot",
    "label of a customer": "I cannot activate my card",
    "not known": "I don't know.",
    "JSON object": '{"category": "Sports"}',
    "JSON in a fence": '```json\n{"category": "Sports"}\n```',
    "JSON null under a key": '{"due_date": null}',
    "JSON empty list": '{"entities": []}',
    "JSON zeros": json.dumps([[0] * 12] * 12),
    "JSON rows alike": json.dumps([{"label": "Sports"}] * 30),
    "words behind JSON": '{"a": 1} is the object; it opens with { and stays open in this text',
    "JSON with brackets in a text": '{"formula": "f(x) = [a, b) {"}',
    "URL": "https://example.org/a/b?c=d#e",
    "hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "base64": "QmVzdCByZWdhcmRzLCB5b3VyIHRlYW0gZnJvbSB0aGUgZ3JvdW5kIGZsb29yLg==",
    "new emoji": "\U0001fae8",
    "Morse": "... --- ...",
    "short sentence": "It was Ada Lovelace, in 1843.",
    "letter to a customer": LETTER,
    "poem": "Tyger Tyger, burning bright, In the forests of the night; What immortal hand or eye, "
    "Could frame thy fearful symmetry?",
    "refrain": "Row, row, row your boat, gently down the stream. Merrily, merrily, merrily, merrily, "
    "life is but a dream.",
    "laughter": "No, no, no, no, no, no!",
    "a long scream": "He cried "
    + "a" * 40
    + " and ran down the stairs into the yard, where nobody was to be seen.",
    "binary": "10" * 40,
    "Brainfuck": "++++++++[>++++[>++>+++>+++>+<<<<-]>+>+>->>+[<]<-]>>.>---.+++++++..+++.",
    "names among Russian": "Сервер понимает http, https, smtp, grpc, mqtt, sftp, html и xhtml, но только если "
    "администратор заранее включил их в настройках.",
    "cities": "Paris. Rome. Berlin. Madrid. Vienna. Prague. Lisbon.",
    "numbered": "1. Paris\n2. Rome\n3. Berlin\n4. Madrid\n5. Vienna\n6. Prague",
    "templated list": "Row 1: status of pump is green. Row 2: status of valve is red. Row 3: status of tank is blue.",
    "table": "| city | people |\n| --- | --- |\n| Rome | 2.8 m |\n| Oslo | 0.7 m |\n| Bonn | 0.3 m |",
    "many columns": "| a | b | c | d |\n" + "|---|---|---|---|\n" + "| 1 | 2 | 3 | 4 |\n" * 2,
    "numbers": " ".join(str(number % 2) for number in range(200)),
    "number rows": "\n".join("0 0 0 0 0 0 0 0" for _ in range(8)),
    "Python": "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))",
    "Python in a fence": "```python\nfor i in range(3):\n    print(i)\n```",
    "C": '#include <stdio.h>\nint main(void) { printf("%d\\n", 42); return 0; }',
    "shell": "mkdir -p src && cd src && grep -rn TODO . | sort | uniq -c",
    "regex": r"^(?:\d{1,3}\.){3}\d{1,3}$",
    "LaTeX": r"\[ \int_0^1 x^2 \, dx = \frac{1}{3} \]",
    "protocols": "http, https, smtp, grpc, mqtt",
    "note": "[Note: the passage does not say]",
    "Chinese word": "体育",
    "Chinese": "巴黎是法国的首都，也是该国最大的城市，位于塞纳河畔，人口约二百一十万。",
    "Japanese": "東京は日本の首都であり、世界でも有数の大都市です。人口はおよそ千四百万人です。",
    "Thai": "กรุงเทพมหานครเป็นเมืองหลวงและเมืองที่ใหญ่ที่สุดของประเทศไทย",
    "Russian": "Москва является столицей России и крупнейшим городом страны.",
    "Polish": "Warszawa jest stolicą Polski, a przez miasto przepływa rzeka Wisła.",
    "Czech": "Strč prst skrz krk.",
    "quoted refusal": '"I cannot help you with that," said the clerk, and shut the window.',
    "only a quoted refusal": '"I cannot help you with that."',
    "talk of refusals": "A refusal often begins with the words I'm sorry, but I can't help with that.",
    "about a customer who can't": "I cannot log in to my account since Tuesday.",
    "apology of a customer": "I'm sorry, I cannot come to the appointment tomorrow.",
    "cannot help but": "I cannot help but smile when I read this review.",
    "no exact figure": "I can't provide an exact figure, but about three million people live there.",
    "a manager": "As an assistant manager, I cannot approve refunds above 50 euros.",
    "declined invitation": "I have to decline the invitation.",
    "translation": "Lo siento, no puedo ir a la fiesta.",
    "thoughts first": "<think>Capital of France... Paris, surely.</think>\nParis",
    "thoughts without a beginning": "It must be Paris.</think>Paris",
    "end token": "Paris<|im_end|>",
    "HTML": "<p>Paris</p><s>Rome</s>",
    "colours in a terminal": "\x1b[31mError\x1b[0m",
}

DEGENERATE = {
    "nothing": ("", "empty"),
    "space": (" \n\t\u200b ", "empty"),
    "dots": ("...", "empty"),
    "empty fence": ("```\n```", "empty"),
    "empty object": ("{}", "empty"),
    "empty label": ('{"category": ""}', "empty"),
    "JSON null": ("null", "empty"),
    "only tokens": ("<|im_end|><|im_start|></s><pad><pad>", "empty"),
    "only thoughts": ("<think>Let me see. The capital of", "empty"),
    "nothing after thoughts": ("<think>Hm.</think>\n", "empty"),
    "loop": (LOOP, "repetitive"),
    "loop at the end": ("Here is my answer. " + "I think so too. " * 40, "repetitive"),
    "one word": ("very " * 30, "repetitive"),
    "three times": ("I don't know. I don't know. I don't know.", "repetitive"),
    "counting loop": (
        " ".join(f"Step {n}: check the value of the sum again." for n in range(60)),
        "repetitive",
    ),
    "syllables": ("la" * 60, "repetitive"),
    "one letter": ("a" * 300, "repetitive"),
    "laughter in Chinese": ("哈" * 100, "repetitive"),
    "loop in Chinese": ("我不知道你在说什么。" * 12, "repetitive"),
    "loop in Thai": ("ฉันไม่รู้ว่าคุณพูดอะไร" * 12, "repetitive"),
    "loop in a JSON text": (json.dumps({"summary": LOOP}), "repetitive"),
    "lost characters": ("The \ufffd\ufffd\ufffd capital \ufffd\ufffd of \ufffd", "incoherent"),
    "control characters": ("\x00\x01\x02 a \x03\x04", "incoherent"),
    "letters at random": ("xkcd qwrt plmnb zxcv sdfg hjkl bnmq wrtp dfgh jklm", "incoherent"),
    "symbols at random": (")(*&^ %$#@! ;;:: <>?{} |\\~ ))((*&^ %$#@ !;:<> ?{}|\\ ~)(*&", "incoherent"),
    "fragments": ("The. And of the. So it is. Which. But the. To be. If on.", "incoherent"),
    "cut object": ('{"category": "Spo', "truncated"),
    "cut after a key": ('{"category":', "truncated"),
    "cut list": ('[{"name": "Ann"}, {"name": "Bo', "truncated"),
    "cut in a fence": ('```json\n{"category": "Sports", "why": "bec', "truncated"),
    "cut behind an escape": ('{"a": "b \\', "truncated"),
    "sorry": ("I'm sorry, but I can't help with that.", "refused"),
    "typographic": ("I’m sorry, but I can’t assist with that request.", "refused"),
    "afraid": ("I'm sorry, Dave. I'm afraid I can't do that.", "refused"),
    "as an AI": ("As an AI language model, I cannot give opinions on people.", "refused"),
    "unable": ("I am unable to provide information about that person.", "refused"),
    "decline": ("I must respectfully decline to answer.", "refused"),
    "unfortunately": ("Unfortunately, I cannot process your request at this time.", "refused"),
    "medical": ("I'm not able to provide medical advice.", "refused"),
    "not comfortable": ("I don't feel comfortable discussing that.", "refused"),
    "not something": ("That's not something I can help with.", "refused"),
    "bold": ("**I can't help with that.**", "refused"),
    "in JSON": ('{"answer": "I\'m sorry, but I can\'t help with that."}', "refused"),
    "German": ("Es tut mir leid, aber dabei kann ich nicht helfen.", "refused"),
    "French": ("Je suis désolé, mais je ne peux pas répondre à cette demande.", "refused"),
    "Spanish": ("Lo siento, pero no puedo ayudar con eso.", "refused"),
    "Chinese": ("很抱歉，我无法回答这个问题。", "refused"),
    "Japanese": ("申し訳ありませんが、そのご質問にはお答えできません。", "refused"),
}


def answer_quality(text: str, *, window_size: int | None = None, **options: Any) -> AnswerQuality:
    """Return the quality of an answer as a router of a cascade judges it."""
    return CascadeRouter(["a"], window_size=window_size).assess(text, **options)


class TestQuality:
    @pytest.mark.parametrize("text", SOUND.values(), ids=SOUND.keys())
    def test_sound_answers_are_accepted(self, text: str) -> None:
        found = answer_quality(text)
        assert found.score >= 0.5, found
        assert found.reasons == ()

    @pytest.mark.parametrize(("text", "reason"), DEGENERATE.values(), ids=DEGENERATE.keys())
    def test_a_degenerate_answer_is_turned_down_and_named(self, text: str, reason: str) -> None:
        found = answer_quality(text)
        assert found.score < 0.5, found
        assert reason in found.reasons

    @pytest.mark.parametrize("text", ["Paris.", "Sports", '{"category": "Sports"}', "7", "体育", LETTER])
    def test_sound_answers_score_nearly_one(self, text: str) -> None:
        """Sound answers score at least 0.97, also very short ones."""
        assert answer_quality(text).score >= 0.97

    @pytest.mark.parametrize("reason", ["length", "LENGTH", "max_tokens"])
    def test_answers_out_of_tokens_are_truncated(self, reason: str) -> None:
        assert answer_quality("The capital of France is", finish_reason=reason).reasons == ("truncated",)

    @pytest.mark.parametrize("reason", [None, "stop", "tool_calls", "", "unheard of"])
    def test_other_reasons_to_end_say_nothing(self, reason: str | None) -> None:
        assert answer_quality("Paris", finish_reason=reason) == AnswerQuality(score=1.0)

    @pytest.mark.parametrize("reason", ["tool_calls", "function_call"])
    def test_calls_of_tools_need_no_text(self, reason: str) -> None:
        assert answer_quality("", finish_reason=reason).score == 1.0

    def test_whole_json_is_not_truncated(self) -> None:
        """Whole JSON scores 1, although line feeds follow and the finish reason is "length"."""
        assert answer_quality('{"category": "Sports"}\n\n\n', finish_reason="length").score == 1.0

    @pytest.mark.parametrize(
        ("refusal", "reason"), [("No.", None), ("I won't.", "stop"), (None, "content_filter"), ("", "safety")]
    )
    def test_reported_refusals_need_no_wording(self, refusal: str | None, reason: str | None) -> None:
        found = answer_quality("Paris is the capital of France.", finish_reason=reason, refusal=refusal)
        assert found.reasons == ("refused",)
        assert found.score < 0.5

    def test_long_regretful_answers_are_no_refusals(self) -> None:
        """A text of more than 150 words is no refusal."""
        long = "I can't help with that exactly, but here is what I know. " + " ".join(
            f"Fact {number} is about river {number * 7} and hill {number * 13}." for number in range(40)
        )
        assert "refused" not in answer_quality(long).reasons

    def test_all_reasons_are_named(self) -> None:
        found = answer_quality(LOOP, finish_reason="length", refusal="no")
        assert set(found.reasons) == {"refused", "truncated", "repetitive"}
        assert found.score == min(
            answer_quality(LOOP).score, answer_quality("Paris", finish_reason="length").score, 0.1
        )

    def test_less_degenerate_answers_are_worth_more(self) -> None:
        """An empty answer scores lowest, then a refusal, then a cut answer, then a good one."""
        empty, refused, cut = (
            answer_quality("").score,
            answer_quality("I cannot assist with this.").score,
            answer_quality("The capital of France is", finish_reason="length").score,
        )
        assert empty < refused < cut < answer_quality("Paris").score


def brute_force(words: list[str], window: int | None) -> float:
    """Return the share of repeated trigrams by its definition, window by window."""
    width = len(words) if window is None else min(window, len(words))
    worst = 0.0
    for begin in range(len(words) - width + 1):
        part = words[begin : begin + width]
        trigrams = [tuple(part[at : at + 3]) for at in range(len(part) - 2)]
        again = sum(
            trigram in trigrams[:at] and any(char.isalpha() for word in trigram for char in word)
            for at, trigram in enumerate(trigrams)
        )
        worst = max(worst, again / len(trigrams))
    return worst


class TestRepetitionAndHostileTexts:
    @given(
        words=st.lists(st.sampled_from(["red", "Green", "7"]), min_size=8, max_size=60),
        window=st.none() | st.integers(4, 14),
    )
    def test_repetition_matches_brute_force(self, words: list[str], window: int | None) -> None:
        expected = brute_force([word.lower() for word in words], window)
        found = answer_quality(" ".join(words), window_size=window).score
        assert found == pytest.approx(1.0 - expected, abs=1e-12)

    def test_long_windows_match_brute_force(self) -> None:
        words = list(np.random.default_rng(3).choice(["red", "blue", "7", "42", "sky"], size=400))
        for window in (4, 5, 9, 20, 60, 399, 400, 401):
            expected = brute_force(words, window)
            found = answer_quality(" ".join(words), window_size=window).score
            assert found == pytest.approx(1.0 - expected, abs=1e-12)

    def test_three_copies_are_repetitive(self) -> None:
        assert answer_quality(f"{LETTER} {LETTER}").reasons == ()
        assert answer_quality(f"{LETTER} {LETTER} {LETTER}").reasons == ("repetitive",)

    def test_windows_see_a_loop_at_the_end(self) -> None:
        rng = np.random.default_rng(5)
        sound = " ".join(f"word{number}" for number in rng.integers(0, 10_000, size=2_000))
        text = sound + " and so on and on" * 20
        assert answer_quality(text).score > 0.9
        assert answer_quality(text, window_size=50).reasons == ("repetitive",)
        assert answer_quality(sound, window_size=50).score > 0.9

    def test_long_texts_take_linear_time(self) -> None:
        """An answer of a million characters is scored in linear time."""
        text = "the same five words again " * 40_000
        assert answer_quality(text, window_size=10_000).score < 0.01

    def test_very_deep_json_is_read_as_text(self) -> None:
        assert math.isfinite(answer_quality("[" * 100_000 + "]" * 100_000).score)

    @pytest.mark.parametrize(
        "text",
        [
            "`" * 50_000,
            '{"a": "' + "\\" * 99_999,
            '["' * 20_000,
            "." * 99_999 + "x",
            "```" + "\n" * 99_999 + "x",
        ],
    )
    def test_hostile_texts_come_back(self, text: str) -> None:
        assert 0.0 <= answer_quality(text).score <= 1.0

    @given(
        st.text(max_size=300),
        st.sampled_from([None, "stop", "length", "content_filter"]),
        st.none() | st.integers(4, 9),
    )
    def test_reasons_exactly_below_one_half(
        self, text: str, finish_reason: str | None, window: int | None
    ) -> None:
        found = answer_quality(text, finish_reason=finish_reason, window_size=window)
        assert 0.0 <= found.score <= 1.0
        assert (found.score < 0.5) == bool(found.reasons)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text('ab c"\\{[', max_size=9),
            st.lists,
            max_leaves=9,
        )
    )
    def test_cut_json_is_truncated(self, value: object) -> None:
        whole = json.dumps({"key": value, "end": [1]})
        assert "truncated" not in answer_quality(whole).reasons
        for end in range(1, len(whole)):
            assert "truncated" in answer_quality(whole[:end]).reasons, whole[:end]
