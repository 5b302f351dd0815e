"""A fake Harbor: an HTTP server that follows Harbor's swagger.yaml 2.15.1 and its handlers."""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator


class HarborOnLoopback:
    """The state of a fake Harbor, and the requests that changed it."""

    def __init__(self) -> None:
        """Start with the content of a new Harbor: the project library."""
        self.accounts = {"admin": "Secret-of-admin-1"}
        self.projects: list[dict[str, Any]] = [{"project_id": 1, "name": "library", "metadata": {"public": "true"}}]
        self.quotas = {1: {"id": 11, "hard": {"storage": -1}}}
        self.retentions: dict[int, dict[str, Any]] = {}
        self.immutable: dict[int, list[dict[str, Any]]] = {}
        self.robots: list[dict[str, Any]] = []
        self.schedules: dict[str, Any] = {"gc": None, "scanAll": None}
        self.writes: list[str] = []
        # A project setting that this Harbor accepts but does not store, like an older release with unknown settings.
        self.forgets = ""
        self.healthy = True
        # The token of each account for a repository; "" is anonymous.
        self.tokens: dict[str, str] = {}
        self.url = ""

    def answer(self, method: str, target: str, account: tuple[str, str], body: Any) -> tuple[int, Any]:
        """Answer one request."""
        path, query = urlsplit(target).path, {key: values[0] for key, values in parse_qs(urlsplit(target).query).items()}
        known = self.accounts.get(account[0]) == account[1]
        if path == "/service/token":
            if (known or not account[0]) and "scope" in query:
                return 200, {"token": self.tokens[account[0]]}
            return (200, {"token": "t"}) if known else (401, {"errors": [{"code": "UNAUTHORIZED", "message": "unauthorized"}]})
        path = path.removeprefix("/api/v2.0")
        if path == "/health":
            part = {"name": "core", "status": "healthy"} if self.healthy else {"name": "core", "status": "unhealthy", "error": "no answer"}
            return 200, {"status": part["status"], "components": [part]}
        if not known or account[0] != "admin":
            return 401, {"errors": [{"code": "UNAUTHORIZED", "message": "unauthorized"}]}
        if method != "GET":
            self.writes.append(f"{method} {path}")
        parts = path.strip("/").split("/")
        answer: tuple[int, Any] = getattr(self, f"_{parts[0]}")(method, parts[1:], query, body)
        return answer

    def _configurations(self, *_: Any) -> tuple[int, Any]:
        return 200, {"robot_name_prefix": {"editable": True, "value": "robot$"}}

    def _projects(self, method: str, rest: list[str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        if not rest and method == "GET":
            first = (int(query["page"]) - 1) * int(query["page_size"])
            return 200, self.projects[first : first + int(query["page_size"])]
        if not rest:
            number = len(self.projects) + 1
            kept = {key: value for key, value in body["metadata"].items() if key != self.forgets}
            self.projects.append({"project_id": number, "name": body["project_name"], "metadata": kept})
            self.quotas[number] = {"id": number + 10, "hard": {"storage": body["storage_limit"]}}
            return 201, None
        project = self.projects[int(rest[0]) - 1]
        if rest[1:] == ["immutabletagrules"]:
            rules = self.immutable.setdefault(int(rest[0]), [])
            if method == "GET":
                return 200, rules
            rules.append({**body, "id": len(rules) + 1, "priority": 0})
            return 201, None
        if method == "PUT":
            project["metadata"].update({key: value for key, value in body["metadata"].items() if key != self.forgets})
            return 200, None
        return 200, project

    def _quotas(self, method: str, rest: list[str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        if method == "GET":
            return 200, [self.quotas[int(query["reference_id"])]]
        self.quotas[int(rest[0]) - 10]["hard"] = body["hard"]
        return 200, None

    def _retentions(self, method: str, rest: list[str], _: Any, body: Any) -> tuple[int, Any]:
        if method == "POST":
            number = len(self.retentions) + 1
            self.projects[body["scope"]["ref"] - 1]["metadata"]["retention_id"] = str(number)
            self.retentions[number] = {**body, "id": number}
            return 201, None
        if method == "PUT":
            self.retentions[int(rest[0])] = body
            return 200, None
        held = self.retentions[int(rest[0])]
        trigger = {**held["trigger"], "settings": {**held["trigger"]["settings"], "next_scheduled_time": "2030-01-01T00:00:00Z"}}
        return 200, {**held, "trigger": trigger, "rules": [{**rule, "id": at, "priority": 0} for at, rule in enumerate(held["rules"])]}

    def _robots(self, method: str, rest: list[str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        if method == "GET":
            first = (int(query["page"]) - 1) * int(query["page_size"])
            return 200, self.robots[first : first + int(query["page_size"])]
        if method == "POST":
            # The handler ignores a secret in the request and generates one.
            name = "robot$" + body["name"]
            self.accounts[name] = "made-Up-by-harbor-1"
            self.robots.append({**body, "id": len(self.robots) + 1, "name": name, "editable": True})
            return 201, {"id": len(self.robots), "name": name, "secret": self.accounts[name]}
        robot = self.robots[int(rest[0]) - 1]
        if method == "PATCH":
            self.accounts[robot["name"]] = body["secret"]
            return 200, {"secret": ""}
        if body["name"] != robot["name"] or body["level"] != robot["level"]:
            return 400, {"errors": [{"code": "BAD_REQUEST", "message": "cannot update the level or name of robot"}]}
        robot.update(body)
        return 200, None

    def _system(self, method: str, rest: list[str], _: Any, body: Any) -> tuple[int, Any]:
        if method == "PUT":
            self.schedules[rest[0]] = {"schedule": body["schedule"], "job_parameters": json.dumps(body.get("parameters") or {})}
        return 200, self.schedules[rest[0]]


def _handler(harbor: HarborOnLoopback) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Pass requests to the fake Harbor and return its answers."""

        def _any(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            basic = base64.b64decode((self.headers.get("Authorization") or "Basic ").partition(" ")[2]).decode()
            name, _, password = basic.partition(":")
            status, answer = harbor.answer(self.command, self.path, (name, password), json.loads(text) if text else None)
            data = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = _any  # noqa: N815 (names that http.server looks for)

        def log_message(self, *_: Any) -> None:
            """Disable the log."""

    return Handler


@contextmanager
def serving(harbor: HarborOnLoopback) -> Iterator[HarborOnLoopback]:
    """Serve it on a free loopback port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(harbor))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    harbor.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield harbor
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
