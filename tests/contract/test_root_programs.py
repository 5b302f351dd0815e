"""Root programs and tasks on paths that users can change are listed in data/root_programs.yml and use `safe_files`, or have a reason.

Between a check and a read, a user can replace such a path by a symbolic link. A regular expression for such paths finds the programs.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(content.__file__).parent
LAUNCH = PACKAGE / "launch"
ROOT = PACKAGE.parent
TABLE = Path(__file__).parent / "data" / "root_programs.yml"
SAFE = "safe_files"

# Matches paths below which users can write.
PATHS = re.compile(
    r"/jfs\b|/home\b|(?<![\w.])/tmp\b|/var/tmp\b|/dev/shm\b|/run/lock\b|/var/lock\b|/var/lib/primus/training|/run/user\b|/environ\b|mount_point|"
    r"workload_folder|watch_folder|job_folder|shared_folder|shared_state_dir|storage_dir|storage_folder|expanduser|pw_dir|"
    r"gettempdir|authorized_keys|\.ssh\b|training_files|training_folder"
)
# Role variables with such a path. variables() adds variables that use them.
VARIABLES = (
    "bench_storage_folder",
    "container_runtime_rootless_storage_dir",
    "container_runtime_storage_dir",
    "juicefs_mount_point",
    "oci_registry_storage_dir",
    "primus_watch_folder",
    "slurm_shared_state_dir",
    "workload_folder",
)
# Modules that follow links by default; the task needs `follow: false`.
FOLLOWS = {f"ansible.builtin.{name}" for name in ("file", "copy", "template", "stat", "find", "lineinfile", "blockinfile", "replace")}
# Modules that always follow links.
ALWAYS_FOLLOWS = {f"ansible.builtin.{name}" for name in ("unarchive", "get_url", "assemble", "slurp", "fetch")} | {
    "ansible.posix.authorized_key"
}
# Modules that use no path on a host.
NO_PATH = {
    f"ansible.builtin.{name}" for name in ("assert", "debug", "fail", "set_fact", "import_tasks", "include_tasks", "import_playbook")
}
# Functions that change a path and follow links.
BY_PATH = {"chmod", "chown", "lchown", "copy", "copy2", "copyfile", "copytree", "move"}


@cache
def table() -> dict[str, dict[str, str]]:
    """Return the rows of data/root_programs.yml: programs by path, tasks by file and name."""
    found: dict[str, dict[str, str]] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return found


def names_and_strings(path: Path) -> str:
    """Return the names and strings of a program, without comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            found.append(node.value)
        found += [str(getattr(node, name)) for name in ("id", "attr", "arg") if isinstance(getattr(node, name, None), str)]
    return "\n".join(found)


def programs() -> list[Path]:
    """Return the programs that run on hosts: modules, installed programs, scripts, units and primus-cli, without symbolic links."""
    roles = content.roles_dir()
    paths = [path for part in ("library", "module_utils", "files", "templates") for path in roles.glob(f"*/{part}/**/*")]
    paths += [path for part in ("modules", "module_utils") for path in (content.plugins_dir() / part).glob("*")]
    found = [path for path in paths if path.suffix in {".py", ".sh", ".j2"}]
    return sorted(path for path in [*found, *LAUNCH.rglob("*.py")] if path.is_file() and not path.is_symlink() and path.stem != SAFE)


def names_user_path(path: Path) -> bool:
    """Return whether a program names a path that users can change. All modules of the watcher use job folders."""
    return LAUNCH / "watch" in path.parents or bool(PATHS.search(names_and_strings(path)))


def name_of(path: Path) -> str:
    """Return the name of a file in the table."""
    return str(path.relative_to(ROOT)) if ROOT in path.parents else str(path)


