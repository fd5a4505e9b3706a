"""A Hub in a thread: as much of its HTTP protocol as huggingface_hub speaks to push and to load models."""

import base64
import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

_LFS = re.compile(r".*\.(safetensors|png|bin)")
_FRONT = re.compile(rb"\A---\n(.*?)\n---", re.DOTALL)


def git_oid(content: bytes) -> str:
    """What git calls a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@dataclass
class Repository:
    """Commits and what points at them; a commit is its files."""

    owner: str
    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    heads: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes], message: str) -> str:
        sha = hashlib.sha1(f"{len(self.commits)} {message}".encode(), usedforsecurity=False).hexdigest()
        self.commits[sha], self.heads[branch] = files, sha
        self.messages.append(message)
        return sha

    def find(self, revision: str) -> str | None:
        return self.heads.get(revision, revision if revision in self.commits else None)


@dataclass
class HubStandIn:
    """The Hub's state, its log, and what goes wrong.

    Args:
        users: token -> the user's name, and `"read"` or `"write"`.
        repositories: by their whole names.
        blobs: large files, by SHA-256.
        log: method and path of each request.
        tokens_at_blobs: `Authorization` that came where blobs lie, which is another origin.
        cut_uploads, cut_downloads: so many transfers of large files break off in the middle.
        failing_commits: so many commits get a 500, with the token in its message.
        on_commit: called before a commit is looked at, once.
    """

    users: dict[str, tuple[str, str]]
    repositories: dict[str, Repository] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    tokens_at_blobs: list[str] = field(default_factory=list)
    received: dict[str, int] = field(default_factory=dict)
    cut_uploads: int = 0
    cut_downloads: int = 0
    failing_commits: int = 0
    on_commit: Callable[[], None] | None = None

    def __post_init__(self):
        hub = self
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
        self.server.daemon_threads = True
        port = self.server.server_address[1]
        self.endpoint, self.blob_endpoint = f"http://127.0.0.1:{port}", f"http://localhost:{port}"

    def __enter__(self) -> "HubStandIn":
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        """What is in a repository."""
        repository = self.repositories[repo_id]
        return repository.commits[repository.heads[revision]]

    def count(self, method: str, path: str) -> int:
        """How many requests there were whose paths have `path` in them."""
        return sum(one == method and path in other for one, other in self.log)


class _Answer(Exception):
    def __init__(self, status: int, message: str, code: str | None = None, **headers: str):
        self.status, self.message, self.code, self.headers = status, message, code, headers


class _Handler(BaseHTTPRequestHandler):
    hub: HubStandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def _serve(self) -> None:
        address = urlsplit(self.path)
        self.query, self.token, self.url = parse_qs(address.query), None, None
        path = address.path
        with self.hub.lock:
            self.hub.log.append((self.command, unquote(path)))
        try:
            if path.startswith("/blobs/"):
                self._blob(path.removeprefix("/blobs/"))
                return
            body = self._body()
            authorization = self.headers.get("Authorization")
            self.token = authorization.removeprefix("Bearer ") if authorization else None
            if self.token is not None and self.token not in self.hub.users:
                raise _Answer(401, "Invalid credentials in Authorization header")
            with self.hub.lock:
                self._route(path, body)
        except _Answer as answer:
            headers = {"X-Error-Message": answer.message}
            if answer.code:
                headers["X-Error-Code"] = answer.code
            headers |= {name.replace("_", "-"): value for name, value in answer.headers.items()}
            self._send(answer.status, {"error": answer.message, **({"url": self.url} if self.url else {})}, headers)

    do_GET = do_HEAD = do_POST = do_PUT = _serve

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send(self, status: int, content: object = b"", headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _takes(self, mishap: str) -> bool:
        with self.hub.lock:
            left = getattr(self.hub, mishap)
            setattr(self.hub, mishap, max(0, left - 1))
        return left > 0

    def _break_off(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _blob(self, oid: str) -> None:
        hub = self.hub
        if "Authorization" in self.headers:
            hub.tokens_at_blobs.append(self.path)
        if self.command == "PUT":
            if self._takes("cut_uploads"):
                self.rfile.read(100)
                self._break_off()
                return
            content = self._body()
            hub.received[oid] = hub.received.get(oid, 0) + 1
            if hashlib.sha256(content).hexdigest() != oid:
                raise _Answer(400, "these are other bytes")
            hub.blobs[oid] = content
            self._send(200)
            return
        content = whole = hub.blobs[oid]
        headers, status = {"ETag": f'"{oid}"', "Accept-Ranges": "bytes"}, 200
        if asked := self.headers.get("Range"):
            hub.ranges.append(asked)
            start, end = re.fullmatch(r"bytes=(\d+)-(\d*)", asked).groups()
            content = whole[int(start) : int(end) + 1 if end else None]
            headers["Content-Range"] = f"bytes {start}-{int(start) + len(content) - 1}/{len(whole)}"
            status = 206
        if self.command == "GET" and self._takes("cut_downloads"):
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self._break_off()
            return
        self._send(status, content, headers)

    def _route(self, path: str, body: bytes) -> None:
        if path == "/api/whoami-v2":
            name, role = self._user()
            self._send(200, {"type": "user", "name": name, "orgs": [], "auth": {"accessToken": {"role": role}}})
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._send(200, {"errors": [], "warnings": []})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            self._info(match[1], unquote(match[2] or "main"))
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(\w[\w-]*)/([^/]+)(?:/(.*))?", path):
            what, revision = match[2], unquote(match[3])
            if what == "tree":
                self._tree(match[1], revision, unquote(match[4] or ""))
            elif what == "preupload":
                self._preupload(match[1], revision, json.loads(body))
            elif what == "commit":
                self._commit(match[1], revision, body)
            elif what == "branch":
                repository = self._writable(match[1])
                if revision in repository.heads:
                    raise _Answer(409, "there already")
                repository.heads[revision] = repository.heads["main"]
                self._send(200, {})
            else:
                raise _Answer(404, f"no {what} here")
        elif match := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self._batch(match[1], json.loads(body))
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(match[1], unquote(match[2]), unquote(match[3]))
        else:
            raise _Answer(404, f"no {path} here")

    def _user(self) -> tuple[str, str]:
        if self.token is None:
            raise _Answer(401, "Invalid username or password.")
        return self.hub.users[self.token]

    def _readable(self, repo_id: str) -> Repository:
        repository = self.hub.repositories.get(repo_id)
        user = self.hub.users[self.token][0] if self.token else None
        if repository is None or (repository.private and repository.owner != user):
            # Whoever isn't known doesn't learn what there is
            raise _Answer(404 if user else 401, "Repository not found", "RepoNotFound")
        return repository

    def _writable(self, repo_id: str, pull_request: bool = False) -> Repository:
        repository = self._readable(repo_id)
        name, role = self._user()
        if role != "write" or (repository.owner != name and not pull_request):
            raise _Answer(403, "You don't have the rights to do this")
        return repository

    def _at(self, repository: Repository, revision: str) -> tuple[str, dict[str, bytes]]:
        sha = repository.find(revision)
        if sha is None:
            raise _Answer(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return sha, repository.commits[sha]

    def _create(self, asked: dict) -> None:
        name, role = self._user()
        owner = asked.get("organization") or name
        if role != "write" or owner != name:
            raise _Answer(403, "You don't have the rights to create a model there")
        repo_id = f"{owner}/{asked['name']}"
        self.url = f"{self.hub.endpoint}/{repo_id}"
        if repo_id in self.hub.repositories:
            raise _Answer(409, "You already created this model repo")
        private = asked.get("private") or asked.get("visibility") == "private"
        repository = self.hub.repositories[repo_id] = Repository(owner, bool(private))
        repository.commit("main", {".gitattributes": b"*.safetensors filter=lfs\n"}, "initial commit")
        self._send(200, {"url": self.url, "name": repo_id, "id": "0"})

    def _info(self, repo_id: str, revision: str) -> None:
        repository = self._readable(repo_id)
        sha, files = self._at(repository, revision)
        front = _FRONT.match(files.get("README.md", b""))
        card = yaml.safe_load(front[1]) if front else {}
        info = {"_id": "0", "id": repo_id, "modelId": repo_id, "sha": sha, "private": repository.private}
        info |= {"siblings": [{"rfilename": name} for name in files], "tags": card.get("tags", []), "cardData": card}
        info |= {name: card[name] for name in ("pipeline_tag", "library_name") if name in card}
        self._send(200, {**info, "downloads": 0, "likes": 0, "gated": False, "disabled": False})

    def _tree(self, repo_id: str, revision: str, folder: str) -> None:
        _, files = self._at(self._readable(repo_id), revision)
        rows = []
        for name, content in files.items():
            if folder and not name.startswith(f"{folder}/"):
                continue
            row = {"type": "file", "oid": git_oid(content), "size": len(content), "path": name}
            if _LFS.fullmatch(name):
                row["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            rows.append(row)
        if folder and not rows:
            raise _Answer(404, f"{folder} does not exist", "EntryNotFound")
        self._send(200, rows)

    def _preupload(self, repo_id: str, revision: str, asked: dict) -> None:
        _, files = self._at(self._writable(repo_id, "create_pr" in self.query), revision)
        answers = []
        for file in asked["files"]:
            large, before = bool(_LFS.fullmatch(file["path"])), files.get(file["path"])
            answer = {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
            if before is not None:
                answer["oid"] = hashlib.sha256(before).hexdigest() if large else git_oid(before)
            answers.append(answer)
        self._send(200, {"files": answers})

    def _batch(self, repo_id: str, asked: dict) -> None:
        self._writable(repo_id, pull_request=True)
        objects = []
        for one in asked["objects"]:
            answer = {"oid": one["oid"], "size": one["size"]}
            if one["oid"] not in self.hub.blobs:
                href = f"{self.hub.blob_endpoint}/blobs/{one['oid']}?X-Signature=secret"
                answer["actions"] = {"upload": {"href": href, "header": {}}}
            objects.append(answer)
        self._send(200, {"transfer": "basic", "objects": objects})

    def _commit(self, repo_id: str, revision: str, body: bytes) -> None:
        hub, pull_request = self.hub, "create_pr" in self.query
        repository = self._writable(repo_id, pull_request)
        if hub.on_commit is not None:
            hub.on_commit, happens = None, hub.on_commit
            happens()
        if hub.failing_commits > 0:
            hub.failing_commits -= 1
            raise _Answer(500, f"no luck with {self.token} at {hub.blob_endpoint}/blobs/0?X-Signature=secret")
        sha, before = self._at(repository, revision)
        files, header = dict(before), {}
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                header = value
                # A pull request begins where its parent is
                if not pull_request and value.get("parentCommit") not in (None, sha):
                    raise _Answer(412, "A commit has happened since. Please refresh and try again.")
            elif item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files[value["path"]] = hub.blobs[value["oid"]]
            elif item["key"] == "deletedFile":
                del files[value["path"]]
        branch = "refs/pr/1" if pull_request else revision
        sha = repository.commit(branch, files, header["summary"])
        answer = {"success": True, "commitOid": sha, "commitUrl": f"{hub.endpoint}/{repo_id}/commit/{sha}"}
        if pull_request:
            answer["pullRequestUrl"] = f"{hub.endpoint}/{repo_id}/discussions/1"
        self._send(200, answer)

    def _resolve(self, repo_id: str, revision: str, name: str) -> None:
        sha, files = self._at(self._readable(repo_id), revision)
        if name not in files:
            raise _Answer(404, f"{name} does not exist", "EntryNotFound", X_Repo_Commit=sha)
        content = files[name]
        if not _LFS.fullmatch(name):
            self._send(200, content, {"X-Repo-Commit": sha, "ETag": f'"{git_oid(content)}"'})
            return
        oid = hashlib.sha256(content).hexdigest()
        headers = {"X-Repo-Commit": sha, "X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{oid}"'}
        self._send(302, b"", {**headers, "Location": f"{self.hub.blob_endpoint}/blobs/{oid}"})
