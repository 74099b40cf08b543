"""What the load client can send, and whether it tells the truth: beside `wrk`, in turns.

nginx answers a constant: how many requests a second come from one core at 40 connections. A stub
answers after 10 ms: the p50 and p90 that 20 connections see. Needs nginx and wrk.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Figure, in_turns, serving
from packhorse.units import parse_seconds
from packhorse_loadtest.job import Asked, Job, Load, Transport
from packhorse_loadtest.recorder import latency_of
from packhorse_loadtest.runner import run_load

ROUNDS = 3
SECONDS = 4
LEAST_RPS = 8000
NGINX = """
worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/log;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000000; client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fcgi; uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location / {{ default_type application/json; return 200 '[{{"label":"yes","score":1.0}}]'; }}
  }}
}}
"""


def figures() -> list[Figure]:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        config = Path(folder) / "nginx.conf"
        config.write_text(NGINX.format(folder=folder, port=port))
        with serving(["nginx", "-c", str(config)], f"http://127.0.0.1:{port}/") as url:
            fast = in_turns(ROUNDS, contenders(url, 40))
    command = [sys.executable, "-m", "benchmarks.stub", str(port := free_port()), "0.01"]
    with serving(command, f"http://127.0.0.1:{port}/") as url:
        slow = in_turns(ROUNDS, contenders(url, 20))
    ours, wrk = fast["packhorse"], fast["wrk"]
    rows = [
        Figure("load client, 40 connections", ours["rps"], "/s", wrk["rps"], "wrk on one core"),
        Figure("the same", ours["rps"], "/s", LEAST_RPS, "what is asked for", ">= 1"),
    ]
    for name in ("p50", "p90"):
        value, limit = slow["packhorse"][name], slow["wrk"][name]
        what = f"{name} that it reports of a 10 ms stub"
        rows.append(Figure(what, value, "ms", limit, "wrk's", "<= 1.05"))
        rows.append(Figure("the same", value, "ms", limit, "wrk's", ">= 0.95"))
    return rows


def contenders(url: str, connections: int) -> dict[str, Callable[[], dict[str, float]]]:
    return {"packhorse": lambda: by_us(url, connections), "wrk": lambda: by_wrk(url, connections)}


def by_us(url: str, connections: int) -> dict[str, float]:
    load = Load("closed", 0, concurrency=connections, weights=[1.0])
    bodies = [['{"inputs": "Where is my parcel?"}']]
    transport = Transport(connections=connections)
    job = Job(load, transport, [Asked(f"{url}predictions/a", 0)], bodies, 0.5, SECONDS, 1.0)
    recorder = run_load(job, 1)
    assert not recorder.errors, recorder.errors
    latency = latency_of(recorder.everything())
    assert latency.p50 is not None
    assert latency.p90 is not None
    return {"rps": recorder.ok / SECONDS, "p50": latency.p50, "p90": latency.p90}


def by_wrk(url: str, connections: int) -> dict[str, float]:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{SECONDS}s", "--latency", url]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    names = ("50%", "90%", "Requests/sec:")
    found = [re.search(rf"^\s*{name}\s+(\S+)", out, re.MULTILINE) for name in names]
    p50, p90, rps = (match[1] for match in found if match)
    return {"rps": float(rps), "p50": parse_seconds(p50) * 1e3, "p90": parse_seconds(p90) * 1e3}


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
    return port
