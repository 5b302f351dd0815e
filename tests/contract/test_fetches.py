"""What a role's tasks fetch is what its `meta/fetches.yml` states: no more, no less, and in the same words."""

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
from primus_bootstrap.inventory.kubespray_release import load_release
from primus_bootstrap.inventory.load import load_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_bootstrap.inventory.cluster import Cluster

# What other roles include or read; no role of its own.
INTERNAL = {"_common", "kube_common"}
ROLES = sorted(folder.name for folder in content.roles_dir().iterdir() if folder.is_dir() and folder.name not in INTERNAL)
STATED = [role for role in ROLES if fetches_file(role).is_file()]
# Modules that bring something from outside to a host, and what a role states for them. `dnf` stands beside `apt` for the same packages.
PACKAGES = ("apt", "dnf", "package", "yum", "dnf5")
FILES = ("get_url", "git", "subversion")
WHEELS = ("pip",)
SOURCES = ("apt_repository", "deb822_repository", "yum_repository", "apt_key", "rpm_key", "snap", "flatpak", "npm", "gem")
# In a command or a program of a role.
FETCHING_WORDS = re.compile(
    r"apt-get[^\n]*\binstall\b|\bdnf\b[^\n]*\binstall\b|\bcurl\s+-|\bwget\s|\bpip3?\s+(install|download)|skopeo copy"
    r"|\burllib\.request\b|\burlopen\("
)
PULLING_WORDS = re.compile(r"\b(podman|docker|crictl|nerdctl)\b[^\n]*\bpull\b")
# Values with which a role fetches its files, on top of its defaults.
SUM = "0" * 63 + "1"
GIVEN: dict[str, dict[str, Any]] = {
    "juicefs": {"juicefs_source": "upstream", "juicefs_version": "1.3.1"},
    "envoy": {"envoy_source": "upstream", "envoy_version": "1.39.0"},
    "oci_registry": {"oci_registry_source": "upstream", "oci_registry_sha256": SUM},
    "kube_gateway_api": {"kube_gateway_api_sha256": SUM},
    "container_runtime": {"container_runtime_engine": "docker", "container_runtime_docker_source": "docker"},
}
# Only a host knows its hardware, and so what it is given: no bundle holds it, and `validate` refuses it with one.
KNOWN_BY_HOSTS = {"gpu_driver"}
# Of what has no sum a commit is pinned; test_kubesprays_release_is_stated_as_it_is_pinned holds it.
PROVEN_OTHERWISE = {"kubespray"}
# A reset brings back what had to give way to a package of ours, from whatever source the host has then; it is no part of an apply.
NOT_AN_APPLY = {
    "host_origin/module_utils/reset_packages.py",
    # Asks a registry of the cluster for an image that is not there.
    "registry_trust/library/registry_containerd_effects.py",
    # Ask services of the cluster, by addresses that the role itself has made: the API server, Harbor, Envoy.
    "kube_health/files/kube_health/api_request.py",
    "harbor/module_utils/harbor_api.py",
    "envoy/library/envoy_effects.py",
    # The key of a vendor's repository, which no bundle holds: stated as `beyond`, and refused together with one (driver-beyond-bundle).
    "gpu_driver/files/have_key.sh",
}


