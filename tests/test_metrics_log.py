"""The run folder's JSONL files: torn tails, second writers, NaN, and cutting at a step."""

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from dreamgym.metrics_log import JsonlLog, encode, nanmean, read_jsonl
from dreamgym.types import DreamGymError


def test_records_come_out_as_they_went_in(tmp_path):
    record = {"step": 1, "real/success": 0.5, "n": [1, None, True], "text": "a\nb 钥 \u2028"}
    with JsonlLog(tmp_path / "m.jsonl", durable=True) as log:
        log.append(record)
        log.append({})
        assert log.read() == [record, {}]
    with JsonlLog(tmp_path / "m.jsonl") as log:
        assert log.torn is None
        log.append({"step": 2})
        assert log.read() == [record, {}, {"step": 2}]


def test_a_torn_tail_is_put_aside_and_the_next_record_is_readable(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":2,"t":"\xe4\xb8')
    with JsonlLog(path) as log:
        assert (log.torn.path, log.torn.line, log.torn.num_bytes) == (path, 2, 14)
        log.append({"a": 3})
        assert log.read() == [{"a": 1}, {"a": 3}]
    assert (tmp_path / "m.jsonl.torn").read_bytes() == b'{"a":2,"t":"\xe4\xb8\n'
    path.write_bytes(path.read_bytes() + b"\0\0\0")  # what a power cut leaves
    with JsonlLog(path) as log:
        assert log.torn.line == 3
    assert (tmp_path / "m.jsonl.torn").read_bytes().count(b"\n") == 2  # nothing is overwritten


def test_a_whole_record_that_lacks_its_line_end_is_kept(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":2}')
    with JsonlLog(path) as log:
        assert log.torn is None
        log.append({"a": 3})
        assert log.read() == [{"a": 1}, {"a": 2}, {"a": 3}]


@pytest.mark.parametrize("cut", range(1, 22))
def test_wherever_a_crash_cuts_the_earlier_records_and_the_next_survive(tmp_path, cut):
    path = tmp_path / "m.jsonl"
    whole = b'{"a": 1}\n{"a": "\xe9\x92\xa5 {}"}\n'
    path.write_bytes(whole[:cut])
    with JsonlLog(path) as log:
        log.append({"next": 1})
        kept = log.read()
    assert kept[-1] == {"next": 1}
    assert kept[:-1] == [{"a": 1}, {"a": "钥 {}"}][: (cut >= 8) + (cut >= 23)]


def test_a_reader_leaves_out_the_line_that_is_being_written(tmp_path):
    path = tmp_path / "m.jsonl"
    assert list(read_jsonl(path)) == []
    path.write_bytes(b'{"a":1}\n{"a":')
    assert list(read_jsonl(path)) == [{"a": 1}]
    assert path.read_bytes().endswith(b'{"a":')


def test_damage_in_the_middle_is_an_error_that_names_file_and_line(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"a":1}\nxx\n{"a":2}\n')
    with pytest.raises(DreamGymError, match=r"m\.jsonl line 2"):
        list(read_jsonl(path))


def test_a_second_writer_is_told_who_the_first_is(tmp_path):
    with (
        JsonlLog(tmp_path / "m.jsonl"),
        pytest.raises(DreamGymError, match=f"written by process {os.getpid()}"),
    ):
        JsonlLog(tmp_path / "m.jsonl")
    JsonlLog(tmp_path / "m.jsonl").close()


def test_the_lock_dies_with_its_owner(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from dreamgym.metrics_log import JsonlLog\n"
        "log = JsonlLog(sys.argv[1])\n"
        "log.append({'a': 1})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m.jsonl")])
    assert done.returncode == -signal.SIGKILL
    with JsonlLog(tmp_path / "m.jsonl") as log:
        assert log.read() == [{"a": 1}]


def _append(path, start, writer):
    start.wait()
    with JsonlLog(path, wait_s=60) as log:
        for index in range(1000):
            log.append({"writer": writer, "index": index, "text": "x" * 100})


def test_two_processes_that_append_a_thousand_records_each_leave_two_thousand(tmp_path):
    context = multiprocessing.get_context("spawn")
    start = context.Event()
    path = tmp_path / "m.jsonl"
    writers = [context.Process(target=_append, args=(path, start, w)) for w in range(2)]
    for writer in writers:
        writer.start()
    start.set()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len({(r["writer"], r["index"]) for r in read_jsonl(path)}) == 2000


def test_a_forked_child_may_not_write_its_parents_file(tmp_path):
    with JsonlLog(tmp_path / "m.jsonl") as log:
        child = os.fork()
        if child == 0:
            try:
                log.append({"from": "child"})
            except DreamGymError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert log.read() == []


def test_numbers_json_has_not_become_null_and_are_named(tmp_path):
    with JsonlLog(tmp_path / "m.jsonl") as log:
        log.append({"a": math.nan, "b": {"c": [1.0, -math.inf]}, "d": np.float32("nan")})
        assert log.read() == [
            {"a": None, "b": {"c": [1.0, None]}, "d": None, "_nonfinite": ["a", "b.c.1", "d"]}
        ]
    assert "NaN" not in (tmp_path / "m.jsonl").read_text()


def test_a_record_that_is_written_again_still_names_what_was_not_finite():
    once = encode({"step": 1, "a": math.nan})
    assert encode(json.loads(once)) == once


def test_numpy_numbers_and_lone_surrogates_are_written_and_objects_refused():
    record = {"i": np.int64(3), "f": np.float32(0.5), "b\ud83d": "x\ud83d y"}
    assert json.loads(encode(record)) == {"i": 3, "f": 0.5, "b\ufffd": "x\ufffd y"}
    with pytest.raises(TypeError, match=r"loss\.here: a object"):
        encode({"loss": {"here": object()}})


def test_cutting_at_a_step_keeps_what_is_not_later_and_goes_on(tmp_path):
    with JsonlLog(tmp_path / "m.jsonl") as log:
        for step in (0, 1, 1, 2, 3):
            log.append({"step": step, "loss": math.nan if step == 1 else 0.5})
        kept = log.read()[:3]
        assert log.truncate_after(1) == 2
        assert log.read() == kept
        log.append({"step": 2})
        assert [record["step"] for record in log.read()] == [0, 1, 1, 2]
        assert log.truncate_after(9) == 0
        log.append({"other": 1})
        with pytest.raises(DreamGymError, match="record 5 has no step"):
            log.truncate_after(1)
        assert len(log.read()) == 5


@pytest.mark.parametrize(
    "values, mean, n",
    [([0.5, math.nan, 0.8], 0.65, 2), ([1.0, None, math.inf, 0.0], 0.5, 2), ([2.0], 2.0, 1)],
)
def test_the_mean_leaves_out_what_is_not_finite_and_says_how_many_it_has(values, mean, n):  # P045
    assert nanmean(values) == (pytest.approx(mean), n)


def test_the_mean_of_nothing_is_nan_and_says_so():
    mean, n = nanmean([math.nan])
    assert math.isnan(mean) and n == 0
