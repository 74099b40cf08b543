"""Servers as local processes: what `make demo` and a single machine need, and no more.

A server's process is recognised by its command line, so that a recycled pid of somebody else's
is never stopped.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import psutil

from packhorse.deployment import (
    DEPLOYED_PLAN,
    DEPLOYMENT_FILE,
    Deployment,
    RunningServer,
    load_deployment,
)
from packhorse.errors import DeployError, InvalidInput
from packhorse.plan import Plan, Server, load_plan
from packhorse.progress import show_progress
from packhorse.settings import Settings
from packhorse_deploy.probe import ask_ready, wait_ready
from packhorse_deploy.runtime import ServerStatus

LOGS = DEPLOYMENT_FILE.parent / "logs"
PLANS = DEPLOYMENT_FILE.parent / "plans"
"""The part of the plan that each server was started with, to see later whether it still holds."""
PASSED_ON = (
    "store", "cache", "host", "readiness", "drain_seconds", "threads_per_inference",
    "max_body_bytes", "max_inputs", "max_queue_seconds", "request_timeout_seconds",
    "retry_seconds",
)  # fmt: skip
"""Settings that a server is started with; another value replaces a server that runs."""
STOP_GRACE_S = 60.0
SEVERAL_FROM, MANAGEMENT_FROM = 8100, 9100
"""Ports of server i where there are several; a single one takes the settings' ports."""


@dataclass(frozen=True)
class Wanted:
    """A server that shall run, and how it is started."""

    plan: Plan
    settings: Settings
    port: int
    management_port: int

    @property
    def server(self) -> Server:
        """The plan's one server."""
        return self.plan.servers[0]

    @property
    def url(self) -> str:
        """Where it will answer."""
        host = self.settings.host
        if host in ("0.0.0.0", "::"):  # noqa: S104 — all addresses, of which this is one
            host = "127.0.0.1"
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def arguments(self) -> list[str]:
        """Arguments of `packhorse`."""
        lanes = min(self.server.lanes, os.cpu_count() or 1)  # the plan may be for a larger machine
        values = {name: getattr(self.settings, name) for name in PASSED_ON} | {
            "plan": PLANS / f"{self.server.name}.yaml",
            "server": self.server.name,
            "port": self.port,
            "management-port": self.management_port,
            "memory-bytes": self.server.memory_bytes,
            "lanes": lanes,
        }
        return [
            "serve",
            *(part for k, v in values.items() for part in (f"--{k.replace('_', '-')}", str(v))),
        ]

    def matches(self, running: RunningServer) -> bool:
        """Whether a process serves this, with these settings, already."""
        process = find_process(self.server.name, running)
        if process is None or process.cmdline()[-len(self.arguments) :] != self.arguments:
            return False
        try:
            return load_plan(PLANS / f"{self.server.name}.yaml").servers == [self.server]
        except InvalidInput:
            return False

    def start(self) -> RunningServer:
        """Start the process, in a session of its own, so that it outlives this command."""
        LOGS.mkdir(parents=True, exist_ok=True)
        self.plan.write(PLANS / f"{self.server.name}.yaml")
        command = [sys.executable, "-m", "packhorse", *self.arguments]
        # For its owner alone: a management token that was drawn at start stands in it.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os.fdopen(os.open(LOGS / f"{self.server.name}.log", flags, 0o600), "ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        management = f"http://127.0.0.1:{self.management_port}" if self.management_port else None
        models = [model.id for model in self.server.models]
        return RunningServer(
            url=self.url, management_url=management, models=models, pid=process.pid
        )


