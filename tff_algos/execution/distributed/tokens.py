"""Authentication tokens of Ray clusters: kept private, and sent if they are required.

`ray start --head` requires a token if the machine has one, and any earlier `ray.init()`
without an address has left one there. To join a cluster by address, Ray sends no token
unless `RAY_AUTH_MODE=token`; but with that mode, a driver cannot start actors on a
cluster without authentication. So the cluster is asked first.
"""

import contextlib
import importlib
import os
import types
from collections.abc import Iterator

_MODE = "RAY_AUTH_MODE"
_PROBE_SECONDS = 10.0


@contextlib.contextmanager
def kept_private() -> Iterator[None]:
    """Lets nobody else read the token that Ray makes if this user has none yet.

    Ray writes it with the usual permissions, and who has it can run programs as this
    user on every Ray that requires it.
    """
    path = _setup()._get_default_token_path()
    is_new = not path.exists()
    try:
        yield
    finally:
        if is_new and path.exists():
            path.chmod(0o600)


def _setup() -> types.ModuleType:
    return importlib.import_module(
        "ray._private.authentication.authentication_token_setup"
    )


def send_if_required(address: str) -> str:
    """Makes Ray send this machine's token from now on, if a cluster requires one.

    Args:
      address: The `HOST:PORT` of the cluster's head.

    Returns:
      Why this process cannot join; an empty string if it can.
    """
    required, mode = _requires_token(address), os.environ.get(_MODE, "").lower()
    if mode and required != (mode == "token"):
        needed = "a token" if required else "no token"
        return f"it requires {needed}, but {_MODE}={mode}: unset {_MODE}."
    loader = _setup().AuthenticationTokenLoader.instance()
    if required and not loader.has_token(ignore_auth_mode=True):
        return "it requires a token: copy ~/.ray/auth_token from its head."
    if required:
        _setup().maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    return ""


def _requires_token(address: str) -> bool:
    """Returns whether a cluster rejects a request without a token."""
    # Imported here because Ray is optional.
    grpc = importlib.import_module("grpc")
    messages = importlib.import_module("ray.core.generated.gcs_service_pb2")
    services = importlib.import_module("ray.core.generated.gcs_service_pb2_grpc")
    with grpc.insecure_channel(address) as channel:
        stub = services.NodeInfoGcsServiceStub(channel)
        try:
            stub.GetClusterId(messages.GetClusterIdRequest(), timeout=_PROBE_SECONDS)
        except grpc.RpcError as error:
            return error.code() is grpc.StatusCode.UNAUTHENTICATED
    return False
