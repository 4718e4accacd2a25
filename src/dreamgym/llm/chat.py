"""An encoder for any tokenizer with a chat template, which is asked what it writes, not trusted.

It is rendered around sentinels: what it writes itself is tokenised with control tokens, contents
are tokenised without. Whether it keeps earlier messages as they were decides if an episode is one
sequence ("whole") or one sequence a turn ("turns").
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from dreamgym.llm.base import Message, Role
from dreamgym.llm.encoding import Codec, Encoder, Parts, private_backend
from dreamgym.llm.tiny import CHAT_TEMPLATE, ROLES

log = logging.getLogger(__name__)

Mode = Literal["auto", "whole", "turns"]

_SENTINEL = re.compile("\ue000(\\d+)\ue001")
_EDGE = "\n \n"
_STRIPPED = {3: "", 2: "\n", 0: None}
"""How much of `_EDGE` is left, and which characters were then stripped (None: all white space)."""
_THINKING = "<think>\nThe mug is on it.\n</think>\n\ngo to shelf 1"

_SAMPLES = (
    [
        Message("user", ' Look:\n\n<b>1</b> & "2" \n'),
        Message("assistant", "\ngo to shelf 1 "),
        Message("user", "You see a mug 2."),
        Message("assistant", "take mug 2"),
        Message("user", "\n Nothing happens. "),
    ],
    [
        Message("user", "Look around."),
        Message("assistant", _THINKING),
        Message("user", "Nothing happens."),
        Message("assistant", _THINKING),
        Message("user", "Look around."),
    ],
    [Message("system", " Be brief.\n"), Message("user", "Look around.")],
)
"""Contents that one may trust: the template must write them as we do."""


def _sentinel(number: int) -> str:
    """Stands for a content that the template shall not see."""
    return f"\ue000{number}\ue001"


class _Template:
    """Renders conversations; says in a ValueError why one cannot be rendered."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        backend = private_backend(tokenizer)
        backend.encode_special_tokens = False
        self.tokenizer = tokenizer
        self.ids = lru_cache(1 << 10)(
            lambda text: tuple(backend.encode(text, add_special_tokens=False).ids)
        )

    def text(self, messages: Sequence[Message], *, begin: bool) -> str:
        """Just what `transformers` renders; `begin` adds the opening of the next message."""
        chat = [{"role": message.role, "content": message.text} for message in messages]
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    chat, tokenize=False, add_generation_prompt=begin
                )
            )
        except TemplateError as error:
            roles = ", ".join(message.role for message in messages)
            raise ValueError(f"the chat template refuses the roles {roles}: {error}") from error

    def around(self, *roles: Role, begin: bool = False) -> list[list[int]]:
        """Ids before, between and after the contents."""
        messages = [Message(role, _sentinel(i)) for i, role in enumerate(roles)]
        pieces = _SENTINEL.split(self.text(messages, begin=begin))
        if pieces[1::2] != [str(i) for i in range(len(roles))]:
            raise ValueError(
                f"the chat template does not write {', '.join(roles)} messages once, in order"
            )
        return [list(self.ids(piece)) for piece in pieces[::2]]

    def stripped(self, role: Role) -> tuple[str | None, str | None]:
        """The characters it strips off a role's contents, to the left and to the right."""
        roles: tuple[Role, ...] = ("user", "assistant", "user")
        if role == "system":
            roles = ("system", "user")
        place = roles.index(role)

        def length(left: str, right: str) -> int:
            texts = ["Look."] * len(roles)
            texts[place] = f"{left}Look.{right}"
            talk = [Message(role, text) for role, text in zip(roles, texts, strict=True)]
            return len(self.text(talk, begin=False))

        left, right = length(_EDGE, "") - length("", ""), length("", _EDGE) - length("", "")
        if left not in _STRIPPED or right not in _STRIPPED:
            raise ValueError(f"the chat template changes the white space around a {role} message")
        return _STRIPPED[left], _STRIPPED[right]

    def rewrites(self) -> str:
        """What of a prompt and its answer is not found again in the next prompt, if anything."""
        look, go, more = Message("user", "Look."), Message("assistant", "go"), Message("user", "On")
        thought = Message("assistant", _THINKING)
        begun = Message("assistant", _THINKING.removeprefix("<think>\n"))  # in its opening already
        talks = {
            "earlier messages": [look, go, more, go, more],
            "the thinking of earlier messages": [look, thought, more, thought, more],
            "thinking that their opening begins": [look, begun, more, begun, more],
            "earlier messages under a system message": [
                *(Message("system", "Be brief."), look, go, more, go, more)
            ],
        }
        for what, talk in talks.items():
            try:
                self.text(talk, begin=True)
            except ValueError:
                if talk[0].role == "system":
                    continue  # it has no system messages
                raise
            for place, message in enumerate(talk):
                if message.role == "assistant":
                    sampled = self.text(talk[:place], begin=True) + message.text
                    if not self.text(talk[: place + 2], begin=True).startswith(sampled):
                        return f"the chat template rewrites {what} when the user answers"
        return ""


