"""Ray's own settings for hosts with a network between them; names and values are Ray's (`ray_config_def.h`).

Ray reads them from the environment when it is first imported.
"""

from __future__ import annotations

#: For Ray's processes on every host.
NODE_SETTINGS = {
    # The head gives up a host after five of these without an answer. A host whose Ray has ended refuses at
    # once, and is given up after 15 s.
    "RAY_health_check_timeout_ms": "30000",
    # A Ray node ends, and its agents with it, when it has not reached the head for so long.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "180",
}
#: For the coordinator. A connection that is silent for so long is tried, and made anew soon: where a link was
#: down for a minute, TCP itself finds only a minute later that it is up again. Not for the head: it would
#: give up hosts as soon as their connections.
COORDINATOR_SETTINGS = {
    "RAY_grpc_client_keepalive_time_ms": "30000",
    "RAY_grpc_client_keepalive_timeout_ms": "10000",
}
