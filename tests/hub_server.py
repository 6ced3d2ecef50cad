"""As much of the Hugging Face Hub as pushing and pulling a model needs, on loopback, with the standard library alone.

It keeps tokens, repositories, commits, branches, tags and LFS objects (whose sha256 it checks) in a folder, so that it
can die and come back. What it leaves out: the Hub's judgement of cards, LFS in several parts, Xet, quotas, gates, git.

    python tests/hub_server.py FOLDER [--die-in-upload BYTES]     prints its address; requests.log says who asked what
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TOKENS = {"hf_token_of_ada": {"name": "ada", "orgs": ["zoo"]}, "hf_token_of_bob": {"name": "bob", "orgs": []}}
REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"


class Refused(Exception):
    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Store:
    """Repositories: {id: {private, refs: {branch: commit}, tags, commits: {oid: {message, files: {path: file}}}}}."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, threading.RLock()
        (folder / "objects").mkdir(parents=True, exist_ok=True)
        path = folder / "repos.json"
        self.repos: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def save(self) -> None:
        temporary = self.folder / "repos.json.tmp"
        temporary.write_text(json.dumps(self.repos, indent=1))
        os.replace(temporary, self.folder / "repos.json")

    def object(self, sha256: str) -> Path:
        return self.folder / "objects" / sha256

    def create(self, repo: str, private: bool) -> None:
        self.repos[repo] = {"private": private, "refs": {}, "tags": {}, "commits": {}}
        attributes = self.put(b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n")
        self.commit(repo, "main", "initial commit", {".gitattributes": attributes}, parent=None)

    def put(self, content: bytes) -> dict[str, Any]:
        """Store a regular file; git names it by the sha1 of its blob."""
        sha = hashlib.sha256(content).hexdigest()
        self.object(sha).write_bytes(content)
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return {"oid": oid, "sha256": sha, "size": len(content), "lfs": False}

    def commit(self, repo: str, branch: str, message: str, changes: dict[str, Any], parent: str | None) -> str:
        content = self.repos[repo]
        files = {**(content["commits"][parent]["files"] if parent else {}), **changes}
        body = json.dumps([repo, parent, message, len(content["commits"]), files]).encode()
        oid = hashlib.sha1(body).hexdigest()
        content["commits"][oid] = {"message": message, "parent": parent, "files": files}
        content["refs"][branch] = oid
        self.save()
        return oid

    def find(self, repo: str, revision: str) -> str:
        content = self.repos[repo]
        oid = content["refs"].get(revision) or content["tags"].get(revision)
        oid = oid or (revision if revision in content["commits"] else None)
        if oid is None:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return oid


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store
    die_in_upload = 0

    def log_message(self, *_: Any) -> None: ...

    def handle_any(self) -> None:
        path = urlsplit(self.path).path
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        self.user = TOKENS.get(token)
        with self.store.lock, open(self.store.folder / "requests.log", "a") as log:
            log.write(f"{self.command} {path} {self.user['name'] if self.user else '-'}\n")
        try:
            if token and self.user is None:
                self.read_body()
                raise Refused(401, "Invalid credentials in Authorization header")
            for method, pattern, action in ROUTES:
                found = re.fullmatch(pattern, path)
                if found and self.command in method:
                    if "PUT" not in method:
                        self.body = self.read_body()
                    action(self, **{key: unquote(value) for key, value in found.groupdict().items() if value})
                    return
            raise Refused(404, f"no route {self.command} {path}")
        except Refused as refusal:
            self.answer(
                {"error": str(refusal)}, refusal.status,
                {"X-Error-Message": str(refusal), **({"X-Error-Code": refusal.code} if refusal.code else {})},
            )  # fmt: skip

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    # Reading and answering

    def pieces(self) -> Any:
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            piece = self.rfile.read(min(left, 1 << 14))
            if not piece:
                return
            left -= len(piece)
            yield piece

    def read_body(self) -> bytes:
        return b"".join(self.pieces())

    def answer(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def readable(self, repo: str) -> dict[str, Any]:
        content = self.store.repos.get(repo)
        if content is None or (content["private"] and not self.may_write(repo)):
            raise Refused(404 if self.user else 401, "Repository not found", "RepoNotFound")
        return content

    def writable(self, repo: str) -> dict[str, Any]:
        content = self.readable(repo)
        if not self.may_write(repo):
            raise Refused(403, f"You may not write to {repo}")
        return content

    def may_write(self, repo: str) -> bool:
        return bool(self.user) and repo.partition("/")[0] in (self.user["name"], *self.user["orgs"])

    # What the Hub does

    def create(self) -> None:
        asked = json.loads(self.body)
        if not self.user:
            raise Refused(401, "Invalid username or password.")
        repo = f"{asked.get('organization') or self.user['name']}/{asked['name']}"
        if not self.may_write(repo):
            raise Refused(403, f"You may not create a model under the namespace {repo.split('/')[0]!r}")
        with self.store.lock:
            if repo in self.store.repos:
                self.answer({"error": "exists", "url": f"http://{self.headers['Host']}/{repo}"}, 409)
                return
            self.store.create(repo, asked.get("visibility") == "private" or bool(asked.get("private")))
        self.answer({"url": f"http://{self.headers['Host']}/{repo}", "id": repo})

    def validate(self) -> None:
        self.answer({"errors": [], "warnings": []})

    def info(self, repo: str, rev: str = "main") -> None:
        content = self.readable(repo)
        oid = self.store.find(repo, rev)
        siblings = [{"rfilename": path} for path in content["commits"][oid]["files"]]
        self.answer({"id": repo, "modelId": repo, "sha": oid, "private": content["private"], "siblings": siblings})

    def refs(self, repo: str) -> None:
        content = self.readable(repo)
        listed = {
            kind: [{"name": n, "ref": f"refs/{where}/{n}", "targetCommit": oid} for n, oid in content[key].items()]
            for kind, key, where in (("branches", "refs", "heads"), ("tags", "tags", "tags"))
        }
        self.answer({**listed, "converts": []})

    def branch(self, repo: str, rev: str) -> None:
        content = self.writable(repo)
        if rev in content["refs"]:
            raise Refused(409, "Reference already exists")
        content["refs"][rev] = self.store.find(repo, json.loads(self.body or b"{}").get("startingPoint", "main"))
        self.store.save()
        self.answer({})

    def tag(self, repo: str, rev: str) -> None:
        content, name = self.writable(repo), json.loads(self.body)["tag"]
        if name in content["tags"]:
            raise Refused(409, "Tag reference exists already")
        content["tags"][name] = self.store.find(repo, rev)
        self.store.save()
        self.answer({})

    def preupload(self, repo: str, rev: str) -> None:
        files = self.writable(repo)["commits"][self.store.find(repo, rev)]["files"]
        told = []
        for asked in json.loads(self.body)["files"]:
            there, lfs = files.get(asked["path"]), asked["path"].endswith(".safetensors")
            oid = there and (there["sha256"] if there["lfs"] else there["oid"])
            mode = "lfs" if lfs else "regular"
            told.append({"path": asked["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.answer({"files": told})

    def lfs_batch(self, repo: str) -> None:
        self.writable(repo)
        objects = []
        for asked in json.loads(self.body)["objects"]:
            href = f"http://{self.headers['Host']}/lfs-objects/{asked['oid']}"
            there = self.store.object(asked["oid"]).exists()
            objects.append(asked | ({} if there else {"actions": {"upload": {"href": href}}}))
        self.answer({"transfer": "basic", "objects": objects})

    def lfs_upload(self, oid: str) -> None:
        content = b""
        for piece in self.pieces():
            content += piece
            if self.die_in_upload and len(content) >= self.die_in_upload:
                os._exit(1)
        if hashlib.sha256(content).hexdigest() != oid:
            raise Refused(400, "the content has another sha256")
        self.store.object(oid).write_bytes(content)
        self.answer({})

    def commit(self, repo: str, rev: str) -> None:
        self.writable(repo)
        changes, message = {}, ""
        for line in self.body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                message = value["summary"]
            elif item["key"] == "file":
                changes[value["path"]] = self.store.put(base64.b64decode(value["content"]))
            elif item["key"] == "lfsFile":
                path = self.store.object(value["oid"])
                if not path.exists():
                    raise Refused(400, f"LFS object {value['oid']} was not uploaded")
                pointer = {"oid": value["oid"][:40], "sha256": value["oid"], "size": path.stat().st_size, "lfs": True}
                changes[value["path"]] = pointer
            else:
                raise Refused(400, f"no operation {item['key']}")
        with self.store.lock:
            oid = self.store.commit(repo, rev, message, changes, self.store.find(repo, rev))
        url = f"http://{self.headers['Host']}/{repo}/commit/{oid}"
        self.answer({"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": ""})

    def resolve(self, repo: str, rev: str, path: str) -> None:
        content = self.readable(repo)
        oid = self.store.find(repo, rev)
        file = content["commits"][oid]["files"].get(path)
        if file is None:
            raise Refused(404, "Entry not found", "EntryNotFound")
        etag = f'"{file["sha256"] if file["lfs"] else file["oid"]}"'
        headers = {"X-Repo-Commit": oid, "ETag": etag, "X-Linked-Size": str(file["size"])}
        self.answer(self.store.object(file["sha256"]).read_bytes(), 200, headers)


API = rf"/api/models/{REPO}"
ROUTES: list[tuple[tuple[str, ...], str, Any]] = [
    (("POST",), "/api/repos/create", Handler.create),
    (("POST",), "/api/validate-yaml", Handler.validate),
    (("GET",), rf"{API}(?:/revision/(?P<rev>[^/]+))?", Handler.info),
    (("GET",), rf"{API}/refs", Handler.refs),
    (("POST",), rf"{API}/branch/(?P<rev>[^/]+)", Handler.branch),
    (("POST",), rf"{API}/tag/(?P<rev>[^/]+)", Handler.tag),
    (("POST",), rf"{API}/preupload/(?P<rev>[^/]+)", Handler.preupload),
    (("POST",), rf"{API}/commit/(?P<rev>[^/]+)", Handler.commit),
    (("POST",), rf"/{REPO}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    (("PUT",), r"/lfs-objects/(?P<oid>[0-9a-f]{64})", Handler.lfs_upload),
    (("GET", "HEAD"), rf"/{REPO}/resolve/(?P<rev>[^/]+)/(?P<path>.+)", Handler.resolve),
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--die-in-upload", type=int, default=0, metavar="BYTES", help="exit after so many of a PUT")
    args = parser.parse_args()
    Handler.store, Handler.die_in_upload = Store(args.folder), args.die_in_upload
    server = ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
    print(f"http://127.0.0.1:{server.server_port}")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
