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
    "primus_train_refused": "Files and samples of an account that were left out: too many, too large, too slow, or in another one's name",
}
# What a line of a training run may look like; docs/training.md, "Telemetry". Users write these files, so every other line is ignored.
TRAIN = re.compile(r"(primus_train_[a-z0-9_]{1,40})\{([^{}]{0,2000})\} (\S{1,40})")
TRAIN_OURS = ("primus_train_refused", "primus_train_updated_timestamp_seconds")  # written by this program alone
LABEL = re.compile(r'(run|job_id|host)="((?:[^"\\]|\\.)*)"')
# Limits of one account: fresh files, entries of its folder, bytes of a file, samples, and seconds for all of it.
# A run writes 14 samples; 200 runs of one account on one host are more than any host has GPUs.
TRAIN_FILES, TRAIN_NAMES, TRAIN_BYTES, TRAIN_SAMPLES, TRAIN_S = 200, 2000, 64 * 1024, 5000, 2.0
MOST_JOBS, JOBS_S = 100_000, 5.0  # folders of watched jobs, and seconds to list them
# primus_bootstrap/launch/watch/job_spec.py. As a path only below a folder `jobs`: a run of a user may have such a name.
JOB_ID = re.compile(r"(?:.*/jobs/)?[a-z][a-z0-9-]{0,39}-[0-9a-f]{6}(?:/.*)?", re.DOTALL)
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
    """Pass on what training runs write, and nothing else of their files; files that are not fresh are of runs that are over.

    A file counts only if it lies in a folder of its own owner. Each of its samples gets that account as the label `user`, so no account
    writes in the name of another. Each account is read in a process of its own: one that has too many files, or whose files hang, loses
    only its own samples.
    """
    sys.path.append(str(Path(__file__).resolve().parent))
    import safe_files  # type: ignore[import-not-found]  # noqa: PLC0415 (the role installs it beside this program)

    deadline = time.monotonic() + 0.8 * settings["timeout_s"]
    refused: dict[str, tuple[int, str]] = {}
    problem = ""
    for listing in (_account_folders, _job_folders):
        try:
            places = listing(settings, safe_files)
        except (OSError, SilentError) as error:
            problem = str(error)
            continue
        for number, folders in places.items():
            account = _account(number)
            left = max(0.05, min(TRAIN_S, deadline - time.monotonic()))
            reader = Reader(folders, number, account, time.time() - settings["training_max_age_s"], time.monotonic() + 0.7 * left)
            try:
                samples, count, example = safe_files.within(left, partial(reader.read, safe_files.open_folder))
            except OSError as error:
                samples, count, example = [], 1, f"{folders[0].path}: {error}"
            yield from samples
            if count:
                refused[account] = (refused.get(account, (0, ""))[0] + count, example)
    for account, (count, example) in sorted(refused.items()):
        sys.stderr.write(f"training: {count} files or samples of {account} were left out; one of them: {example!a}\n")
        yield Sample("primus_train_refused", {"user": account}, count)
    if problem:
        raise SilentError(problem)


class Place(NamedTuple):
    """Where an account has files: folders from one that root owns to its own, and the watched job that they are of, if any."""

    path: str
    parts: tuple[str, ...]
    job: str


def _account_folders(settings: Settings, safe_files: Any) -> dict[int, list[Place]]:
    """Return the folders of accounts of this host by the number of the account; an account that is not here has none.

    Raises:
        OSError: The folder above them is not one that only root can replace.
    """
    found: dict[int, list[Place]] = {}
    try:
        safe_files.open_folder(settings["training_folder"]).close()
    except FileNotFoundError:
        return found
    for name in settings["accounts"]:
        with suppress(KeyError):
            found[pwd.getpwnam(name).pw_uid] = [Place(settings["training_folder"], (name,), "")]
    return found


def _job_folders(settings: Settings, safe_files: Any) -> dict[int, list[Place]]:
    """Return the folders of watched jobs by the number of the account that owns them, those that changed last first.

    Raises:
        OSError: The folder cannot be listed.
        SilentError: It cannot be listed within `JOBS_S`.
    """
    path = settings["jobs_folder"]
    if not path:
        return {}

    def listed() -> list[tuple[float, str, int]]:
        seen = []
        with safe_files.open_folder(path) as top:
            for name in top.names(limit=MOST_JOBS):
                with suppress(OSError):  # removed since, or its owner mounted something on it: the others count
                    one = top.stat(name)
                    seen.append((one.st_mtime, name, one.st_uid))
        return sorted(seen, reverse=True)

    found: dict[int, list[Place]] = {}
    try:
        for _, name, owner in safe_files.within(JOBS_S, listed):
            found.setdefault(owner, []).append(Place(path, (name, "run"), name))
    except FileNotFoundError:
        pass
    except TimeoutError as error:
        raise SilentError(f"{path}: {error}") from error
    return found


