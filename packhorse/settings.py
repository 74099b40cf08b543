"""Every setting of the pipeline and the server, declared once.

A declaration gives the flag, the environment variable, the key in `packhorse.yaml`, the default
and the text of `docs/settings.md`. A flag beats the environment, which beats the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import click
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from packhorse.document import Document, describe
from packhorse.errors import InvalidInput
from packhorse.units import parse_bytes

SETTINGS_FILE = "packhorse.yaml"
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Processor = Literal["cpu", "gpu", "inf1", "inf2"]
Command = TypeVar("Command", bound=Callable[..., Any])


class Settings(BaseModel):
    """The settings of a run, each with its unit, default and reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    store: str = Field(
        ".packhorse/store",
        description="Where models are published: `s3://bucket/prefix`, a folder, or its "
        "`file:///dir` URL.",
    )
    catalog: Path = Field(
        Path("models.yaml"), description="The file that lists the models to serve."
    )
    processor: Processor = Field(
        "cpu", description="The processor that `trace` compiles for when a model names none."
    )
    runtime: Literal["process", "docker", "kubernetes"] = Field(
        "process", description="What `deploy` starts servers on. `process` needs nothing else."
    )
    registry: str = Field(
        "", description="Image registry, with a final slash; empty: local. Not used yet."
    )
    namespace: str = Field(
        "packhorse", description="Kubernetes namespace of a deployment. Not used yet."
    )
    fleet: Path | None = Field(
        None,
        description="YAML file of the instance types that `pack` may use (see pack/README.md); "
        "none: the catalogue's CPU types.",
    )
    latency_target_ms: float = Field(
        100, gt=0, description="P90 latency, in milliseconds, that a plan must keep. Not used yet."
    )
    jobs: int = Field(1, ge=1, le=256, description="Models that `trace` compiles at once.")
    min_label_agreement: float = Field(
        0.98, ge=0, le=1,
        description="Share of sample texts whose label must survive int8; below it, `trace` "
        "refuses the model (rounded up to whole texts). Give a model `samples` of its own texts to "
        "make this meaningful.",
    )  # fmt: skip
    max_score_noise: float = Field(
        0.5, gt=0,
        description="Largest change of scores by int8, per their own differences from text to "
        "text (root mean squares); above it, `trace` refuses the model.",
    )  # fmt: skip
    min_cosine: float = Field(
        0.95, ge=-1, le=1,
        description="Least cosine between an int8 embedding and the original's.",
    )  # fmt: skip
    max_abs_diff: float = Field(
        1e-4, gt=0,
        description="Largest difference between an fp32 artifact's outputs and the original's.",
    )  # fmt: skip
    reduce_range: bool = Field(
        True,
        description="Quantize weights to 7 bits, so that CPUs without VNNI, whose 8-bit "
        "products saturate, answer alike. Turn off for fleets of VNNI CPUs only.",
    )
    int8_scales: Literal["tensor", "row"] = Field(
        "tensor",
        description="Scales of int8 activations: one per tensor, or one for each row, which is "
        "more accurate and the same in any batch, and 15-25 % slower for a single text.",
    )
    neuron_cast: Literal["matmult", "all", "none"] = Field(
        "matmult",
        description="What Inferentia computes in bf16: matrix products, all, or as little as it "
        "can. The two SDKs have opposite defaults; this one holds for both.",
    )
    neuron_pipeline_cores: Literal["auto"] | Annotated[int, Field(ge=1, le=16)] = Field(
        1,
        description="NeuronCores over which `inf1` splits a model, for latency; `auto`: 4 for each "
        "20 million weights; 1: a copy on each core, for throughput.",
    )
    neuron_load: Literal["eager", "async", "lazy"] = Field(
        "eager",
        description="When `inf2` brings weights to the device: on load, behind it, or with the "
        "first request.",
    )
    publish_unproven: bool = Field(
        False,
        description="Publish what was compiled for a device that is not here, and so could not be "
        "compared with its original. Its record says so, and it has no measured cost.",
    )
    plan: Path = Field(Path("plan.yaml"), description="Which model is on which server.")
    server: str = Field("", description="The plan's server that this process is.")
    cache: Path = Field(
        Path(".packhorse/cache"), description="Folder for pulled models; on the servers' disk."
    )
    host: str = Field("127.0.0.1", description="Address that the server listens on.")
    port: int = Field(8080, ge=1, le=65535, description="Port for predictions.")
    management_port: int = Field(
        9080, ge=0, le=65535,
        description="Port for load and drain, on loopback only; 0: none.",
    )  # fmt: skip
    management_token: str = Field(
        "", description="Bearer token of the management port; empty: drawn at start, and logged."
    )
    memory_bytes: Bytes | None = Field(
        None,
        gt=0,
        description="Bytes that models may hold, such as `2GiB`; none: 85 % of the cgroup's or "
        "the machine's memory.",
    )
    cache_bytes: Bytes | None = Field(
        None,
        gt=0,
        description="Bytes that pulled models may take on disk, all servers that share the cache "
        "together: models that no server uses go, the one used longest ago first; none: no limit.",
    )
    readiness: str = Field(
        "all",
        description="When the server calls itself ready: `all` models available, "
        "`quorum:0.95` of them, or `required:id,id`.",
    )
    drain_seconds: float = Field(
        5, ge=0,
        description="Seconds between turning unready and closing the port, so that load "
        "balancers stop sending first.",
    )  # fmt: skip
    lanes: int | None = Field(
        None, ge=1, le=1024,
        description="Inferences that run at once; none: the CPUs that the cgroup grants.",
    )  # fmt: skip
    threads_per_inference: int = Field(
        1, ge=1, le=256, description="Threads per inference: more trades throughput for latency."
    )
    max_body_bytes: Bytes = Field(
        2 * 1024**2, description="Largest request body; a larger one is answered 413."
    )
    max_inputs: int = Field(
        256, ge=1, description="Most inputs in one request; more are answered 400."
    )
    max_queue_seconds: float = Field(
        2, gt=0,
        description="Seconds of work that may wait for one model; more is answered 429.",
    )  # fmt: skip
    request_timeout_seconds: float = Field(
        30, gt=0, description="Deadline of a request that names none."
    )
    refresh_seconds: float = Field(
        60, ge=0,
        description="Seconds between looks into the store for newer versions, and for versions "
        "published again under the same name; 0: never.",
    )  # fmt: skip
    retry_seconds: float = Field(
        10, gt=0,
        description="Seconds until a quarantined model is tried again; doubled each time, up to "
        "five minutes.",
    )  # fmt: skip


