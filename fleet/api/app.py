"""The daemon's small HTTP API: status, devices, models, metrics.

`fleet.api.server` serves it. It shows the coordinator's last view and what the registry's files say. Only
`fleet.api.requests` changes anything. Everything but `/healthz` needs the token, which
`fleet.api.connections.Gate` asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse

from fleet.api.connections import OPEN_PATH, Connections
from fleet.api.metrics import CONTENT_TYPE, metrics_text
from fleet.models.registry_reader import RegistryError, RegistryReader, as_json
from transfer.checked_folder import TENSORS_NAME

#: Gives the coordinator's last view (`fleet.engine.fleet_view`).
View = Callable[[], Mapping[str, Any]]

_TENSORS_TYPE = "application/octet-stream"


def make_app(view: View, registry: RegistryReader, connections: Connections) -> FastAPI:
    """Make the application.

    Args:
        view: Called by each request, from any thread.
        registry: Where the models are; read anew by each request, so a new champion shows at once.
        connections: Those of the server, for the metrics.
    """
    # The pages that FastAPI offers load scripts from elsewhere.
    app = FastAPI(title="tensor-fleet", docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(RegistryError)
    def refused(_: Request, error: RegistryError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503)

    @app.get(OPEN_PATH)
    def health() -> dict[str, str]:
        """Whether the daemon runs; without a token, so it says nothing else."""
        return {"state": view()["coordinator"]["state"]}

    @app.get("/v1/status")
    def status() -> Mapping[str, Any]:
        """The whole view."""
        return view()

    @app.get("/v1/devices")
    def devices() -> Any:
        """All devices by id."""
        return view()["devices"]

    @app.get("/v1/devices/{device_id}")
    def device(device_id: str) -> Any:
        """One device."""
        found = view()["devices"]
        if device_id not in found:
            raise HTTPException(404, f"no device {device_id!r} in this fleet; it has: {_listed(found)}")
        return found[device_id]

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        """Who serves which device, and all versions."""
        return {
            "champions": {one: as_json(champion) for one, champion in registry.champions().items()},
            "versions": registry.versions(),
        }

    @app.get("/v1/models/{device_id}")
    def manifest(device_id: str, version: str = "") -> dict[str, Any]:
        """The manifest of a device's champion, or of another version that has its head."""
        name, found = _version_of(registry, device_id, version)
        return {"device_id": device_id, "version": name, "manifest": found}

    @app.get("/v1/models/{device_id}/model.safetensors")
    def tensors(device_id: str, version: str = "", if_none_match: Annotated[str, Header()] = "") -> Response:
        """The tensors of the same; the entity tag is their SHA-256, as the manifest has it."""
        name, found = _version_of(registry, device_id, version)
        tag = f'"{found["tensors_sha256"]}"'
        headers = {"ETag": tag, "X-Model-Version": name}
        if tag in (one.strip() for one in if_none_match.split(",")):
            return Response(status_code=304, headers=headers)
        path = registry.path(name) / TENSORS_NAME
        if not path.is_file():
            raise HTTPException(503, f"version {name} has lost its tensors; restore it or roll back")
        return FileResponse(path, media_type=_TENSORS_TYPE, filename=f"{name}.safetensors", headers=headers)

    @app.get("/metrics")
    def metrics() -> PlainTextResponse:
        """The view in the text format of Prometheus."""
        return PlainTextResponse(metrics_text(view(), connections), media_type=CONTENT_TYPE)

    return app


def _version_of(registry: RegistryReader, device_id: str, version: str) -> tuple[str, dict[str, Any]]:
    """Name and manifest of the asked or serving version.

    Raises:
        HTTPException: The device has none, or the version has no head for it.
    """
    champions = registry.champions()
    serving = {str(one): champion.version for one, champion in champions.items()}
    if not version:
        if device_id not in serving:
            raise HTTPException(404, f"no model serves device {device_id!r}; served: {_listed(serving)}")
        version = serving[device_id]
    elif version not in registry.versions():
        raise HTTPException(
            404, f"no model version {version!r}; the last: {_listed(registry.versions()[-5:])}"
        )
    found = registry.manifest(version)
    if device_id not in found["heads"]:
        raise HTTPException(
            404, f"version {version} has no head for {device_id!r}; it has: {_listed(found['heads'])}"
        )
    return version, found


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
