"""The program `primus_exporter.py`, run on fake hosts with fake tools."""

from __future__ import annotations

import json
import os
import pwd
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from primus_bootstrap import content
from primus_bootstrap.launch import safe_files
from tests.unit.role_module import load_file
from tests.unit.test_role_primus_exporter import ME, PROGRAM, Host
from tests.unit.test_role_primus_exporter import host as host

exporter: Any = load_file(PROGRAM, "primus_exporter_program")
HERE = socket.gethostname()

# `nvidia-smi -q -x` of driver 550 on an H200, shortened to the parsed elements; the second GPU has none of the optional ones.
SMI = """<?xml version="1.0" ?>
<nvidia_smi_log><driver_version>550.54</driver_version>
<gpu id="00000000:18:00.0"><product_name>NVIDIA H200</product_name><minor_number>0</minor_number><uuid>GPU-a</uuid>
<fb_memory_usage><total>143771 MiB</total><used>1024 MiB</used></fb_memory_usage><utilization><gpu_util>87 %</gpu_util></utilization>
<ecc_errors><volatile><sram_correctable>2</sram_correctable><sram_uncorrectable_parity>1</sram_uncorrectable_parity>
<dram_correctable>3</dram_correctable><dram_uncorrectable>0</dram_uncorrectable></volatile></ecc_errors>
<temperature><gpu_temp>61 C</gpu_temp><gpu_temp_tlimit>26 C</gpu_temp_tlimit></temperature>
<gpu_power_readings><instant_power_draw>412.33 W</instant_power_draw><current_power_limit>600.00 W</current_power_limit>
<default_power_limit>700.00 W</default_power_limit></gpu_power_readings></gpu>
<gpu id="00000000:2A:00.0"><product_name>NVIDIA T4</product_name><minor_number>1</minor_number><uuid>GPU-b</uuid>
<utilization><gpu_util>N/A</gpu_util></utilization>
<temperature><gpu_temp>40 C</gpu_temp><gpu_temp_slow_threshold>93 C</gpu_temp_slow_threshold></temperature>
<ecc_errors><volatile><dram_uncorrectable>N/A</dram_uncorrectable></volatile></ecc_errors>
<power_readings><power_draw>[Unknown Error]</power_draw></power_readings></gpu></nvidia_smi_log>
"""


def test_empty_host_reports_no_quarantine_only(host: Host) -> None:
    """Without GPU, checks and certificate, their metrics are absent instead of zero."""
    numbers, complaint = host.run()
    names = {series.partition("{")[0] for series in numbers}

    assert names == {"primus_quarantined", "primus_exporter_source_up", "primus_exporter_written_timestamp_seconds"}
    assert [series for series in numbers if "source_up" in series] == ['primus_exporter_source_up{source="quarantine"}']
    assert complaint == ""


def test_health_is_read_through_the_real_gate(host: Host) -> None:
    """Reports the verdict and each check. A stale file is unknown, without checks."""
    gate = content.roles_dir() / "node_health" / "files" / "health_gate.py"
    host.settings["gate"] = str(host.write("lib/health_gate.py", gate.read_text("utf-8")))
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    record = {"check": "mount", "device": "/jfs", "verdict": "fail", "reason": "not mounted"}
    document = {
        "schema": "primus.health/1",
        "boot_id": boot,
        "written": time.time(),
        "valid_for_s": 300,
        "verdict": "fail",
        "checks": [record],
    }
    host.write("health.json", json.dumps(document))
    fresh, _ = host.run()
    host.write("health.json", json.dumps({**document, "written": time.time() - 1000}))
    stale, _ = host.run()

    assert fresh['primus_health_verdict{verdict="fail"}'] == 1
    assert fresh['primus_health_check{check="mount",device="/jfs",verdict="fail"}'] == 1
    assert stale['primus_health_verdict{verdict="unknown"}'] == 1
    assert not [series for series in stale if "primus_health_check" in series]


