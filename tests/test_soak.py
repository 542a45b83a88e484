"""The soak runs for a minute and finds nothing; and what it looks for, it would find."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from soak import Growth, faults_of, grown
from soaking.http import Answer
from soaking.ledger import Ledger, Wrong
from soaking.logs import read_log
from soaking.rollout import Rollout
from soaking.run import Sample
from soaking.watch import Holding, growth

ROOT = Path(__file__).parent.parent
SOAK = [sys.executable, "bench/soak.py", "--json"]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PATH": ""}
STOP_SECONDS = 60.0


def test_a_minute() -> None:
    done = subprocess.run(
        [*SOAK, "--seconds", "50"], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert (result["faults"], result["left"], result["unanswered"], result["wrong_scores"]) == ([], {}, 0, 0)
    assert result["became"]["finished"] > 32  # those without faults before and after, and some among the others
    assert result["sessions"]["lost"] > 0 and result["environment_server"]["ended with SIGKILL"] > 0


def test_an_interrupt_ends_it_in_order(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "serve.log"
    with subprocess.Popen([*SOAK, "--logs", log.parent], cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE) as process:
        try:
            give_up_at = time.monotonic() + STOP_SECONDS
            while not (log.exists() and log.read_text().count("session ended") > 32):  # 16 before the load
                assert time.monotonic() < give_up_at
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=STOP_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 130
    result = json.loads(said)
    assert (result["faults"], result["left"]) == ([], {})
    assert result["seconds"] < STOP_SECONDS


# What it looks for: scores


def rollout(*, turns: int | None = None, in_doubt: int = 0, opened: bool = True, failure: str | None = None) -> Rollout:
    """One that has taken so many turns, or all."""
    one = Rollout("http://127.0.0.1:1", Ledger(), random.Random(0))
    one.turns_taken = len(one.script.turns) if turns is None else turns
    one.turns_in_doubt, one.was_opened, one.failure = in_doubt, opened, failure
    return one


def result_of(one: Rollout, **fields: Any) -> Answer:
    """The right result of a rollout that was played to its end, but for ``fields``."""
    right = {"reward": one.script.reward, "steps": len(one.script.turns), "done": True}
    return Answer(200, {**one.result_row, **right, **fields}, None)


def masked(one: Rollout, kind: str, **fields: Any) -> Answer:
    return result_of(one, **{"reward": 0.0, "done": False, "mask_sample": True, "failure_kind": kind, **fields})


def test_what_became_of_a_rollout_is_counted() -> None:
    finished, early, lost, never = rollout(), rollout(turns=3), rollout(turns=3), rollout(turns=0, opened=False)
    finished.check(result_of(finished))
    early.check(result_of(early, reward=0.0, steps=3, done=False))
    lost.check(masked(lost, "session_lost", steps=3))
    never.check(masked(never, "provider_unavailable", steps=0))
    outcomes = [dict(each.ledger.outcomes) for each in (finished, early, lost, never)]
    assert outcomes == [
        {"finished": 1},
        {"verified early": 1},
        {"masked, session_lost": 1},
        {"masked, provider_unavailable": 1},
    ]


def test_a_turn_in_doubt_may_count_and_may_not() -> None:
    for steps in (3, 4):
        one = rollout(turns=3, in_doubt=1)
        one.check(result_of(one, reward=0.0, steps=steps, done=False))
    last = rollout(turns=len(rollout().script.turns) - 1, in_doubt=1)
    last.check(result_of(last))


LIES = [
    ("a wrong score", rollout(), {"reward": 0.25}),
    ("a wrong score", rollout(), {"reward": 0.0}),
    ("a wrong score", rollout(), {"done": False}),
    ("a wrong score", rollout(turns=3), {"steps": 3, "done": False}),
    ("turns were lost or invented", rollout(turns=3), {"steps": 2, "reward": 0.0, "done": False}),
    ("turns were lost or invented", rollout(turns=3, in_doubt=1), {"steps": 5, "reward": 0.0, "done": False}),
    ("a lost rollout was scored", rollout(turns=3, failure="lost"), {"steps": 3, "reward": 0.0, "done": False}),
    ("a score with a failure", rollout(), {"failure_kind": "session_lost"}),
    ("another rollout's row", rollout(), {"reset_kwargs": {"day": -1}}),
    ("a finished rollout was masked", rollout(), {"mask_sample": True, "failure_kind": "session_lost", "reward": 0.0}),
    ("a mask with a reward", rollout(turns=3), {"mask_sample": True, "failure_kind": "session_lost", "reward": 0.5}),
    ("a mask without its reason", rollout(turns=3), {"mask_sample": True, "failure_kind": "cancelled", "reward": 0.0}),
]


@pytest.mark.parametrize(("sentence", "one", "lie"), LIES)
def test_a_lie_is_noticed(sentence: str, one: Rollout, lie: dict[str, Any]) -> None:
    with pytest.raises(Wrong, match=sentence):
        one.check(result_of(one, **lie))


def test_a_refused_verify_is_noticed() -> None:
    one = rollout()
    with pytest.raises(Wrong, match="a verify was refused"):
        one.check(Answer(410, {"error": "session_closed"}, None))


def test_an_answer_to_somebody_else_is_noticed() -> None:
    one = rollout(turns=0)
    assert one.took_turn(Answer(200, {"result": one.next_turn.result, "error": None}, None))
    with pytest.raises(Wrong, match="answered"):
        one.took_turn(Answer(200, {"result": {"hour": -1}, "error": None}, None))


@pytest.mark.parametrize(
    ("status", "error", "done"),
    [(500, "internal_error", False), (404, "no_session", True), (502, "environment_error", False)],
)
def test_a_refusal_that_no_environment_server_is_the_reason_of_is_noticed(status: int, error: str, done: bool) -> None:
    with pytest.raises(Wrong, match=error):
        rollout(turns=3).took_turn(Answer(status, {"error": error, "done": done}, None))


# What it looks for: leaks


def samples(memory_kib: float, descriptors: float = 0.0, *, seconds: int = 100) -> list[Sample]:
    """A sample a second, each holding so much more than the one before, and some that are far off."""
    return [
        Sample(
            float(second),
            10 * second,
            Holding(
                round(70_000 + memory_kib * second + (50_000 if second % 7 == 0 else 0)),
                round(20 + descriptors * second + (second % 3)),
            ),
        )
        for second in range(seconds)
    ]


def test_growth_is_that_of_the_line_through_most_samples() -> None:
    line = [(float(second), 3.0 * second) for second in range(50)]
    assert growth(line) == 3.0 * 49
    assert growth([*line, (50.0, 1e9)]) == pytest.approx(3.0 * 50)
    assert growth([(float(second), 5.0) for second in range(2000)]) == 0.0
    with pytest.raises(ValueError, match="two samples"):
        growth(line[:1])


def test_the_warm_up_does_not_count() -> None:
    early = [Sample(float(second), second, Holding(1_000 * second, second)) for second in range(25)]
    late = [Sample(float(second), second, Holding(25_000, 25)) for second in range(25, 100)]
    assert grown([*early, *late]) == Growth(memory_kib=0.0, descriptors=0.0, rollouts=74)
    assert grown(early[:10]) is None and grown([]) is None


@pytest.mark.parametrize(
    ("leaks", "sentences"),
    [
        (samples(0.0), []),
        (samples(20.0), []),  # 1.5 MiB in all
        (samples(100.0), ["memory grew by"]),
        (samples(0.0, 0.5), ["descriptors grew by"]),
    ],
)
def test_a_leak_is_noticed(leaks: list[Sample], sentences: list[str]) -> None:
    held = Holding(70_000, 9)
    assert [fault.split(" by")[0] + " by" for fault in faults_of(grown(leaks), held, held)] == sentences


def test_a_descriptor_that_is_left_is_noticed() -> None:
    [fault] = faults_of(None, Holding(70_000, 9), Holding(70_000, 10))
    assert fault == "10 descriptors after the load, 9 before"


def test_the_log_tells_of_sessions_that_never_ended_and_of_faults(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "listening on http://127.0.0.1:1\n"
        + "".join(
            json.dumps(event) + "\n"
            for event in (
                {"event": "session opened", "session": "a", "level": "info"},
                {"event": "session opened", "session": "b", "level": "info"},
                {"event": "session ended", "session": "b", "ending": "lost", "level": "info"},
                {"event": "the app failed", "exception": "Traceback", "level": "error"},
            )
        )
        + "Traceback (most recent call last):\n"
    )
    said = read_log(log)
    assert (said.endings, said.unended) == ({"lost": 1}, {"a"})
    assert [fault[:20] for fault in said.faults] == ['{"event": "the app f', "Traceback (most rece"]
