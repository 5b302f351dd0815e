"""Each role's `meta/fetches.yml` lists exactly the packages, files, wheels, images and charts that its tasks fetch."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.bundle.artifacts import KINDS, Target
from primus_bootstrap.bundle.needs import MACHINES, RELEASES, facts_of, fetches_file
from primus_bootstrap.inventory.cluster import RoleSources
from primus_bootstrap.inventory.kubespray_release import load_release, load_releases
from primus_bootstrap.inventory.load import load_cluster
from tests.contract.test_roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_bootstrap.inventory.cluster import Cluster

ROLES_WITH_FETCHES = [role for role in ROLES if fetches_file(role).is_file()]
# Modules that download to a host, by the kind in fetches.yml. `dnf` installs the same packages as `apt`.
PACKAGES = ("apt", "dnf", "package", "yum", "dnf5")
FILES = ("get_url", "git", "subversion")
WHEELS = ("pip",)
SOURCES = ("apt_repository", "deb822_repository", "yum_repository", "apt_key", "rpm_key", "snap", "flatpak", "npm", "gem")
# Matches downloads in commands and programs of roles.
DOWNLOADS = re.compile(
    r"apt-get[^\n]*\binstall\b|\bdnf\b[^\n]*\binstall\b|\bcurl\s+-|\bwget\s|\bpip3?\s+(install|download)|skopeo copy"
    r"|\burllib\.request\b|\burlopen\("
)
IMAGE_PULLS = re.compile(r"\b(podman|docker|crictl|nerdctl)\b[^\n]*\bpull\b")
# Values that make a role fetch files, in addition to its defaults.
SUM = "0" * 63 + "1"
EXTRA_VARIABLES: dict[str, dict[str, Any]] = {
    "juicefs": {"juicefs_source": "upstream", "juicefs_version": "1.3.1"},
    "envoy": {"envoy_source": "upstream", "envoy_version": "1.39.0"},
    "oci_registry": {"oci_registry_source": "upstream", "oci_registry_sha256": SUM},
    "object_store": {"object_store_source": "upstream", "object_store_sha256": SUM},
    "prometheus": {"prometheus_source": "upstream"},
    "alertmanager": {"alertmanager_source": "upstream"},
    "node_exporter": {"node_exporter_source": "upstream"},
    "kube_gateway_api": {"kube_gateway_api_sha256": SUM},
    "container_runtime": {"container_runtime_engine": "docker", "container_runtime_docker_source": "docker"},
}
# The packages depend on the host's hardware: no bundle contains them, and `validate` rejects the role with a bundle.
HARDWARE_DEPENDENT = {"gpu_driver"}
# Pinned by commit instead of a checksum; test_fetches_of_kubespray_match_the_pinned_release checks it.
PINNED_BY_COMMIT = {"kubespray"}
# Programs that match DOWNLOADS and need no entry in fetches.yml.
PROGRAM_EXCEPTIONS = {
    # A reset reinstalls packages from the host's own sources.
    "host_origin/module_utils/reset_packages.py",
    # Requests a missing image from a registry of the cluster.
    "registry_trust/module_utils/registry_trust_containerd.py",
    # Send requests to services of the cluster: the API server, Harbor, Envoy.
    "kube_health/files/kube_health/api_request.py",
    "harbor/module_utils/harbor_api.py",
    "envoy/library/envoy_effects.py",
    # Fetches a vendor's repository key: listed as `beyond`, rejected with a bundle (driver-beyond-bundle).
    "gpu_driver/files/fetch_key.sh",
}


def tasks_of(role: str, file: str, visited: frozenset[str] = frozenset()) -> Iterator[dict[str, Any]]:
    """Yield the tasks of a file, its blocks, and the files that it imports and includes. A recursive include counts once."""
    if file in visited:
        return

    def walk(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for task in tasks or ():
            yield task
            for section in ("block", "rescue", "always"):
                yield from walk(task.get(section) or [])
            for key in ("import_tasks", "include_tasks"):
                if inner := task.get(f"ansible.builtin.{key}"):
                    name = inner if isinstance(inner, str) else inner["file"]
                    yield from tasks_of(role, name, visited | {file})

    path = content.roles_dir() / role / "tasks" / file
    yield from walk(yaml.safe_load(path.read_text(encoding="utf-8")))


def entry_points(role: str) -> list[str]:
    """Return the tasks files of a role that playbooks may call."""
    path = content.roles_dir() / role / "meta" / "argument_specs.yml"
    return list(yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"])


def module_of(task: dict[str, Any]) -> str:
    """Return the short name of a task's module."""
    return next((key.rpartition(".")[2] for key in task if "." in key), "")


