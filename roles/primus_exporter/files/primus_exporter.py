"""Write metrics of this host into a text file for node_exporter: health, quarantine, GPUs, training runs, Slurm's nodes, certificate.

A timer runs it; it opens no port. Each source is read in its own process with a time limit, so that a hanging vendor tool is killed and
affects no other source. Metrics that a source does not provide are absent, never zero; then `primus_exporter_source_up` is 0.

    primus_exporter.py SETTINGS.json            read all sources and replace the file
    primus_exporter.py SETTINGS.json SOURCE     read one source and print its metrics as JSON
"""

from __future__ import annotations

import json
import math
import os
import pwd
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# Above the largest time limit of all sources together (primus_exporter_timeout_s).
PROGRAM_S = 90
# A source that the host does not have writes no metric. Each other source has primus_exporter_source_up.
HELP = {
    "primus_exporter_source_up": "1 if the source was read, 0 if it hung, failed or could not be read, so that its metrics are unknown",
    "primus_exporter_written_timestamp_seconds": "Time at which these metrics were written",
    "primus_health_verdict": "1 for the verdict of health.json: pass, fail or unknown; a missing or stale file is unknown",
    "primus_health_check": "1 for the verdict of each health check",
    "primus_quarantined": "1 if the host is quarantined, with the owner of the quarantine",
    "primus_slurm_node_unavailable": "1 if Slurm starts no job on the node, with the node's state",
    "primus_certificate_expires_timestamp_seconds": "Time at which the certificate of the host's services expires",
    "primus_gpu_info": "A GPU of the host",
    "primus_gpu_temperature_celsius": "Temperature by sensor",
    "primus_gpu_temperature_limit_celsius": "Temperature at which the GPU lowers its clocks, as reported by the GPU",
    "primus_gpu_power_watts": "Current power",
    "primus_gpu_power_limit_watts": "Current power limit",
    "primus_gpu_power_default_limit_watts": "Default power limit",
    "primus_gpu_utilisation_ratio": "Utilisation over the sampling period of the driver, 0 to 1",
    "primus_gpu_memory_used_bytes": "Memory in use",
    "primus_gpu_memory_bytes": "Total memory",
    "primus_gpu_uncorrectable_errors": "Uncorrectable memory errors since the driver was loaded",
    "primus_gpu_corrected_errors": "Corrected memory errors since the driver was loaded",
    "primus_train_updated_timestamp_seconds": "Time at which the run last wrote its metrics",
    "primus_train_refused": "Dropped files and samples of an account: too many, too large, too slow, or of another account",
}
# Accepted lines of a training run (docs/training.md, "Telemetry"). Users write these files, so every other line is ignored.
TRAIN = re.compile(r"(primus_train_[a-z0-9_]{1,40})\{([^{}]{0,2000})\} (\S{1,40})")
OWN_METRICS = ("primus_train_refused", "primus_train_updated_timestamp_seconds")  # only this program writes them
LABEL = re.compile(r'(run|job_id|host)="((?:[^"\\]|\\.)*)"')
# Limits per account: recent files, entries of its folder, bytes of a file, samples, and total seconds.
# A run writes 14 samples. No host has enough GPUs for 200 runs.
TRAIN_FILES, TRAIN_NAMES, TRAIN_BYTES, TRAIN_SAMPLES, TRAIN_S = 200, 2000, 64 * 1024, 5000, 2.0
MAX_JOBS, JOBS_S = 100_000, 5.0  # folders of watched jobs, and seconds to list them
# The job ids of primus_bootstrap/launch/watch/job_spec.py. In a path only below a folder `jobs`, because users may name other folders so.
JOB_ID = re.compile(r"(?:.*/jobs/)?[a-z][a-z0-9-]{0,39}-[0-9a-f]{6}(?:/.*)?", re.DOTALL)
MIB = 1 << 20
# Beginnings of the long states of `sinfo` (%T). A trailing * marks a node that does not respond, # one that is powered up.
UNAVAILABLE = ("down", "drain", "drng", "fail", "maint", "unknown", "power", "reboot", "inval", "future")
NO_VALUE = ("n/a", "not supported", "[n/a]", "requested functionality has been deprecated")


class Sample(NamedTuple):
    """One sample of a metric."""

    name: str
    labels: dict[str, str]
    value: float


