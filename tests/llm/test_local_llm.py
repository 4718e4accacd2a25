"""The batched engine writes what `transformers` would write, for less work, whoever else asks."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import pytest
from small_models import (
    FAMILIES,
    TEXTS,
    reference_logprobs,
    run,
    small_model,
    small_tokenizer,
)
from transformers import PreTrainedModel

from dreamgym.llm.base import Message, Sampling
from dreamgym.llm.local import LocalLLM
from dreamgym.types import Completion


def engine(model: PreTrainedModel | None = None, *, slots: int = 4) -> LocalLLM:
    return LocalLLM(model or small_model(), small_tokenizer(), slots=slots)


async def converse(llm: LocalLLM, number: int, num_turns: int = 3) -> list[Completion]:
    """A session of several turns; every sampled token goes back verbatim."""
    messages: list[Message] = []
    completions = []
    for turn in range(num_turns):
        messages.append(Message("user", TEXTS[(number + turn) % len(TEXTS)]))
        sampling = Sampling(1.0, 3 + (number + turn) % 5, seed=number * 100 + turn)
        done = await llm.complete(messages, sampling, session=f"s{number}")
        messages.append(Message("assistant", done.text, done.ids))
        completions.append(done)
    return completions


async def converse_all(llm: LocalLLM, number: int) -> list[list[Completion]]:
    return await asyncio.gather(*(converse(llm, n) for n in range(number)))


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_transformers_over_turns_and_evictions(family: str) -> None:
    model = small_model(family)
    sessions = run(converse_all(engine(model, slots=3), 8))  # more sessions than slots
    for completions in sessions:
        for done in completions:
            every = reference_logprobs(model, (*done.prompt_ids, *done.ids))
            start = len(done.prompt_ids)
            want = [every[start - 1 + i, id].item() for i, id in enumerate(done.ids)]
            assert list(done.logprobs) == pytest.approx(want, abs=1e-4)
    lengths = {len(c.prompt_ids) for completions in sessions for c in completions}
    assert len(lengths) > 5, "the batches must be ragged"


def test_a_prompts_beginning_is_fed_once() -> None:
    llm = engine()
    last = run(converse(llm, 0, num_turns=4))[-1]
    # all but the token that was sampled last, which nothing has asked about yet
    assert llm.tokens_fed == len(last.prompt_ids) + len(last.ids) - 1


def test_attempts_that_begin_alike_read_their_beginning_once() -> None:
    model = small_model()
    prompt = [Message("user", " ".join(TEXTS[:3])), Message("user", TEXTS[3])]

    async def group(llm: LocalLLM, number: int) -> list[Completion]:
        asked = (
            llm.complete(prompt, Sampling(1.0, 6, seed=n), session=f"attempt {n}")
            for n in range(number)
        )
        return await asyncio.gather(*asked)

    llm = engine(model, slots=4)
    alone = [run(group(engine(model), n + 1))[n] for n in range(6)]
    together = run(group(llm, 6))  # more attempts than slots
    length = len(together[0].prompt_ids)
    written = sum(len(done.ids) - 1 for done in together)
    assert length > 40
    # of every attempt but the first, only the prompt's last token is read
    assert llm.tokens_fed == length + 5 + written
    for done, same in zip(together, alone, strict=True):
        every = reference_logprobs(model, (*done.prompt_ids, *done.ids))
        want = [every[length - 1 + i, id].item() for i, id in enumerate(done.ids)]
        assert list(done.logprobs) == pytest.approx(want, abs=1e-4)
        assert done.ids == same.ids


def test_a_released_or_evicted_session_is_fed_again_and_writes_the_same() -> None:
    async def scenario(llm: LocalLLM, *, lose: str) -> tuple[Completion, int]:
        messages = [Message("user", TEXTS[0])]
        first = await llm.complete(messages, Sampling(1.0, 5, 1), session="a")
        if lose == "release":
            await llm.release("a")
        if lose == "evict":
            await llm.complete([Message("user", TEXTS[3])], Sampling(1.0, 2, 1), session="b")
        before = llm.tokens_fed
        messages += [Message("assistant", first.text, first.ids), Message("user", TEXTS[4])]
        second = await llm.complete(messages, Sampling(1.0, 5, 2), session="a")
        return second, llm.tokens_fed - before

    model = small_model()
    kept, fed_kept = run(scenario(engine(model, slots=1), lose=""))
    for lose in ("release", "evict"):
        again, fed = run(scenario(engine(model, slots=1), lose=lose))
        assert again.ids == kept.ids
        # the role token that opens a prompt is all that another session has in common with it
        assert len(kept.prompt_ids) + len(kept.ids) - 2 <= fed <= fed_kept + len(kept.prompt_ids)
        assert fed > fed_kept


def test_evictions_are_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    few, enough = engine(slots=3), engine(slots=8)
    run(converse_all(few, 8))
    assert few.evictions >= 5 and "all 3 slots" in caplog.text
    assert len(caplog.records) == 1
    run(converse_all(enough, 8))
    assert enough.evictions == 0 and len(caplog.records) == 1


def test_a_slot_set_free_is_taken_before_one_that_waits_for_its_world() -> None:
    """Else every episode that begins costs another one its whole history."""

    async def scenario(llm: LocalLLM) -> int:
        first = [Message("user", TEXTS[0])]
        done = await llm.complete(first, Sampling(1.0, 5, 1), session="lives")
        await llm.complete([Message("user", TEXTS[3])], Sampling(1.0, 5, 1), session="ends")
        await llm.release("ends")
        await llm.complete([Message("user", TEXTS[2])], Sampling(1.0, 5, 1), session="begins")
        before = llm.tokens_fed
        more = [*first, Message("assistant", done.text, done.ids), Message("user", TEXTS[4])]
        await llm.complete(more, Sampling(1.0, 1, 2), session="lives")
        return llm.tokens_fed - before

    fed = run(scenario(engine(slots=2)))
    turn = Message("user", TEXTS[4])
    assert fed <= len(engine().encoder.prompt([turn])) + 2


def test_first_prompts_and_later_turns_are_not_padded_to_one_another() -> None:
    llm = engine(slots=8)
    widths: list[list[int]] = []
    feed = llm.decoder.feed

    def watched(rows: list[list[int]], *where: list[int]) -> object:
        widths.append([len(row) for row in rows])
        return feed(rows, *where)

    llm.decoder.feed = watched  # type: ignore[method-assign]

    async def scenario() -> None:
        short = [Message("user", "go")]
        long = [[Message("user", TEXTS[n] + " ".join(TEXTS * 3))] for n in range(3)]
        await asyncio.gather(
            *(llm.complete(long[n], Sampling(1.0, 1), session=f"long {n}") for n in range(3)),
            *(llm.complete(short, Sampling(1.0, 1), session=f"short {n}") for n in range(3)),
        )

    run(scenario())
    assert [len(w) for w in widths] == [3, 3]
    assert all(max(w) < 2 * min(w) for w in widths)


def test_a_slot_taken_over_by_another_session_shows_nothing_of_the_first() -> None:
    model = small_model()
    alone = run(converse(engine(model, slots=1), 5))
    llm = engine(model, slots=1)
    run(converse(llm, 2))
    assert [c.ids for c in run(converse(llm, 5))] == [c.ids for c in alone]


def test_a_seeded_sample_does_not_depend_on_who_else_is_in_the_batch() -> None:
    model = small_model()
    together = run(converse_all(engine(model, slots=8), 8))
    for number in (0, 3, 7):
        alone = run(converse(engine(model, slots=1), number))
        assert [c.ids for c in alone] == [c.ids for c in together[number]]
        for one, other in zip(alone, together[number], strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_another_seed_gives_another_sample() -> None:
    llm = engine()
    prompt = [Message("user", TEXTS[0])]
    samples = [run(llm.complete(prompt, Sampling(1.0, 8, seed))).ids for seed in (1, 1, 2, 3)]
    assert samples[0] == samples[1]
    assert len(set(samples)) == 3


def test_temperature_zero_is_the_most_likely_token_every_time() -> None:
    model = small_model("qwen3")
    llm = engine(model)
    prompt = [Message("user", TEXTS[2])]
    done = run(llm.complete(prompt, Sampling(0.0, 12, seed=1)))
    ids = list(done.prompt_ids)
    for id in done.ids:
        assert id == int(reference_logprobs(model, ids)[-1].argmax())
        ids.append(id)
    assert run(llm.complete(prompt, Sampling(0.0, 12, seed=2))).ids == done.ids


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_samples_follow_the_distribution_at_their_temperature(temperature: float) -> None:
    model = small_model()
    llm = engine(model, slots=64)
    prompt = [Message("user", "go to shelf 1")]

    async def draw(number: int) -> list[Completion]:
        asked = (llm.complete(prompt, Sampling(temperature, 1, seed)) for seed in range(number))
        return await asyncio.gather(*asked)

    drawn = run(draw(1500))
    logits = reference_logprobs(model, drawn[0].prompt_ids)[-1]
    want = (logits / temperature).softmax(-1)
    counts = Counter(done.ids[0] for done in drawn)
    for id in want.topk(5).indices.tolist():
        p = want[id].item()
        spread = math.sqrt(p * (1 - p) / len(drawn))
        assert abs(counts[id] / len(drawn) - p) < 4 * spread
    for done in drawn[:50]:
        assert done.logprobs[0] == pytest.approx(want[done.ids[0]].log().item(), abs=1e-4)


def test_a_prompt_without_room_ends_as_length_and_costs_nothing() -> None:
    llm = engine(small_model(context=32))
    done = run(llm.complete([Message("user", "Nothing happens. " * 40)], Sampling(1.0, 8)))
    assert (done.text, done.ids, done.finish_reason) == ("", (), "length")
    assert len(done.prompt_ids) > 32
    assert llm.tokens_fed == 0
    assert run(llm.complete([Message("user", "go")], Sampling(1.0, 3))).ids


def test_a_completion_stops_where_the_context_is_full() -> None:
    model = small_model(context=32)
    prompt = [Message("user", TEXTS[1])]
    for seed in range(20):
        done = run(engine(model).complete(prompt, Sampling(1.0, 500, seed)))
        if done.finish_reason == "length":
            break
    assert done.finish_reason == "length"
    assert len(done.prompt_ids) + len(done.ids) == 31  # the last position takes the padding
    every = reference_logprobs(model, (*done.prompt_ids, *done.ids))
    assert done.logprobs[-1] == pytest.approx(every[-2, done.ids[-1]].item(), abs=1e-4)


def test_the_end_token_stops_and_belongs_to_the_sample() -> None:
    llm = engine()
    done = [run(llm.complete([Message("user", "go")], Sampling(2.0, 200, s))) for s in range(5)]
    stopped = [c for c in done if c.finish_reason == "stop"]
    assert stopped
    for completion in stopped:
        assert completion.ids.index(llm.encoder.end) == len(completion.ids) - 1
        assert completion.text == llm.encoder.decode(completion.ids[:-1])


def test_a_message_of_the_assistants_at_the_end_is_continued() -> None:
    llm = engine()
    said = [Message("user", "look"), Message("assistant", "go to ")]
    done = run(llm.complete(said, Sampling(1.0, 3)))
    opening = llm.encoder.prompt(said[:1])
    assert list(done.prompt_ids) == [*opening, *llm.encoder.text_ids("go to ")]


@pytest.mark.parametrize("slots", [1, 2])
def test_cancelled_requests_do_not_hang_the_others(slots: int) -> None:
    prompt = [Message("user", TEXTS[0])]

    async def scenario(llm: LocalLLM) -> Completion:
        def ask(name: str, num_tokens: int) -> asyncio.Task[Completion]:
            sampling = Sampling(1.0, num_tokens, seed=3)
            return asyncio.create_task(llm.complete(prompt, sampling, session=name))

        running = [ask(f"running {n}", 150) for n in range(slots)]
        waiting = ask("waiting", 150)
        while llm.tokens_written < 2 * slots:
            await asyncio.sleep(0)
        last = ask("last", 4)
        for task in (*running, waiting):
            assert not task.done()
            task.cancel()
        return await last

    model = small_model()
    llm = engine(model, slots=slots)
    done = run(scenario(llm), timeout_s=20)
    assert done.ids == run(engine(model).complete(prompt, Sampling(1.0, 4, seed=3))).ids
    assert llm.tokens_written < 12 + 4 * slots, "nobody waits for what was cancelled"


def test_an_engine_whose_event_loop_was_cut_short_serves_the_next_one() -> None:
    prompt = [Message("user", TEXTS[0])]
    llm = engine(slots=1)

    async def abandon() -> None:
        asyncio.create_task(llm.complete(prompt, Sampling(1.0, 150, 3)))  # noqa: RUF006
        while llm.tokens_written < 2:
            await asyncio.sleep(0)

    asyncio.run(abandon())
    assert run(llm.complete(prompt, Sampling(1.0, 4, 3)), timeout_s=20).ids


def test_an_error_reaches_whoever_asked_and_the_next_request_is_served() -> None:
    llm = engine(slots=1)
    unknown = [Message("assistant", "?", (10**6,)), Message("user", "go")]
    with pytest.raises(IndexError):
        run(llm.complete(unknown, Sampling(1.0, 4)), timeout_s=20)
    assert run(llm.complete([Message("user", "go")], Sampling(1.0, 4)), timeout_s=20).ids


def test_engines_that_share_the_cores_both_get_done() -> None:
    model = small_model()
    one, two = engine(model), engine(small_model("qwen2"))

    async def scenario() -> list[list[Completion]]:
        return await asyncio.gather(*(converse(llm, n) for n in range(3) for llm in (one, two)))

    assert all(len(completions) == 3 for completions in run(scenario()))
