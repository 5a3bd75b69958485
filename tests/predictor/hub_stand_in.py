"""A server on this machine that stands for the hub: as much of its protocol as huggingface_hub speaks for one model."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class StandIn:
    """`repos` maps "user/name" to its files; `asked` is every path that was asked for."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.asked: list[str] = []
        self.url = ""

    def commit(self, repo: str) -> str:
        digests = sorted((name, hashlib.sha1(data).hexdigest()) for name, data in self.repos[repo].items())
        return hashlib.sha1(json.dumps(digests).encode()).hexdigest()

    @contextmanager
    def serve(self) -> Iterator[None]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()


def _entry(name: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


def _handler(hub: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None: ...

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            hub.asked.append(self.path)
            parts = self.path.split("?")[0].strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                repo = "/".join(parts[2:4])
                if repo not in hub.repos:
                    return self.refuse("RepoNotFound", "Repository not found")
                if parts[4:5] == ["tree"]:
                    return self.answer([_entry(name, data) for name, data in hub.repos[repo].items()])
                files = [{"rfilename": name} for name in hub.repos[repo]]
                return self.answer({"id": repo, "sha": hub.commit(repo), "siblings": files})
            repo, name = "/".join(parts[:2]), "/".join(parts[4:])
            if repo not in hub.repos:
                return self.refuse("RepoNotFound", "Repository not found")
            if name not in hub.repos[repo]:
                return self.refuse("EntryNotFound", "Entry not found")
            data = hub.repos[repo][name]
            head = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": hub.commit(repo)}
            return self.send(200, data, head)

        def do_POST(self) -> None:
            hub.asked.append(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = self.path.split("?")[0].strip("/").split("/")
            if parts == ["api", "repos", "create"]:
                record = json.loads(body)
                repo = f"{record.get('organization') or 'me'}/{record['name']}"
                hub.repos.setdefault(repo, {})
                return self.answer({"url": f"{hub.url}/{repo}", "name": repo, "id": "1"})
            if parts == ["api", "validate-yaml"]:
                return self.answer({"errors": [], "warnings": []})
            repo, what = "/".join(parts[2:4]), parts[4]
            if what == "preupload":
                files = [
                    {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                    for each in json.loads(body)["files"]
                ]
                return self.answer({"files": files})
            if what == "commit":
                for line in body.splitlines():
                    entry = json.loads(line)
                    if entry["key"] == "file":
                        hub.repos[repo][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                sha = hub.commit(repo)
                return self.answer({"commitUrl": f"{hub.url}/{repo}/commit/{sha}", "commitOid": sha, "success": True})
            return self.refuse("Unknown", f"the stand-in does not know {self.path}")

        def answer(self, value: Any) -> None:
            self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def refuse(self, code: str, message: str) -> None:
            self.send(404, b"", {"X-Error-Code": code, "X-Error-Message": message})

        def send(self, status: int, data: bytes, head: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**head, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    return Handler
