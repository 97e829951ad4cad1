"""JupyterHub on a private machine, used as a browser would use it, and the servers behind it."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import requests

from tests.autograder.hub.private_machine import PrivateMachine
from tools.hub import NODE_PATH

LIMIT_S = 280  # a busy machine is not an error


@dataclass(frozen=True)
class Person:
    """A user who has logged in, and their server."""

    url: str
    name: str
    session: requests.Session

    def start_server(self) -> None:
        self.request("POST", f"hub/api/users/{self.name}/server")
        progress = self.request(
            "GET", f"hub/api/users/{self.name}/server/progress"
        )  # ends once the server is ready
        assert '"ready": true' in progress.text, progress.text

    def server(self, method: str, path: str, **options: Any) -> Any:
        """The JSON response of the person's server."""
        return self.request(method, f"user/{self.name}/{path}", **options).json()

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        response = self.session.request(method, f"{self.url}{path}", timeout=LIMIT_S, **options)
        assert response.ok, f"{path}: {response.status_code} {response.text}"
        return response


@dataclass(frozen=True)
class Hub:
    url: str

    def log_in(self, name: str, password: str) -> Person:
        """Submits the login form, then requests an API token."""
        session = requests.Session()
        session.get(f"{self.url}hub/login", timeout=LIMIT_S)
        form = {"username": name, "password": password, "_xsrf": _xsrf(session)}
        response = session.post(
            f"{self.url}hub/login", form, allow_redirects=False, timeout=LIMIT_S
        )
        assert response.status_code == 302, response.text
        response = session.post(
            f"{self.url}hub/api/users/{name}/tokens",
            headers={"X-XSRFToken": _xsrf(session)},
            timeout=LIMIT_S,
        )
        with_token = requests.Session()
        with_token.headers["Authorization"] = f"token {response.json()['token']}"
        return Person(self.url, name, with_token)


def _xsrf(session: requests.Session) -> str:
    value = session.cookies.get("_xsrf", path="/hub/")
    assert value
    return value


@contextmanager
def running_hub(machine: PrivateMachine, start: str) -> Iterator[Hub]:
    """``start``: a shell script that starts the hub with its last command."""
    hub, hub_api, proxy_api = (f"http://127.0.0.1:{port}/" for port in _free_ports(3))
    options = [
        f"--JupyterHub.bind_url={hub}",
        f"--JupyterHub.hub_bind_url={hub_api}",
        f"--ConfigurableHTTPProxy.api_url={proxy_api}",
        f"--Spawner.start_timeout={LIMIT_S}",
        f"--Spawner.http_timeout={LIMIT_S}",
    ]
    log = machine.folder / "hub.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            machine.command(" ".join([start.rstrip(), *options]), NODE_PATH=NODE_PATH),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            _wait_until_ready(hub, process)
            yield Hub(hub)
        except BaseException:
            print(log.read_text()[-20_000:])
            raise
        finally:
            process.kill()  # nsenter; the hub itself ends with its machine
            process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if requests.get(f"{url}hub/api", timeout=LIMIT_S).ok:
                return
        except requests.ConnectionError:
            pass
        time.sleep(0.2)
    raise RuntimeError("JupyterHub did not start")


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:  # all open at once, so that they differ
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
