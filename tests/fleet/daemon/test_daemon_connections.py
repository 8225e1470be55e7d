"""The daemon with few file descriptors and many strangers connected: it goes on measuring and answers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleet.api.client import ADDRESS, ask
from tests.coordinator_fixtures import ALL
from tests.daemon_fixtures import ROOT
from tests.fleet.daemon.test_daemon import records, settings

__all__ = ["settings"]

#: What the daemon may have open, and what strangers hold.
FILES, STRANGERS = 256, 400

#: `fleet up` with its agents in the same process; it waits for a line before it measures.
DAEMON = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]) // 2, int(sys.argv[2])))
from rich.console import Console
from fleet.api.app import ApiSources
from fleet.api.server import ApiServer
from fleet.config.settings import load_fleet
from fleet.daemon import daemon
from fleet.transport.local import LocalTransport
from fleet.models.registry_reader import RegistryReader

def transport(settings, options, specs, clock, **_):
    folder = Path(settings.store.path).parent / "spool"
    return LocalTransport(protocol=settings.timing_protocol(), spool_root=folder)

def serve(coordinator, folder, quiet_cores):
    made = ApiServer(ApiSources(view=coordinator.view, registry=RegistryReader(folder / "models")), folder)
    print("listening", flush=True)
    sys.stdin.readline()
    return made

daemon._transport = transport
config = load_fleet(Path(sys.argv[1])).config
options = daemon.UpOptions(models=Path(config.store.path).parent / "models")
daemon.run_daemon(config, options, Console(), serve=serve)
"""


@pytest.mark.timeout(180)
def test_strangers_who_hold_connections_stop_nothing(settings: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs" / "fleet"
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", DAEMON, str(settings), str(FILES)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdin is not None
        line = process.stdout.readline()
        assert line == "listening\n", line + process.stdout.read()
        port = int(json.loads((root / ADDRESS).read_text())["url"].rpartition(":")[2])
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(STRANGERS)
        ]
        for slow in strangers[::2]:
            with contextlib.suppress(OSError):
                slow.sendall(b"GET /v1/status HTTP/1.1\r\nX-Slow: ")
        process.stdin.write("go\n")
        process.stdin.flush()
        deadline = time.monotonic() + 90
        while records(settings) < 2 * ALL and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.1)
        assert process.poll() is None, process.stdout.read()
        assert records(settings) == 2 * ALL
        assert ask(root, "/v1/status")["coordinator"]["pid"] == process.pid
        # One eighth of them is the API's.
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < FILES  # noqa: PTH208  # names are all that is wanted
        process.send_signal(signal.SIGTERM)
        assert "fleet is down" in process.communicate(timeout=60)[0]
        assert process.returncode == 0