def charts_kinds(task: dict[str, Any]) -> set[str]:
    """Return the kinds that a task fetches if it installs a chart: the archive and its images."""
    include = task.get("ansible.builtin.include_role") or {}
    if include.get("name") != "kube_common" or include.get("tasks_from") != "chart_release":
        return set()
    return {"file", "image"}


def kubespray_kinds(task: dict[str, Any]) -> set[str]:
    """Return the kinds that the action `kubespray` fetches during an apply. Day-2 verbs use the release that an apply fetched."""
    return {"file", "wheel"} if "'apply'" in str(task.get("kubespray", "")) else set()


def kind_of(task: dict[str, Any]) -> str | None:
    """Return the kind that a task fetches, or None."""
    module = module_of(task)
    text = " ".join(map(str, _command_words(task))) if module in ("command", "shell") else ""
    if module in PACKAGES:
        return "package"
    if module in FILES or (module == "unarchive" and "://" in str(task)):
        return "file"
    # If `vars` of the task define `argv`, it is a template.
    if module in WHEELS or (module == "command" and "pip" in _flat(task) and "download" in _flat(task)) or "pip install" in text:
        return "wheel"
    if module == "command" and "'backend', 'install'" in text:
        return "wheel"
    if module in ("podman_image", "docker_image", "docker_image_pull") or IMAGE_PULLS.search(text):
        return "image"
    return None


def _command_words(task: dict[str, Any]) -> list[Any]:
    for key, value in task.items():
        if key.endswith((".command", ".shell")):
            if isinstance(value, dict):
                argv = value.get("argv", value.get("cmd", ""))
                return [*(argv if isinstance(argv, list) else [argv]), value.get("stdin", "")]
            return [value]
    return []


def _flat(task: dict[str, Any]) -> list[str]:
    texts: list[str] = []
    for value in (*_command_words(task), *(task.get("vars") or {}).values()):
        texts += [str(word) for word in value] if isinstance(value, list) else [str(value)]
    return texts


def listed_fetches(role: str) -> dict[str, list[dict[str, Any]]]:
    """Return a role's fetches.yml; empty if it has none."""
    return yaml.safe_load(fetches_file(role).read_text(encoding="utf-8")) if role in ROLES_WITH_FETCHES else {}


def listed_kinds(items: list[dict[str, Any]]) -> set[str]:
    """Return the kinds that an entry point lists."""
    return {kind for item in items for kind in KINDS if ("packages" if kind == "package" else kind) in item}


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """A cluster with every service and default versions."""
    return load_cluster(content.topologies_dir() / "lab")


def resolver(cluster: Cluster, role: str, release: str, **variables: Any) -> Callable[[Any], Any]:
    """Return a function that resolves a role's templates for a host of a release, without facts of a real host."""
    folder = content.roles_dir() / role
    sources = RoleSources(
        defaults=(folder / "defaults" / "main.yml",),
        overrides=tuple(path for path in (content.playbooks_dir() / "vars" / "slurm.yml", folder / "vars" / "main.yml") if path.is_file()),
        facts=facts_of(Target(release, "amd64")),
        given=variables,
    )
    return cluster.view.role_scope("node1", sources)


@pytest.mark.parametrize("role", ROLES)
def test_fetches_list_the_kinds_that_each_entry_point_fetches(role: str) -> None:
    """The kinds that the tasks of each entry point fetch are those in fetches.yml."""
    found = {
        entry: {
            kind for task in tasks_of(role, f"{entry}.yml") for kind in (kind_of(task), *charts_kinds(task), *kubespray_kinds(task)) if kind
        }
        for entry in entry_points(role)
    }

    assert {entry: kinds for entry, kinds in found.items() if kinds} == {
        entry: listed_kinds(items) for entry, items in listed_fetches(role).items()
    }


