"""Write what this host knows of itself into a text file for node_exporter: health, quarantine, GPUs, jobs, Slurm's nodes, certificate.

A timer runs it; it listens on nothing. Each source is asked in a process of its own under a time-out: a tool of a GPU's vendor that hangs
is killed and costs no other source. What a source does not say is not there: never a zero, and `primus_exporter_source_up` says 0.

    primus_exporter.py SETTINGS.json            ask all sources and replace the file
    primus_exporter.py SETTINGS.json SOURCE     ask one and print it as JSON
"""

from __future__ import annotations

import json
import math
import os
import pwd
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# Sources that a host does not have give nothing and are not named; of the others each says whether it answered.
HELP = {
    "primus_exporter_source_up": "1 where the source answered, 0 where it hung, failed or could not be read: its numbers are unknown then",
    "primus_exporter_written_timestamp_seconds": "When these numbers were written",
    "primus_health_verdict": "1 for the verdict of health.json: pass, fail or unknown (missing, stale or of another boot is unknown)",
    "primus_health_check": "1 for the verdict of each check behind it",
    "primus_quarantined": "1 where the host is quarantined, by its owner",
    "primus_slurm_node_unavailable": "1 where Slurm starts no job on the node, with its state",
    "primus_certificate_expires_timestamp_seconds": "When the certificate of the host's services runs out",
    "primus_gpu_info": "A GPU of the host",
    "primus_gpu_temperature_celsius": "Temperature by sensor",
    "primus_gpu_temperature_limit_celsius": "The temperature at which the GPU lowers its clocks, as it says itself",
    "primus_gpu_power_watts": "Power drawn now",
    "primus_gpu_power_limit_watts": "Power that it may draw",
    "primus_gpu_power_default_limit_watts": "Power that it was made for",
    "primus_gpu_utilisation_ratio": "Share of the last moments in which it worked, 0 to 1",
    "primus_gpu_memory_used_bytes": "Memory in use",
    "primus_gpu_memory_bytes": "Memory",
    "primus_gpu_uncorrectable_errors": "Memory errors that could not be corrected, since the driver loaded",
    "primus_gpu_corrected_errors": "Memory errors that were corrected, since the driver loaded",
    "primus_train_updated_timestamp_seconds": "When the run last wrote its numbers",
    "primus_train_refused": "Files and numbers of an account that were left out: too many, too large, or in another one's name",
}
# What a training run may say; docs/training.md, "Telemetry". Its file is a user's, so nothing else in it is believed.
TRAIN = re.compile(r"(primus_train_[a-z0-9_]{1,40})\{([^{}]{0,2000})\} (\S{1,40})")
LABEL = re.compile(r'(run|job_id|host)="((?:[^"\\]|\\.)*)"')
TRAIN_FILES, TRAIN_BYTES = 200, 64 * 1024  # of one account; of one file
MOST_FOLDERS = 100_000  # accounts or jobs
JOB_ID = re.compile(r"[a-z][a-z0-9-]{0,39}-[0-9a-f]{6}")  # primus_bootstrap/launch/watch/spec.py
MIB = 1 << 20
# Of `sinfo`'s %T (long states); a trailing * is a node that does not answer, # one that is being powered up.
UNAVAILABLE = ("down", "drain", "drng", "fail", "maint", "unknown", "power", "reboot", "inval", "future")
NOT_THERE = ("n/a", "not supported", "[n/a]", "requested functionality has been deprecated")


class Sample(NamedTuple):
    """One number."""

    name: str
    labels: dict[str, str]
    value: float


class SilentError(Exception):
    """A source that is there and says nothing."""


Settings = dict[str, Any]


def health(settings: Settings) -> Iterator[Sample]:
    """Read health.json through its gate, as everybody does."""
    gate = Path(settings["gate"])
    if not gate.is_file():
        return
    sys.path.append(str(gate.parent))
    import health_gate  # type: ignore[import-not-found]  # noqa: PLC0415 (the role node_health brings it)

    reading = health_gate.read(Path(settings["health"]))
    yield Sample("primus_health_verdict", {"verdict": reading.verdict}, 1)
    # A file that is stale says nothing of its checks.
    for record in reading.checks:
        labels = {
            "check": str(record.get("check", "")),
            "device": str(record.get("device") or ""),
            "verdict": str(record.get("verdict", "")),
        }
        yield Sample("primus_health_check", labels, 1)


