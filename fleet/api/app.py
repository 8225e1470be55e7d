"""The daemon's small HTTP API: status, devices, models, scores, metrics.

`fleet.api.server` serves it. It shows the coordinator's last view, what the registry's files say and what the
champions make of candidates. Only `fleet.api.requests` changes anything. Each path declares who may use it
(`fleet.api.access`); `fleet.api.connections.Gate` sees to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect

from fleet.api.access import Access, needs
from fleet.api.connections import CLOSE, Connections, body_of, read_body
from fleet.api.metrics import metrics_text
from fleet.api.score_service import ScoreBusyError, ScoreService, ScoreSettings
from fleet.api.scores import ScoreQuestion
from fleet.api.webhook import Webhook
from fleet.dashboard.dashboard import Dashboard, View
from fleet.json_types import Json, JsonDict
from fleet.models.registry_file import RegistryError
from fleet.models.registry_reader import HeadMissing, RegistryReader, as_json
from fleet.models.views import NO_CHAMPION, champion_notes
from fleet.requests.kinds import RequestDesk
from fleet.requests.request_kind import listed
from fleet.terminal_text import in_utf8
from transfer.checked_folder import TENSORS_NAME

#: Status of an answer that nobody hears.
_GONE = 499
SCORE_PATH = "/v1/score"
_RETRY_SECS = "5"
_SCORE_BODY = body_of(msgspec.json.schema_components([ScoreQuestion])[1]["ScoreQuestion"])


class FleetAnswer(JSONResponse):
    r"""JSON in which a file name that is no UTF-8 is written out, as `\udcff`.

    Python keeps its bytes as halves of surrogate pairs, which no answer can carry. One such name in an alarm
    or in the result of a request must not take the whole view away from everybody.
    """

    def render(self, content: Any) -> bytes:
        """See `JSONResponse`; numbers that are not finite become null."""
        try:
            return msgspec.json.encode(content)
        except UnicodeEncodeError:
            return msgspec.json.encode(_written_out(content))


def _written_out(value: Any) -> Any:
    if isinstance(value, str):
        return in_utf8(value)
    if isinstance(value, dict):
        return {_written_out(key): _written_out(member) for key, member in value.items()}
    return [_written_out(member) for member in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSources:
    """What the API shows and where its orders go."""

    #: Called by each request, from any thread.
    view: View
    #: Where the models are; read anew by each request, so a new champion shows at once.
    registry: RegistryReader
    #: Where requests go.
    desk: RequestDesk
    #: What scores come from.
    scoring: ScoreSettings
    #: What the dashboard reads beside the view.
    dashboard: Dashboard
    #: Posts alerts; the server starts and ends it.
    webhook: Webhook | None = None


def make_app(sources: ApiSources, connections: Connections, scores: ScoreService) -> FastAPI:
    """Make the application without requests, sessions and dashboard."""
    # The pages that FastAPI offers load scripts from elsewhere.
    app = FastAPI(
        title="tensor-fleet",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        default_response_class=FleetAnswer,
    )

    @app.exception_handler(RegistryError)
    def refused(_: Request, error: RegistryError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 404 if isinstance(error, HeadMissing) else 503)

    @app.get("/openapi.json", include_in_schema=False)
    @needs(Access.READER)
    def schema() -> JsonDict:
        return app.openapi()

    @app.get("/metrics")
    @needs(Access.READER)
    def metrics() -> PlainTextResponse:
        """The view in the text format of Prometheus."""
        text = metrics_text(sources.view(), connections, scores.view)
        return PlainTextResponse(text, media_type=CONTENT_TYPE_LATEST)

    _add_fleet(app, sources.view, sources.registry)
    _add_models(app, sources.registry)
    _add_score(app, scores)
    return app


def _add_fleet(app: FastAPI, view: View, registry: RegistryReader) -> None:
    @app.get("/healthz")
    @needs(Access.OPEN)
    def health() -> dict[str, str]:
        """Whether the daemon runs; without a token, so it says nothing else."""
        return {"state": view()["coordinator"]["state"]}

    @app.get("/v1/status")
    @needs(Access.READER)
    def status() -> Json:
        """The whole view."""
        whole = view()
        return {**whole, "devices": _with_notes(whole["devices"], registry)}

    @app.get("/v1/devices")
    @needs(Access.READER)
    def devices() -> Any:
        """All devices by id."""
        return _with_notes(view()["devices"], registry)

    @app.get("/v1/devices/{device_id}")
    @needs(Access.READER)
    def device(device_id: str) -> Any:
        """One device."""
        fleet_devices = view()["devices"]
        if device_id not in fleet_devices:
            raise HTTPException(
                404, f"no device {device_id!r} in this fleet; it has: {listed(fleet_devices)}"
            )
        return _with_notes({device_id: fleet_devices[device_id]}, registry)[device_id]


def _add_models(app: FastAPI, registry: RegistryReader) -> None:
    @app.get("/v1/models")
    @needs(Access.READER)
    def models() -> JsonDict:
        """Who serves which device, and all versions."""
        return {
            "champions": {
                device_id: as_json(champion) for device_id, champion in registry.champions().items()
            },
            "versions": registry.versions(),
        }

    @app.get("/v1/models/{device_id}")
    @needs(Access.READER)
    def manifest(device_id: str, version: str = "") -> JsonDict:
        """The manifest of a device's champion, or of another version that has its head."""
        name = registry.head_ref(device_id, version or None).version
        return {"device_id": device_id, "version": name, "manifest": registry.manifest(name)}

    @app.get("/v1/models/{device_id}/model.safetensors")
    @needs(Access.READER)
    def tensors(device_id: str, version: str = "", if_none_match: Annotated[str, Header()] = "") -> Response:
        """The tensors of the same; the entity tag is their SHA-256, as the manifest has it."""
        name = registry.head_ref(device_id, version or None).version
        tag = f'"{registry.manifest(name)["tensors_sha256"]}"'
        headers = {"ETag": tag, "X-Model-Version": name}
        if tag in (client_tag.strip() for client_tag in if_none_match.split(",")):
            return Response(status_code=304, headers=headers)
        path = registry.path(name) / TENSORS_NAME
        if not path.is_file():
            raise HTTPException(503, f"version {name} has lost its tensors; restore it or roll back")
        return FileResponse(
            path, media_type="application/octet-stream", filename=f"{name}.safetensors", headers=headers
        )