def test_amd_metrics_are_read_from_driver_files(host: Host) -> None:
    """Units follow the metric names. The limit is the lowest one of the device."""
    files = {"product_name": "MI300X", "gpu_busy_percent": "95", "mem_info_vram_used": "1000", "mem_info_vram_total": "4000"}
    monitor = {"temp1_input": "65000", "temp1_label": "junction", "temp1_crit": "100000", "temp2_input": "70000", "temp2_label": "mem"}
    power = {"temp2_crit": "95000", "power1_average": "550000000", "power1_cap": "700000000", "power1_cap_default": "750000000"}
    host.gpu("0000:05:00.0", "0x1002", **files, **{f"hwmon__hwmon3__{key}": value for key, value in {**monitor, **power}.items()})
    for block, counts in {"umc": "ue: 1\nce: 2", "gfx": "ue: 0\nce: 5"}.items():
        host.write(f"sys/bus/pci/devices/0000:05:00.0/ras/{block}_err_count", counts)
    numbers, _ = host.run()

    assert numbers['primus_gpu_temperature_celsius{gpu="0",sensor="junction"}'] == 65
    assert numbers['primus_gpu_temperature_limit_celsius{gpu="0"}'] == 95
    assert numbers['primus_gpu_power_watts{gpu="0"}'] == 550
    assert numbers['primus_gpu_power_default_limit_watts{gpu="0"}'] == 750
    assert numbers['primus_gpu_utilisation_ratio{gpu="0"}'] == pytest.approx(0.95)
    assert (numbers['primus_gpu_uncorrectable_errors{gpu="0"}'], numbers['primus_gpu_corrected_errors{gpu="0"}']) == (1, 7)
    assert numbers['primus_exporter_source_up{source="gpu"}'] == 1


def test_gpu_without_data_is_unknown_and_others_are_reported(host: Host) -> None:
    """It has no metric with a zero."""
    host.gpu("0000:05:00.0", "0x1002")
    host.gpu("0000:06:00.0", "0x1002", gpu_busy_percent="3")
    numbers, complaint = host.run()

    assert [series for series in numbers if 'gpu="0"' in series and "info" not in series] == []
    assert numbers['primus_gpu_utilisation_ratio{gpu="1"}'] == 0.03
    assert numbers['primus_exporter_source_up{source="gpu"}'] == 0
    assert "no data of 0000:05:00.0" in complaint


def test_nvidia_metrics_are_read_from_nvidia_smi(host: Host) -> None:
    """Missing values are omitted; old and new element names are parsed."""
    for address in ("0000:18:00.0", "0000:2a:00.0"):
        host.gpu(address, "0x10de")
    host.tool("nvidia-smi", f"cat << 'EOF'\n{SMI}EOF")
    numbers, complaint = host.run()

    assert complaint == ""
    assert numbers['primus_gpu_temperature_celsius{gpu="0",sensor="gpu"}'] == 61
    assert numbers['primus_gpu_temperature_limit_celsius{gpu="0"}'] == 87
    assert numbers['primus_gpu_temperature_limit_celsius{gpu="1"}'] == 93
    assert numbers['primus_gpu_power_watts{gpu="0"}'] == 412.33
    assert numbers['primus_gpu_power_limit_watts{gpu="0"}'] == 600
    assert numbers['primus_gpu_memory_used_bytes{gpu="0"}'] == 1 << 30
    assert numbers['primus_gpu_uncorrectable_errors{gpu="0"}'] == 1
    assert numbers['primus_gpu_corrected_errors{gpu="0"}'] == 5
    absent = {"power_watts", "utilisation_ratio", "uncorrectable_errors", "memory_bytes"}
    assert {series for series in numbers if 'gpu="1"' in series and any(f"primus_gpu_{name}{{" in series for name in absent)} == set()


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ("exit 9", "nvidia-smi exited with 9"),
        ("sleep 300", "no answer within 3 s"),
        ("echo no XML", "syntax error"),
        ("", "no data of"),
    ],
)
def test_failing_tool_affects_its_own_source_only(host: Host, tool: str, reason: str) -> None:
    """A tool that fails, hangs or prints garbage makes its source unknown; the others report in time."""
    host.settings["timeout_s"] = 3 if "sleep" in tool else 20
    host.gpu("0000:18:00.0", "0x10de")
    host.tool("nvidia-smi", tool or "echo '<nvidia_smi_log></nvidia_smi_log>'")
    started = time.monotonic()
    numbers, complaint = host.run()

    assert numbers['primus_exporter_source_up{source="gpu"}'] == 0
    assert numbers['primus_quarantined{owner=""}'] == 0
    assert not [series for series in numbers if series.startswith("primus_gpu")]
    assert reason in complaint
    assert time.monotonic() - started < 60


