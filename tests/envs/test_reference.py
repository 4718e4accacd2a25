"""The engine's process pool: real processes that hang, die or babble, and the engine itself."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import lzma
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from houses import CLEAN_APPLE_SOLUTION, house

from dreamgym.envs.alfworld.games import load_games
from dreamgym.envs.alfworld.pool import Deadlines, EnginePool, ReferenceEnv
from dreamgym.envs.alfworld.reference import ReferenceGame, require_engine
from dreamgym.types import DreamGymError, Ending, EnvFault

# A worker that speaks the protocol: its actions are what it is to do to its parent.
WORKER = """
import json, os, subprocess, sys, time
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "start":
        answer = {"state": f"pid {os.getpid()}"}
    elif request["action"] == "hang":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(child.pid, file=open(sys.argv[1], "w"), flush=True)
        time.sleep(600)
    elif request["action"] == "die":
        sys.stderr.write("out of cheese\\n")
        os._exit(3)
    elif request["action"] == "babble":
        print("<html>", flush=True)
        continue
    elif request["action"] == "list":
        answer = [1]
    else:
        answer = {"state": "ok", "reward": 0.0, "done": False, "valid": True}
    print(json.dumps(answer), flush=True)
"""
QUICK = Deadlines(start_s=20.0, step_s=0.5)


def pool_of(num_workers: int, note: Path, deadlines: Deadlines = QUICK) -> EnginePool:
    command = (sys.executable, "-c", WORKER, str(note))
    return EnginePool(num_workers, deadlines, command)


async def begin(pool: EnginePool) -> tuple[ReferenceEnv, str]:
    env = pool.env(house())
    return env, await env.start(house().task())


def gone(pid: int) -> bool:
    """Whether no such process runs; a zombie whose parent has yet to look does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_step_that_hangs_is_killed_at_its_deadline_with_its_children_and_frees_the_slot(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        with pool_of(1, tmp_path / "child") as pool:
            env, first = await begin(pool)
            started = time.monotonic()
            with pytest.raises(EnvFault) as caught:
                await env.step("hang")
            assert caught.value.kind == "engine_timeout"
            assert 0.4 < time.monotonic() - started < 5.0
            with pytest.raises(EnvFault):  # the episode is over
                await env.step("look")
            for pid in (int(first.split()[1]), int((tmp_path / "child").read_text())):
                for _ in range(100):
                    if gone(pid):
                        break
                    await asyncio.sleep(0.02)
                assert gone(pid)
            other, second = await begin(pool)  # the only slot serves again
            assert second != first
            assert (await other.step("look")).state == "ok"
            await other.close()
            assert pool.num_started == 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "action, said", [("die", "out of cheese"), ("babble", "Expecting value"), ("list", "[1]")]
)
def test_a_worker_that_dies_or_babbles_is_a_fault_of_that_episode_only(
    tmp_path: Path, action: str, said: str
) -> None:
    async def scenario() -> None:
        with pool_of(2, tmp_path / "child") as pool:
            (broken, _), (sound, _) = await begin(pool), await begin(pool)
            with pytest.raises(EnvFault) as caught:
                await broken.step(action)
            assert caught.value.kind == "engine_crash"
            assert said in str(caught.value)
            assert (await sound.step("look")).state == "ok"
            await broken.close()
            again, _ = await begin(pool)
            assert (await again.step("look")).state == "ok"

    asyncio.run(scenario())


def test_a_worker_that_reads_nothing_is_late_too_however_much_it_is_sent() -> None:
    async def scenario() -> None:
        game = replace(house(), pddl_problem="x" * 1_000_000)  # more than a pipe holds
        command = (sys.executable, "-c", "import time; time.sleep(600)")
        with EnginePool(1, Deadlines(start_s=0.5), command) as pool:
            started = time.monotonic()
            with pytest.raises(EnvFault, match="engine_timeout"):
                await pool.env(game).start(game.task())
            assert time.monotonic() - started < 10.0

    asyncio.run(scenario())


def test_an_episode_has_a_deadline_of_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        deadlines = Deadlines(start_s=20.0, step_s=20.0, episode_s=1.0)
        with pool_of(1, tmp_path / "child", deadlines) as pool:
            env, _ = await begin(pool)
            started = time.monotonic()
            with pytest.raises(EnvFault, match="engine_timeout"):
                await env.step("hang")
            assert time.monotonic() - started < 10.0

    asyncio.run(scenario())


def test_more_episodes_than_slots_wait_their_turn_and_reuse_the_processes(tmp_path: Path) -> None:
    async def episode(pool: EnginePool) -> str:
        env, first = await begin(pool)
        for _ in range(5):
            assert (await env.step("look")).state == "ok"
        await env.close()
        return first

    async def scenario() -> None:
        with pool_of(2, tmp_path / "child", Deadlines(step_s=20.0)) as pool:
            firsts = await asyncio.gather(*(episode(pool) for _ in range(12)))
            assert pool.num_started == 2
            assert len(set(firsts)) == 2

    asyncio.run(scenario())


