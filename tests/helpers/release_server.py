"""An HTTP server with the faults of real ones, in a thread; and UniProt's layout for it."""

import contextlib
import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Server:
    """What a server has and how it misbehaves.

    Attributes:
        files: content by path.
        url: where it listens.
        ranges: whether it knows Range.
        drops: for each answer in turn, after how many bytes of the body it breaks the connection (None: never).
        statuses: for each answer in turn, a status to give instead (0: none).
        declares: Content-Length by path, where it is not the truth; None for none at all.
        shift: bytes that it is off in answers to ranges.
        asked: what was asked for: (path, first byte).
    """

    files: dict[str, bytes]
    url: str = ""
    ranges: bool = True
    drops: list[int | None] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    declares: dict[str, int | None] = field(default_factory=dict)
    shift: int = 0
    asked: list[tuple[str, int]] = field(default_factory=list)

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        wanted = handler.headers.get("Range", "")
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        self.asked.append((handler.path, start))
        if self.statuses and (status := self.statuses.pop(0)):
            handler.send_response(status)
            handler.end_headers()
            return
        content = self.files.get(handler.path)
        if content is None:
            handler.send_error(404)
            return
        partial = bool(wanted) and self.ranges
        if partial and start >= len(content):
            handler.send_error(416)
            return
        start = start + self.shift if partial else 0
        handler.send_response(206 if partial else 200)
        if partial:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        declared = self.declares.get(handler.path, len(content) - start)
        if declared is not None:
            handler.send_header("Content-Length", str(declared))
        handler.end_headers()
        drop = self.drops.pop(0) if self.drops else None
        handler.wfile.write(content[start:] if drop is None else content[start : start + drop])


@contextlib.contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Server]:
    server = Server(files)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            # A client that has read enough goes away.
            with contextlib.suppress(ConnectionError):
                server.answer(self)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        server.url = f"http://127.0.0.1:{listener.server_port}"
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown()
            thread.join()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def metalink(release: str, files: dict[str, bytes]) -> bytes:
    """The list that UniProt writes: Metalink 3.0."""
    entries = "".join(
        f'<file name="{name}"><size>{len(content)}</size><verification><hash type="md5">{md5(content)}</hash>'
        f'</verification><resources><url type="ftp" location="us">ftp://ftp.uniprot.org/{name}</url></resources></file>'
        for name, content in files.items()
    )
    return (
        '<?xml version="1.0" encoding="utf-8"?><metalink version="3.0" xmlns="http://www.metalinker.org/" '
        f'type="dynamic"><identity>uniprot</identity><version>{release}</version><files>{entries}</files></metalink>'
    ).encode()


def archive(members: dict[str, bytes]) -> bytes:
    """A .tar.gz as previous releases have."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