class _Shape:
    """What a template writes before and after a role's content, wherever the message stands."""

    def __init__(self, template: _Template) -> None:
        first, after_user = template.around("user")
        _, begun = template.around("user", begin=True)
        _, to_assistant, to_user, _ = template.around("user", "assistant", "user")
        _, _, after_assistant = template.around("user", "assistant")

        close_user = _common(after_user, to_assistant)
        if begun[: len(close_user)] != close_user:
            raise ValueError("the chat template closes a user's message in more than one way")
        self.begin = begun[len(close_user) :]  # the opening of a message to be written
        self.begun = to_assistant[len(close_user) :]  # and of one that is: the same, mostly
        # not the last tokens that both have: a default system prompt is closed as an answer is
        rest = to_user[len(_common(after_assistant, to_user)) :]
        open_user = _common(first[::-1], rest[::-1])[::-1]
        self.start = first[: len(first) - len(open_user)]
        self.open: dict[Role, list[int]] = {"user": open_user, "assistant": self.begin}
        self.close: dict[Role, list[int]] = {
            "user": close_user,
            "assistant": to_user[: len(to_user) - len(open_user)],
        }
        self.no_system = ""
        try:
            self._add_system(template)
        except ValueError as error:
            self.no_system = str(error)

    def _add_system(self, template: _Template) -> None:
        before, between, _ = template.around("system", "user")
        size = len(between) - len(self.open["user"])
        if size < 0 or between[size:] != self.open["user"]:
            raise ValueError("the chat template writes it into the user's message: use mode turns")
        self.open["system"], self.close["system"] = before, between[:size]

    def tokens(self) -> set[int]:
        """All that it writes."""
        every = (self.start, self.begin, *self.open.values(), *self.close.values())
        return {id for ids in every for id in ids}


def _common(a: list[int], b: list[int]) -> list[int]:
    return a[: _num_equal(a, b)]


