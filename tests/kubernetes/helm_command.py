"""Implement the part of the `helm` command that kubernetes.core uses, with Helm's library (helm_python, Helm 4).

Sub-commands and flags are those of kubernetes.core 6.2; other flags are rejected, like helm rejects unknown flags.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import helm_python
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable

_VALUES = ("--values", "--set", "--set-string", "--set-file", "--set-json", "--set-literal")
# Flags with a value, and with none, of all verbs together.
_WITH_VALUE = (
    *_VALUES, "--version", "--repo", "--timeout", "--output", "--namespace", "--filter", "--history-max", "--max", "--revision",
    "--destination", "--kubeconfig", "--show-only", "--output-dir", "--kube-version", "--api-versions",
)  # fmt: skip
_ALONE = (
    "--install", "--wait", "--atomic", "--create-namespace", "--reset-values", "--reuse-values", "--plain-http", "--keep-history", "--all",
    "--all-namespaces", "--include-crds", "--untar", "--deployed", "--failed", "--insecure-skip-tls-verify", "--is-upgrade",
)  # fmt: skip
_SHORT = {
    "--install": "-i",
    "--values": "-f",
    "--output": "-o",
    "--namespace": "-n",
    "--all": "-a",
    "--all-namespaces": "-A",
    "--show-only": "-s",
}
_CHART = ("--version", "--repo", "--plain-http")
_DEPLOY = ("--wait", "--timeout", "--atomic", "--create-namespace", *_CHART, *_VALUES)
_KINDS_OF_SET: dict[str, Callable[[str], dict[str, Any]]] = {
    "--set": helm_python.parse_set_string,
    "--set-string": helm_python.parse_set_string_values,
    "--set-file": helm_python.parse_set_file,
    "--set-json": helm_python.parse_set_json,
    "--set-literal": helm_python.parse_set_literal,
}


class _RefusedError(Exception):
    """The message after `Error: `."""


class _Wanted:
    """A parsed command line."""

    def __init__(self, argv: list[str]) -> None:
        parser = _Parser(add_help=False, allow_abbrev=False)
        parser.add_argument("words", nargs="*")
        for flag in _WITH_VALUE:
            parser.add_argument(*filter(None, (_SHORT.get(flag), flag)), dest=flag, action="append")
        for flag in _ALONE:
            parser.add_argument(*filter(None, (_SHORT.get(flag), flag)), dest=flag, action="store_true")
        self._values = vars(parser.parse_intermixed_args(list(filter(None, map(_plain, argv)))))
        self.words: list[str] = self._values.pop("words")

    def given(self) -> set[str]:
        return {flag for flag, value in self._values.items() if value}

    def has(self, flag: str) -> bool:
        return bool(self._values[flag])

    def last(self, flag: str) -> str | None:
        return self._values[flag][-1] if self._values[flag] else None

    def number(self, flag: str) -> int | None:
        text = self.last(flag)
        return int(text) if text else None

    def every(self, flag: str) -> list[str]:
        return self._values[flag] or []


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        flag = re.search(r"unrecognized arguments: (\S+)", message)
        raise _RefusedError(f"unknown flag: {flag[1]}" if flag else message)


def _plain(argument: str) -> str:
    """Convert `--flag=True` of a flag without a value to the flag, and remove `--flag=False`."""
    flag, _, value = argument.partition("=")
    if flag not in _ALONE or not value:
        return argument
    return flag if value.lower() == "true" else ""


def _deep(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        merged[key] = _deep(merged[key], value) if isinstance(value, dict) and isinstance(merged.get(key), dict) else value
    return merged


def _values(wanted: _Wanted) -> dict[str, Any]:
    """Merge the values files, then the values of the command line."""
    merged: dict[str, Any] = {}
    for file in wanted.every("--values"):
        merged = _deep(merged, yaml.safe_load(Path(file).read_text()) or {})
    for flag, parse in _KINDS_OF_SET.items():
        for expression in wanted.every(flag):
            merged = _deep(merged, parse(expression))
    return merged


def _seconds(text: str | None) -> int | None:
    """Convert a Go duration such as `5m0s` to seconds."""
    if text is None:
        return None
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    if not parts or not text:
        raise _RefusedError(f'invalid argument "{text}" for "--timeout" flag: time: invalid duration "{text}"')
    hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return hours * 3600 + minutes * 60 + seconds


def _config(wanted: _Wanted) -> helm_python.Config:
    """Return the connection settings from the environment, in which the modules pass them."""
    env = os.environ
    return helm_python.Config(
        kubeconfig_path=wanted.last("--kubeconfig") or env.get("KUBECONFIG"),
        kube_context=env.get("HELM_KUBECONTEXT"),
        kube_token=env.get("HELM_KUBETOKEN"),
        kube_apiserver=env.get("HELM_KUBEAPISERVER"),
        kube_ca_file=env.get("HELM_KUBECAFILE"),
        kube_insecure_skip_tls_verify=env.get("HELM_KUBEINSECURE_SKIP_TLS_VERIFY") == "true",
        namespace=_namespace(wanted),
        storage_driver=env.get("HELM_DRIVER"),
    )


def _namespace(wanted: _Wanted) -> str:
    return wanted.last("--namespace") or os.environ.get("HELM_NAMESPACE") or "default"


def _show(wanted: _Wanted, value: Any) -> str:
    return json.dumps(value) if wanted.last("--output") == "json" else yaml.safe_dump(value, sort_keys=False)


def _version(_: _Wanted) -> str:
    return (
        f'version.BuildInfo{{Version:"v{helm_python.helm_sdk_version().lstrip("v")}", GitCommit:"", GitTreeState:"clean", GoVersion:""}}\n'
    )


def _list(wanted: _Wanted) -> str:
    with _config(wanted) as cluster:
        every = wanted.has("--all") or bool({"--deployed", "--failed"} & wanted.given())
        found = cluster.list(all_states=every, all_namespaces=wanted.has("--all-namespaces"), name_filter=wanted.last("--filter"))
    states = {flag.strip("-") for flag in ("--deployed", "--failed") if wanted.has(flag)}
    return _show(wanted, [_row(release) for release in found if not states or wanted.has("--all") or release["status"] in states])


def _row(release: dict[str, Any]) -> dict[str, str]:
    """Return a release in the format of `helm list`."""
    return {
        "name": release["name"],
        "namespace": release["namespace"],
        "revision": str(release["revision"]),
        "updated": release.get("updated") or release.get("last_deployed") or "",
        "status": release["status"],
        "chart": f"{release['chart_name']}-{release['chart_version']}",
        "app_version": release.get("app_version") or "",
    }


def _deploy(wanted: _Wanted) -> str:
    """Install or upgrade a release, as `upgrade --install` does."""
    name, chart = wanted.words[1:]
    common: dict[str, Any] = {
        "timeout": _seconds(wanted.last("--timeout")),
        "wait": "watcher" if wanted.has("--wait") or wanted.has("--atomic") else None,
        "rollback_on_failure": wanted.has("--atomic"),
        "chart_repo_url": wanted.last("--repo"),
        "chart_version": wanted.last("--version"),
        "plain_http": wanted.has("--plain-http"),
    }
    with _config(wanted) as cluster:
        if wanted.words[0] == "install" or not _is_there(cluster, name):
            if wanted.words[0] == "upgrade" and not wanted.has("--install"):
                raise _RefusedError(f'UPGRADE FAILED: "{name}" has no deployed releases')
            create = wanted.has("--create-namespace")
            cluster.install(chart, name, _values(wanted), namespace=_namespace(wanted), create_namespace=create, **common)
            return f"NAME: {name}\nSTATUS: deployed\nREVISION: 1\n"
        release = cluster.upgrade(
            chart,
            name,
            _values(wanted),
            namespace=_namespace(wanted),
            max_history=wanted.number("--history-max"),
            reset_values=wanted.has("--reset-values"),
            reuse_values=wanted.has("--reuse-values"),
            **common,
        )
    return f'Release "{name}" has been upgraded. Happy Helming!\nREVISION: {release["revision"]}\n'


def _is_there(cluster: helm_python.Config, name: str) -> bool:
    try:
        return bool(cluster.status(name)["status"] != "uninstalled")
    except (helm_python.HelmNotFoundError, helm_python.HelmStorageError):
        return False


def _uninstall(wanted: _Wanted) -> str:
    (name,) = wanted.words[1:]
    with _config(wanted) as cluster:
        wait = "watcher" if wanted.has("--wait") else None
        cluster.uninstall(name, keep_history=wanted.has("--keep-history"), timeout=_seconds(wanted.last("--timeout")), wait=wait)
    return f'release "{name}" uninstalled\n'


def _get(wanted: _Wanted) -> str:
    what, name = wanted.words[1:]
    revision = wanted.number("--revision")
    with _config(wanted) as cluster:
        if what == "values":
            return _show(wanted, cluster.get_values(name, all_values=wanted.has("--all"), revision=revision) or None)
        release = cluster.get_all(name, revision=revision)
    if what == "manifest":
        return str(release["summary"].get("manifest") or "")
    if what == "notes":
        return f"NOTES:\n{release['info'].get('notes') or release['summary'].get('notes') or ''}\n"
    if what == "hooks":
        return "".join(f"---\n# Source: {hook.get('path')}\n{hook.get('manifest')}\n" for hook in release.get("hooks") or [])
    raise _RefusedError(f'unknown command "{what}" for "helm get"')


def _status(wanted: _Wanted) -> str:
    (name,) = wanted.words[1:]
    with _config(wanted) as cluster:
        release = cluster.get_all(name, revision=wanted.number("--revision"))
    summary = release["summary"]
    kept = {"name": name, "info": {"status": summary["status"], **(release.get("info") or {})}, "config": release.get("config") or {}}
    return _show(
        wanted, {**kept, "manifest": summary.get("manifest", ""), "version": summary["revision"], "namespace": summary["namespace"]}
    )


def _history(wanted: _Wanted) -> str:
    (name,) = wanted.words[1:]
    with _config(wanted) as cluster:
        revisions = cluster.history(name, max_revisions=wanted.number("--max"))
    return _show(wanted, [{**_row(one), "revision": one["revision"], "description": one.get("description", "")} for one in revisions])


def _rollback(wanted: _Wanted) -> str:
    name, *version = wanted.words[1:]
    with _config(wanted) as cluster:
        wait = "watcher" if wanted.has("--wait") else None
        cluster.rollback(name, version=int(version[0]) if version else None, timeout=_seconds(wanted.last("--timeout")), wait=wait)
    return "Rollback was a success! Happy Helming!\n"


def _show_chart(wanted: _Wanted) -> str:
    what, chart = wanted.words[1:]
    version, repo = wanted.last("--version"), wanted.last("--repo")
    return helm_python.show(chart, output_format=what, version=version, repo_url=repo, plain_http=wanted.has("--plain-http"))


def _template(wanted: _Wanted) -> str:
    name, chart = (["release-name", *wanted.words[1:]])[-2:]
    with tempfile.TemporaryDirectory() as fetched, helm_python.Chart.load(_local(wanted, chart, Path(fetched))) as loaded:
        rendered = loaded.render(_values(wanted), name=name, namespace=_namespace(wanted))
        definitions = {f"{loaded.name}/{crd['name']}": crd["data"] for crd in loaded.crds} if wanted.has("--include-crds") else {}
    files = {**definitions, **{path: text for path, text in sorted(rendered.items()) if text.strip() and not path.endswith("NOTES.txt")}}
    only = wanted.every("--show-only")
    files = {path: text for path, text in files.items() if not only or any(path.endswith(f"/{one}") for one in only)}
    folder = wanted.last("--output-dir")
    if folder is None:
        return "".join(f"---\n# Source: {path}\n{text}\n" for path, text in files.items())
    for path, text in files.items():
        target = Path(folder) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"---\n# Source: {path}\n{text}\n")
    return "".join(f"wrote {folder}/{path}\n" for path in files)


def _local(wanted: _Wanted, chart: str, folder: Path) -> Path:
    """Return the path of a chart, downloaded if necessary."""
    if Path(chart).exists():
        return Path(chart)
    version, plain = wanted.last("--version"), wanted.has("--plain-http")
    helm_python.pull(chart, destination=folder, version=version, repo_url=wanted.last("--repo"), plain_http=plain)
    return next(folder.glob("*.tgz"))


def _pull(wanted: _Wanted) -> str:
    (chart,) = wanted.words[1:]
    destination = wanted.last("--destination") or "."
    return str(
        helm_python.pull(
            chart,
            destination=destination,
            version=wanted.last("--version"),
            repo_url=wanted.last("--repo"),
            untar=wanted.has("--untar"),
            untar_dir=destination if wanted.has("--untar") else None,
            plain_http=wanted.has("--plain-http"),
        )["output"],
    )


def _dependency(wanted: _Wanted) -> str:
    verb, chart = wanted.words[1:]
    if verb == "list":
        return _show(wanted, helm_python.dependency_list(chart))
    fetch = {"update": helm_python.dependency_update, "build": helm_python.dependency_build}[verb]
    fetch(chart, plain_http=wanted.has("--plain-http"))
    return ""


def _plugin(_: _Wanted) -> str:
    """Print the header of an empty table of plug-ins."""
    return "NAME\tVERSION\tDESCRIPTION\n"


_VERBS: dict[str, tuple[Callable[[_Wanted], str], tuple[str, ...]]] = {
    "version": (_version, ()),
    "list": (_list, ("--all", "--all-namespaces", "--filter", "--deployed", "--failed")),
    "install": (_deploy, _DEPLOY),
    "upgrade": (_deploy, (*_DEPLOY, "--install", "--reset-values", "--reuse-values", "--history-max")),
    "uninstall": (_uninstall, ("--wait", "--timeout", "--keep-history")),
    "get": (_get, ("--all", "--revision")),
    "status": (_status, ("--revision",)),
    "history": (_history, ("--max",)),
    "rollback": (_rollback, ("--wait", "--timeout")),
    "show": (_show_chart, _CHART),
    # For which server it is rendered the library cannot be told.
    "template": (
        _template,
        (*_CHART, *_VALUES, "--include-crds", "--show-only", "--output-dir", "--kube-version", "--api-versions", "--is-upgrade"),
    ),
    "pull": (_pull, (*_CHART, "--destination", "--untar")),
    "dependency": (_dependency, ("--plain-http",)),
    "plugin": (_plugin, ()),
}
_EVERY_VERB = ("--output", "--namespace", "--kubeconfig")


def _done(wanted: _Wanted) -> str:
    """Execute the command line, and return its output."""
    if not wanted.words or wanted.words[0] not in _VERBS:
        raise _RefusedError(f'unknown command "{" ".join(wanted.words[:1])}" for "helm"')
    verb, flags = _VERBS[wanted.words[0]]
    unknown = wanted.given() - {*flags, *_EVERY_VERB}
    if unknown:
        raise _RefusedError(f"unknown flag: {min(unknown)}")
    return verb(wanted)


def main(argv: list[str]) -> int:
    """Execute the command line and print its output like helm."""
    try:
        sys.stdout.write(_done(_Wanted(argv)))
    except (_RefusedError, helm_python.HelmError, OSError, yaml.YAMLError) as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
