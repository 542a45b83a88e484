"""Pictures of the dashboard, the README's among them: ``PYTHONPATH=tests:tests/http picture.py DIRECTORY`` plays some
minutes of rollouts before a real gymserve and three environment servers, and takes them.
"""

import random
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread

import httpx
from conftest import CHROMIUM
from playwright.sync_api import Browser, Page, sync_playwright
from processes import running

PLAYED_SECONDS = 250.0
IDLE_SECONDS = 45
SLOW = ("--fault", "slow-step:0.8", "--fault", "slow-reset:1.2", "--fault", "slow-close:1.2")
ENVIRONMENTS = {24: SLOW, 16: SLOW, 8: (*SLOW, "--fault", "drop-mid-step:20")}  # by the slots of each
RUNS = {"grpo-8b/train": 30, "grpo-8b/eval": 14, "ablation-kl": 9}
CALLS = (12, 24)
DISPATCH = {"battery_mw": 0, "generator_mw": 1}
THINK_SECONDS = 2.5
ABANDONED, LATE = 0.05, 0.05
PICTURES = {
    "dashboard": (1600, 960, "light"),
    "dashboard-dark": (1600, 960, "dark"),
    "dashboard-wide": (1920, 1080, "light"),
    "dashboard-narrow": (360, 1600, "dark"),
}


def play(url: str, label: str, chance: random.Random, over: Event) -> None:
    """One rollout after the other; some are abandoned, and some verified when they are reclaimed already."""
    with suppress(httpx.TransportError):  # gymserve has stopped
        while not over.is_set():
            with httpx.Client(base_url=url, trust_env=False, timeout=300.0) as client:
                client.post("/seed_session", json={"gymserve_label": label})
                for _ in range(chance.randint(*CALLS)):
                    over.wait(chance.expovariate(1 / THINK_SECONDS))
                    client.post("/dispatch", json=DISPATCH)
                fate = chance.random()
                if fate < ABANDONED:
                    continue
                if fate < ABANDONED + LATE:
                    over.wait(IDLE_SECONDS + 2)
                client.post("/verify", json={"responses_create_params": {}, "response": {}})


def take(page: Page, directory: Path) -> None:
    for name, (width, height, scheme) in PICTURES.items():
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(700)
        page.screenshot(path=directory / f"{name}.png")


def main(directory: Path) -> None:
    over = Event()
    with ExitStack() as stack:
        servers = [stack.enter_context(running("env", "--capacity", str(n), *f)) for n, f in ENVIRONMENTS.items()]
        envs = [flag for server in servers for flag in ("--env", server.url)]
        gymserve = stack.enter_context(running("serve", *envs, "--idle-timeout", str(IDLE_SECONDS)))
        browser: Browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        stack.callback(browser.close)
        page = browser.new_page()
        page.goto(f"{gymserve.url}/gymserve/dashboard")
        labels = [label for label, clients in RUNS.items() for _ in range(clients)]
        for number, label in enumerate(labels):
            Thread(target=play, args=(gymserve.url, label, random.Random(number), over), daemon=True).start()
            page.wait_for_timeout(100)
        finished_at = time.monotonic() + PLAYED_SECONDS
        while time.monotonic() < finished_at:
            page.wait_for_timeout(1000)
        take(page, directory)
        over.set()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