def quarantine(settings: Settings) -> Iterator[Sample]:
    """Say whether the host is out of service, and by whom."""
    path = Path(settings["quarantine"])
    if not path.exists():
        yield Sample("primus_quarantined", {"owner": ""}, 0)
        return
    yield Sample("primus_quarantined", {"owner": str(json.loads(path.read_text("utf-8")).get("owner", ""))}, 1)


def certificate(settings: Settings) -> Iterator[Sample]:
    """Say when the certificate runs out."""
    if Path(settings["certificate"]).is_file():
        end = ask(["openssl", "x509", "-noout", "-enddate", "-in", settings["certificate"]]).strip().removeprefix("notAfter=")
        yield Sample("primus_certificate_expires_timestamp_seconds", {}, ssl.cert_time_to_seconds(end))


def slurm(settings: Settings) -> Iterator[Sample]:
    """Ask the controller for the state of its nodes; a node is in several partitions and counts once."""
    if not settings["slurm"]:
        return
    for line in sorted(set(ask(["sinfo", "--noheader", "--Node", "--format=%N|%T"]).split())):
        node, _, state = line.partition("|")
        gone = state.startswith(UNAVAILABLE) or state.endswith("*")
        yield Sample("primus_slurm_node_unavailable", {"node": node, "state": state.rstrip("*~#!%$@^-+")}, int(gone))


def training(settings: Settings) -> Iterator[Sample]:
    """Pass on what training runs write, and nothing else of their files; old ones are of runs that are over.

    A file counts only where it lies in a folder of its own owner, and every number of it gets that account as its label `user`. So nobody
    can write in another one's name, and who writes too many files loses only the own numbers.
    """
    refused: dict[str, int] = {}
    count: dict[str, int] = {}
    for text, written, account, job in _training_files(settings, refused):
        count[account] = count.get(account, 0) + 1
        if count[account] > TRAIN_FILES:
            refused[account] = refused.get(account, 0) + 1
        elif time.time() - written <= settings["training_max_age_s"]:
            yield from _samples(text, written, account, job, refused)
    for account, number in sorted(refused.items()):
        sys.stderr.write(f"training: {number} files or numbers of {account} were left out\n")
        yield Sample("primus_train_refused", {"user": account}, number)


def _samples(text: str, written: float, account: str, job: str, refused: dict[str, int]) -> Iterator[Sample]:
    """Yield the numbers of one file; `job` is the watched job in whose folder it lies, empty elsewhere."""
    runs: dict[str, dict[str, str]] = {}
    for name, words, number in TRAIN.findall(text):
        labels = {key: re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value) for key, value in LABEL.findall(words)}
        if not job and any(JOB_ID.fullmatch(labels.get(key, "")) for key in ("run", "job_id")):
            refused[account] = refused.get(account, 0) + 1  # the name of a watched job counts in its own folder alone
            continue
        labels.update({"user": account, **({"job_id": job} if job else {})})
        runs.setdefault(json.dumps(labels, sort_keys=True), labels)
        with suppress(ValueError):
            yield Sample(name, labels, float(number))
    for labels in runs.values():
        yield Sample("primus_train_updated_timestamp_seconds", labels, written)


