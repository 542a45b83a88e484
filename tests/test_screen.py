"""What ``gymserve top`` shows, line by line: of a listing and the time, without a terminal."""

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console, Group
from rich.text import Text
from told import listing, server, session

from gymserve.cli.columns import duration
from gymserve.cli.listing import Filters, Listing
from gymserve.cli.screen import ORDERS, Answer, Loss, View, next_order, report, screen

URL = "http://127.0.0.1:8100"
OTHER = "http://127.0.0.1:8001"
HOSTILE = {
    "an escape sequence": ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
    "lines": ("a\r\nb\tc\x85d\u2028e", "a\\r\\nb\\tc\\x85d\\u2028e"),
    "an override of the direction": ("run\u202e7\u2066", "run\\u202e7\\u2066"),
    "markup": ("[red]a[/red] [link=http://x]b :smile:", "[red]a[/red] [link=http://x]b :smile:"),
    "a lone surrogate": ("\ud800", "\\ud800"),
}


def view(told: Any, *, now: float = 0.0, **known: Any) -> View:
    """Of a listing that came at 0."""
    answer = None if told is None else Answer(Listing.model_validate(told), 0.0, 0.0042)
    return View(**{"url": URL, "filters": Filters(), "order": "expires", "now": now, "answer": answer, **known})


def drawn(told: Any, width: int = 100, height: int = 20, **known: Any) -> list[str]:
    """The lines, without the empty ones before the last."""
    *lines, keys = [line.plain.rstrip() for line in screen(view(told, **known), width, height)]
    while lines and not lines[-1]:
        lines.pop()
    return [*lines, keys]


def ends(left: str, right: str, width: int = 100) -> str:
    return left + right.rjust(width - len(left))


def rows(told: Any, **known: Any) -> list[str]:
    """The ids of the sessions, shortened."""
    return [line[10:12] for line in drawn(told, **known) if line.startswith("0000000000")]


A_BUSY_DAY = listing(
    session(1, state="busy", idle_deadline_in_seconds=None, steps=17, reward=1.25, age_seconds=3700),
    session(2, idle_deadline_in_seconds=8.2),
    session(3, label="eval", env=OTHER, idle_deadline_in_seconds=118.0),
    session(4, label=None, state="opening", env=OTHER, steps=0, reward=0.0, idle_deadline_in_seconds=None),
    session(5, state="done", holds_slot=False, idle_deadline_in_seconds=None),
    session(6, state="done", env=OTHER, idle_deadline_in_seconds=None),
    waiting=5,
    oldest_wait_seconds=65.0,
    expected_wait_seconds=30.0,
    line=[
        {"label": "eval", "waiting": 1, "oldest_wait_seconds": 2.0},
        {"label": "run-7", "waiting": 4, "oldest_wait_seconds": 65.0},
    ],
    reclaimed_alive=2,
    servers=[
        server(capacity=3, state="full", busy=1, idle=1, closing=1),
        server(OTHER, state="draining", opening=2, idle=1, closing=1),
    ],
)


def test_all_that_there_is() -> None:
    assert drawn(A_BUSY_DAY) == [
        ends("http://127.0.0.1:8100  instance 0a1b2c3d", "answered in 4 ms, 0s ago"),
        "6 sessions  # 1 busy  = 2 idle  + 1 opening  . 4 free  2 done  2 reclaimed alive",
        "SERVER                 STATE     HELD  SLOTS",
        "http://127.0.0.1:8000  full       3/3  #=x",
        "http://127.0.0.1:8001  draining   4/8  =++x....",
        "5 wait with 2 labels, the oldest for 1m05s; a seed now would wait 30s",
        "run-7: 4 (1m05s)  eval: 1 (2s)",
        "ID            STATE    EXPIRES     AGE  STEPS   REWARD  SERVER          LABEL",
        "000000000001  busy           -   1h01m     17    1.250  127.0.0.1:8000  run-7",
        "000000000002  idle          9s   1m15s      3    0.500  127.0.0.1:8000  run-7",
        "000000000003  idle       1m58s   1m15s      3    0.500  127.0.0.1:8001  eval",
        "000000000004  opening        -   1m15s      0    0.000  127.0.0.1:8001  -",
        "000000000005  done           -   1m15s      3    0.500  127.0.0.1:8000  run-7",
        "000000000006  done           -   1m15s      3    0.500  127.0.0.1:8001  run-7",
        "q leaves  s sorts: EXPIRES age steps label  r asks now",
    ]


