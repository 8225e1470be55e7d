"""Every command of README and documents is run: here on replay devices, or by the test that is named."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fleet.cli.app import app
from fleet.interchange.export_store import export
from fleet.store.store import Store
from tests.coordinator_fixtures import write_replay_device
from tests.docs.test_docs import fleet_commands
from tests.log_fixtures import ansor, autotvm, write_log
from tests.onboarding_fixtures import NEW, SOURCES, fill
from tests.table_fixtures import rows

ROOT = Path(__file__).parents[2]
#: Documented commands in the order in which they are run, with what is typed in their place where a page has
#: a placeholder, or a size that would take hours. `{some}` are devices that answer from a file and a small
#: size, `{record}` is a record's id, `{day}` today.
HERE = """
config show
config schema device
config schema fleet
devices list
probe --device x86-64-v3
probe --device ID               -> probe --device x86-64-v2
collect                         -> collect {some}
collect --workloads 20          -> collect {some}
collect --device x86-64-v3      -> collect {some}
collect --device rpi4           -> collect {some}
collect --remeasure 50          -> collect {some} --remeasure 5
collect --noise                 -> collect --device x86-64-v3 --noise 6
status
status --store runs/store
train
onboard                         -> onboard x86-64-v4 --samples 32
onboard x86-64-v4               -> onboard x86-64-v4 --samples 32
onboard x86-64-v4 --samples 64  -> onboard x86-64-v4 --samples 32
onboard ID --samples 256        -> onboard x86-64-v4 --samples 48
models list
models show v000007             -> models show v000001
models show v000007 --card v000007.html -> models show v000001 --card v000001.html
models diff v000006 v000007     -> models diff v000001 v000002
models use                      -> models use x86-64-v4 v000003
models unpin                    -> models use x86-64-v4 v000003 --pin; models unpin x86-64-v4
compare x86-64-v3 x86-64-v4
compare x86-64-v3@2026-11-23 x86-64-v3@2026-11-24 -> compare x86-64-v3@{day} x86-64-v4@{day}
compare v000011 v000012 --all --json -> compare v000001 v000002 --all --json
show GMM_1x128x128x128          -> show gmm0
show ID                         -> show {record}
export                          -> export out.parquet --format parquet
export DESTINATION --format FORMAT -> export tuned --format meta_schedule --device x86-64-v3
import                          -> import logs --device a100
import logs --device a100
import logs/board-7 --device board-7
import logs/board-7 --device board-7 --json
import a.json b.json.gz --device a100 --network bert
devices add board-3.yaml
devices add rpi4.yaml
devices retire board-3
devices retire                  -> devices retire rpi4
store verify
store backup FOLDER             -> store backup backup
store backup /mnt/backup        -> store backup backup
store backup /mnt/other-disk/fleet-backup -> store backup backup
store verify --store /mnt/other-disk/fleet-backup -> store verify --store backup
store restore /mnt/other-disk/fleet-backup runs/store -> store restore backup again/store
store restore FOLDER NEW        -> store restore backup again/store
up --once                       -> up --once --device x86-64-v3 --for 4
up --device x86-64-v3 --for 3600 -> up --device x86-64-v3 --for 2
train --model                   -> train --model mtl_tlp
init                            -> init --folder written
"""

#: The same beside a running daemon; `{request}` is a request's id.
BESIDE_A_DAEMON = """
dashboard
dashboard --open
status --watch
requests list
requests show ID     -> requests show {request}
requests follow ID   -> requests follow {request}
requests cancel ID   -> requests cancel {request}
up                   -> status
"""

#: What needs real programs, a cluster, or files of other tools, behind the test that runs it for real.
ELSEWHERE = """
tests/docs/test_main_job.py
    demo
tests/docs/test_tutorials.py
    collect --device x86-64-v2 --device x86-64-v3 --workloads 4 --samples 8
    compare x86-64-v2 x86-64-v3
    models use x86-64-v3 shipped
    models use x86-64-v3 v000002 --reason to compare
    onboard x86-64-v3 --samples 64
    store backup backup
    tune x86-64-v3 --network bert-tiny --trials 32
    tune x86-64-v3 small-net.pt2 --trials 200
    up --device x86-64-v2 --device x86-64-v3
    workloads --limit 3
tests/fleet/state/test_rebuild.py
    store verify --rebuild
tests/fleet/daemon/test_replaying.py
    collect --device sim-board --store runs/sim/store
    collect --device sim-w6600 --store runs/sim/store --set workloads.min_flops=0 \
--set workloads.max_flops=1000000000000
tests/fleet/interchange/test_import_knobs.py
    import spaces/convolution/W6600.json.gz spaces/dedispersion/W6600.json.gz --device w6600 \
--store runs/w6600/store
tests/fleet/datasets/test_datasets.py
    datasets open examples/open-cpu-1 --store runs/open
    datasets open examples/open-cpu-2 --store runs/open
    datasets open out/open-cpu --store runs/store
    datasets publish runs/store out/open-cpu --made-by fleet collect --network corpus --workloads 400
    datasets verify examples/open-cpu-1 --sha256 \
079c3700bd576f6064444a68140469cda74d0f4c011fd87316c45617ca51c7eb
    datasets verify out/open-cpu
    datasets verify out/open-cpu --sha256 9b2e9fe4d75db2b324e4eba513d494194332f46c89a44d83a0b24a88bf33ae6c
tests/fleet/cli/test_cli_devices.py
    doctor
    probe --device rpi4
tests/fleet/models/test_evaluation.py
    eval
    eval --json
tests/fleet/models/test_fleet_training.py
    eval --model
    eval --device ID