def _training_files(settings: Settings, refused: dict[str, int]) -> Iterator[tuple[str, float, str, str]]:
    """Yield text, time, account and watched job of every file that lies with its own owner."""
    sys.path.append(str(Path(__file__).resolve().parent))
    import safe_files  # type: ignore[import-not-found]  # noqa: PLC0415 (the role brings it beside this program)

    for path, way, pattern in ((settings["training_folder"], (), "*.prom"), (settings["jobs_folder"], ("run",), "metrics.prom")):
        if not path:
            continue
        try:
            top = safe_files.open_folder(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SilentError(str(error)) from error
        with top:
            for name in top.names(limit=MOST_FOLDERS):
                found = _folder(top, name, way)
                if found is None:
                    continue
                with found:
                    account = _account(found.owner)
                    for file in _names(found, pattern, refused, account):
                        read = _read(found, file, refused, account)
                        if read is not None:
                            yield *read, account, name if way else ""


def _folder(top: Any, name: str, way: tuple[str, ...]) -> Any:
    """Open the folder in which an account or a job has its files; None where there is none, or on the way the owner changes."""
    try:
        here = top.folder(name)
        for part in way:
            with here:
                here = here.folder(part, owner=here.owner)
    except OSError:  # gone, or something else lies there
        return None
    return here


def _names(folder: Any, pattern: str, refused: dict[str, int], account: str) -> list[str]:
    """Return the names of files in an account's folder; too many cost the account all of them."""
    if "*" not in pattern:
        return [pattern]
    try:
        return [name for name in folder.names(limit=10 * TRAIN_FILES) if name.endswith(pattern[1:]) and not name.startswith(".")]
    except OSError:
        refused[account] = refused.get(account, 0) + 10 * TRAIN_FILES
        return []


def _read(folder: Any, name: str, refused: dict[str, int], account: str) -> tuple[str, float] | None:
    """Return text and time of a file; None where it is gone, or no plain file of the folder's owner, which is counted."""
    try:
        written = folder.stat(name).st_mtime
        return folder.read(name, owner=folder.owner, max_bytes=TRAIN_BYTES).decode("utf-8", "replace"), written
    except FileNotFoundError:
        return None
    except OSError:
        refused[account] = refused.get(account, 0) + 1
        return None


def _account(number: int) -> str:
    """Return an account's name, or its number where it has none here."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def gpu(settings: Settings) -> Iterator[Sample]:
    """Ask AMD's driver in sysfs and NVIDIA's tool, each only where the PCI bus shows such a GPU."""
    devices = Path(settings["sysfs"]) / "bus" / "pci" / "devices"
    found: dict[str, list[Path]] = {"0x1002": [], "0x10de": []}
    for device in sorted(devices.iterdir()) if devices.is_dir() else ():
        # Display controllers and processing accelerators (https://pci-ids.ucw.cz/read/PD/), not sound and USB of the same card.
        if text(device / "class")[:4] in {"0x03", "0x12"} and text(device / "vendor") in found:
            found[text(device / "vendor")].append(device)
    silent = []
    for number, device in enumerate(found["0x1002"]):
        samples = list(amd(device, str(number)))
        yield from samples
        if len(samples) < 2:  # only its name
            silent.append(device.name)
    if found["0x10de"]:
        told = nvidia(ask(["nvidia-smi", "-q", "-x"]))
        yield from told
        count = sum(one.name == "primus_gpu_info" for one in told)
        if count < len(found["0x10de"]):
            silent.append(f"{len(found['0x10de']) - count} NVIDIA GPUs")
    if silent:  # those that speak are passed on; that others do not is said
        raise SilentError(f"nothing is known of {', '.join(silent)}")


def amd(device: Path, number: str) -> Iterator[Sample]:
    """Read amdgpu's files: https://docs.kernel.org/gpu/amdgpu/thermal.html and ras.html."""
    mine = {"gpu": number}
    model = text(device / "product_name") or text(device / "device")
    yield Sample("primus_gpu_info", {**mine, "address": device.name, "model": model, "serial": text(device / "serial_number")}, 1)
    monitor = next(iter(sorted((device / "hwmon").glob("hwmon*"))), device / "hwmon" / "none")
    limits = []
    for sensor in sorted(monitor.glob("temp*_input")):
        stem = sensor.name.removesuffix("_input")
        label = text(monitor / f"{stem}_label") or stem
        yield from number_of(sensor, "primus_gpu_temperature_celsius", {**mine, "sensor": label}, 1e-3)
        limits += [sample.value for sample in number_of(monitor / f"{stem}_crit", "", {}, 1e-3) if sample.value > 0]
    if limits:
        yield Sample("primus_gpu_temperature_limit_celsius", mine, min(limits))
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
        yield from number_of(path, name, mine, factor)
    counts = [dict(re.findall(r"(?m)^(ue|ce):\s*(\d+)", text(path))) for path in sorted((device / "ras").glob("*_err_count"))]
    for kind, name in (("ue", "primus_gpu_uncorrectable_errors"), ("ce", "primus_gpu_corrected_errors")):
        if counts and all(kind in one for one in counts):
            yield Sample(name, mine, sum(int(one[kind]) for one in counts))


def nvidia(xml: str) -> list[Sample]:
    """Read what `nvidia-smi -q -x` printed; the names of elements are those of drivers 470 to 580."""
    found = []
    for number, item in enumerate(ET.fromstring(xml).findall("gpu")):  # noqa: S314 (what the driver's own tool printed)
        mine = {"gpu": (item.findtext("minor_number") or str(number)).strip()}
        names = {"address": item.get("id", ""), "model": item.findtext("product_name") or "", "serial": item.findtext("uuid") or ""}
        found.append(Sample("primus_gpu_info", {**mine, **{key: value.strip() for key, value in names.items()}}, 1))
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
            found.append(Sample("primus_gpu_temperature_celsius", {**mine, "sensor": "gpu"}, now))
        found += [Sample(name, mine, value * factor) for name, value, factor in values if value is not None]
    return found


def total(counts: list[float | None]) -> float | None:
    """Return the sum of counters; None where there is none, or where one of them cannot be read."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def reading(item: ET.Element, *paths: str) -> float | None:
    """Return the number of the first of some elements that has one (`45 C`); None where none has."""
    for path in paths:
        words = (item.findtext(path) or "").strip()
        match = re.match(r"-?\d+(?:\.\d+)?", words)
        if match and words.lower() not in NOT_THERE:
            return float(match[0])
    return None


def number_of(path: Path, name: str, labels: Mapping[str, str], factor: float) -> Iterator[Sample]:
    """Yield the number that a file holds, nothing where it holds none."""
    with suppress(ValueError):
        yield Sample(name, dict(labels), float(text(path)) * factor)


def text(path: Path) -> str:
    """Return what a small file holds, nothing where it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def ask(argv: list[str]) -> str:
    """Return what a program prints. It has no time-out of its own: the process that runs this one is killed as a whole."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SilentError(f"{argv[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        raise SilentError(f"{argv[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-200:]}")
    return done.stdout


SOURCES: dict[str, Callable[[Settings], Iterator[Sample]]] = {
    "health": health,
    "quarantine": quarantine,
    "gpu": gpu,
    "training": training,
    "slurm": slurm,
    "certificate": certificate,
}


def serve(source: str, settings: Settings) -> int:
    """Ask one source, print what it says, and end with 1 where it does not say everything."""
    samples, reason = [], ""
    try:
        for sample in SOURCES[source](settings):
            samples.append(sample)  # noqa: PERF402 (those before an error count)
    except (SilentError, OSError, ValueError, KeyError, TypeError, ET.ParseError) as error:
        reason = str(error) or type(error).__name__
    sys.stdout.write(json.dumps({"samples": samples, "reason": reason}))
    return 1 if reason else 0


def collect(settings_file: str, settings: Settings) -> Iterator[tuple[str, list[Sample], str]]:
    """Yield source, samples and the reason why it is silent; sources are asked at once, and each has the same time."""
    command = [sys.executable, "-I", "-B", str(Path(__file__).resolve()), settings_file]
    started = {
        name: subprocess.Popen([*command, name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        for name in SOURCES
    }
    deadline = time.monotonic() + settings["timeout_s"]
    for name, process in started.items():
        try:
            output, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            said = json.loads(output)
            yield name, [Sample(key, labels, float(value)) for key, labels, value in said["samples"]], said["reason"]
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            yield name, [], f"it did not answer within {settings['timeout_s']} s"
        except (ValueError, KeyError, TypeError) as error:
            yield name, [], f"it ended with {process.returncode}: {error}"


def render(samples: list[Sample]) -> str:
    """Return numbers in Prometheus' text format, each name once with its help.

    https://prometheus.io/docs/instrumenting/exposition_formats/#text-format-details
    """
    families: dict[str, dict[str, float]] = {}
    for sample in samples:
        quoted = {key: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for key, value in sample.labels.items()}
        series = ",".join(f'{key}="{value}"' for key, value in sorted(quoted.items()))
        if math.isfinite(sample.value):
            families.setdefault(sample.name, {})[f"{{{series}}}" if series else ""] = sample.value
    lines = []
    for name, numbers in sorted(families.items()):
        meaning = HELP.get(name, "As written by the training run")
        lines += [
            f"# HELP {name} {meaning}",
            f"# TYPE {name} gauge",
            *(f"{name}{series} {float(value)!r}" for series, value in numbers.items()),
        ]
    return "\n".join(lines) + "\n"


def write(path: Path, content: str) -> None:
    """Replace the file at once; node_exporter reads the old one or the new one."""
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
    """Ask all sources and write what they say; 1 where one is silent, with the reason on standard error."""
    settings = json.loads(Path(arguments[0]).read_text("utf-8"))
    if len(arguments) > 1:
        return serve(arguments[1], settings)
    samples: list[Sample] = []
    for name, found, reason in collect(arguments[0], settings):
        samples += found
        if found or reason:  # a source that this host does not have is not named
            samples.append(Sample("primus_exporter_source_up", {"source": name}, 0 if reason else 1))
        if reason:
            sys.stderr.write(f"{name}: {' '.join(reason.split())}\n")
    samples.append(Sample("primus_exporter_written_timestamp_seconds", {}, time.time()))
    write(Path(settings["output"]), render(samples))
    return 0


if __name__ == "__main__":
    # Not sys.exit: a source that cannot even be killed must not be waited for by the interpreter's end.
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