class ProcessRuntime:
    """Starts `packhorse serve`, one process for each server of the plan."""

    def up(self, plan: Plan, settings: Settings) -> Deployment:
        if not plan.servers or not all(server.models for server in plan.servers):
            raise InvalidInput("the plan has no servers, or one without models: run packhorse pack")
        running = self._running()
        wanted = _wanted(plan, settings)
        kept = {n: s for n, s in running.items() if n in wanted and wanted[n].matches(s)}
        fresh = {name: one for name, one in wanted.items() if name not in kept}
        stale = {name: server for name, server in running.items() if name not in kept}
        # Before anything is stopped: what runs must not be lost to a start that cannot succeed.
        ours = {url for server in stale.values() for url in (server.url, server.management_url)}
        for one in fresh.values():
            _require_free(one.port, "port", ours)
            _require_free(one.management_port, "management_port", ours)
        _stop(stale)
        _record(kept)
        servers = dict(kept)
        total = sum(len(one.server.models) for one in fresh.values())
        with show_progress("load", total) as bar:
            try:
                for name, one in fresh.items():
                    servers[name] = one.start()
                    _record(servers)
                for name in wanted:  # those that ran before too: they may hang
                    _wait(name, servers[name], bar.advance if name in fresh else lambda _: None)
            except BaseException:
                _stop({name: servers[name] for name in fresh if name in servers})
                _record(kept)
                raise
        plan.write(DEPLOYED_PLAN)
        return _record({name: servers[name] for name in wanted})

    def status(self, deployment: Deployment) -> list[ServerStatus]:
        rows = []
        for name, server in deployment.servers.items():
            if find_process(name, server) is None:
                rows.append(ServerStatus(name, server.url, "down", f"no process {server.pid}"))
                continue
            answer = ask_ready(server.url)
            state = {200: "ready", 503: "unready"}.get(answer.status, "starting")
            rows.append(ServerStatus(name, server.url, state, answer.reason))
        return rows

    def logs(self, server: str, follow: bool) -> Iterator[str]:
        path = LOGS / f"{server}.log"
        if "/" in server or not path.exists():
            raise InvalidInput(f"server {server!r} has no log {path}: see packhorse deploy status")
        with path.open(encoding="utf-8", errors="replace") as file:
            while True:
                if line := file.readline():
                    yield line.rstrip("\n")
                elif follow:
                    time.sleep(0.2)
                else:
                    return

    def down(self, deployment: Deployment) -> None:
        _stop(deployment.servers)
        DEPLOYMENT_FILE.unlink(missing_ok=True)

    def _running(self) -> dict[str, RunningServer]:
        if not DEPLOYMENT_FILE.exists():
            return {}
        deployment = load_deployment()
        if deployment.runtime != "process":
            raise DeployError(
                f"runtime {deployment.runtime} is deployed here: run packhorse deploy down first"
            )
        return deployment.servers


def find_process(name: str, server: RunningServer) -> psutil.Process | None:
    """Return the live process of a server, if the pid is still its own."""
    try:
        process = psutil.Process(server.pid)
        command = process.cmdline()
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
    except (psutil.Error, TypeError, ValueError):
        return None
    mine = "serve" in command and "--server" in command
    return process if mine and command[command.index("--server") + 1] == name else None


def _wanted(plan: Plan, settings: Settings) -> dict[str, Wanted]:
    single = len(plan.servers) == 1
    return {
        server.name: Wanted(
            Plan(fleet=plan.fleet, servers=[server]),
            settings,
            settings.port if single else SEVERAL_FROM + index,
            settings.management_port if single else MANAGEMENT_FROM + index,
        )
        for index, server in enumerate(plan.servers)
    }


def _wait(name: str, server: RunningServer, advance: Callable[[float], None]) -> None:
    try:
        wait_ready(server.url, lambda: find_process(name, server) is not None, advance)
    except DeployError as err:
        raise DeployError(
            f"server {name} is not ready: {err} (packhorse deploy logs {name})"
        ) from err


def _stop(servers: Mapping[str, RunningServer]) -> None:
    """Ask all to end, wait, and kill what did not."""
    found = [find_process(name, server) for name, server in servers.items()]
    processes = [process for process in found if process is not None]
    for process in processes:
        process.terminate()
    _, left = psutil.wait_procs(processes, STOP_GRACE_S)
    for process in left:
        process.kill()


def _record(servers: Mapping[str, RunningServer]) -> Deployment:
    """Write what runs; a single server answers for every model, as a router would."""
    single = next(iter(servers.values())).url if len(servers) == 1 else None
    deployment = Deployment(runtime="process", router_url=single, servers=dict(servers))
    if servers:
        deployment.write()
    else:
        DEPLOYMENT_FILE.unlink(missing_ok=True)
    return deployment


def _require_free(port: int, setting: str, ours: set[str | None]) -> None:
    """Say that a port is taken before a server fails over it in its log.

    Args:
        ours: URLs of servers that will have been stopped by then.
    """
    if not port or f"http://127.0.0.1:{port}" in ours:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as err:
            raise DeployError(
                f"port {port} is in use: stop what listens there, or choose another "
                f"(--{setting.replace('_', '-')}, or {setting} in packhorse.yaml)"
            ) from err
