"""Tokens of Ray clusters: shown to those that ask for one, and to no others.

`ray start --head` asks for a token on machines that have one, as all have where Ray was
once started without a head. Ray itself shows a token to a cluster that it looks for, but
not to one that is named by its address. Whoever shows a token to a cluster that asks for
none can join it, but starts no workers.
"""

import importlib
import os

_MODE = "RAY_AUTH_MODE"
_PROBE_SECONDS = 10.0


def show(address: str) -> str:
    """Lets this process show its token to a cluster, if that asks for one.

    Args:
      address: The `HOST:PORT` of the cluster's head.

    Returns:
      What keeps this process from joining; an empty string for nothing.
    """
    setup = importlib.import_module(
        "ray._private.authentication.authentication_token_setup"
    )
    asks, mode = _asks(address), os.environ.get(_MODE, "").lower()
    if mode and asks != (mode == "token"):
        wanted = "a token" if asks else "no token"
        return f"it asks for {wanted}, but {_MODE}={mode}: unset {_MODE}."
    if asks and not setup.AuthenticationTokenLoader.instance().has_token(
        ignore_auth_mode=True
    ):
        return "it asks for a token: copy ~/.ray/auth_token from its head."
    if asks:
        setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    return ""


def _asks(address: str) -> bool:
    """Returns whether a cluster refuses who shows no token."""
    # Not at the top: they come with Ray.
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
