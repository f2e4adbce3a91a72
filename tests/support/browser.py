"""The system's Chromium, driven by playwright; nothing is downloaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 740}


@contextmanager
def chromium() -> Iterator[Browser]:
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("no chromium on this machine: run scripts/browser.sh as root, or install it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def page(browser: Browser, address: str, **options: Any) -> Iterator[Page]:
    """A page whose script errors, and whose refusals by the content policy, fail the test that opened it."""
    context = browser.new_context(**{"viewport": WIDE, "base_url": address, **options})
    opened, wrong = context.new_page(), list[str]()
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on(
        "console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None
    )
    try:
        yield opened
    finally:
        context.close()
    assert not wrong, wrong


def widest(opened: Page) -> int:
    """How far the page reaches beyond its window: 0 where nobody has to scroll sideways."""
    found: int = opened.evaluate(
        "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return found