def load_settings(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Merge flags, `PACKHORSE_*` variables and `packhorse.yaml`, in that order of strength.

    Args:
        flags: Setting name to value; None values are not set.
        environ: The environment; by default the process's.
        folder: Where `packhorse.yaml` is looked for; by default the working directory.

    Raises:
        InvalidInput: A value that cannot be, named with where it stands.
    """
    environ = os.environ if environ is None else environ
    path = (folder or Path()) / SETTINGS_FILE
    values: dict[str, Any] = {}
    if path.exists():
        document = Document.read(path)
        if document.data is not None:
            document.validate(Settings)
            values.update(document.data)
    for name in Settings.model_fields:
        variable = f"PACKHORSE_{name.upper()}"
        if environ.get(variable):
            values[name] = _checked(name, environ[variable], variable)
    for name, flag in (flags or {}).items():
        if flag is not None and name in Settings.model_fields:
            values[name] = _checked(name, flag, f"--{name.replace('_', '-')}")
    return Settings.model_validate(values)


def _checked(name: str, value: object, origin: str) -> object:
    try:
        Settings.model_validate({name: value})
    except ValidationError as err:
        hint = ""
        if isinstance(value, str) and value.startswith("tcp://"):
            hint = " (Kubernetes sets such variables for Services: set enableServiceLinks: false)"
        raise InvalidInput(f"{origin}: {describe(err, [])}{hint}") from err
    return value


def setting_options(*names: str) -> Callable[[Command], Command]:
    """Make click options of the settings named, for `load_settings(flags=…)`."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            field = Settings.model_fields[name]
            option = click.option(
                f"--{name.replace('_', '-')}",
                name,
                default=None,
                metavar="VALUE",
                help=f"{field.description} [default: {default_text(name)}]",
            )
            command = option(command)
        return command

    return decorate


def default_text(name: str) -> str:
    """Return a setting's default as people write it."""
    default = Settings.model_fields[name].default
    return "none" if default is None else "empty" if default == "" else str(default)


def settings_page() -> str:
    """Render `docs/settings.md`; a test holds the file equal to it."""
    lines = [
        "# Settings",
        "",
        "Generated from `packhorse/settings.py` by `packhorse settings --markdown`; do not edit.",
        "A flag (`--max-body-bytes`) beats the environment (`PACKHORSE_MAX_BODY_BYTES`), which",
        f"beats `{SETTINGS_FILE}` (`max_body_bytes:`). `packhorse settings` prints what is in",
        "force; a command's `--help` lists the flags that it takes.",
        "",
        "| setting | default | meaning |",
        "|---|---|---|",
    ]
    for name, field in Settings.model_fields.items():
        lines.append(f"| `{name}` | `{default_text(name)}` | {field.description} |")
    return "\n".join(lines) + "\n"