def _add_score(app: FastAPI, scores: ScoreService) -> None:
    limits = scores.settings

    @app.post(SCORE_PATH, openapi_extra=_SCORE_BODY)
    @needs(Access.READER)
    async def score(request: Request) -> Response:
        """Scores of schedules of one workload by a device's champion, or by another version with its head."""

        async def body() -> bytes:
            return await read_body(request, limits.body_bytes, limits.body_secs)

        try:
            status, answer = await scores.answer(body, request.is_disconnected)
        except ScoreBusyError:
            raise HTTPException(
                503,
                f"{limits.most} requests for scores are here already; try again in {_RETRY_SECS} s",
                headers={"Retry-After": _RETRY_SECS, **CLOSE},
            ) from None
        except ClientDisconnect:
            return Response(status_code=_GONE)
        retry = {"Retry-After": _RETRY_SECS} if status == 503 else {}
        return Response(answer, status, media_type="application/json", headers=retry)


def _with_notes(devices: Json, registry: RegistryReader) -> JsonDict:
    """Devices of a view; each with what is known of its champion, and what its challenger lacks."""
    notes = champion_notes(registry)
    return {
        device_id: {**device, **{key: notes.get(device_id, NO_CHAMPION)[key] for key in NO_CHAMPION}}
        for device_id, device in devices.items()
    }
