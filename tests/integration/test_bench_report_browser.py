"""A real browser opens the page of a bench: it shows everything, reports no errors and sends no request."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import struct
import subprocess
import threading
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import pytest

from primus_bootstrap.bench.report.html_page import html_text
from primus_bootstrap.bench.report.rows import all_verdicts
from tests.unit.bench_report_rig import Page, bench_run, expected_cells, full_run, hostile_run, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from primus_bootstrap.bench.report.bench_report import BenchRun

CHROMIUM = shutil.which("chromium") or ""
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed on this machine")

_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # Root may have no sandbox; the page is our own.
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--proxy-bypass-list=<-loopback>",
)
# Hosts that the browser contacts by itself, with any page.
_BROWSER_HOSTS = re.compile(r"(^|\.)(google|googleapis|gstatic|gvt1|gvt2)\.com$")


class Opened(NamedTuple):
    """An opened page: its elements, console messages, and the hosts that it requested."""

    page: Page
    console: tuple[str, ...]
    requested: tuple[str, ...]


@pytest.fixture
def proxy() -> Iterator[tuple[int, list[str]]]:
    """Listen where the browser sends every request, and store the first line of each."""
    requested: list[str] = []
    server = socket.create_server(("127.0.0.1", 0))

    def listen() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(5)
                    requested.append(connection.recv(4096).split(b"\r\n")[0].decode("latin-1"))
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    threading.Thread(target=listen, daemon=True).start()
    yield server.getsockname()[1], requested
    server.close()


def _run(profile: Path, port: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [CHROMIUM, *_OPTIONS, f"--user-data-dir={profile}", f"--proxy-server=127.0.0.1:{port}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)


def _open(text: str, folder: Path, proxy: tuple[int, list[str]]) -> Opened:
    port, requested = proxy
    file = folder / "bench.html"
    file.write_text(text, "utf-8")
    done = _run(folder / "profile", port, "--dump-dom", file.as_uri())
    console = tuple(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    hosts = (_host(line) for line in requested)
    return Opened(Page(done.stdout), console, tuple(host for host in hosts if not _BROWSER_HOSTS.search(host)))


def _host(request: str) -> str:
    """Return the host of a proxy request: "CONNECT host:443" or "GET http://host/"."""
    target = request.split(" ")[1] if " " in request else request
    return urlsplit(target if "//" in target else f"//{target}").hostname or target


@pytest.mark.parametrize("run", [full_run(), hostile_run()], ids=["full", "hostile"])
def test_the_page_is_complete_and_self_contained(run: BenchRun, tmp_path: Path, proxy: tuple[int, list[str]]) -> None:
    """The browser's tree contains every verdict, the console is empty, no script ran, and no request was made."""
    opened = _open(html_text(run), tmp_path, proxy)

    assert opened.page.cells == expected_cells(all_verdicts(run))
    assert opened.console == ()
    assert opened.requested == ()
    assert not opened.page.elements.keys() & {"script", "img"}


def test_a_page_with_an_external_picture_is_detected(tmp_path: Path, proxy: tuple[int, list[str]]) -> None:
    """The page's own policy refuses the picture; without the policy the request is seen."""
    text = html_text(full_run()).replace("<main>", '<main><img src="http://elsewhere.test/x.png">')
    refused = _open(text, tmp_path, proxy)
    sent = _open(re.sub(r"<meta http-equiv=[^>]*>", "", text), tmp_path, proxy)

    assert refused.requested == ()
    assert any("elsewhere.test" in line for line in refused.console)
    assert "elsewhere.test" in sent.requested


def test_the_page_is_drawn_in_light_and_dark(tmp_path: Path, proxy: tuple[int, list[str]]) -> None:
    """A screenshot is not empty, and differs with the colour scheme."""
    file = tmp_path / "bench.html"
    file.write_text(html_text(full_run()), "utf-8")
    pictures = []
    for scheme in (0, 1):
        picture = tmp_path / f"{scheme}.png"
        options = (f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1400,1600", f"--screenshot={picture}")
        _run(tmp_path / "profile", proxy[0], *options, file.as_uri())
        pictures.append(picture.read_bytes())

    assert [struct.unpack(">II", picture[16:24]) for picture in pictures] == [(1400, 1600)] * 2
    assert min(len(picture) for picture in pictures) > 30_000
    assert pictures[0] != pictures[1]


def test_a_large_fleet_opens(tmp_path: Path, proxy: tuple[int, list[str]]) -> None:
    """512 hosts of eight devices load with all verdicts."""
    verdicts = tuple(verdict(f"node{host}", "pass", device=str(device)) for host in range(512) for device in range(8))

    opened = _open(html_text(bench_run((), verdicts)), tmp_path, proxy)

    assert opened.page.cells == expected_cells(verdicts)
    assert opened.console == ()