def test_where_it_is_narrow_columns_are_left_out_and_no_line_wraps() -> None:
    assert drawn(A_BUSY_DAY, 60) == [
        "http://127.0.0.1:8100  instance 0…  answered in 4 ms, 0s ago",
        "6 sessions  # 1 busy  = 2 idle  + 1 opening  . 4 free",
        "2 done  2 reclaimed alive",
        "SERVER                 STATE     HELD  SLOTS",
        "http://127.0.0.1:8000  full       3/3  #=x",
        "http://127.0.0.1:8001  draining   4/8  =++x....",
        "5 wait with 2 labels, the oldest for 1m05s; a seed now woul…",
        "run-7: 4 (1m05s)  eval: 1 (2s)",
        "ID            STATE    EXPIRES  STEPS  LABEL",
        "000000000001  busy           -     17  run-7",
        "000000000002  idle          9s      3  run-7",
        "000000000003  idle       1m58s      3  eval",
        "000000000004  opening        -      0  -",
        "000000000005  done           -      3  run-7",
        "000000000006  done           -      3  run-7",
        "q leaves  s sorts: EXPIRES age steps label  r asks now",
    ]


def test_nothing_is_said_of_what_there_is_not() -> None:
    assert drawn(listing(servers=[server(capacity=None)])) == [
        ends("http://127.0.0.1:8100  instance 0a1b2c3d", "answered in 4 ms, 0s ago"),
        "0 sessions",
        "SERVER                 STATE  HELD  SLOTS",
        "http://127.0.0.1:8000  ready   0/?",
        "nobody waits",
        "q leaves  s sorts: EXPIRES age steps label  r asks now",
    ]