@pytest.mark.parametrize(
    "role", [role for role in ROLES_WITH_FETCHES if role not in HARDWARE_DEPENDENT and "packages:" in fetches_file(role).read_text()]
)
@pytest.mark.parametrize("release", [name for name, facts in RELEASES.items() if facts["os_family"] == "Debian"])
def test_fetches_list_the_packages_that_are_installed(cluster: Cluster, role: str, release: str) -> None:
    """For every release, the listed packages equal those that apt installs on a host without any of them."""
    resolve = resolver(cluster, role, release)
    for entry, items in listed_fetches(role).items():
        tasks = cluster.view.read_templates(content.roles_dir() / role / "tasks" / "install.yml")
        missing = [name for task in tasks if "missing_packages" in task for name in resolve(task["missing_packages"]["names"])]
        resolve_on_host = resolver(cluster, role, release, **{f"__{role}_package_query": {"missing": missing}})
        installs = [task["ansible.builtin.apt"]["name"] for task in tasks if "ansible.builtin.apt" in task]
        installed = {name for names in installs for name in resolve_on_host(names)}
        templates = cluster.view.read_templates(fetches_file(role))[entry]
        names = {name for item in templates if "packages" in item and _applies(resolve, item) for name in resolve(item["packages"])}

        # Ansible's module installs python3-apt itself.
        assert names - {"python3-apt"} == installed, (entry, items)
        assert installed


def charts_of(role: str) -> list[str]:
    """Return the variable prefix of each chart of a role."""
    text = (content.roles_dir() / role / "defaults" / "main.yml").read_text(encoding="utf-8")
    return re.findall(r"(?m)^(\w+)_chart_version:", text)


def chart_checksums(role: str) -> dict[str, Any]:
    """Return the checksum variables that a role needs to fetch its charts."""
    return {f"{chart}_chart_sha256": SUM for chart in charts_of(role)}


def template(cluster: Cluster, name: str) -> Any:
    """Return a template with one variable."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "template.yml")
        path.write_text(yaml.safe_dump({"value": f"{{{{ {name} }}}}"}))
        return cluster.view.read_templates(path)["value"]


def _applies(resolve: Callable[[Any], Any], item: dict[str, Any]) -> bool:
    return "when" not in item or bool(resolve(item["when"]))


@pytest.mark.parametrize(
    "role",
    [
        role
        for role in ROLES_WITH_FETCHES
        if role not in PINNED_BY_COMMIT and any("file" in item for items in listed_fetches(role).values() for item in items)
    ],
)
def test_fetches_list_the_files_that_are_fetched(cluster: Cluster, role: str) -> None:
    """Without a bundle, the URL and checksum of each listed file equal those of a task."""
    charts = charts_of(role)
    # Checksums of charts have no default; `bundle lock` computes them.
    resolve = resolver(cluster, role, "bookworm", **(chart_checksums(role) if charts else EXTRA_VARIABLES.get(role, {})))
    for entry, items in cluster.view.read_templates(fetches_file(role)).items():
        paths = sorted((content.roles_dir() / role / "tasks").glob("*.yml"))
        tasks = [
            task["ansible.builtin.get_url"]
            for path in paths
            for task in cluster.view.read_templates(path)
            if "ansible.builtin.get_url" in task
        ]
        fetched = {(resolve(task["url"]), resolve(task["checksum"])) for task in tasks}
        for chart in charts:
            # chart_file.yml of kube_common fetches it with these values.
            archive = resolve(template(cluster, f"_{chart}_chart"))
            fetched |= {(archive["url"], f"sha256:{archive['sha256']}")}
        named = [resolve(item["file"]) for item in items if "file" in item and _applies(resolve, item)]

        assert {(file["url"], f"sha256:{file['sha256']}") for file in named} == fetched, entry
        assert all(re.fullmatch(r"[0-9a-f]{64}", file["sha256"]) for file in named)


def chart_tasks() -> list[tuple[str, dict[str, Any]]]:
    """Return every task that installs a chart, with its role."""
    tasks = [
        (path.parent.parent.name, task)
        for path in sorted(content.roles_dir().glob("*/tasks/*.yml"))
        for task in tasks_of(path.parent.parent.name, path.name)
        if charts_kinds(task)
    ]
    return list({task["vars"]["kube_common_chart"]["role"]: (role, task) for role, task in tasks}.values())


def kube_common_includes(role: str) -> list[str]:
    """Return the task files of kube_common that a role includes, in order."""
    includes = [task.get("ansible.builtin.include_role") or {} for task in tasks_of(role, "main.yml")]
    return [str(include["tasks_from"]) for include in includes if include.get("name") == "kube_common"]


def writes_before_its_chart(role: str) -> bool:
    """Return whether a role writes objects before it installs a chart."""
    order = kube_common_includes(role)
    return {"kube_objects", "chart_release"} <= set(order) and order.index("kube_objects") < order.index("chart_release")


@pytest.mark.parametrize("role", [role for role in ROLES if writes_before_its_chart(role)])
def test_a_chart_is_verified_before_objects_are_written(role: str) -> None:
    """A wrong checksum of a chart fails the run before it creates a Secret or a namespace."""
    order = kube_common_includes(role)

    assert order.index("chart_file") < order.index("kube_objects")


@pytest.mark.parametrize(("role", "task"), chart_tasks(), ids=lambda value: value if isinstance(value, str) else "")
def test_bundles_and_roles_render_a_chart_alike(role: str, task: dict[str, Any]) -> None:
    """Chart, values, release and namespace are the same in fetches.yml and in the task."""
    installed = task["vars"]["kube_common_chart"]
    expected = {name: installed[name] for name in ("release", "namespace", "chart", "values")}
    [found] = [
        item["chart"] for item in listed_fetches(role)["main"] if "chart" in item and item["chart"].get("role", role) == installed["role"]
    ]  # fmt: skip

    assert {name: found[name] for name in expected} == expected


def test_charts_without_a_checksum_are_documented(cluster: Cluster) -> None:
    """A role has the SHA-256 of its chart's archive, or docs/charts.md lists it as missing."""
    rows = (content.content_root() / "docs" / "charts.md").read_text(encoding="utf-8").splitlines()
    [missing] = [row for row in rows if "| missing, because" in row]
    sums: dict[tuple[str, str], str] = {}
    for role in ROLES:
        items = cluster.view.read_templates(fetches_file(role))["main"] if fetches_file(role).is_file() else ()
        charts = [item["file"] for item in items if "file" in item and "_chart" in item["file"]["url"]]
        sums |= {(role, str(file["url"])): file["sha256"] for file in map(resolver(cluster, role, "bookworm"), charts)}
    without = {role for (role, _), value in sums.items() if not re.fullmatch("[0-9a-f]{64}", value)}

    assert without == set(re.findall(r"`(\w+)`", missing.partition("| missing")[0]))
    assert len(sums) > len(without) > 0