def test_a_pool_outlives_an_event_loop(tmp_path: Path) -> None:
    async def scenario(pool: EnginePool) -> None:
        env, _ = await begin(pool)
        await env.close()

    with pool_of(1, tmp_path / "child") as pool:
        asyncio.run(scenario(pool))
        asyncio.run(scenario(pool))
        assert pool.num_started == 1


def test_an_episode_called_off_in_mid_step_gives_its_slot_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pool_of(1, tmp_path / "child", Deadlines(step_s=60.0)) as pool:
            env, _ = await begin(pool)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(env.step("hang"), 0.3)
            await env.close()
            _, second = await asyncio.wait_for(begin(pool), 10.0)
            assert second.startswith("pid ")

    asyncio.run(scenario())


def test_an_episode_called_off_while_it_waits_leaves_the_queue(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pool_of(1, tmp_path / "child", Deadlines(step_s=20.0)) as pool:
            env, first = await begin(pool)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(begin(pool), 0.1)
            await env.close()
            _, second = await asyncio.wait_for(begin(pool), 10.0)
            assert second == first

    asyncio.run(scenario())


def test_an_episode_called_off_just_as_its_turn_comes_passes_the_slot_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pool_of(1, tmp_path / "child", Deadlines(step_s=20.0)) as pool:
            env, first = await begin(pool)
            waiter = asyncio.create_task(begin(pool))
            await asyncio.sleep(0.05)
            await env.close()  # the slot is the waiter's now, who has not heard of it yet
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            _, second = await asyncio.wait_for(begin(pool), 10.0)
            assert second == first

    asyncio.run(scenario())


def test_a_worker_is_renewed_after_its_share_of_episodes(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pool_of(1, tmp_path / "child", Deadlines(episodes_per_worker=2)) as pool:
            firsts = []
            for _ in range(4):
                env, first = await begin(pool)
                firsts.append(first)
                await env.close()
            assert firsts[0] == firsts[1] != firsts[2] == firsts[3]

    asyncio.run(scenario())


def test_a_program_that_cannot_start_is_a_fault_and_keeps_the_slot(tmp_path: Path) -> None:
    async def scenario() -> None:
        with EnginePool(1, QUICK, (str(tmp_path / "absent"),)) as pool:
            for _ in range(2):
                with pytest.raises(EnvFault, match="engine_start"):
                    await asyncio.wait_for(begin(pool), 10.0)

    asyncio.run(scenario())


def test_without_the_extra_one_is_told_what_to_install() -> None:
    if importlib.util.find_spec("textworld") is not None:
        pytest.skip("the extra is installed here")
    for build in (require_engine, lambda: EnginePool(1)):
        with pytest.raises(DreamGymError, match=r"pip install 'dreamgym\[alfworld\]'"):
            build()


@pytest.mark.engine
def test_the_engine_plays_a_game_to_its_end_and_a_killed_worker_is_replaced() -> None:
    async def scenario() -> None:
        with EnginePool(1) as pool:
            env, first = await begin(pool)
            assert first.endswith("Your task is to: put a clean apple in fridge.")
            for action in CLEAN_APPLE_SOLUTION:
                result = await env.step(action)
            assert (result.reward, result.ending) == (1.0, Ending.DONE)
            await env.close()

            env, _ = await begin(pool)
            worker = env._worker
            assert worker is not None and pool.num_started == 1
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(EnvFault, match="engine_crash"):
                await env.step("look")
            env, again = await begin(pool)
            assert again == first and pool.num_started == 2
            await env.close()

    asyncio.run(scenario())


@pytest.mark.engine
def test_the_engine_with_our_caches_says_what_it_said_without_them(data_dir: Path) -> None:
    """The recording was made with the engine as it comes."""
    path = data_dir / "alfworld" / "expert_demos_engine_0.4.2_sample160.jsonl.xz"
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines][::50]
    games = {game.id: game for game in load_games("official", "train")}
    for record in records:
        game = ReferenceGame(games[f"{record['task']}/{record['trial']}"])
        state = game.reset()
        for step in record["steps"]:
            assert (state, game.admissible()) == (step["obs"], step["admissible"])
            state, reward, done, valid = game.step(step["action"])
            assert (reward, done, valid) == (step["reward"], step["done"], True)
        assert state == record["final_obs"]


def test_a_game_goes_to_the_idle_worker_that_has_it_loaded() -> None:
    async def which() -> list[bool]:
        with EnginePool(2, command=("cat",)) as pool:
            first, second = await pool.acquire("a"), await pool.acquire("b")
            first.game, second.game = "a", "b"
            found = []
            for game, expected in (("b", second), ("a", first), ("b", second), ("new", None)):
                for worker in (first, second):
                    pool.release(worker)
                got = [await pool.acquire(game), await pool.acquire()]
                found.append(expected is None or got[0] is expected)
            for worker in (first, second):
                pool.release(worker)
            return found

    assert asyncio.run(which()) == [True] * 4