class SourceError(Exception):
    """A source exists but cannot be read."""


Settings = dict[str, Any]


def health(settings: Settings) -> Iterator[Sample]:
    """Read health.json with health_gate, which rejects a stale file."""
    gate = Path(settings["gate"])
    if not gate.is_file():
        return
    sys.path.append(str(gate.parent))
    import health_gate  # type: ignore[import-not-found]  # noqa: PLC0415 (installed by the role node_health)

    reading = health_gate.read(Path(settings["health"]))
    yield Sample("primus_health_verdict", {"verdict": reading.verdict}, 1)
    # A stale file has no checks.
    for record in reading.checks:
        labels = {
            "check": str(record.get("check", "")),
            "device": str(record.get("device") or ""),
            "verdict": str(record.get("verdict", "")),
        }
        yield Sample("primus_health_check", labels, 1)


def quarantine(settings: Settings) -> Iterator[Sample]:
    """Yield whether the host is quarantined, and by which owner."""
    path = Path(settings["quarantine"])
    if not path.exists():
        yield Sample("primus_quarantined", {"owner": ""}, 0)
        return
    yield Sample("primus_quarantined", {"owner": str(json.loads(path.read_text("utf-8")).get("owner", ""))}, 1)


def certificate(settings: Settings) -> Iterator[Sample]:
    """Yield the expiry time of the certificate."""
    if Path(settings["certificate"]).is_file():
        end = run(["openssl", "x509", "-noout", "-enddate", "-in", settings["certificate"]]).strip().removeprefix("notAfter=")
        yield Sample("primus_certificate_expires_timestamp_seconds", {}, ssl.cert_time_to_seconds(end))


def slurm(settings: Settings) -> Iterator[Sample]:
    """Yield the state of each Slurm node, once even if it is in several partitions."""
    if not settings["slurm"]:
        return
    for line in sorted(set(run(["sinfo", "--noheader", "--Node", "--format=%N|%T"]).split())):
        node, _, state = line.partition("|")
        unavailable = state.startswith(UNAVAILABLE) or state.endswith("*")
        yield Sample("primus_slurm_node_unavailable", {"node": node, "state": state.rstrip("*~#!%$@^-+")}, int(unavailable))


def training(settings: Settings) -> Iterator[Sample]:
    """Yield the metrics of training runs from their recent files. Older files belong to runs that have ended.

    A file counts only if its folder has the same owner. Each sample gets that account as the label `user`, so that no account can write
    metrics of another one. Each account is read in its own process, so that too many or hanging files affect only its own samples.
    """
    sys.path.append(str(Path(__file__).resolve().parent))
    import safe_files  # type: ignore[import-not-found]  # noqa: PLC0415 (installed beside this program)

    deadline = time.monotonic() + 0.8 * settings["timeout_s"]
    dropped: dict[str, tuple[int, str]] = {}
    problem = ""
    for listing in (_account_folders, _job_folders):
        try:
            locations = listing(settings, safe_files)
        except (OSError, SourceError) as error:
            problem = str(error)
            continue
        for number, folders in locations.items():
            account = _account(number)
            left = max(0.05, min(TRAIN_S, deadline - time.monotonic()))
            reader = Reader(folders, number, account, time.time() - settings["training_max_age_s"], time.monotonic() + 0.7 * left)
            try:
                samples, count, example = safe_files.within(left, partial(reader.read, safe_files.open_folder))
            except OSError as error:
                samples, count, example = [], 1, f"{folders[0].path}: {error}"
            yield from samples
            if count:
                dropped[account] = (dropped.get(account, (0, ""))[0] + count, example)
    for account, (count, example) in sorted(dropped.items()):
        sys.stderr.write(f"training: {count} files or samples of {account} were dropped; one of them: {example!a}\n")
        yield Sample("primus_train_refused", {"user": account}, count)
    if problem:
        raise SourceError(problem)


class Location(NamedTuple):
    """A folder with metrics of an account: a folder of root, the path below it, and the watched job it belongs to, if any."""

    path: str
    parts: tuple[str, ...]
    job: str


