"""Headless Chromium, and queries about the page in it."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from tests.waiting import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
WIDTHS = {"desktop": (1280, 800), "tablet": (820, 1100), "phone": (360, 780)}
SIZES = {"desk": (1440, 900), "phone": (390, 844)}
"""Screens on which every page is tested."""
TAGS = (
    "a|button|code|dd|div|dl|dt|figure|form|h1|h2|h3|header|input|label|li|main|nav|option|output"
    "|p|path|pre|rect|section|select|small|span|strong|svg|table|tbody|td|textarea|th|thead|tr|ul"
)
_RAW = re.compile(
    rf"^/?(?:{TAGS})$|</?(?:{TAGS})\b|\bundefined\b|\[object \w+\]|\bNaN\b|\bnull\b", re.MULTILINE
)
"""Text that only a mistake in a template shows."""
browser_only = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="chromium and chromium-driver are not installed"
)


def make_browser(width: int = 1280, height: int = 800, **media: str) -> Any:
    """Start a browser of the given size; ``media``: the user's preferences."""
    options = Options()
    options.binary_location = CHROMIUM or ""
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "hide-scrollbars",
    ):
        options.add_argument(f"--{flag}")
    # The browser itself must send no requests.
    for flag in ("disable-background-networking", "disable-component-update", "no-first-run"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(60)
    resize(driver, width, height)
    if media:
        features = [
            {"name": f"prefers-{k.replace('_', '-')}", "value": v} for k, v in media.items()
        ]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    return driver


def resize(driver: Any, width: int, height: int) -> None:
    """Emulate a screen of the given size."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
    )


def appears(driver: Any, selector: str, count: int = 1) -> Any:
    """Wait until there are ``count`` elements, and return them."""
    script = "return [...document.querySelectorAll(arguments[0])]"
    return wait_until(
        lambda: found if len(found := driver.execute_script(script, selector)) >= count else None,
        lambda: f"{selector}: {driver.execute_script('return document.body.innerText')[:2000]}",
        every_s=0.05,
    )


def text_of(driver: Any) -> str:
    """Return the visible text."""
    return str(driver.execute_script("return document.body.innerText"))


def flaws(driver: Any) -> list[str]:
    """Return what no page shows: raw tags and values, text beyond the screen, complaints."""
    found = [f"{m[0]!r} is shown" for m in _RAW.finditer(text_of(driver))]
    wide = driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
    return found + [f"{wide} px too wide"] * (wide > 0) + complaints(driver)


def type_into(driver: Any, selector: str, text: str) -> None:
    """Replace the text of a field, as typing does."""
    driver.execute_script(
        "const e = document.querySelector(arguments[0]); e.value = arguments[1];"
        "e.dispatchEvent(new Event('input', {bubbles: true}))",
        selector,
        text,
    )


def press(driver: Any, key: str) -> None:
    """Press a key at the focused element."""
    driver.execute_script(
        "(document.activeElement ?? document.body).dispatchEvent("
        "new KeyboardEvent('keydown', {key: arguments[0], bubbles: true, cancelable: true}))",
        key,
    )


def requests(driver: Any) -> tuple[list[str], dict[str, int]]:
    """Return the URLs that the page requested, and bytes by URL."""
    urls: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        params = message["params"]
        if message["method"] == "Network.requestWillBeSent":
            urls[params["requestId"]] = params["request"]["url"]
        elif message["method"] == "Network.loadingFinished":
            url = urls.get(params["requestId"], "")
            sizes[url] = sizes.get(url, 0) + params["encodedDataLength"]
    return list(urls.values()), sizes


def complaints(driver: Any) -> list[str]:
    """Return warnings and errors of the browser's console."""
    return [e["message"] for e in driver.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]
