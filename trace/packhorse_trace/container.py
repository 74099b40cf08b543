"""Trace where the compiler is: in the image of a processor whose compiler is not installed here.

Every folder that the run reads or writes is mounted under its own name, so that nothing in the
catalog or the settings has to be rewritten.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from packhorse import __version__
from packhorse.catalog import ModelSpec
from packhorse.sessions.neuron import SDKS
from packhorse.settings import Settings
from packhorse_trace.planning import Result

COMPILERS = {"cpu": "onnxruntime", "gpu": "torch", **SDKS}


def missing_compilers(processors: Iterable[str]) -> set[str]:
    """Return the processors whose compiler is not installed here."""
    return {name for name in processors if importlib.util.find_spec(COMPILERS[name]) is None}


def image_of(processor: str, settings: Settings) -> str:
    """Name the image that has a processor's compiler."""
    return f"{settings.registry}packhorse-{processor}:{__version__}"


def trace_in_image(
    processor: str, specs: Sequence[ModelSpec], settings: Settings, force: bool, chosen: bool
) -> list[Result]:
    """Trace models in their processor's image, and return what became of them.

    Args:
        chosen: Whether `specs` are not all that the catalog has for the processor.
    """
    image = image_of(processor, settings)
    if shutil.which("docker") is None:
        return _failed(
            processor, specs,
            f"{COMPILERS[processor]} is not installed, and neither is docker: run where image "
            f"{image} can",
        )  # fmt: skip
    command = docker_command(processor, specs, settings, force, chosen)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    try:
        rows = json.loads(done.stdout)["models"]
    except (ValueError, KeyError):
        return _failed(
            processor, specs,
            f"docker could not trace in image {image} (exit code {done.returncode}): see above; "
            f"make build PROCESSOR={processor} makes the image",
        )  # fmt: skip
    return [Result(**{**row, "notes": tuple(row["notes"])}) for row in rows]


def _failed(processor: str, specs: Sequence[ModelSpec], reason: str) -> list[Result]:
    return [Result(spec.id, processor, "failed", reason=reason) for spec in specs]


def docker_command(
    processor: str, specs: Sequence[ModelSpec], settings: Settings, force: bool, chosen: bool
) -> list[str]:
    """Return the whole command line."""
    here = Path.cwd()
    folders = {here: "", **dict.fromkeys(_outside(here, specs, settings), ":ro")}
    if "://" not in settings.store:
        store = Path(settings.store).absolute()
        store.mkdir(parents=True, exist_ok=True)
        if here not in store.parents:
            folders[store] = ""
    command = [
        "docker",
        "run",
        "--rm",
        "--user",
        f"{os.getuid()}:{os.getgid()}",
        "--env",
        "HOME=/tmp",
    ]
    for folder, mode in folders.items():
        command += ["--volume", f"{folder}:{folder}{mode}"]
    command += ["--workdir", str(here), "--network", "host"]
    for name in sorted(os.environ):  # by name only: what they hold stays out of process lists
        if name.startswith(("AWS_", "PACKHORSE_", "HF_")):
            command += ["--env", name]
    if processor == "gpu" and shutil.which("nvidia-smi"):
        command += ["--gpus", "all"]
    if processor in SDKS and Path("/dev/neuron0").exists():
        command += ["--device", "/dev/neuron0"]
    command += [image_of(processor, settings), "packhorse", "trace", "run"]
    command += [str(settings.catalog), "--only-processor", processor, "--json"]
    command += ["--store", settings.store, "--processor", settings.processor]
    command += ["--force"] if force else []
    for spec in specs if chosen else ():
        command += ["--only", spec.id]
    return command


def _outside(here: Path, specs: Sequence[ModelSpec], settings: Settings) -> list[Path]:
    """Return the folders that are read, and lie elsewhere than in the working directory."""
    paths = [settings.catalog.absolute().parent]
    for spec in specs:
        source = Path(spec.source).expanduser()
        if source.is_absolute():
            paths.append(source if source.is_dir() else source.parent)
        if spec.samples is not None:
            paths.append(spec.samples.absolute().parent)
    found = {path for path in paths if path != here and here not in path.parents}
    return sorted(path for path in found if not any(parent in found for parent in path.parents))