def _account_folders(settings: Settings, safe_files: Any) -> dict[int, list[Location]]:
    """Return the folders of the configured accounts that exist on this host, by user ID.

    Raises:
        OSError: Another account than root can replace the folder above them.
    """
    found: dict[int, list[Location]] = {}
    try:
        safe_files.open_folder(settings["training_folder"]).close()
    except FileNotFoundError:
        return found
    for name in settings["accounts"]:
        with suppress(KeyError):
            found[pwd.getpwnam(name).pw_uid] = [Location(settings["training_folder"], (name,), "")]
    return found


def _job_folders(settings: Settings, safe_files: Any) -> dict[int, list[Location]]:
    """Return the folders of watched jobs by the user ID of their owner, the most recently changed first.

    Raises:
        OSError: The folder cannot be listed.
        SourceError: Listing it takes longer than `JOBS_S`.
    """
    path = settings["jobs_folder"]
    if not path:
        return {}

    def listed() -> list[tuple[float, str, int]]:
        seen = []
        with safe_files.open_folder(path) as top:
            for name in top.names(limit=MAX_JOBS):
                with suppress(OSError):  # removed meanwhile, or its owner mounted something on it; read the others
                    one = top.stat(name)
                    seen.append((one.st_mtime, name, one.st_uid))
        return sorted(seen, reverse=True)

    found: dict[int, list[Location]] = {}
    try:
        for _, name, owner in safe_files.within(JOBS_S, listed):
            found.setdefault(owner, []).append(Location(path, (name, "run"), name))
    except FileNotFoundError:
        pass
    except TimeoutError as error:
        raise SourceError(f"{path}: {error}") from error
    return found


class Reader:
    """Reads the files of one account. `dropped` counts the files and samples that it drops; `example` is the first reason."""

    def __init__(self, locations: list[Location], owner: int, account: str, oldest: float, deadline: float) -> None:
        """Store the folders, the required owner, the earliest modification time, and the deadline (`time.monotonic`)."""
        self.locations, self.owner, self.account, self.oldest, self.deadline = locations, owner, account, oldest, deadline
        self.dropped, self.example = 0, ""

    def read(self, open_folder: Callable[[str], Any]) -> tuple[list[Sample], int, str]:
        """Return the samples of the newest files, the number of dropped files and samples, and the first reason.

        Raises:
            OSError: Another account than root can change the folder above them.
        """
        try:
            self.top = open_folder(self.locations[0].path)
        except FileNotFoundError:
            return [], 0, ""
        recent: list[tuple[float, Location, str]] = []
        for number, location in enumerate(self.locations):
            if time.monotonic() > self.deadline:
                self._drop(location.path, "too many folders to read in time", len(self.locations) - number)
                break
            recent += self._recent(location)
        recent.sort(key=lambda one: one[0], reverse=True)
        if len(recent) > TRAIN_FILES:
            self._drop(recent[TRAIN_FILES][1].path, f"more than {TRAIN_FILES} files", len(recent) - TRAIN_FILES)
        samples: list[Sample] = []
        for number, (written, location, name) in enumerate(recent[:TRAIN_FILES]):
            if time.monotonic() > self.deadline:
                self._drop(location.path, "too many files to read in time", len(recent[:TRAIN_FILES]) - number)
                break
            samples += self._samples(self._text(location, name), written, location)
        if len(samples) > TRAIN_SAMPLES:
            self._drop(self.locations[0].path, f"more than {TRAIN_SAMPLES} samples", len(samples) - TRAIN_SAMPLES)
        return samples[:TRAIN_SAMPLES], self.dropped, self.example

    def _drop(self, path: str, why: str, count: int = 1) -> None:
        self.dropped += count
        self.example = self.example or f"{path}: {why}"

    def _open(self, location: Location) -> Any:
        """Open the folder with the files. The first folder belongs to root; each one below it must belong to the account.

        Raises:
            OSError: A folder is missing, is a link, or has another owner.
        """
        folder = self.top.folder(location.parts[0], owner=self.owner)
        for part in location.parts[1:]:
            with folder:
                folder = folder.folder(part, owner=self.owner)
        return folder

    def _recent(self, location: Location) -> Iterator[tuple[float, Location, str]]:
        """Yield modification time, location and name of each recent file."""
        try:
            with self._open(location) as folder:
                names = ["metrics.prom"] if location.job else [name for name in folder.names(limit=TRAIN_NAMES) if name.endswith(".prom")]
                for name in names:
                    with suppress(FileNotFoundError):
                        written = folder.stat(name).st_mtime
                        if written >= self.oldest and not name.startswith("."):
                            yield written, location, name
        except FileNotFoundError:
            pass
        except OSError as error:
            self._drop(location.path, str(error))

    def _text(self, location: Location, name: str) -> str:
        try:
            with self._open(location) as folder:
                content: bytes = folder.read(name, owner=self.owner, max_bytes=TRAIN_BYTES)
                return content.decode("utf-8", "replace")
        except FileNotFoundError:
            pass
        except OSError as error:
            self._drop(location.path, str(error))
        return ""

    def _samples(self, text: str, written: float, location: Location) -> Iterator[Sample]:
        """Yield the samples of one file. Account, job and host follow from its folder; labels in the file cannot set them."""
        runs: dict[str, dict[str, str]] = {}
        for line in text.split("\n"):
            match = TRAIN.fullmatch(line)
            if match is None or match[1] in OWN_METRICS:
                continue
            labels = {key: re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value) for key, value in LABEL.findall(match[2])}
            if location.job:
                labels.update({"user": self.account, "job_id": location.job, "run": "/".join((location.path.rstrip("/"), *location.parts))})
            elif any(JOB_ID.fullmatch(labels.get(key, "")) for key in ("run", "job_id")):
                self._drop(location.path, "names a watched job outside of the folder of that job")
                continue
            else:
                labels.update({"user": self.account, "host": socket.gethostname()})
            runs.setdefault(json.dumps(labels, sort_keys=True), labels)
            with suppress(ValueError):
                yield Sample(match[1], labels, float(match[3]))
        for labels in runs.values():
            yield Sample("primus_train_updated_timestamp_seconds", labels, written)


