"""The command `vitreous`: its commands, and how every error becomes one line and an exit code."""

import logging
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from vitreous.base.errors import Interrupted, VitreousError
from vitreous.base.version import __version__
from vitreous.cli import (
    check,
    convert,
    demo,
    evaluate,
    explain,
    export,
    finetune,
    info,
    models,
    predict,
    pretrain,
    probe,
)
from vitreous.cli.output import errors

DONE, WRONG, INTERRUPTED = 0, 1, 130


class Commands(TyperGroup):
    """Runs a command; anything wrong with the data or the model is one line on stderr."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            errors.print("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except (VitreousError, OSError) as error:
            if ctx.params.get("debug"):
                raise
            if isinstance(error, BrokenPipeError):  # `vitreous ... | head`
                sys.stdout = None
                raise typer.Exit(WRONG) from None
            interrupted = isinstance(error, Interrupted)
            errors.print(*([] if interrupted else ["[bold red]error:[/]"]), _one_line(error), soft_wrap=True)
            raise typer.Exit(INTERRUPTED if interrupted else WRONG) from None


def _one_line(error: Exception) -> str:
    from rich.markup import escape

    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        text = str(error)
    return escape(" ".join(text.split()))


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The classic Vision Transformer that you can trust and see through.",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"vitreous {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """What comes before the command."""
    from rich.logging import RichHandler

    handler = RichHandler(console=errors, show_time=False, show_level=False, show_path=False, markup=False)
    warnings.filterwarnings("ignore", module="PIL")  # what Pillow corrects by itself
    logger = logging.getLogger("vitreous")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


for module in (demo, check, info, predict, explain, finetune, pretrain, probe, evaluate, convert, export, models):
    app.command()(getattr(module, module.__name__.rsplit(".", 1)[-1]))


def run() -> None:
    """Entry point; `--debug` may stand anywhere."""
    if "--debug" in sys.argv[2:]:
        sys.argv.remove("--debug")
        sys.argv.insert(1, "--debug")
    app(prog_name="vitreous")