class Reader:
    """Reads the files of one account; `refused` counts what it leaves out, and `example` says why of the first."""

    def __init__(self, places: list[Place], owner: int, account: str, oldest: float, ends: float) -> None:
        """Keep where the files are, who must own them, how old they may be, and when to stop (`time.monotonic`)."""
        self.places, self.owner, self.account, self.oldest, self.ends = places, owner, account, oldest, ends
        self.refused, self.example = 0, ""

    def read(self, open_folder: Callable[[str], Any]) -> tuple[list[Sample], int, str]:
        """Return the samples of the newest files, how many files and samples were left out, and why the first was.

        Raises:
            OSError: The folder above those of the account is not one that only root can change.
        """
        try:
            self.top = open_folder(self.places[0].path)
        except FileNotFoundError:
            return [], 0, ""
        fresh: list[tuple[float, Place, str]] = []
        for number, place in enumerate(self.places):
            if time.monotonic() > self.ends:
                self._refuse(place.path, "too many folders to look at in time", len(self.places) - number)
                break
            fresh += self._fresh(place)
        fresh.sort(key=lambda one: one[0], reverse=True)
        if len(fresh) > TRAIN_FILES:
            self._refuse(fresh[TRAIN_FILES][1].path, f"more than {TRAIN_FILES} files", len(fresh) - TRAIN_FILES)
        samples: list[Sample] = []
        for number, (written, place, name) in enumerate(fresh[:TRAIN_FILES]):
            if time.monotonic() > self.ends:
                self._refuse(place.path, "too many files to read in time", len(fresh[:TRAIN_FILES]) - number)
                break
            samples += self._samples(self._text(place, name), written, place)
        if len(samples) > TRAIN_SAMPLES:
            self._refuse(self.places[0].path, f"more than {TRAIN_SAMPLES} samples", len(samples) - TRAIN_SAMPLES)
        return samples[:TRAIN_SAMPLES], self.refused, self.example

    def _refuse(self, path: str, why: str, count: int = 1) -> None:
        self.refused += count
        self.example = self.example or f"{path}: {why}"

    def _open(self, place: Place) -> Any:
        """Open the folder with the files; every folder below the first, which is root's, must be one of the account.

        Raises:
            OSError: It is not there, or something else lies in its place.
        """
        here = self.top.folder(place.parts[0], owner=self.owner)
        for part in place.parts[1:]:
            with here:
                here = here.folder(part, owner=self.owner)
        return here

    def _fresh(self, place: Place) -> Iterator[tuple[float, Place, str]]:
        """Yield time, place and name of each file that was written not too long ago."""
        try:
            with self._open(place) as folder:
                names = ["metrics.prom"] if place.job else [name for name in folder.names(limit=TRAIN_NAMES) if name.endswith(".prom")]
                for name in names:
                    with suppress(FileNotFoundError):
                        written = folder.stat(name).st_mtime
                        if written >= self.oldest and not name.startswith("."):
                            yield written, place, name
        except FileNotFoundError:
            pass
        except OSError as error:
            self._refuse(place.path, str(error))

    def _text(self, place: Place, name: str) -> str:
        try:
            with self._open(place) as folder:
                content: bytes = folder.read(name, owner=self.owner, max_bytes=TRAIN_BYTES)
                return content.decode("utf-8", "replace")
        except FileNotFoundError:
            pass
        except OSError as error:
            self._refuse(place.path, str(error))
        return ""

    def _samples(self, text: str, written: float, place: Place) -> Iterator[Sample]:
        """Yield the samples of one file. Its folder says whose they are, of which watched job, and on which host, not its labels."""
        runs: dict[str, dict[str, str]] = {}
        for line in text.split("\n"):
            match = TRAIN.fullmatch(line)
            if match is None or match[1] in TRAIN_OURS:
                continue
            labels = {key: re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value) for key, value in LABEL.findall(match[2])}
            if place.job:
                labels.update({"user": self.account, "job_id": place.job, "run": "/".join((place.path.rstrip("/"), *place.parts))})
            elif any(JOB_ID.fullmatch(labels.get(key, "")) for key in ("run", "job_id")):
                self._refuse(place.path, "it names a watched job outside of the folder of that job")
                continue
            else:
                labels.update({"user": self.account, "host": socket.gethostname()})
            runs.setdefault(json.dumps(labels, sort_keys=True), labels)
            with suppress(ValueError):
                yield Sample(match[1], labels, float(match[3]))
        for labels in runs.values():
            yield Sample("primus_train_updated_timestamp_seconds", labels, written)


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