def _account(number: int) -> str:
    """Return the name of an account, or its user ID if this host does not know it."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def gpu(settings: Settings) -> Iterator[Sample]:
    """Read AMD's files in sysfs and NVIDIA's tool, each only if the PCI bus has such a GPU."""
    devices = Path(settings["sysfs"]) / "bus" / "pci" / "devices"
    by_vendor: dict[str, list[Path]] = {"0x1002": [], "0x10de": []}
    for device in sorted(devices.iterdir()) if devices.is_dir() else ():
        # Display controllers and processing accelerators (https://pci-ids.ucw.cz/read/PD/), but not sound and USB of the same card.
        if text(device / "class")[:4] in {"0x03", "0x12"} and text(device / "vendor") in by_vendor:
            by_vendor[text(device / "vendor")].append(device)
    silent = []
    for number, device in enumerate(by_vendor["0x1002"]):
        samples = list(amd(device, str(number)))
        yield from samples
        if len(samples) < 2:  # only primus_gpu_info
            silent.append(device.name)
    if by_vendor["0x10de"]:
        samples = nvidia(run(["nvidia-smi", "-q", "-x"]))
        yield from samples
        missing = len(by_vendor["0x10de"]) - sum(one.name == "primus_gpu_info" for one in samples)
        if missing > 0:
            silent.append(f"{missing} NVIDIA GPUs")
    if silent:  # the samples of the other GPUs stay
        raise SourceError(f"no data of {', '.join(silent)}")


def amd(device: Path, number: str) -> Iterator[Sample]:
    """Read amdgpu's files: https://docs.kernel.org/gpu/amdgpu/thermal.html and ras.html."""
    labels = {"gpu": number}
    model = text(device / "product_name") or text(device / "device")
    yield Sample("primus_gpu_info", {**labels, "address": device.name, "model": model, "serial": text(device / "serial_number")}, 1)
    monitor = next(iter(sorted((device / "hwmon").glob("hwmon*"))), device / "hwmon" / "none")
    limits = []
    for sensor in sorted(monitor.glob("temp*_input")):
        stem = sensor.name.removesuffix("_input")
        label = text(monitor / f"{stem}_label") or stem
        yield from number_of(sensor, "primus_gpu_temperature_celsius", {**labels, "sensor": label}, 1e-3)
        limits += [sample.value for sample in number_of(monitor / f"{stem}_crit", "", {}, 1e-3) if sample.value > 0]
    if limits:
        yield Sample("primus_gpu_temperature_limit_celsius", labels, min(limits))
    power = monitor / "power1_average"
    files = (
        (power if power.exists() else monitor / "power1_input", "primus_gpu_power_watts", 1e-6),
        (monitor / "power1_cap", "primus_gpu_power_limit_watts", 1e-6),
        (monitor / "power1_cap_default", "primus_gpu_power_default_limit_watts", 1e-6),
        (device / "gpu_busy_percent", "primus_gpu_utilisation_ratio", 1e-2),
        (device / "mem_info_vram_used", "primus_gpu_memory_used_bytes", 1),
        (device / "mem_info_vram_total", "primus_gpu_memory_bytes", 1),
    )
    for path, name, factor in files:
        yield from number_of(path, name, labels, factor)
    counts = [dict(re.findall(r"(?m)^(ue|ce):\s*(\d+)", text(path))) for path in sorted((device / "ras").glob("*_err_count"))]
    for kind, name in (("ue", "primus_gpu_uncorrectable_errors"), ("ce", "primus_gpu_corrected_errors")):
        if counts and all(kind in one for one in counts):
            yield Sample(name, labels, sum(int(one[kind]) for one in counts))


