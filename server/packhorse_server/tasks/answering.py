"""question-answering: the part of a context that answers a question best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from packhorse.errors import InvalidInput
from packhorse.tensors import Array
from packhorse_server.tasks import positive, refuse_unknown, softmax
from packhorse_server.tasks.text import Text, read_pair, unexpected

if TYPE_CHECKING:
    from packhorse_server.tokenizers import Encoded

LONGEST_ANSWER = 15
"""Most tokens of an answer where `max_answer_length` is not given."""


class Answering:
    """Scores (1, tokens, 2) of beginning and end to `{answer, score, start, end}`.

    The first token takes part in the shares, since models say with it that there is no answer.
    """

    axes: tuple[str, ...] | None = ("batch", "tokens")
    whole = False
    width: int | None = 2
    sample = Text("who warms up", "the model warms up")

    def parse(self, item: Any, where: str) -> list[Text]:
        pair = read_pair(item, where, ("question", "context"), ("text", "text_pair"))
        if pair is None:
            raise unexpected(item, where, '{"question", "context"}')
        return [pair]

    def check(self, parameters: dict[str, Any]) -> None:
        refuse_unknown(parameters, "question-answering", "max_answer_length")
        positive(parameters, "max_answer_length")

    def decode(
        self, outputs: list[Array], parameters: dict[str, Any], encoded: Encoded
    ) -> dict[str, Any]:
        places = encoded.places(1)
        if not places:
            raise InvalidInput(
                "the context has no token that the model reads beside the question: shorten the "
                "question, or send a context that has words"
            )
        tokens = [0, *(i for i, _, _ in places)]
        first, last = softmax(outputs[0][0].astype(np.float64)[tokens].T)[:, 1:]
        longest = parameters.get("max_answer_length", LONGEST_ANSWER)
        # An answer ends where it begins or later, and is not too long.
        shares = np.tril(np.triu(np.outer(first, last)), longest - 1)
        begin, end = divmod(int(shares.argmax()), len(places))
        start, stop = places[begin][1], places[end][2]
        context = encoded.text.pair or ""
        score = float(shares[begin, end])
        return {"answer": context[start:stop], "score": score, "start": start, "end": stop}

    def combine(self, parts: list[Any]) -> Any:
        return parts[0]