def tasks_of(role: str, file: str, seen: frozenset[str] = frozenset()) -> Iterator[dict[str, Any]]:
    """Yield the tasks of a tasks file, of blocks, and of the files that it imports and includes; one that includes itself once."""
    if file in seen:
        return

    def walk(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for task in tasks or ():
            yield task
            for section in ("block", "rescue", "always"):
                yield from walk(task.get(section) or [])
            for key in ("import_tasks", "include_tasks"):
                if inner := task.get(f"ansible.builtin.{key}"):
                    name = inner if isinstance(inner, str) else inner["file"]
                    yield from tasks_of(role, name, seen | {file})

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
    """Return what a task of a role fetches that includes the tasks that bring a chart: the archive, and its images."""
    include = task.get("ansible.builtin.include_role") or {}
    if include.get("name") != "kube_common" or include.get("tasks_from") != "chart_release":
        return set()
    return {"file", "image"}


def kubespray_kinds(task: dict[str, Any]) -> set[str]:
    """Return what Kubespray's own action fetches where an apply runs it; verbs of day 2 find the release that an apply fetched."""
    return {"file", "wheel"} if "'bring'" in str(task.get("kubespray", "")) else set()


def kind_of(task: dict[str, Any]) -> str | None:
    """Return what kind of thing a task fetches, None where it fetches nothing."""
    module = module_of(task)
    words = " ".join(map(str, _words(task))) if module in ("command", "shell") else ""
    if module in PACKAGES:
        return "package"
    if module in FILES or (module == "unarchive" and "://" in str(task)):
        return "file"
    # `argv` is a template where it is put together in `vars` of the task.
    if module in WHEELS or (module == "command" and "pip" in _flat(task) and "download" in _flat(task)) or "pip install" in words:
        return "wheel"
    if module in ("podman_image", "docker_image", "docker_image_pull") or PULLING_WORDS.search(words):
        return "image"
    return None


def _words(task: dict[str, Any]) -> list[Any]:
    for key, value in task.items():
        if key.endswith((".command", ".shell")):
            if isinstance(value, dict):
                argv = value.get("argv", value.get("cmd", ""))
                return [*(argv if isinstance(argv, list) else [argv]), value.get("stdin", "")]
            return [value]
    return []


def _flat(task: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for value in (*_words(task), *(task.get("vars") or {}).values()):
        found += [str(one) for one in value] if isinstance(value, list) else [str(value)]
    return found


def stated(role: str) -> dict[str, list[dict[str, Any]]]:
    """Return what a role states; nothing where it has no such file."""
    return yaml.safe_load(fetches_file(role).read_text(encoding="utf-8")) if role in STATED else {}


def kinds_stated(items: list[dict[str, Any]]) -> set[str]:
    """Return the kinds that an entry point states."""
    return {kind for item in items for kind in KINDS if ("packages" if kind == "package" else kind) in item}


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """A cluster with every service, whose values differ from no default that matters here."""
    return load_cluster(content.topologies_dir() / "lab")


def resolver(cluster: Cluster, role: str, release: str, **given: Any) -> Callable[[Any], Any]:
    """Return what resolves a role's templates for a host of a release that nobody asked anything."""
    folder = content.roles_dir() / role
    sources = RoleSources(
        defaults=(folder / "defaults" / "main.yml",),
        overrides=tuple(path for path in (content.playbooks_dir() / "vars" / "slurm.yml", folder / "vars" / "main.yml") if path.is_file()),
        facts=facts_of(Target(release, "amd64")),
        given=given,
    )
    return cluster.view.role_scope("node1", sources)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_states_what_it_fetches_where_it_fetches_it(role: str) -> None:
    """Entry point by entry point, the kinds of things that the tasks fetch are those that are stated."""
    found = {
        entry: {
            kind for task in tasks_of(role, f"{entry}.yml") for kind in (kind_of(task), *charts_kinds(task), *kubespray_kinds(task)) if kind
        }
        for entry in entry_points(role)
    }

    assert {entry: kinds for entry, kinds in found.items() if kinds} == {
        entry: kinds_stated(items) for entry, items in stated(role).items()
    }


@pytest.mark.parametrize("role", [role for role in STATED if role not in KNOWN_BY_HOSTS and "packages:" in fetches_file(role).read_text()])
@pytest.mark.parametrize("release", RELEASES)
def test_packages_are_stated_as_they_are_installed(cluster: Cluster, role: str, release: str) -> None:
    """For every release: what is stated needs no word of a host, and is what apt is given on a host that has none of it."""
    resolve = resolver(cluster, role, release)
    asked = resolver(cluster, role, release, **{f"__{role}_package_query": {"stdout_lines": []}})
    for entry, items in stated(role).items():
        read = cluster.view.read_templates(content.roles_dir() / role / "tasks" / "install.yml")
        installs = [task["ansible.builtin.apt"]["name"] for task in read if "ansible.builtin.apt" in task]
        given = {name for names in installs for name in asked(names)}
        templates = cluster.view.read_templates(fetches_file(role))[entry]
        names = {name for item in templates if "packages" in item and _applies(resolve, item) for name in resolve(item["packages"])}

        # What Ansible's module itself brings stands in no task.
        assert names - {"python3-apt"} == given, (entry, items)
        assert given


def charts_of(role: str) -> list[str]:
    """Return what the variables of each chart of a role begin with; nothing where it installs none."""
    text = (content.roles_dir() / role / "defaults" / "main.yml").read_text(encoding="utf-8")
    return re.findall(r"(?m)^(\w+)_chart_version:", text)


def chart_given(role: str) -> dict[str, Any]:
    """Return the values with which a role fetches its charts."""
    return {f"{chart}_chart_sha256": SUM for chart in charts_of(role)}


def template(cluster: Cluster, name: str) -> Any:
    """Return the template that asks for one variable."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "one.yml")
        path.write_text(yaml.safe_dump({"one": f"{{{{ {name} }}}}"}))
        return cluster.view.read_templates(path)["one"]


def _applies(resolve: Callable[[Any], Any], item: dict[str, Any]) -> bool:
    return "when" not in item or bool(resolve(item["when"]))


@pytest.mark.parametrize(
    "role",
    [role for role in STATED if role not in PROVEN_OTHERWISE and any("file" in item for items in stated(role).values() for item in items)],
)
def test_files_are_stated_as_they_are_fetched(cluster: Cluster, role: str) -> None:
    """Without a bundle, address and sum of each stated file are those of a task that fetches, and the sum is no empty one."""
    charts = charts_of(role)
    # Sums of charts have no default: `bundle lock` finds them.
    resolve = resolver(cluster, role, "bookworm", **(chart_given(role) if charts else GIVEN.get(role, {})))
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
            # Fetched by kube_common's chart_file.yml with just these words.
            words = resolve(template(cluster, f"_{chart}_chart"))
            fetched |= {(words["url"], f"sha256:{words['sha256']}")}
        named = [resolve(item["file"]) for item in items if "file" in item and _applies(resolve, item)]

        assert {(file["url"], f"sha256:{file['sha256']}") for file in named} == fetched, entry
        assert all(re.fullmatch(r"[0-9a-f]{64}", file["sha256"]) for file in named)


def chart_tasks() -> list[tuple[str, dict[str, Any]]]:
    """Return every task that brings a chart, with its role."""
    tasks = [
        (path.parent.parent.name, task)
        for path in sorted(content.roles_dir().glob("*/tasks/*.yml"))
        for task in tasks_of(path.parent.parent.name, path.name)
        if charts_kinds(task)
    ]
    return list({task["vars"]["kube_common_chart"]["role"]: (role, task) for role, task in tasks}.values())


def included(role: str) -> list[str]:
    """Return what a role includes of kube_common, in order."""
    words = [task.get("ansible.builtin.include_role") or {} for task in tasks_of(role, "main.yml")]
    return [str(one["tasks_from"]) for one in words if one.get("name") == "kube_common"]


def writes_before_its_chart(role: str) -> bool:
    """Tell whether a role writes objects, and brings a chart afterwards."""
    order = included(role)
    return {"kube_objects", "chart_release"} <= set(order) and order.index("kube_objects") < order.index("chart_release")


@pytest.mark.parametrize("role", [role for role in ROLES if writes_before_its_chart(role)])
def test_a_chart_is_known_before_objects_are_written(role: str) -> None:
    """A chart with another sum ends the run before a Secret or a namespace is there."""
    order = included(role)

    assert order.index("chart_file") < order.index("kube_objects")


@pytest.mark.parametrize(("role", "task"), chart_tasks(), ids=lambda one: one if isinstance(one, str) else "")
def test_charts_are_rendered_for_a_bundle_as_they_are_installed(role: str, task: dict[str, Any]) -> None:
    """The chart, its values, and the names of release and namespace are the same words in both places."""
    words = task["vars"]["kube_common_chart"]
    wanted = {name: words[name] for name in ("release", "namespace", "chart", "values")}
    [found] = [
        item["chart"] for item in stated(role)["main"] if "chart" in item and item["chart"].get("role", role) == words["role"]
    ]  # fmt: skip

    assert {name: found[name] for name in wanted} == wanted


def test_kubesprays_release_is_stated_as_it_is_pinned(cluster: Cluster) -> None:
    """Archive and requirements for a bundle are those of the commit that is driven, and what it fetches by itself is said."""
    release = load_release()
    resolve = resolver(cluster, "kubespray", "bookworm")
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
def test_nothing_is_fetched_in_a_way_that_nobody_sees(role: str) -> None:
    """No role adds a package source of its own, and no program of a role fetches by itself."""
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
    assert [name for name, text in texts.items() if FETCHING_WORDS.search(text) or PULLING_WORDS.search(text)] == [
        name for name in texts if name in NOT_AN_APPLY
    ]


def test_every_release_and_processor_can_be_stated() -> None:
    """What `airgap_release` and `airgap_architecture` take is what the bundle knows."""
    specs = yaml.safe_load((content.roles_dir() / "airgap" / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))
    options = specs["argument_specs"]["main"]["options"]

    assert options["airgap_release"]["choices"] == ["", *RELEASES]
    assert options["airgap_architecture"]["choices"] == list(MACHINES)
    assert Path(fetches_file("redis")).is_file()