tests/fleet/tuning/test_tuned_networks.py
    tune
    tune DEVICE NETWORK
    tune x86-64-v4 bert-tiny --trials 256
    tune x86-64-v4 nets/mine.pt2 --trials 1000 --minutes 20
    tune x86-64-v4 --network resnet-50 --workload C2D_1x56x56x64x64x3x1x1 --trials 64
    collect --network NETWORK
tests/agents/networks/test_corpus.py
    collect --device x86-64-v3 --network corpus --workloads 120 --samples 32 \
--set workloads.min_flops=200000 --set workloads.max_flops=25000000
# Of one architecture instead of seventy: the first reading of all takes a quarter of an hour.
tests/fleet/cli/test_cli_lookup.py
    show ID --script
    workloads --network corpus
    workloads --network corpus --json
    workloads --network corpus --min-flops 2e5 --max-flops 2.5e7 --count 120
    workloads --network corpus --operator depthwise_conv2d --max-flops 2.5e7
    workloads swin --network corpus --json
tests/fleet/cli/test_verbs_beside_a_daemon.py
    tune x86-64-v4 --detach
tests/fleet/interchange/test_import_miopen.py
    onboard gfx906_64 --replay --samples 64
tests/fleet/onboarding/test_day_zero.py
    onboard DEVICE --samples 0
    onboard x86-64-v3 --samples 0
tests/fleet/transport/test_ray_cluster.py
    up --address
    up --address 10.8.0.1:6379 --device head-cpu --device epyc-1
"""


def typed_for(table: str, **values: str) -> dict[str, str]:
    """What is typed for each documented command of a table."""
    typed = {documented: typed or documented for documented, typed in rows(table)}
    for name, value in values.items():
        typed = {documented: one.replace(f"{{{name}}}", value) for documented, one in typed.items()}
    return typed


def test_every_documented_command_is_run_by_a_test() -> None:
    documented = {" ".join(arguments) for _, arguments in fleet_commands()}
    elsewhere = [line for line in ELSEWHERE.strip().splitlines() if not line.startswith("#")]
    run = typed_for(HERE).keys() | typed_for(BESIDE_A_DAEMON).keys()
    run |= {line.strip() for line in elsewhere if line.startswith(" ")}
    assert sorted(documented - run) == []
    assert sorted(run - documented) == []
    assert [line for line in elsewhere if not line.startswith(" ") and not (ROOT / line).is_file()] == []


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder as a user has it, whose devices answer from a file."""
    folder = tmp_path_factory.mktemp("project")
    with Store.open(fill(folder / "recorded", *SOURCES, NEW)) as store:
        export(store, folder / "recorded.parquet", "parquet")
    names = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "board-3", "rpi4")
    recorded = (*SOURCES, NEW, NEW)
    (folder / "configs/hardware").mkdir(parents=True)
    for number, (name, device) in enumerate(zip(names, recorded, strict=True)):
        place = folder if name in ("board-3", "rpi4") else folder / "configs/hardware"
        write_replay_device(place, name, folder / "recorded.parquet", device=device, seed=number, noise=True)
    settings = {"schema": 1, "training": {"epochs": 1}, "onboarding": {"strategy": "source_devices"}}
    settings |= {"daemon": {"api_port": 0}, "workloads": {"noise_samples": 2}}
    (folder / "configs/fleet.yaml").write_text(yaml.safe_dump(settings))
    for name in ("logs/board-7/conv.jsonl", "a.json", "b.json.gz"):
        write_log(folder / name, [(autotvm if name[0] == "l" else ansor)(number) for number in range(4)])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # The commands do not depend on the shell that the tests were started from.
        patch.setattr("shellingham.detect_shell", lambda *_: ("bash", "/bin/bash"))
        yield folder


@pytest.mark.timeout(300)
def test_documented_commands_do_what_the_pages_say(project: Path) -> None:
    wrong = []
    some = "--device x86-64-v2 --device x86-64-v3 --workloads 8 --samples 8"
    typed = typed_for(HERE, some=some, day=str(datetime.now(UTC).date()))
    # Several pages show one command with other sizes: it is run once.
    for commands in dict.fromkeys(typed.values()):
        for command in commands.replace("{record}", _a_record(project)).split("; "):
            if command.startswith("up "):
                up = _started(project, *shlex.split(command))
                output, code = up.communicate(timeout=100)[0], up.returncode
            else:
                done = CliRunner().invoke(app, shlex.split(command))
                output, code = f"{done.output} {done.exception!r}", done.exit_code
            if code:
                wrong.append((command, code, output[-500:]))
    assert wrong == []


@pytest.mark.timeout(200)
def test_documented_commands_beside_a_daemon(project: Path) -> None:
    up = _started(project, "up", "--device", "x86-64-v2")
    try:
        assert any("fleet is up" in line for line in up.stdout)
        asked = _started(
            project, "collect", "--device", "x86-64-v2", "--workloads", "8", "--samples", "24", "--detach"
        )
        request = re.search(r"collection-\w+", asked.communicate(timeout=60)[0])
        for documented, typed in typed_for(BESIDE_A_DAEMON, request=request[0]).items():
            one = _started(project, *shlex.split(typed))
            if "--watch" in documented:
                assert "x86-64-v2" in "".join(one.stdout.readline() for _ in range(12))
                one.send_signal(signal.SIGINT)
            output = one.communicate(timeout=60)[0]
            assert one.returncode in (0, 130), (documented, output)
    finally:
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=60)
    assert up.returncode in (0, 130)


def _started(project: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fleet.cli", *arguments],
        cwd=project,
        # What would open a browser opens none.
        env={**os.environ, "BROWSER": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _a_record(project: Path) -> str:
    if not (project / "runs/store").exists():
        return ""
    return next((str(one.record_id) for one in Store.read(project / "runs/store").records()), "")
