"""Pictures of every page of a running application: light and dark, 1280 and 390 pixels wide.

    python -m tests.dashboard.screenshots FOLDER [--minutes 10]

With `--readme`, those of the README are taken again, too. They change with every run, so this is no test: look at them.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from tests.support.ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Page

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SIZES = {"wide": (1280, 800), "phone": (390, 844)}
_START_SECONDS_MAX = 180

APP = """\
connector:
  - {id: tills, type: connector-protocol, codec: json, schema: "shop STRING, amount DOUBLE", event_time: {field: at}}
  - id: orders
    type: http-server
    config: {port: PORT}
    codec: json
    schema: shop STRING, amount DOUBLE
    event_time: {ingest: true}
  - id: turnover
    type: sqlite
    config: {path: turnover.db, table: turnover, format: json, create: true}
    codec: json
  - {id: archive, type: file, config: {mode: write, path: archive}, codec: json}
  - {id: alerts, type: file, config: {mode: write, path: alerts}, codec: json}
pipeline:
  - {id: per-shop, spark: "pipelines.py:per_shop", trigger: 1s}
  - {id: big-orders, spark: "pipelines.py:big_orders", trigger: 1s}
binding:
  id: main
  links:
    connector/tills/out: pipeline/per-shop/in
    connector/orders/out: pipeline/big-orders/in
    pipeline/per-shop/out: connector/turnover/in
    pipeline/big-orders/out: [connector/archive/in, connector/alerts/in]
"""

PIPELINES = """\
from pyspark.sql import DataFrame

from penstock import windows


def per_shop(tills: DataFrame) -> DataFrame:
    return windows.aggregate(
        tills, windows.tumbling("10 seconds"), keys=["shop"], sales=windows.count(), total=windows.sum("amount")
    )


def big_orders(orders: DataFrame) -> DataFrame:
    return orders.where("amount > 50").select("shop", "amount")
"""

TILL = """\
import json, random, sys, time
from datetime import datetime, timedelta, timezone

from penstock.client import Message, Source

delay = timedelta(seconds=float(sys.argv[3]))


def sales(after):
    number = after or 0
    while True:
        number += 1
        time.sleep(random.uniform(0.02, 0.06))
        sale = {"shop": random.choice(["north", "south", "harbour"]), "amount": round(random.uniform(1, 99), 2)}
        sale["at"] = (datetime.now(timezone.utc) - delay).isoformat()
        if number % 400 == 0:
            sale["amount"] = "n/a"
        yield Message(number, json.dumps(sale).encode())


source = Source(sys.argv[1], source="tills")
source.stream(sys.argv[2], sales)
source.run()
"""

CUSTOMER = """\
import json, random, sys, time, urllib.request

while True:
    order = json.dumps({"shop": "online", "amount": round(random.uniform(1, 99), 2)})
    urllib.request.urlopen(urllib.request.Request(sys.argv[1], data=order.encode()), timeout=60).read()
    time.sleep(random.uniform(0.2, 1))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=10, help="how long the application runs before")
    parser.add_argument("--readme", action="store_true", help="take the two of the README again")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="shop-") as made:
        _run(Path(made), given.folder.resolve(), given.minutes * 60)
    if given.readme:
        for name in ("overview", "pipeline"):
            shutil.copy(given.folder / f"{name}-readme.png", IMAGES / f"{name}.png")


def _run(work: Path, folder: Path, seconds: float) -> None:
    port, dashboard, http = free_port(), free_port(), free_port()
    for name, text in {"shop.yaml": APP, "pipelines.py": PIPELINES, "till.py": TILL, "customer.py": CUSTOMER}.items():
        (work / name).write_text(text.replace("PORT", str(http)))
    python, log = sys.executable, (work / "log").open("w+")
    ports = ["--connector-port", str(port), "--segment-port", "0", "--http-port", "0"]
    run = [python, "-m", "penstock", "worker", "--store", f"file://{work}/store", "--allow-callbacks", *ports]
    commands = [
        [*run, "--file-root", "/", "--dashboard-port", str(dashboard)],
        [python, "-m", "penstock", "run", "shop.yaml"],
        *([python, "till.py", f"127.0.0.1:{port}", name, lag] for name, lag in (("till-1", "0"), ("till-2", "6"))),
        [python, "customer.py", f"http://127.0.0.1:{http}/"],
    ]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            running.append(subprocess.Popen(command, cwd=work, stdout=log, stderr=log, env=os.environ))
            if number < 2:
                _wait(work / "log", "dashboard: http" if number == 0 else "penstock.run: ready: POST")
        link = next(line for line in (work / "log").read_text().splitlines() if "dashboard: http" in line)
        time.sleep(seconds)
        token = (work / "penstock-data" / "token").read_text().strip()
        _shoot(link.partition("dashboard: ")[2].split()[0].rstrip("/"), token, folder, (work / "shop.yaml").read_text())
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(60)
        shutil.copy(work / "log", folder / "log")


def _wait(log: Path, text: str) -> None:
    deadline = time.monotonic() + _START_SECONDS_MAX
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.5)


PAGES = {
    "overview": "/",
    "source": "/source?name=tills",
    "pipeline": "/pipeline?name=per-shop",
    "sink": "/sink?pipeline=per-shop&name=turnover",
    "dead-letters": "/dead-letters",
    "segments": "/segments?name=connector/tills/0",
    "cluster": "/cluster",
    "settings": "/settings",
}


def _shoot(root: str, token: str, folder: Path, application: str) -> None:
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(reduced_motion="reduce")
        page.goto(f"{root}/login")
        _variants(page, folder, "login")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(f"{root}/")
        for name, path in PAGES.items():
            page.goto(root + path)
            _prepare(page, name, application)
            _variants(page, folder, name)
        for name in ("overview", "pipeline"):
            page.set_viewport_size({"width": 1280, "height": 800})
            page.emulate_media(color_scheme="light")
            page.goto(root + PAGES[name])
            page.wait_for_timeout(3000)
            page.screenshot(path=folder / f"{name}-readme.png")
        chromium.close()


def _prepare(page: "Page", name: str, application: str) -> None:
    page.wait_for_timeout(3000)  # charts are drawn, and the page has refreshed once
    if name == "dead-letters":
        page.get_by_role("checkbox").nth(1).click()
    if name == "settings":
        editor = page.locator(".cm-content")
        editor.click()
        editor.fill(application.replace("trigger: 1s", "trigger: 5s"))
        page.get_by_role("button", name="Show what would change").click()
        page.wait_for_timeout(2000)


def _variants(page: "Page", folder: Path, name: str) -> None:
    for size, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.wait_for_timeout(1000)
            page.screenshot(path=folder / f"{name}-{size}-{theme}.png", full_page=True)


if __name__ == "__main__":
    main()
