"""A web server on this machine that serves one file and fails in chosen ways."""

from __future__ import annotations

import hashlib
import random
import re
import threading
from collections import namedtuple
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from medbn.data import Archive

CONTENT = random.Random(0).randbytes(1_000_003)
Request = namedtuple("Request", "range if_range status sent")


class Server:
    """Serve ``content``.

    ``failures`` holds one dictionary per coming request: ``bytes`` (close after as many), ``status``, ``headers``,
    ``shift`` (start a partial response elsewhere), ``stall`` (send nothing more). ``log`` holds the requests so far.
    """

    def __init__(self):
        self.content, self.etag, self.modified, self.ranges, self.length = CONTENT, '"one"', None, True, "header"
        self.failures, self.log, self.resume = [], [], threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = False
        self._server.owner = self
        self.url = f"http://127.0.0.1:{self._server.server_port}/data.tar"

    def archive(self, content=None, **options):
        md5 = hashlib.md5(self.content if content is None else content).hexdigest()
        return Archive(self.url, md5, "data.tar", **options)

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.005})
        self._thread.start()
        return self

    def __exit__(self, *error):
        self.resume.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        server = self.server.owner
        server.resume.set()
        failure = server.failures.pop(0) if server.failures else {}
        span, condition = self.headers["Range"], self.headers["If-Range"]
        body, status = server.content, failure.get("status", 200)
        start = int(re.fullmatch(r"bytes=(\d+)-", span)[1]) if span else 0
        headers = {"ETag": server.etag, "Last-Modified": server.modified, **failure.get("headers", {})}
        if status != 200:
            body = b"an error page"
        elif span and server.ranges and condition in (None, server.etag, server.modified):
            if start >= len(body):
                status, headers["Content-Range"], body = 416, f"bytes */{len(body)}", b""
            else:
                start += failure.get("shift", 0)
                headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
                status, body = 206, body[start:]
        sent = body[: failure.get("bytes", len(body))]
        server.log.append(Request(span, condition, status, len(sent)))
        if server.length == "header":
            headers["Content-Length"] = str(len(body))
        elif server.length == "chunked":
            headers["Transfer-Encoding"] = "chunked"
        self.close_connection = True
        with suppress(ConnectionError):
            self.send_response(status)
            for name, value in {**headers, "Connection": "close"}.items():
                if value:
                    self.send_header(name, value)
            self.end_headers()
            if server.length == "chunked":
                self.wfile.write(b"%x\r\n%s\r\n" % (len(sent), sent))
                if len(sent) == len(body):
                    self.wfile.write(b"0\r\n\r\n")
            else:
                self.wfile.write(sent)
            if failure.get("stall"):
                self.wfile.flush()
                server.resume.clear()
                server.resume.wait(10)