def _num_equal(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the common prefix."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


class ChatEncoder(Codec):
    """Writes what the template would; contents stay data, samples stay as they were sampled.

    In mode "whole" earlier samples are kept verbatim even where the template would change them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, mode: Mode = "auto") -> None:
        self.template = _Template(tokenizer)
        self.shape = _Shape(self.template)
        super().__init__(tokenizer, _content_backend(tokenizer, self.shape.tokens()))
        ends = self.shape.close["assistant"][:1]
        if not ends or ends[0] not in tokenizer.added_tokens_decoder:
            raise ValueError(
                f"after what the assistant writes, the chat template writes "
                f"{self._text(self.shape.close['assistant'])!r}, which no control token begins"
            )
        self.end = ends[0]
        self.rewrites = self.template.rewrites()
        self.mode = mode if mode != "auto" else "turns" if self.rewrites else "whole"
        talks = [talk for talk in _SAMPLES if self._can_write(talk)]
        roles = {message.role for talk in talks for message in talk}
        self._stripped = {role: self.template.stripped(role) for role in roles}
        self._seen: set[tuple[Role, ...]] = set()
        for talk in talks:
            self._compare(talk)
        _announce(self.mode, self.rewrites, self.token_text(self.end), tokenizer.eos_token)

    def start(self, messages: Sequence[Message]) -> list[int]:
        before = messages[:-1] if messages and messages[-1].role == "assistant" else messages
        if self.mode == "whole":
            self._check(tuple(message.role for message in before))
        elif self._grown(before) != self._rendered(before):
            raise ValueError("what the template writes here is not a sequence of its parts")
        return self._opening(messages)

    def parts(self, message: Message) -> Parts:
        role = message.role
        if role not in self.shape.open:
            raise ValueError(f"no {role} message can be written: {self.shape.no_system}")
        closing = self.shape.close[role]
        body = self._body(message.ids or self.text_ids(self._as_shown(message)))
        own = closing[: closing[:1] == [self.end]]
        return list(self.shape.open[role]), [*body, *own], closing[len(own) :]

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        begun: tuple[int, ...] = ()
        if messages and messages[-1].role == "assistant" and not messages[-1].ids:
            begun = self.text_ids(messages[-1].text)
            messages = messages[:-1]
        if self.mode == "turns":
            return [*self._rendered(messages), *begun]
        self._check(tuple(message.role for message in messages))
        return [*self._grown(messages), *begun]

    def _grown(self, messages: Sequence[Message]) -> list[int]:
        ids = self._opening(messages)
        for message in messages:
            ids += self.message(message)
        return [*ids, *self.shape.begin]

    def _opening(self, messages: Sequence[Message]) -> list[int]:
        """What the template says of itself, for want of a system message."""
        return [] if messages and messages[0].role == "system" else list(self.shape.start)

    def _rendered(self, messages: Sequence[Message]) -> list[int]:
        """The history as the template shows it; a sample that it shows as sampled keeps its ids."""
        contents: list[Sequence[int]] = []

        def stands_for(ids: Sequence[int]) -> str:
            contents.append(ids)
            return _sentinel(len(contents) - 1)

        chat: list[Message] = []
        untouched: dict[str, str] = {}
        needed: list[set[str]] = []  # of each message, what of it must be shown
        for message in messages:
            text = self._as_shown(message)
            as_sampled = message.ids and text == self.decode(message.ids)
            every = stands_for(self._body(message.ids) if as_sampled else self.text_ids(text))
            thinking, tag, answer = text.rpartition("</think>")
            if message.role != "assistant" or not tag:
                needed.append({every})
                chat.append(Message(message.role, every))
                continue
            tag_before, core, tag_after = _thought(thinking)
            before, said, after = _edges(answer)
            last = stands_for(self.text_ids(said))
            shown = f"{tag_before}{stands_for(self.text_ids(core))}{tag_after}{tag}"
            shown += f"{before}{last}{after}"
            untouched[shown] = every
            needed.append({every, last})
            chat.append(Message(message.role, shown))
        text = self.template.text(chat, begin=True)
        for shown, every in untouched.items():
            text = text.replace(shown, every)
        for number, any_of in enumerate(needed):
            if not any(one in text for one in any_of):
                raise ValueError(f"the chat template leaves out message {number}")
        pieces = _SENTINEL.split(text)
        pairs = zip(pieces[::2], [*pieces[1::2], None], strict=True)
        return [
            id
            for written, number in pairs
            for id in (*self.template.ids(written), *(contents[int(number)] if number else ()))
        ]

    def _as_shown(self, message: Message) -> str:
        """The text without the white space that the template strips off."""
        text = self.decode(message.ids) if message.ids else message.text
        if message.role not in self._stripped:
            raise ValueError(f"no {message.role} message can be written: {self.shape.no_system}")
        left, right = self._stripped[message.role]
        return text.lstrip(left).rstrip(right)

    def _can_write(self, messages: Sequence[Message]) -> bool:
        """All but a system message on a template without, and what it is not to change."""
        if self.mode == "whole" and self.rewrites and "</think>" in messages[1].text:
            return False
        if messages[0].role != "system" or not self.shape.no_system:
            return True
        if self.mode == "whole":
            return False
        try:
            self.template.text(messages, begin=True)
        except ValueError:
            return False
        return True

    def _check(self, roles: tuple[Role, ...]) -> None:
        """An order of roles that was not seen yet is rendered once, to see that it is the same."""
        if roles not in self._seen:
            talk = [Message(role, f"message {i}.") for i, role in enumerate(roles)]
            self._compare(talk, since=talk[0].text if talk else "")  # the date may stand before
            self._seen.add(roles)

    def _compare(self, messages: Sequence[Message], since: str = "") -> None:
        """Text that one may trust, from some text on: the template writes it as we do."""
        if self.mode == "turns":
            ids = self._rendered(messages)
        else:
            ids = self._opening(messages)
            for message in messages:
                opening, written, closing = self.parts(message)
                # a prompt that grows keeps what it began with: the one thing to differ in
                opening = self.shape.begun if message.role == "assistant" else opening
                ids += [*opening, *written, *closing]
            ids += self.shape.begin
        ours, theirs = self._text(ids), self.template.text(messages, begin=True)
        if since in ours and since in theirs:
            ours, theirs = ours[ours.index(since) :], theirs[theirs.index(since) :]
        if ours != theirs:
            at = _num_equal(ours, theirs)
            raise ValueError(
                f"the chat template cannot be followed: at character {at} it writes "
                f"{theirs[at : at + 40]!r}, and we would write {ours[at : at + 40]!r}"
            )


def _thought(text: str) -> tuple[str, str, str]:
    """What opens a thought, the thought, and the white space after it."""
    before, tag, rest = text.partition("<think>")
    if before.strip() or not tag:
        before, tag, rest = "", "", text
    space, core, after = _edges(rest)
    return before + tag + space, core, after


def _edges(text: str) -> tuple[str, str, str]:
    core = text.strip()
    start = len(text) - len(text.lstrip()) if core else 0
    return text[:start], core, text[start + len(core) :]


def _content_backend(tokenizer: PreTrainedTokenizerFast, written: set[int]) -> Tokenizer:
    """Made so that no text yields a token which opens or ends a turn, marked as special or not."""
    backend = private_backend(tokenizer)
    state = json.loads(backend.to_str())
    loose = [
        token
        for token in state["added_tokens"]
        if token["id"] in written and not token["special"] and "think>" not in token["content"]
    ]
    for token in loose:
        token["special"] = True
    return Tokenizer.from_str(json.dumps(state)) if loose else backend


@lru_cache(1 << 6)
def _announce(mode: str, rewrites: str, end: str, eos: str | None) -> None:
    """Once for a kind of template: an engine is made anew after every update."""
    what = "one growing sequence an episode" if mode == "whole" else "one sequence a turn"
    log.info("chat template: mode %s, %s (%s)", mode, what, rewrites or "it only appends")
    if end != eos:
        log.info("a message ends with %s, as the chat template says, and not with %s", end, eos)


def make_encoder(tokenizer: PreTrainedTokenizerFast, mode: Mode = "auto") -> Codec:
    """Our own for our own tokenizers, else one that follows the chat template."""
    vocabulary = tokenizer.get_vocab()
    # other tokenizers have tokens of these names, and templates that write more than those
    if tokenizer.chat_template in (None, CHAT_TEMPLATE) and all(
        f"<|{role}|>" in vocabulary for role in ROLES
    ):
        if mode == "turns":
            raise ValueError("our own template only appends: mode turns is for those that rewrite")
        return Encoder(tokenizer)
    if not tokenizer.chat_template:
        raise ValueError("the tokenizer has neither our role tokens nor a chat template")
    return ChatEncoder(tokenizer, mode)
