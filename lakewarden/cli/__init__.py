"""The command line. `main` is the only place that turns errors into exit codes.

0 done or nothing to do · 1 failure · 2 usage · 3 partial · 10 no such table · 11 busy · 12 refused
13 lost the race · 14 commit unknown · 130 interrupted
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.main import get_command

from lakewarden.cli.app import app
from lakewarden.cli.invocation import Invocation
from lakewarden.cli.screen import Interrupted, Screen
from lakewarden.errors import LakewardenError, UsageError

DEBUG = "LAKEWARDEN_DEBUG"


def main(arguments: Sequence[str] | None = None, *, spark: Any = None) -> int:
    """Run one command and return its exit code. A given `spark` session is used unchanged and never stopped."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = get_command(app).main(
            args=words, prog_name="lakewarden", standalone_mode=False, obj=Invocation(spark=spark)
        )
        return code if isinstance(code, int) else 0
    except LakewardenError as error:
        return _failed(error, error, words)
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            return (
                0  # a command group without a subcommand: typer has printed its help, and this is no failure
            )
        return _failed(_usage(error, words), error, words)
    except (KeyboardInterrupt, typer.Abort) as error:
        return _failed(Interrupted(), error, words)
    except Exception as error:  # the last resort: one line instead of a traceback
        return _failed(_unexpected(error), error, words)


def _failed(shown: LakewardenError, error: BaseException, words: Sequence[str]) -> int:
    if os.environ.get(DEBUG):
        import traceback

        traceback.print_exception(error)
    Screen("--json" in words).error(shown)
    return shown.exit_code


def _usage(error: typer.TyperException, words: Sequence[str]) -> UsageError:
    """Convert a typer error about the command line to a UsageError, so that all errors look the same."""
    text = error.format_message().rstrip(".").replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    asked = context.command_path if context is not None else "lakewarden"
    hint = f"see `{asked} --help`"
    if "No such option: --config" in text:
        hint = "--config goes before the command: `lakewarden --config FILE COMMAND`"
    return UsageError(reason=text[:1].lower() + text[1:], hint=hint)


def _unexpected(error: Exception) -> LakewardenError:
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return LakewardenError(
        reason=f"unexpected {type(error).__name__}: {first}",
        hint=f"this is a bug in Lakewarden or an unknown failure; run the command again with {DEBUG}=1 for the traceback",
    )