def nvidia(xml: str) -> list[Sample]:
    """Return samples from the output of `nvidia-smi -q -x`. The element names are those of drivers 470 to 580."""
    found = []
    for number, item in enumerate(ET.fromstring(xml).findall("gpu")):  # noqa: S314 (output of the driver's tool)
        labels = {"gpu": (item.findtext("minor_number") or str(number)).strip()}
        names = {"address": item.get("id", ""), "model": item.findtext("product_name") or "", "serial": item.findtext("uuid") or ""}
        found.append(Sample("primus_gpu_info", {**labels, **{key: value.strip() for key, value in names.items()}}, 1))
        now = reading(item, "temperature/gpu_temp")
        left = reading(item, "temperature/gpu_temp_tlimit")
        slow = reading(item, "temperature/gpu_temp_slow_threshold")
        limit = now + left if now is not None and left is not None else slow
        errors = {
            kind: [reading(item, f"ecc_errors/volatile/{one.tag}") for one in item.iterfind("ecc_errors/volatile/*") if word in one.tag]
            for kind, word in (("uncorrectable", "uncorrectable"), ("corrected", "_correctable"))
        }
        watts = ("gpu_power_readings", "power_readings")
        values = [
            ("primus_gpu_temperature_limit_celsius", limit, 1.0),
            (
                "primus_gpu_power_watts",
                reading(item, *(f"{one}/{name}" for one in watts for name in ("instant_power_draw", "power_draw"))),
                1.0,
            ),
            (
                "primus_gpu_power_limit_watts",
                reading(item, *(f"{one}/{name}" for one in watts for name in ("current_power_limit", "power_limit"))),
                1.0,
            ),
            ("primus_gpu_power_default_limit_watts", reading(item, *(f"{one}/default_power_limit" for one in watts)), 1.0),
            ("primus_gpu_utilisation_ratio", reading(item, "utilization/gpu_util"), 0.01),
            ("primus_gpu_memory_used_bytes", reading(item, "fb_memory_usage/used"), MIB),
            ("primus_gpu_memory_bytes", reading(item, "fb_memory_usage/total"), MIB),
            *((f"primus_gpu_{kind}_errors", total(counts), 1.0) for kind, counts in errors.items()),
        ]
        if now is not None:
            found.append(Sample("primus_gpu_temperature_celsius", {**labels, "sensor": "gpu"}, now))
        found += [Sample(name, labels, value * factor) for name, value, factor in values if value is not None]
    return found