def imports_safe_files(path: Path) -> bool:
    """Return whether a program imports safe_files at run time: from the package, module_utils, or its own folder."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {id(inner) for node in tree.body if isinstance(node, ast.If) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and ((node.module or "").split(".")[-1] == SAFE or SAFE in [item.name for item in node.names]):
            return True
        if isinstance(node, ast.Import) and SAFE in [item.name.split(".")[-1] for item in node.names]:
            return True
    return False


def variables() -> set[str]:
    """Return the variables with such a path, including those that use other variables."""
    values: dict[str, str] = {}
    for path in [*content.roles_dir().glob("*/defaults/*.yml"), *content.roles_dir().glob("*/vars/*.yml")]:
        values |= {name: str(value) for name, value in (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).items()}
    found = {name for name, value in values.items() if PATHS.search(value)} | set(VARIABLES)
    while True:
        more = {name for name, value in values.items() if name not in found and any(re.search(rf"\b{used}\b", value) for used in found)}
        if not more:
            return found
        found |= more


def tasks_of(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every task of a file, including blocks and plays."""
    for item in node if isinstance(node, list) else []:
        parts = [item[name] for name in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks", "handlers") if name in item]
        for part in parts:
            yield from tasks_of(part)
        if not parts and "hosts" not in item:
            yield item


def task_files() -> list[Path]:
    """Return all files with tasks: those of roles and all playbooks."""
    roles = content.roles_dir()
    found = [path for part in ("tasks", "handlers") for path in roles.glob(f"*/{part}/**/*.yml")]
    return sorted([*found, *content.playbooks_dir().rglob("*.yml")])


def module_of(task: dict[str, Any]) -> str:
    """Return the module of a task: its key with two dots, or a module of this project."""
    modules = {path.stem for path in [*content.roles_dir().glob("*/library/*.py"), *content.plugins_dir().glob("modules/*.py")]}
    return next((key for key in task if key.count(".") == 2 or key in modules), "")


def tasks_on_user_paths() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the module and task of each task that names such a path, by `file: name`."""
    pattern = re.compile(rf"{PATHS.pattern}|\b({'|'.join(sorted(variables()))})\b")
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for path in task_files():
        for task in tasks_of(yaml.safe_load(path.read_text(encoding="utf-8"))):
            module = module_of(task)
            checked = {key: value for key, value in task.items() if key == module or key in ("args", "loop", "vars", "environment")}
            if module and module not in NO_PATH and pattern.search(yaml.safe_dump(checked, width=10_000)):
                found[f"{name_of(path)}: {task['name']}"] = module, task
    return found


PROGRAMS = {name_of(path): path for path in programs()}
USER_PATH_PROGRAMS = {name for name, path in PROGRAMS.items() if names_user_path(path)}
TASKS = tasks_on_user_paths()


def test_every_program_on_a_user_path_is_listed() -> None:
    """Every program that names such a path has a row, and every row has such a program."""
    rows = set(table()["programs"])

    assert not USER_PATH_PROGRAMS - rows, f"use safe_files and add a row to {TABLE}: {sorted(USER_PATH_PROGRAMS - rows)}"
    assert not rows - USER_PATH_PROGRAMS, f"remove these rows from {TABLE}: {sorted(rows - USER_PATH_PROGRAMS)}"


@pytest.mark.parametrize("name", sorted(USER_PATH_PROGRAMS))
def test_a_listed_program_matches_its_row(name: str) -> None:
    """A program with the row `safe_files` imports it and changes nothing by path. Any other row is a reason of at least four words."""
    row = table()["programs"].get(name, "")
    path = PROGRAMS[name]
    if not row.startswith(SAFE):
        assert len(row.split()) >= 4, f"{name}: write a reason of at least four words in {TABLE}"
        return

    assert path.suffix == ".py", f"{name}: only a Python program can use safe_files"
    assert imports_safe_files(path), f"{name}: its row is safe_files, but it does not import safe_files"
    assert calls_by_path(path) == [], f"{name}: these follow links: {calls_by_path(path)}"


def test_every_task_on_a_user_path_is_listed() -> None:
    """Every task that names such a path has a row, and every row has such a task."""
    rows = set(table()["tasks"])

    assert not set(TASKS) - rows, f"set `follow: false` and add a row to {TABLE}: {sorted(set(TASKS) - rows)}"
    assert not rows - set(TASKS), f"remove these rows from {TABLE}: {sorted(rows - set(TASKS))}"


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_listed_task_follows_no_link(name: str) -> None:
    """A task sets `follow: false`, or `become_user` if its module always follows links."""
    module, task = TASKS[name]
    arguments = task.get(module) or {}
    reason = table()["tasks"].get(name, "")

    if reason.startswith("see "):
        assert [row for row in table()["programs"] if row.endswith(f"/{reason[4:]}")], f"{name}: the table has no program {reason[4:]}"
    elif module != "shared_folders":
        assert len(reason.split()) >= 4, f"{name}: write a reason of at least four words in {TABLE}"
    if module in ALWAYS_FOLLOWS:
        assert task.get("become_user"), f"{name}: {module} follows links; use a module with safe_files, or become_user"
    if module in FOLLOWS and "root's own file" not in reason:
        assert arguments.get("follow") is False, f"{name}: add `follow: false`"


def calls_by_path(path: Path) -> list[str]:
    """Return the calls, with lines, that follow links. Calls with `dir_fd` do not."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in BY_PATH:
            holder = node.func.value
            if isinstance(holder, ast.Name) and holder.id in ("os", "shutil") and not any(item.arg == "dir_fd" for item in node.keywords):
                found.append(f"line {node.lineno}: {holder.id}.{node.func.attr}")
    return found


@pytest.mark.parametrize(
    ("name", "text", "is_found"),
    [
        ("new.py", 'open(module.params["workload_folder"] + "/x")', True),
        ("new.py", "Path(pwd.getpwnam(name).pw_dir, '.profile')", True),
        ("new.py", "def read(mount_point): return open(mount_point)", True),
        ("new.py", '"""Not for /home."""  # nor /tmp', False),
        ("new.py", "print('/tmpfs', '/etc/x')", False),
        ("new.sh", "chown -R nobody /dev/shm/x", True),
        ("new.sh", "# as in /tmp\necho x", False),
    ],
)
def test_the_scan_finds_user_paths(tmp_path: Path, name: str, text: str, is_found: bool) -> None:  # noqa: FBT001 - a column of the table
    """It reads names, attributes, arguments and strings, but no comments and docstrings."""
    (tmp_path / name).write_text(text)

    assert names_user_path(tmp_path / name) is is_found


@pytest.mark.parametrize(
    "text",
    [
        "from ansible.module_utils.safe_files import open_folder",
        "from ansible.module_utils import safe_files",
        "from primus_bootstrap.launch import safe_files",
        "import safe_files",
    ],
)
def test_every_import_of_safe_files_is_recognised(tmp_path: Path, text: str) -> None:
    """A comment or an import for types is not an import."""
    (tmp_path / "good.py").write_text(text)
    (tmp_path / "bad.py").write_text(f"# {text}\nif TYPE_CHECKING:\n    {text}")

    assert imports_safe_files(tmp_path / "good.py")
    assert not imports_safe_files(tmp_path / "bad.py")
