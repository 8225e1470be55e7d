"""The process that worker processes are forked from, where the host has nothing left to give."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.conftest import run_code

#: A zygote that is asked for two processes where none can be made. It prints what the zygote answers and
#: writes to the errors of each; both it reads to their ends, which come once the zygote has let go of them.
ASKED_TWICE = """
import errno, json, os, socket
from dataclasses import replace
from agents.records import as_json_dict
from agents.sandbox.zygote import _Zygote
from tests.conftest import child_settings

def refuse():
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

os.fork = refuse
settings = as_json_dict(replace(child_settings(), lock_path=""))
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
ends = []
for token in (7, 8):
    (said, errors), (channel, other) = os.pipe(), socket.socketpair()
    message = {"op": "fork", "token": token, "settings": settings}
    socket.send_fds(ours, [json.dumps(message).encode()], [other.fileno(), errors])
    os.close(errors)
    other.close()
    ends.append((said, channel))
ours.shutdown(socket.SHUT_WR)
_Zygote(theirs, print).serve()
for said, channel in ends:
    print(json.dumps([json.loads(ours.recv(4096)), os.fdopen(said).read(), channel.recv(1).decode()]))
"""


def test_a_host_without_processes_costs_one_worker_and_not_the_zygote(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    printed = run_code(ASKED_TWICE, cwd=Path(__file__).parents[3], env=environment)
    words = "no process could be started: [Errno 11] Resource temporarily unavailable\n"
    assert list(map(json.loads, printed.splitlines())) == [
        [{"event": "exited", "token": token, "code": 1}, words, ""] for token in (7, 8)
    ]
    assert not list(tmp_path.iterdir())