def test_only_known_metrics_of_user_files_are_passed_on(host: Host) -> None:
    """Other names, links, folders, long and old files are skipped; quoting is kept."""
    good = (
        'primus_train_step{run="/a \\"b\\"\\\\c",job_id="7",host="n1",evil="x"} 5\nprimus_train_loss{run="/a",job_id="7",host="n1"} NaN\n'
    )
    other = 'node_load1 3\nprimus_health_verdict{verdict="pass"} 1\nx primus_train_step{run="/x"} 1\n'
    host.write(f"training/{ME}/a.prom", good + other)
    host.write("secret", 'primus_train_step{run="/secret"} 1\n')
    mine = host.root / "training" / ME
    (mine / "link.prom").symlink_to(host.root / "secret")
    (mine / "folder.prom").mkdir()
    os.mkfifo(mine / "pipe.prom")
    host.write(f"training/{ME}/long.prom", 'primus_train_step{run="/long"} 1\n' * 5000)
    old = host.write(f"training/{ME}/old.prom", 'primus_train_step{run="/old"} 1\n')
    os.utime(old, (1, 1))
    numbers, complaint = host.run()
    train = {series for series in numbers if "train_step" in series or "train_loss" in series}

    assert train == {f'primus_train_step{{host="{HERE}",job_id="7",run="/a \\"b\\"\\\\c",user="{ME}"}}'}
    assert numbers[f'primus_train_refused{{user="{ME}"}}'] == 4
    assert not [series for series in numbers if "node_load1" in series or "health" in series]
    assert numbers['primus_exporter_source_up{source="training"}'] == 1
    assert f"4 files or samples of {ME} were dropped" in complaint


def test_metrics_of_the_trainer_are_passed_on(host: Host) -> None:
    """The gauges of workloads/common/step_files.py keep their labels."""
    pytest.importorskip("torch", reason="this Python has no torch")
    from workloads.common import step_files  # noqa: PLC0415 (needs torch)

    fields: dict[str, Any] = dict.fromkeys(step_files.StepRecord.__slots__, 1) | {"time": "", "checkpoint": "idle", "mfu": None}
    host.write(
        f"training/{ME}/job.prom", step_files.prometheus_text(step_files.StepRecord(**fields), {"run": "/r", "job_id": "7", "host": "n1"})
    )
    numbers, _ = host.run()

    assert numbers[f'primus_train_step{{host="{HERE}",job_id="7",run="/r",user="{ME}"}}'] == 1
    assert numbers[f'primus_train_running{{host="{HERE}",job_id="7",run="/r",user="{ME}"}}'] == 1
    assert not [series for series in numbers if "mfu" in series]


def test_job_folder_determines_job_and_user_labels(host: Host) -> None:
    """They replace the labels of the file. Files elsewhere with the same id or run folder are skipped."""
    job = "big-0a1b2c"
    host.write(f"jobs/{job}/run/metrics.prom", 'primus_train_step{run="/r",job_id="x",user="eve",host="n1"} 7\n')
    forged = f'primus_train_step{{run="/r",job_id="{job}"}} 8\nprimus_train_step{{run="/jfs/primus/jobs/{job}/run"}} 9\n'
    host.write(f"training/{ME}/forged.prom", f'{forged}primus_train_step{{run="/jfs/home/ada/llama-202611",job_id="7"}} 10\n')
    numbers, _ = host.run()
    train = {series: number for series, number in numbers.items() if series.startswith("primus_train_step")}

    assert train == {
        f'primus_train_step{{host="n1",job_id="{job}",run="{host.root}/jobs/{job}/run",user="{ME}"}}': 7,
        f'primus_train_step{{host="{HERE}",job_id="7",run="/jfs/home/ada/llama-202611",user="{ME}"}}': 10,
    }
    assert numbers[f'primus_train_refused{{user="{ME}"}}'] == 2


