"""One start for a whole group: which resets get a seed made from their row, and what is said of the others."""

from typing import Any

import pytest
from scripted import ScriptedServer, agreeable, refused
from stage import raise_the_curtain, typed_seed
from structlog.testing import capture_logs

from gymserve.errors import BadArguments
from gymserve.resets import ResetRules
from gymserve.seeds import Seeding, derived_seed, digest

ROW = {"responses_create_params": {"input": [{"role": "user", "content": "Zähle!"}]}, "task_id": 7}
SEED = 948330937
"""Of `ROW`: whoever changes it changes the starts of everybody's episodes."""

WARNING = (
    "rows repeat and have no seed: rollouts of one group may start from different states; "
    "give rows a seed in their reset_kwargs, or set --derive-seed (said once)"
)


class Resets(ScriptedServer):
    """Keeps what each reset was given; the first ``failing`` of them fail."""

    def __init__(self, failing: int = 0) -> None:
        super().__init__(self._answer)
        self.given: list[Any] = []
        self._failing = failing

    async def _answer(self, message: dict[str, Any]) -> Any:
        if message["type"] == "reset":
            self.given.append(message["data"])
            if len(self.given) <= self._failing:
                return refused("EXECUTION_ERROR", "not now")
        return await agreeable(message)


def warnings(logs: list[Any]) -> list[str]:
    return [line["event"] for line in logs if line["log_level"] == "warning"]


# -- which seed ------------------------------------------------------------------------------------------------------


def test_a_rows_seed_is_the_same_in_every_process():
    assert derived_seed(ROW) == SEED
    assert derived_seed(dict(reversed(ROW.items()))) == SEED
    assert derived_seed({}) == 571062225  # the first 31 bits of the SHA-256 of "{}"


def test_what_differs_within_a_group_makes_no_difference():
    for number in range(3):
        of_one = {"_ng_task_index": 5, "_ng_rollout_index": number, "_ng_rollout_id": f"5-{number}", "_ng_": None}
        assert derived_seed({**ROW, **of_one, "agent_ref": {"name": f"agent-{number}"}}) == SEED


def test_any_other_difference_makes_one():
    rows: list[dict[str, Any]] = [
        ROW,
        {**ROW, "task_id": 8},
        {**ROW, "task_id": "7"},
        {**ROW, "reset_kwargs": {}},
        {**ROW, "reset_kwargs": {"level": 1}},
        {**ROW, "agent_refs": 1},
        {**ROW, "ng_task_index": 1},
        {**ROW, "nested": {"_ng_task_index": 1}},
        {**ROW, "nested": {"_ng_task_index": 2}},
        {**ROW, "nested": {"agent_ref": 1}},
    ]
    assert len({derived_seed(row) for row in rows}) == len(rows)


def test_a_seed_fits_a_signed_number_of_32_bits_and_is_not_negative():
    seeds = {derived_seed({"task_id": number}) for number in range(2_000)}
    assert len(seeds) == 2_000
    assert 0 <= min(seeds) < 2**22 and 2**31 - 2**22 < max(seeds) < 2**31


def test_what_is_too_deep_to_be_told_apart_is_the_clients_fault():
    deep: dict[str, Any] = {}
    for _ in range(50_000):
        deep = {"a": deep}
    for tell in (digest, derived_seed):
        with pytest.raises(BadArguments, match="the body is nested too deep"):
            tell(deep)


# -- which resets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "given"),
    [
        ({}, {"seed": SEED}),
        ({"level": 2}, {"level": 2, "seed": SEED}),
        ({"seed": None}, {"seed": SEED}),
        ({"seed": 5}, {"seed": 5}),
        ({"seed": 0}, {"seed": 0}),
    ],
)
def test_only_a_reset_without_a_seed_gets_one(own, given):
    row = ROW | {"_ng_rollout_index": 3}
    assert Seeding({}, derives=True, warns=True).kwargs(row, own) == given
    assert Seeding({"seed": None, "level": 1}, derives=True, warns=True).kwargs(row, own) == given
    for servers in (5, 0):
        assert Seeding({"seed": servers}, derives=True, warns=True).kwargs(row, own) == own
    assert Seeding({}, derives=False, warns=True).kwargs(row, own) == own


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/seed_session", {**ROW, "_ng_rollout_index": 1, "agent_ref": {"name": "a"}}),
        ("/reset", {**ROW, "_ng_rollout_index": 2, "agent_ref": {"name": "b"}}),
        ("/seed_session", typed_seed("name", ROW)),
        ("/seed_session", typed_seed("another", ROW, episode_id={"rollout_id": "r-2"})),
    ],
)
async def test_the_environment_gets_it_by_every_way_in(autojump_clock, path, body):
    environment = Resets()
    async with raise_the_curtain(environment, reset_kwargs={"level": 3}, derive_seed=True) as stage:
        assert (await stage.client().ask("POST", path, body)).status == 200
        assert environment.given == [{"level": 3, "seed": SEED}]


