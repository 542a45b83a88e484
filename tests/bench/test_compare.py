"""The comparison: its figures, its parts that need no peer, and the OpenEnv server driven directly."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from compare import targets
from comparing.fleet import Arm
from comparing.loads import LoadFailed, Outcome, Work, measured
from comparing.rounds import Rounds, difference, middle, played, ratio
from comparing.scenarios import Scenario, scenarios
from server import Server, ServerFailed

BENCH = Path(__file__).parents[2] / "bench"
IDLE_DAY = '{"battery_mw": 0, "generator_mw": 0}'


def outcome(rollouts_per_second: float = 1.0, cpu_us: float = 1.0, p99_ms: float = 1.0) -> Outcome:
    return Outcome(
        rollouts_per_second=rollouts_per_second,
        calls_per_second=8 * rollouts_per_second,
        cpu_us=cpu_us,
        behind_us=None,
        p50_ms=p99_ms / 2,
        p99_ms=p99_ms,
    )


def rounds(**arms: list[Outcome]) -> Rounds:
    return [dict(zip(arms, outcomes, strict=True)) for outcomes in zip(*arms.values(), strict=True)]


def speed(outcome: Outcome) -> float:
    return outcome.rollouts_per_second


def test_a_ratio_is_the_median_of_those_of_each_round_so_that_a_slow_moment_of_the_machine_meets_both_arms() -> None:
    measured = rounds(
        gymserve=[outcome(30), outcome(60), outcome(600)],
        adapter=[outcome(10), outcome(24), outcome(200)],
    )
    assert ratio(measured, "gymserve", "adapter", speed) == 3
    assert difference(measured, "gymserve", "adapter", speed) == 36
    assert middle(measured, "gymserve", speed) == 60
    assert middle(measured, "gymserve", lambda outcome: outcome.behind_us) is None


def test_the_targets_are_those_of_the_scenarios_that_were_played() -> None:
    step = rounds(
        gymserve=[outcome(25, cpu_us=1000)], adapter=[outcome(10, cpu_us=4000)], bare=[outcome(40, cpu_us=500)]
    )
    latency = rounds(gymserve=[outcome(p99_ms=7.5)], bare=[outcome(p99_ms=4)], direct=[outcome(p99_ms=3.5)])
    judged = {target.name: (target.value, target.is_met) for target in targets({"step": step, "latency-200": latency})}
    assert judged == {
        "step: rollouts/s, times the adapter's": (2.5, True),
        "step: CPU a request, times the adapter's": (0.25, True),
        "step: CPU a request, times bare Trio's": (2.0, False),
        "latency added at 200 calls/s, p99": (4.0, False),
    }


@pytest.fixture(scope="module")
def environment_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arm]:
    """An OpenEnv server of GridSim days, driven directly."""
    log = tmp_path_factory.mktemp("compare") / "env.log"
    command = [sys.executable, "-m", "gymserve", "env", "--port", "0", "--capacity", "4"]
    with Server(command, log) as server:
        yield Arm(server.await_start().replace("http:", "ws:"), server)


def test_an_openenv_server_is_driven_directly(environment_server: Arm) -> None:
    work = Work(rollouts=6, calls=24, at_once=4, tool="dispatch", arguments=IDLE_DAY)
    played = measured(environment_server, work)
    assert played.calls_per_second == pytest.approx(24 * played.rollouts_per_second)
    assert played.cpu_us > 0
    assert 0 < played.p50_ms <= played.p99_ms
    assert played.behind_us is None


def test_what_an_openenv_server_refuses_is_no_figure(environment_server: Arm) -> None:
    with pytest.raises(LoadFailed, match=r"500 to a seed: .*CAPACITY_REACHED"):
        measured(environment_server, Work(rollouts=8, at_once=8, tool="dispatch", arguments=IDLE_DAY))


def test_every_arm_begins_a_round_in_its_turn(environment_server: Arm, tmp_path: Path) -> None:
    work = Work(rollouts=1, calls=1, at_once=1, tool="dispatch", arguments=IDLE_DAY)
    scenario = Scenario("grid", "GridSim", "grid", {"one": work, "other": work})
    arms = {"grid/one": environment_server, "grid/other": environment_server}
    assert [list(outcomes) for outcomes in played(scenario, arms, 3)] == [
        ["one", "other"],
        ["other", "one"],
        ["one", "other"],
    ]


def test_a_short_run_has_every_scenario_with_all_of_its_arms() -> None:
    for scenario in scenarios():
        quick, warm_up = scenario.quickly(), scenario.warm_up()
        assert quick.work.keys() == warm_up.work.keys() == scenario.work.keys()
        for arm, work in scenario.work.items():
            assert 0 < quick.work[arm].rollouts * quick.work[arm].calls < work.rollouts * work.calls
            assert warm_up.work[arm].rate is None


def test_a_server_that_does_not_start_is_told_with_what_it_said(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such environment')"]
    with Server(command, tmp_path / "adapter.log") as server:
        with pytest.raises(ServerFailed, match=r"adapter does not listen:\nno such environment"):
            server.await_start()
        with pytest.raises(ServerFailed, match="adapter has ended"):
            server.cpu_seconds()


def test_without_peers_it_says_how_to_get_them(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "compare.py"), "--quick", "--peers", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert f"run bench/setup_peers.sh {tmp_path}" in ended.stderr


def test_peers_that_are_there_are_not_installed_again(tmp_path: Path) -> None:
    for peer in ("openenv", "nemo_gym"):
        (tmp_path / peer).mkdir()
        (tmp_path / peer / "complete").touch()
    command = ["bash", str(BENCH / "setup_peers.sh"), str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^(\w+): there already$", said, re.MULTILINE) == ["openenv", "nemo_gym"]


def test_the_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from comparing.pictures import draw

    step = rounds(gymserve=[outcome(25)], adapter=[outcome(10)], bare=[outcome(40)])
    latency = rounds(gymserve=[outcome(p99_ms=7.5)], bare=[outcome(p99_ms=4)], direct=[outcome(p99_ms=3.5)])
    draw(tmp_path, {"step": step, "latency-200": latency})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["comparison.png", "latency.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