def test_unreadable_job_folder_hides_no_other(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner can mount a file system that refuses root; only this job is skipped."""
    for name in ("bad-0a1b2c", "good-0a1b2c"):
        host.write(f"jobs/{name}/run/metrics.prom", "")
    real = safe_files.Folder.stat

    def look(folder: safe_files.Folder, name: str) -> os.stat_result:
        if name.startswith("bad"):
            raise PermissionError(name)
        return real(folder, name)

    monkeypatch.setattr(safe_files.Folder, "stat", look)
    found = exporter._job_folders(host.settings, safe_files)

    assert [location.job for locations in found.values() for location in locations] == ["good-0a1b2c"]


def test_account_label_is_the_owner_of_the_file(host: Host) -> None:
    """Folder and file must have the same owner; the label of the file is ignored."""
    if os.geteuid():
        pytest.skip("needs root, to have files of two accounts")
    host.root.chmod(0o755)
    host.write("training/daemon/theirs.prom", 'primus_train_step{run="/r"} 999999\n')
    host.write("training/daemon/own.prom", 'primus_train_step{run="/own",user="root"} 3\n')
    host.write(f"training/{ME}/planted.prom", 'primus_train_step{run="/planted"} 4\n')
    host.write("training/unknown/any.prom", 'primus_train_step{run="/any"} 5\n')
    host.write("jobs/other-0a1b2c/run/metrics.prom", 'primus_train_step{run="/swapped"} 6\n')
    daemon = pwd.getpwnam("daemon")
    for name in ("training/daemon", "training/daemon/own.prom", f"training/{ME}/planted.prom", "jobs/other-0a1b2c"):
        os.chown(host.root / name, daemon.pw_uid, daemon.pw_gid)
    numbers, complaint = host.run()
    train = {series: number for series, number in numbers.items() if series.startswith("primus_train_step")}

    assert train == {f'primus_train_step{{host="{HERE}",run="/own",user="daemon"}}': 3}
    assert numbers['primus_train_refused{user="daemon"}'] == 2
    assert numbers[f'primus_train_refused{{user="{ME}"}}'] == 1
    assert "is owned by uid 0" in complaint


def test_user_files_cannot_set_metrics_of_the_exporter(host: Host) -> None:
    """Names of the exporter's own samples are skipped."""
    host.write(f"training/{ME}/a.prom", f'primus_train_refused{{user="{ME}"}} 0\nprimus_train_updated_timestamp_seconds{{run="/r"}} 1\n')
    numbers, _ = host.run()

    assert not [series for series in numbers if series.startswith("primus_train")]


def test_link_in_place_of_the_root_folder_disables_the_source(host: Host) -> None:
    """Accounts cannot create it, so the source reports an error."""
    (host.root / "elsewhere").mkdir()
    (host.root / "training").symlink_to(host.root / "elsewhere")
    numbers, complaint = host.run()

    assert numbers['primus_exporter_source_up{source="training"}'] == 0
    assert "is a symbolic link" in complaint


def test_slurm_nodes_are_counted_once(host: Host) -> None:
    """Input as printed by sinfo 22.05: long states, a line per partition, a star for no answer."""
    host.settings["slurm"] = True
    host.tool("sinfo", "printf 'n1|idle\\nn1|idle\\nn2|drained\\nn3|idle*\\nn4|mixed\\nn5|down*\\nn6|allocated\\n'")
    numbers, _ = host.run()
    found = {series.partition("{")[2].rstrip("}"): value for series, value in numbers.items() if "slurm_node" in series}

    assert found == {
        'node="n1",state="idle"': 0,
        'node="n2",state="drained"': 1,
        'node="n3",state="idle"': 1,
        'node="n4",state="mixed"': 0,
        'node="n5",state="down"': 1,
        'node="n6",state="allocated"': 0,
    }


def test_quarantine_has_its_owner_and_damaged_record_is_unknown(host: Host) -> None:
    """An unreadable record does not count as none."""
    host.write("quarantine.json", '{"owner": "ada", "reason": "x", "time": 1}')
    owned, _ = host.run()
    host.write("quarantine.json", "{")
    broken, _ = host.run()

    assert owned['primus_quarantined{owner="ada"}'] == 1
    assert not [series for series in broken if series.startswith("primus_quarantined")]
    assert broken['primus_exporter_source_up{source="quarantine"}'] == 0
