"""A command's last screen as a picture: coloured output on standard input, SVG on standard output.

FORCE_COLOR=1 COLUMNS=84 lakewarden demo | python docs/images/terminal.py "lakewarden demo" "demo  " > docs/images/demo.svg

The second argument says which line the screen begins with; everything before it is left out.
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

THEME = TerminalTheme(
    (22, 27, 34),
    (220, 224, 230),
    [(48, 54, 61), (255, 123, 114), (86, 211, 100), (227, 179, 65), (121, 192, 255), (210, 168, 255), (86, 212, 221), (177, 186, 196)],
    [(110, 118, 129), (255, 161, 152), (126, 231, 135), (242, 204, 96), (165, 214, 255), (226, 197, 255), (134, 226, 232), (255, 255, 255)],
)  # fmt: skip

# Rich's own frame fetches a font; this one takes the reader's.
FRAME = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix" xml:space="preserve">
{matrix}
</g>
</g>
</svg>
"""


def main(title: str, begins: str) -> None:
    screen = Text.from_ansi(sys.stdin.read()).split("\n", allow_blank=True)
    starts = [number for number, line in enumerate(screen) if line.plain.startswith(begins)]
    shown = screen[starts[-1] if starts else 0 :]
    for line in shown:
        line.rstrip()
    while shown and not shown[-1].plain:
        shown.pop()
    console = Console(record=True, width=84, file=sys.stderr, color_system="truecolor", highlight=False)
    for line in shown:
        console.print(line, no_wrap=True, crop=False)
    print(console.export_svg(title=title, theme=THEME, code_format=FRAME, unique_id="demo"), end="")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
