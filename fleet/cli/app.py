"""The command `fleet`: verbs in, one clear line and an exit code out.

Exit codes: 0 done, 1 failed with one line on standard error, 2 wrong usage, 128 + n ended by signal n. Only
this module turns errors into lines; nothing heavy is imported before a verb runs, so help is instant.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Annotated, NoReturn

import typer

from agents.errors import AgentError
from agents.host.process_control import begin_process
from fleet.cli import (
    daemon,
    dashboard,
    datasets,
    devices,
    interchange,
    jobs,
    lookup,
    models,
    requests,
    store,
    training,
)
from fleet.cli.help_text import HelpGroup, Panel, add_verb
from fleet.cli.output import Interrupted, OutputError, open_standard_streams
from fleet.errors import FleetError, UsageError
from fleet.terminal_text import make_logs_visible, print_text, say_text

#: Extra of the distribution that brings a package, by the name that is imported.
_EXTRAS = {
    **dict.fromkeys(("deltalake", "filelock", "numpy", "orjson", "pyarrow", "scipy"), "store"),
    **dict.fromkeys(("psutil", "tvm", "tvm_ffi"), "measure"),
    **dict.fromkeys(("safetensors", "torch", "xgboost"), "train"),
    **dict.fromkeys(("fastapi", "jinja2", "prometheus_client", "ray", "starlette", "uvicorn"), "daemon"),
}

app = typer.Typer(
    name="fleet",
    cls=HelpGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        typer.echo(f"tensor-fleet {version('tensor-fleet')}")
        raise typer.Exit


@app.callback(
    help="Find fast tensor programs for a network, and train cost models for a fleet of unlike devices.\n\n"
    "Start with `fleet tune DEVICE NETWORK`: it makes a network faster and needs no data. `fleet demo` does "
    "the whole job of a fleet on this host; then come `fleet doctor`, `fleet init` and `fleet collect`."
)
def _fleet(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    if debug:
        os.environ["FLEET_DEBUG"] = "1"


class _Signals:
    """Handler of SIGINT and SIGTERM that remembers which one came.

    It must: an exception raised by a handler comes out of a call to Ray as a `SystemError`, and typer turns a
    `KeyboardInterrupt` into another exit code.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    def __call__(self, number: int, _frame: FrameType | None) -> NoReturn:
        # A second signal ends the process at once, should closing hang.
        signal.signal(number, signal.SIG_DFL)
        self.number = number
        raise Interrupted(number)


#: Verbs by group and name, in the order of the help.
_VERBS: Mapping[Panel, Mapping[str, Callable[..., None]]] = {
    Panel.START: {
        "tune": jobs.tune,
        "demo": jobs.demo,
        "init": devices.init,
        "doctor": devices.doctor,
        "probe": devices.probe,
    },
    Panel.MEASURE: {"collect": jobs.collect},
    Panel.LEARN: {"train": training.train, "eval": training.evaluate, "onboard": training.onboard},
    Panel.USE: {"show": lookup.show, "workloads": lookup.workloads, "compare": dashboard.compare_sides},
    Panel.OPERATE: {"up": daemon.up, "status": jobs.status, "dashboard": dashboard.dashboard},
    Panel.DATA: {"import": interchange.import_, "export": interchange.export},
}
for _panel, _verbs in _VERBS.items():
    for _name, _verb in _verbs.items():
        add_verb(app, _name, _verb, _panel)


def _add_group(
    panel: Panel, name: str, text: str, cls: type[HelpGroup] = HelpGroup, **verbs: Callable[..., None]
) -> None:
    """Add verbs that share their first word; without one of them the group shows its help."""
    group = typer.Typer(help=text, no_args_is_help=cls is HelpGroup, cls=cls)
    for verb, function in verbs.items():
        add_verb(group, verb, function)
    app.add_typer(group, name=name, rich_help_panel=panel)


_add_group(
    Panel.MEASURE,
    "devices",
    "List, add and retire the devices of the fleet.",
    list=devices.list_devices,
    add=devices.add,
    retire=devices.retire,
)
_add_group(
    Panel.USE,
    "models",
    "Show which model version serves which device, and choose another one.",
    list=models.list_models,
    show=models.show,
    diff=models.diff,
    use=models.use,
    unpin=models.unpin,
)
_add_group(
    Panel.OPERATE,
    "requests",
    "List, follow and cancel requests to the daemon.",
    list=requests.list_requests,
    show=requests.show,
    follow=requests.follow,
    cancel=requests.cancel,
)
_add_group(
    Panel.OPERATE,
    "config",
    "Show the settings and where each comes from.",
    show=devices.config_show,
    schema=devices.config_schema,
)
_add_group(
    Panel.DATA,
    "datasets",
    "List stores; publish, verify and open datasets.\n\nExample: fleet datasets verify FOLDER",
    datasets.ListGroup,
    list=datasets.list_,
    publish=datasets.publish,
    verify=datasets.verify,
    open=datasets.open_,
)
_add_group(
    Panel.DATA,
    "store",
    "Check that the store is whole, and back it up.",
    verify=store.verify,
    backup=store.backup,
    restore=store.restore,
)


def run(arguments: Sequence[str], signals: _Signals | None = None) -> int:
    """Run one command line and return its exit code."""
    from transfer.errors import TransferError

    code = 0
    try:
        app(args=list(arguments), prog_name="fleet")
    except SystemExit as done:  # typer has printed what is wrong with the usage
        code = done.code if isinstance(done.code, int) else 1
    except (Interrupted, SystemError):
        if signals is None or signals.number is None:
            raise
    except (FleetError, AgentError, TransferError, OSError) as error:
        if os.environ.get("FLEET_DEBUG") == "1":
            say_text(traceback.format_exc(), error=True)
        if signals is None or signals.number is None:
            _print_error(_line(error))
        code = 2 if isinstance(error, UsageError) else 1
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in _EXTRAS:
            raise
        extra = _EXTRAS[error.name.split(".")[0]]
        _print_error(f"this needs {error.name}, which is not installed: pip install 'tensor-fleet[{extra}]'")
        code = 1
    if signals is not None and signals.number is not None:
        _print_error("interrupted; run the same command again to continue")
        code = 128 + signals.number
    return code


def _line(error: Exception) -> str:
    """The error for people: with advice if the disk is full, and with the option that gave a setting."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" at {error.filename}" if error.filename else ""
        return (
            f"the disk is full{where}: free some space, then run the same command again; what was written "
            "before is kept"
        )
    text = str(error) or type(error).__name__
    return re.sub(r"^flag: ", "--set ", text, flags=re.MULTILINE) if isinstance(error, UsageError) else text


def _print_error(text: str) -> None:
    """One line per fault on standard error."""
    for line in text.strip().split("\n"):
        print_text(f"fleet: {line}", error=True)


def main() -> None:
    """Entry point of the command."""
    finish_output = open_standard_streams()
    begin_process()
    make_logs_visible()
    signals = _Signals()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signals)
    code = run(sys.argv[1:], signals)
    try:
        finish_output()
    except OutputError as error:
        _print_error(str(error))
        code = code or 1
    sys.exit(code)