async def test_a_row_or_the_server_may_have_a_seed_of_its_own(autojump_clock):
    environment = Resets()
    async with raise_the_curtain(environment, derive_seed=True) as stage:
        await stage.client().seed({"reset_kwargs": {"seed": 1}})
        await stage.client().seed({"verifier_metadata": {"reset_kwargs": {"seed": 2}}})
        await stage.client().seed(typed_seed("name", {"reset_kwargs": {"seed": 3}}))
    async with raise_the_curtain(environment, reset_kwargs={"seed": 4}, derive_seed=True) as stage:
        await stage.client().seed(ROW)
        await stage.client().seed({"reset_kwargs": {"seed": 5}})
    assert environment.given == [{"seed": seed} for seed in (1, 2, 3, 4, 5)]


async def test_a_reset_that_is_tried_again_has_the_same_seed(autojump_clock):
    environment = Resets(failing=3)
    async with raise_the_curtain(environment, derive_seed=True, resets=ResetRules(retries=3)) as stage:
        assert (await stage.client().seed(ROW)).status == 200
        assert environment.given == [{"seed": SEED}] * 4


async def test_an_opening_that_is_tried_again_under_its_name_has_the_same_seed(autojump_clock):
    environment = Resets(failing=1)
    async with raise_the_curtain(environment, derive_seed=True, resets=ResetRules(retries=0)) as stage:
        statuses = [(await stage.client().seed(typed_seed("name", ROW))).status for _ in range(2)]
        assert (statuses, environment.given) == ([502, 200], [{"seed": SEED}] * 2)


# -- what is said ----------------------------------------------------------------------------------------------------


async def test_rows_that_repeat_without_a_seed_are_warned_of_once(autojump_clock):
    environment = Resets()
    with capture_logs() as logs:
        async with raise_the_curtain(environment) as stage:
            await stage.client().seed({**ROW, "_ng_rollout_index": 0})
            await stage.client().seed({"task_id": 8})
            assert warnings(logs) == []
            await stage.client().seed({**ROW, "_ng_rollout_index": 1})
            assert warnings(logs) == [WARNING]
            for number in range(3):
                await stage.client().seed({"task_id": 8, "_ng_rollout_index": number})
            assert warnings(logs) == [WARNING]
    assert environment.given == [{}] * 6


@pytest.mark.parametrize("how", ["derived", "the server's", "the rows'"])
async def test_nothing_is_said_where_there_are_seeds(autojump_clock, how):
    reset_kwargs = {"seed": 1} if how == "the server's" else {}
    row = {**ROW, "reset_kwargs": {"seed": 1}} if how == "the rows'" else ROW
    with capture_logs() as logs:
        async with raise_the_curtain(Resets(), reset_kwargs=reset_kwargs, derive_seed=how == "derived") as stage:
            for number in range(3):
                assert (await stage.client().seed({**row, "_ng_rollout_index": number})).status == 200
            assert (await stage.client().seed(typed_seed("name", row))).status == 200
    assert warnings(logs) == []


async def test_a_seed_that_is_sent_again_for_the_same_session_is_no_row_that_repeats(autojump_clock):
    with capture_logs() as logs:
        async with raise_the_curtain(Resets()) as stage:
            for _ in range(3):
                assert (await stage.client().seed(typed_seed("name", ROW))).status == 200
            assert warnings(logs) == []
            assert (await stage.client().seed(typed_seed("another", ROW))).status == 200
            assert warnings(logs) == [WARNING]


def test_where_a_row_says_where_an_episode_starts_nothing_is_said():
    seeding = Seeding({}, derives=False, warns=False)
    with capture_logs() as logs:
        for _ in range(2):
            assert seeding.kwargs(ROW, {"day": 3}) == {"day": 3}
    assert logs == []


def test_ten_thousand_rows_are_remembered():
    for others, said in ((9_999, [WARNING]), (10_000, [])):
        seeding = Seeding({}, derives=False, warns=True)
        with capture_logs() as logs:
            for number in (0, *range(1, others + 1), 0):
                seeding.kwargs({"task_id": number}, {})
        assert warnings(logs) == said
