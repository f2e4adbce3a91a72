"""The console's style sheet and script: colours that can be read, and nothing fetched from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lakewarden.console

CONSOLE = Path(lakewarden.console.__file__).parent
STYLE = (CONSOLE / "static" / "console.css").read_text("utf-8")
# Foreground and background as pages use them; 4.5 to 1 is what WCAG asks of text.
PAIRS = [
    *((text, back) for text in ("text", "soft", "link") for back in ("page", "card", "raised")),
    *((tone, f"{tone}-bg") for tone in ("good", "warn", "bad", "calm")),
    *((tone, "card") for tone in ("good", "warn", "bad")),
    *(("text", f"{tone}-bg") for tone in ("good", "warn", "bad", "calm")),
    *(("soft", f"{tone}-bg") for tone in ("warn", "bad", "calm")),
    *(("link", f"{tone}-bg") for tone in ("warn", "bad")),
    ("button-text", "button"),
]


def palettes() -> dict[str, dict[str, str]]:
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", each))
        for each in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    )
    return {"light": light, "dark": dark}


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(scheme: str) -> None:
    colours = palettes()[scheme]
    poor = {}
    for text, back in PAIRS:
        high, low = sorted((luminance(colours[text]), luminance(colours[back])), reverse=True)
        ratio = (high + 0.05) / (low + 0.05)
        if ratio < 4.5:
            poor[f"{text} on {back}"] = round(ratio, 2)
    assert not poor, poor


def test_dark_names_every_colour_that_light_does() -> None:
    found = palettes()
    assert found["light"].keys() == found["dark"].keys()


def test_nothing_is_fetched_from_elsewhere() -> None:
    for path in (*CONSOLE.glob("static/*"), *CONSOLE.glob("templates/*")):
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.[a-z]|@import|[ :]url\(", text), path.name


def test_pages_need_no_leave_for_what_is_inline() -> None:
    """The content policy allows neither inline scripts nor inline styles."""
    for path in CONSOLE.glob("templates/*"):
        text = path.read_text("utf-8")
        assert not re.search(r"<script(?! src=)|\sstyle=|\son[a-z]+=|<style", text), path.name