@pytest.mark.parametrize("width", [1, 2, 7, 20, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("height", [1, 2, 3, 5, 10, 20, 30, 50])
def test_it_is_as_large_as_the_terminal(width: int, height: int) -> None:
    wide = session(9, label="\u4e16\u754c" * 90)
    many = listing(*A_BUSY_DAY["sessions"], *[wide] * 60, line=A_BUSY_DAY["line"] * 9, servers=[server(busy=66)] * 30)
    lost = Loss("no gymserve can be reached", 0.0, 7.0)
    for known in ({}, {"loss": lost}, {"filters": Filters("\u4e16" * 99, "idle")}):
        lines = screen(view(many, **known), width, height)
        assert len(lines) == height
        assert max(cell_len(line.plain) for line in lines) <= width


# -- sessions --------------------------------------------------------------------------------------------------------


def test_the_orders_go_round_and_the_keys_tell_which_it_is() -> None:
    order, seen = ORDERS[0], []
    for _ in ORDERS:
        seen.append(drawn(listing(), order=order)[-1].partition(": ")[2])
        order = next_order(order)
    assert order == ORDERS[0]
    assert seen == [
        "EXPIRES age steps label  r asks now",
        "expires AGE steps label  r asks now",
        "expires age STEPS label  r asks now",
        "expires age steps LABEL  r asks now",
    ]


def test_sessions_stay_in_the_order_they_were_told_in() -> None:
    assert rows(listing(session(3), session(1, steps=9), session(2, idle_deadline_in_seconds=None))) == [
        "03",
        "01",
        "02",
    ]


def test_there_are_as_many_as_fit_and_then_a_number() -> None:
    sessions = [session(number, idle_deadline_in_seconds=float(number)) for number in range(1, 31)]
    fits = listing(*sessions[:13])
    assert len(drawn(fits, height=20)) == 20 and rows(fits)[-1] == "0d"
    more = drawn(listing(*sessions, matching=2000), height=20)
    assert more[-3].startswith("00000000000c ") and more[-2] == "and 1,988 more"


def test_it_counts_down_between_answers() -> None:
    one = listing(session(idle_deadline_in_seconds=61.5))

    def expires_and_age(now: float) -> list[str]:
        return drawn(one, now=now)[6].split()[2:4]

    assert expires_and_age(0) == ["1m02s", "1m15s"]
    assert expires_and_age(0.5) == ["1m01s", "1m15s"]
    assert expires_and_age(2) == ["1m00s", "1m17s"]
    assert expires_and_age(100) == ["0s", "2m55s"]


def test_what_was_asked_for_is_told() -> None:
    some = {"matching": 1, "counts": {**listing()["counts"], "idle": 41}}
    assert drawn(listing(session(), **some), filters=Filters("run-7", "idle"))[5] == (
        "1 session with label run-7 in state idle"
    )
    assert drawn(listing(session(), **some), filters=Filters("a\x1b"))[5] == "1 session with label a\\x1b"


@pytest.mark.parametrize(("written", "shown"), HOSTILE.values(), ids=HOSTILE)
def test_strange_words_do_no_harm(written: str, shown: str) -> None:
    told = listing(
        session(label=written, id=written[:40]),
        session(2, state=written),
        line=[{"label": written, "waiting": 1, "oldest_wait_seconds": 1.0}],
        servers=[server(written, state=written), server()],
    )
    written_to = io.StringIO()
    console = Console(file=written_to, force_terminal=True, width=300, color_system="truecolor", legacy_windows=False)
    console.print(Group(*screen(view(told, loss=Loss(written, 0.0, None)), 300, 20)))
    plain = Text.from_ansi(written_to.getvalue()).plain
    assert plain.count(shown) >= 5
    assert written_to.getvalue().replace("\x1b[", "").isprintable() is False  # lines, and nothing else
    assert all(line.replace("\x1b[", "").isprintable() for line in written_to.getvalue().split("\n"))


# -- slots -----------------------------------------------------------------------------------------------------------


def bars(told: Any, width: int = 100, height: int = 30) -> list[str]:
    lines = drawn(told, width, height)
    first = next(number for number, line in enumerate(lines) if line.startswith("SERVER"))
    return [line for line in lines[first : lines.index("nobody waits")] if line]


def test_a_long_bar_goes_on_in_further_lines() -> None:
    told = listing(servers=[server(busy=100, capacity=120)])
    first, second = bars(told)[1:3]
    assert first == "http://127.0.0.1:8000  ready  100/120  " + "#" * 61
    assert second == " " * 39 + "#" * 39 + "." * 20


@pytest.mark.parametrize("width", [60, 100, 200])
def test_of_two_thousand_slots_each_cell_is_some(width: int) -> None:
    told = listing(servers=[server(busy=1500, closing=1, capacity=2000)])
    title, *lines = bars(told, width)
    a_cell = int(title.partition("(")[2].split()[0])
    cells = "".join(line[line.index("2,000") + 5 :] if "2,000" in line else line for line in lines)
    assert len(lines) <= 3 and max(map(len, lines)) <= width
    assert (cells.count("#"), cells.count("x"), cells.count(".")) == (-(-1500 // a_cell), 1, -(-499 // a_cell))


def test_of_many_servers_the_last_are_counted() -> None:
    servers = [server(f"http://10.0.0.{number}:8000", state="aside" if number % 9 else "ready") for number in range(40)]
    lines = bars(listing(servers=servers))
    assert len(lines) == 9
    assert lines[-1] == "and 33 more servers: 29 aside, 4 ready"


# -- the line --------------------------------------------------------------------------------------------------------


def line_of(told: Any, height: int = 20) -> list[str]:
    lines = drawn(told, height=height)
    return lines[next(number for number, line in enumerate(lines) if " wait" in line) : -1]


def queue(label: str | None, waiting: int, oldest: float) -> dict[str, Any]:
    return {"label": label, "waiting": waiting, "oldest_wait_seconds": oldest}


def test_one_line_is_enough_for_those_without_a_label() -> None:
    told = listing(waiting=1, oldest_wait_seconds=3.9, line=[queue(None, 1, 3.9)], holds_seeds=True)
    assert line_of(told) == ["SEEDS ARE HELD  1 waits, the oldest for 3s"]


def test_of_many_labels_those_are_shown_that_wait_longest() -> None:
    told = listing(waiting=45, oldest_wait_seconds=11.0, line=[queue(f"run-{n}", n, float(n)) for n in range(12)])
    assert line_of(told) == [
        "45 wait with 12 labels, the oldest for 11s",
        "run-11: 11 (11s)  run-10: 10 (10s)  run-9: 9 (9s)  run-8: 8 (8s)  run-7: 7 (7s)  run-6: 6 (6s)",
    ]
    assert len(line_of(told, height=30)) == 3


# -- when it does not answer -----------------------------------------------------------------------------------------

REFUSED = "no gymserve can be reached at http://127.0.0.1:8100: Connection refused; check that it is running there"


def test_before_the_first_answer() -> None:
    assert drawn(None, now=1.5, asking_since=0.0) == [
        ends("http://127.0.0.1:8100", "asking for 1s"),
        "q leaves  s sorts: EXPIRES age steps label  r asks now",
    ]
    assert drawn(None, now=4.5, loss=Loss(REFUSED, 0.0, 7.0))[:3] == [
        ends("http://127.0.0.1:8100", "LOST"),
        "lost for 4s, next try in 3s: no gymserve can be reached at http://127.0.0.1:8100: Connection",
        "refused; check that it is running there",
    ]


def test_a_slow_answer_is_told() -> None:
    assert drawn(listing(), now=4.5, asking_since=2.0)[0].endswith("  last answer 4s ago  asking for 2s")


def test_a_lost_one_is_told_and_what_was_known_is_dimmed() -> None:
    lost = view(listing(session()), now=12.0, loss=Loss(REFUSED, 2.0, None))
    lines = screen(lost, 100, 20)
    assert lines[0].plain.endswith("LOST  last answer 12s ago")
    assert lines[1].plain.startswith("lost for 10s, asking again: no gymserve")
    assert [line.plain.split() for line in lines if "dim" in {str(span.style) for span in line.spans}][-1][
        0
    ] == "000000000001"


# -- looking once ----------------------------------------------------------------------------------------------------


def test_a_report_leaves_nothing_out() -> None:
    sessions = [session(number) for number in range(500)]
    servers = [server(idle=500, capacity=None), *[server()] * 50]
    queues = [queue(f"run-{n}", n, float(n)) for n in range(40)]
    told = Listing.model_validate(listing(*sessions, servers=servers, line=queues, waiting=9))
    lines = [line.plain for line in report(URL, told, Filters(), 80)]
    assert lines[0] == "http://127.0.0.1:8100  instance 0a1b2c3d"
    assert sum(line.startswith("0000000") for line in lines) == 500
    assert sum(line.startswith("http:") for line in lines) == 52
    assert all(any(f"run-{n}: {n} ({n}s)" in line for line in lines) for n in range(40))
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-1, "0s"),
        (0.9, "0s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (86399, "23h59m"),
        (86400, "1d00h"),
        (9_000_000, "104d04h"),
    ],
)
def test_durations(seconds: float, told: str) -> None:
    assert duration(seconds) == told
