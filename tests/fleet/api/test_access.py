"""Who may use which path of the API: every route declares it, and both tokens are tried on each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Route

from fleet.api.access import Access, declared, needed, needs
from fleet.api.client import READ_TOKEN, TOKEN
from fleet.api.score_service import ScoreSettings
from fleet.api.server import ApiServer
from fleet.cli.app import run
from fleet.dashboard.dashboard import Dashboard
from fleet.models.registry_reader import RegistryReader
from fleet.requests.kinds import RequestDesk
from tests.cli_fixtures import said
from tests.fleet.api.test_api import a_view, sources_of


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[ApiServer]:
    """A server with every path that there is; nobody is behind the desk, and no score is ever made."""
    registry, desk = RegistryReader(root / "models"), RequestDesk()
    sources = sources_of(
        root / "models",
        desk=desk,
        scoring=ScoreSettings(models=root / "models", store=root / "store", most=0),
        dashboard=Dashboard(a_view, registry, root / "store", desk.listed),
    )
    with closing(ApiServer(sources, root, answer_secs=0.1)) as made:
        yield made


def routes(server: ApiServer) -> list[Route]:
    every = [route for route in server.app.routes if isinstance(route, Route)]
    assert len(every) == len(server.app.routes)
    return every


READ = """
/metrics /openapi.json /v1/status /v1/score /v1/devices /v1/devices/{device_id}
/v1/models /v1/models/{device_id} /v1/models/{device_id}/model.safetensors
"""


def test_every_route_declares_who_may_use_it(server: ApiServer) -> None:
    paths = {route.path: declared(route) for route in routes(server)}
    assert [path for path, access in paths.items() if access is None] == []
    open_paths = {path for path, access in paths.items() if access is Access.OPEN}
    assert open_paths == {"/healthz", "/", "/static/{name}"}
    read = {path for path, access in paths.items() if access is Access.READER}
    assert read == set(READ.split())


def test_each_route_lets_in_who_it_says(server: ApiServer, root: Path) -> None:
    tokens = {
        Access.OPEN: "",
        Access.READER: (root / READ_TOKEN).read_text().strip(),
        Access.OWNER: (root / TOKEN).read_text().strip(),
    }
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        for route in routes(server):
            least = declared(route)
            for method in (route.methods or set()) - {"HEAD"}:
                path = route.path.format(**dict.fromkeys(route.param_convertors, "none"))
                for access, token in tokens.items():
                    headers = {"Authorization": f"Bearer {token}"} if token else {}
                    with client.stream(method, path, headers=headers) as answer:
                        status = answer.status_code
                    is_let_in = status not in (401, 403)
                    assert is_let_in == (access >= least), f"{method} {path} {access!r}: {status}"
                    if not is_let_in:
                        assert status == (403 if token else 401)


def test_a_route_without_a_word_is_the_owners() -> None:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    @app.get("/v1/new")
    def new() -> str:
        return ""

    @app.get("/v1/read")
    @needs(Access.READER)
    def read() -> str:
        return ""

    for method, path, least in (
        ("GET", "/v1/new", Access.OWNER),
        ("GET", "/v1/read", Access.READER),
        ("POST", "/v1/read", Access.READER),
        ("GET", "/v1/nothing", Access.READER),
    ):
        scope = {"type": "http", "method": method, "path": path, "headers": [], "root_path": ""}
        assert needed(app.routes, scope) is least, path


def test_a_browser_is_opened_without_the_code_in_its_arguments(
    server: ApiServer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = Mock(return_value=True)
    monkeypatch.setattr("webbrowser.open", browser)
    monkeypatch.setenv("FLEET_DAEMON__ROOT", str(root))
    link = said("dashboard", "--open").strip()
    page = root / "dashboard.html"
    browser.assert_called_once_with(page.as_uri())
    assert page.stat().st_mode & 0o777 == 0o600
    assert f"url={link}" in page.read_text()
    browser.return_value = False
    assert run(["dashboard", "--open"]) == 1