@pytest.mark.parametrize("name", load_releases())
def test_fetches_of_kubespray_match_the_release(cluster: Cluster, name: str) -> None:
    """Archive and requirements are those of the release's commit, and `beyond` names what Kubespray itself fetches."""
    release = load_release(name)
    resolve = resolver(cluster, "kubespray", "bookworm", kubespray_release=name)
    items = cluster.view.read_templates(fetches_file("kubespray"))["main"]
    [file] = [resolve(item["file"]) for item in items if "file" in item]
    [wheels] = [resolve(item["wheel"])["together"] for item in items if "wheel" in item]
    [beyond] = [resolve(item["beyond"]) for item in items if "beyond" in item]

    assert file["url"] == f"{release.url.removesuffix('.git')}/archive/{release.commit}.tar.gz"
    assert file["version"] == release.version
    assert tuple(wheels) == release.requirements
    assert release.version in beyond["what"]
    assert "generate_list.sh" in beyond["how"]


@pytest.mark.parametrize("role", ROLES)
def test_no_fetch_bypasses_the_list(role: str) -> None:
    """No role adds a package source, and no program of a role downloads, except those in PROGRAM_EXCEPTIONS."""
    folder = content.roles_dir() / role
    tasks = [task for path in sorted((folder / "tasks").rglob("*.yml")) for task in tasks_of(role, str(path.relative_to(folder / "tasks")))]
    programs = [
        path for name in ("files", "library", "module_utils", "action_plugins", "templates") for path in sorted((folder / name).rglob("*"))
    ]
    texts = {
        str(path.relative_to(content.roles_dir())): path.read_text(encoding="utf-8")
        for path in programs
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert [task.get("name") for task in tasks if module_of(task) in SOURCES] == []
    assert [name for name, text in texts.items() if DOWNLOADS.search(text) or IMAGE_PULLS.search(text)] == [
        name for name in texts if name in PROGRAM_EXCEPTIONS
    ]


def test_no_shared_plugin_downloads() -> None:
    """A bundle's list comes from the roles, so plug-ins of several roles must not download."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in content.plugins_dir().rglob("*.py")}

    assert texts
    assert [name for name, text in texts.items() if DOWNLOADS.search(text) or IMAGE_PULLS.search(text)] == []


def test_airgap_options_match_the_bundle() -> None:
    """`airgap_release` and `airgap_architecture` accept the releases and architectures of bundles."""
    specs = yaml.safe_load((content.roles_dir() / "airgap" / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))
    options = specs["argument_specs"]["main"]["options"]

    assert options["airgap_release"]["choices"] == ["", *RELEASES]
    assert options["airgap_architecture"]["choices"] == list(MACHINES)
    assert Path(fetches_file("redis")).is_file()