def total(counts: list[float | None]) -> float | None:
    """Return the sum of counters, or None if there is none or one of them cannot be read."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def reading(item: ET.Element, *paths: str) -> float | None:
    """Return the number of the first element that has one (`45 C`), or None."""
    for path in paths:
        words = (item.findtext(path) or "").strip()
        match = re.match(r"-?\d+(?:\.\d+)?", words)
        if match and words.lower() not in NO_VALUE:
            return float(match[0])
    return None


def number_of(path: Path, name: str, labels: Mapping[str, str], factor: float) -> Iterator[Sample]:
    """Yield a sample with the number in a file, or nothing if it has none."""
    with suppress(ValueError):
        yield Sample(name, dict(labels), float(text(path)) * factor)


def text(path: Path) -> str:
    """Return the content of a small file, or an empty string if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def run(argv: list[str]) -> str:
    """Return the output of a program. `collect` may kill the whole process group of a source earlier.

    Raises:
        SourceError: The program cannot be started or fails.
    """
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROGRAM_S,
            check=False,
        )
    except OSError as error:
        raise SourceError(f"{argv[0]} cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"{argv[0]} did not end within {PROGRAM_S} s") from error
    if done.returncode:
        raise SourceError(f"{argv[0]} exited with {done.returncode}: {(done.stderr or done.stdout).strip()[-200:]}")
    return done.stdout


SOURCES: dict[str, Callable[[Settings], Iterator[Sample]]] = {
    "health": health,
    "quarantine": quarantine,
    "gpu": gpu,
    "training": training,
    "slurm": slurm,
    "certificate": certificate,
}


def print_source(source: str, settings: Settings) -> int:
    """Read one source and print its samples as JSON; return 1 if it could not be read completely."""
    samples, reason = [], ""
    try:
        for sample in SOURCES[source](settings):
            samples.append(sample)  # noqa: PERF402 (samples before an error are kept)
    except (SourceError, OSError, ValueError, KeyError, TypeError, ET.ParseError) as error:
        reason = str(error) or type(error).__name__
    sys.stdout.write(json.dumps({"samples": samples, "reason": reason}))
    return 1 if reason else 0


def collect(settings_file: str, settings: Settings) -> Iterator[tuple[str, list[Sample], str]]:
    """Yield each source with its samples and the reason if it could not be read. All sources run in parallel with one deadline."""
    command = [sys.executable, "-I", "-B", str(Path(__file__).resolve()), settings_file]
    started = {
        name: subprocess.Popen([*command, name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        for name in SOURCES
    }
    deadline = time.monotonic() + settings["timeout_s"]
    for name, process in started.items():
        try:
            output, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            answer = json.loads(output)
            yield name, [Sample(key, labels, float(value)) for key, labels, value in answer["samples"]], answer["reason"]
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            yield name, [], f"no answer within {settings['timeout_s']} s"
        except (ValueError, KeyError, TypeError) as error:
            yield name, [], f"exit code {process.returncode}: {error}"


def render(samples: list[Sample]) -> str:
    """Return samples in Prometheus' text format, grouped by metric with its help text.

    https://prometheus.io/docs/instrumenting/exposition_formats/#text-format-details
    """
    families: dict[str, dict[str, float]] = {}
    for sample in samples:
        quoted = {key: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for key, value in sample.labels.items()}
        series = ",".join(f'{key}="{value}"' for key, value in sorted(quoted.items()))
        if math.isfinite(sample.value):
            families.setdefault(sample.name, {})[f"{{{series}}}" if series else ""] = sample.value
    lines = []
    for name, values in sorted(families.items()):
        meaning = HELP.get(name, "Written by the training run")
        lines += [
            f"# HELP {name} {meaning}",
            f"# TYPE {name} gauge",
            *(f"{name}{series} {float(value)!r}" for series, value in values.items()),
        ]
    return "\n".join(lines) + "\n"


def write(path: Path, content: str) -> None:
    """Replace the file atomically, so that node_exporter reads the old or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".primus-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def main(arguments: list[str]) -> int:
    """Read all sources and write their metrics; print the reason on standard error if one could not be read."""
    settings = json.loads(Path(arguments[0]).read_text("utf-8"))
    if len(arguments) > 1:
        return print_source(arguments[1], settings)
    samples: list[Sample] = []
    for name, found, reason in collect(arguments[0], settings):
        samples += found
        if found or reason:  # a source that this host does not have is omitted
            samples.append(Sample("primus_exporter_source_up", {"source": name}, 0 if reason else 1))
        if reason:
            sys.stderr.write(f"{name}: {' '.join(reason.split())}\n")
    samples.append(Sample("primus_exporter_written_timestamp_seconds", {}, time.time()))
    write(Path(settings["output"]), render(samples))
    return 0


if __name__ == "__main__":
    # Not sys.exit, because the interpreter would wait for a source that cannot be killed.
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
