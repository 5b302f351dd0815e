"""The verbs init, validate, schema, import and secrets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import typer
from typer.testing import CliRunner

from primus_bootstrap import content
from primus_bootstrap.cli import inventory_verbs, missing_secrets, run_verbs
from primus_bootstrap.core.errors import InventoryError, PlanError
from primus_bootstrap.inventory.edit.generated_secrets import password_of, read_vault_file
from primus_bootstrap.inventory.edit.scaffold import templates
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.inventory.rules import required
from primus_bootstrap.inventory.schema import names, specs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typer.testing import Result

DATA = Path(__file__).parents[1] / "data" / "import"
PLAIN = "all:\n  children:\n    demo:\n      hosts:\n        n1: {ansible_host: 10.0.0.1}\n        n2: {ansible_host: 10.0.0.2}\n"
CACHES = (specs.load_options, names.known_variables, required._plays)


def run(*arguments: str | Path) -> Result:
    """Run one verb and return its output; raise the errors that `main` would print."""
    app = typer.Typer()
    inventory_verbs.register(app)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a cluster with a role that requires two secrets; return its hosts.yaml."""
    role, playbooks = tmp_path / "roles" / "demo" / "meta", tmp_path / "playbooks"
    role.mkdir(parents=True)
    playbooks.mkdir()
    for filters in content.roles_dir().glob("*/filter_plugins"):  # the rules load them
        (tmp_path / "roles" / filters.parent.name).mkdir()
        (tmp_path / "roles" / filters.parent.name / "filter_plugins").symlink_to(filters)
    option = "{type: str, required: true, no_log: true, description: Shared by the hosts.}"
    text = f"argument_specs:\n  main:\n    options:\n      demo_key: {option}\n      demo_password: {option}\n"
    (role / "argument_specs.yml").write_text(text)
    (playbooks / "demo.yml").write_text("- name: Demo\n  hosts: demo\n  roles: [demo]\n")
    (tmp_path / "site").mkdir()
    hosts = tmp_path / "site" / "hosts.yaml"
    hosts.write_text(PLAIN.replace("demo:", "gpu_node:\n      children: {demo: }\n    demo:"))
    monkeypatch.setattr(content, "roles_dir", lambda: tmp_path / "roles")
    monkeypatch.setattr(content, "playbooks_dir", lambda: playbooks)
    for cached in CACHES:
        cached.cache_clear()
    yield hosts
    for cached in CACHES:
        cached.cache_clear()


@pytest.mark.parametrize("template", templates())
def test_new_folder_of_every_template_is_valid(tmp_path: Path, template: str) -> None:
    """`validate` accepts what `init` writes."""
    result = run("init", tmp_path / "new", "--template", template)

    assert f"wrote {tmp_path / 'new' / 'hosts.yaml'}\n" in result.stdout
    assert "primus-bootstrap plan" in result.stderr
    assert " hosts, " in run("validate", tmp_path / "new" / "hosts.yaml").stdout


def test_validate_counts(tmp_path: Path) -> None:
    """The output has the numbers of hosts, groups, variables and deferred values."""
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text(PLAIN.replace("demo:", "gpu_node:") + "  vars: {baseline_swap_off: '{{ site_swap }}', site_swap: true}\n")

    assert (
        run("validate", hosts).stdout
        == f"{hosts}: 2 hosts, 1 group, 3 variables; 1 value (templates, Vault) will be checked during the run\n"
    )


def test_validate_as_json(tmp_path: Path) -> None:
    """The JSON output has the same numbers, and the line of every deferred value."""
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text(PLAIN.replace("demo:", "gpu_node:") + "  vars: {baseline_swap_off: '{{ site_swap }}', site_swap: true}\n")
    data = json.loads(run("validate", hosts, "--json").stdout)

    assert (data["hosts"], data["groups"], data["variables"], data["deferred"], data["problems"]) == (2, 1, 3, 1, [])
    assert data["deferred_values"][0]["variable"] == "baseline_swap_off"
    assert data["deferred_values"][0]["line"] == 7


def test_validate_raises_every_problem(tmp_path: Path) -> None:
    """The error has all problems and exit code 2."""
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text(PLAIN.replace("demo:", "gpu_nodee:") + "  vars: {baseline_swap_of: true}\n")
    with pytest.raises(InventoryError) as caught:
        run("validate", hosts)

    assert len(caught.value.problems) >= 2
    assert caught.value.exit_code == 2


def test_schema_prints_each_format() -> None:
    """Table, Markdown and JSON Schema describe the requested variable."""
    schema = json.loads(run("schema", "cluster_name", "--format", "json-schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)

    assert list(schema["properties"]) == ["cluster_name"]
    assert run("schema", "--role", "cluster", "--format", "markdown").stdout.startswith("# All variables\n")
    assert "cluster_name" in run("schema", "--role", "cluster").stdout
    assert "slurm_controller" in run("schema", "--groups").stdout


def test_schema_shows_advanced_variables_only_on_request() -> None:
    """The default list has topics, examples and the number of variables that it leaves out; --all and a role have every variable."""
    common = run("schema")

    assert "Cluster and access" in common.stdout
    assert "gpu-west" in common.stdout
    assert "slurm_controller_timeout_s" not in common.stdout
    assert "advanced variables are not shown" in common.stderr
    assert "slurm_controller_timeout_s" in run("schema", "--all").stdout
    assert "slurm_controller_timeout_s" in run("schema", "slurm").stdout
    assert run("schema", "--format", "markdown").stdout.startswith("# Variables that most clusters set\n")


def test_table_is_not_truncated() -> None:
    """Without a terminal the table is as wide as its text."""
    meaning = " ".join(specs.load_options()["cluster_name"].description)

    assert meaning in run("schema", "cluster_name").stdout


def test_import_reports_changes_and_validates(tmp_path: Path) -> None:
    """The new file is named on stdout, and stderr has the changes with their lines."""
    source = Path(shutil.copy(DATA / "kubespray.ini", tmp_path))
    result = run("import", source)

    assert result.stdout == f"wrote {tmp_path / 'hosts.yaml'}\n"
    assert f"{source}:34: kube_version=v1.34.3: now 1.34.3 (Kubespray accepts no v since v2.28)\n" in result.stderr
    assert load_cluster(tmp_path / "hosts.yaml").groups["kube_control_plane"] == ("node1", "node2", "node3")


def test_import_with_problems_keeps_the_file(tmp_path: Path) -> None:
    """If the result has problems, the file is written and the problems are raised."""
    source = tmp_path / "old.ini"
    source.write_text("[kube-node]\nn1 ip=10.0.0.1\nn2 ip=10.0.0.1\n")
    with pytest.raises(InventoryError) as caught:
        run("import", source)

    assert (tmp_path / "hosts.yaml").exists()
    assert {problem.file for problem in caught.value.problems} == {str(tmp_path / "hosts.yaml")}


def test_import_fails_if_a_variable_file_uses_an_old_name(tmp_path: Path) -> None:
    """The new file is valid by itself, but a template in group_vars would be undefined."""
    source = tmp_path / "old.ini"
    source.write_text("[gpu_node]\nn1 ansible_host=10.0.0.1\n[all:vars]\nmy_net=10.9.0.0/16\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text("kube_pods_subnet: '{{ my_net }}'\n")
    with pytest.raises(InventoryError) as caught:
        run("import", source)

    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.fix) == (str(tmp_path / "group_vars" / "all.yml"), 1, "rename it to site_my_net")


def test_missing_secrets_are_generated(demo: Path) -> None:
    """The generated secrets are encrypted and make the inventory valid. They are not printed, and a second run does nothing."""
    with pytest.raises(InventoryError):
        load_cluster(demo)
    result = run("secrets", "init", demo)
    password_file = demo.parent / ".primus" / "site" / "vault-password"
    vault = read_vault_file(demo.parent / "group_vars" / "all" / "vault.yml", password_of(password_file))
    values = [line.split(": ")[1] for line in vault.splitlines() if not line.startswith("#")]

    assert "generated demo_key\ngenerated demo_password\n" in result.stdout
    assert f"--vault-password-file {password_file}" in result.stderr
    assert len(values) == 2
    assert not [value for value in values if value in result.output]
    assert load_cluster(demo, vault_password_file=password_file).name == "site"
    assert run("secrets", "init", demo).stdout == "no secret is missing; nothing was written\n"


def test_secrets_that_are_set_are_not_generated(demo: Path) -> None:
    """A secret that is set for each host is not generated."""
    (demo.parent / "host_vars").mkdir()
    for host in ("n1", "n2"):
        (demo.parent / "host_vars" / f"{host}.yml").write_text('demo_password: \'{{ lookup("env", "PW") }}\'\n')
    data = json.loads(run("secrets", "init", demo, "--json").stdout)

    assert data["added"] == ["demo_key"]


def test_secrets_are_written_to_the_given_paths(demo: Path, tmp_path: Path) -> None:
    """With --output and --vault-password-file nothing is written to the default paths."""
    password_file, vault_file = tmp_path / "keys" / "prod", demo.parent / "group_vars" / "gpu_node" / "secret.yml"
    run("secrets", "init", demo, "--output", vault_file, "--vault-password-file", password_file)

    assert vault_file.read_text().startswith("$ANSIBLE_VAULT")
    assert not list((demo.parent / ".primus").rglob("vault*"))
    assert load_cluster(demo, vault_password_file=password_file).name == "site"


def test_secrets_need_the_password_of_an_existing_vault_file(demo: Path) -> None:
    """A Vault file that cannot be decrypted may already contain the value, so nothing is generated."""
    run("secrets", "init", demo)
    (demo.parent / ".primus" / "site" / "vault-password").unlink()
    with pytest.raises(PlanError) as caught:
        run("secrets", "init", demo)

    assert "vault.yml cannot be read without its Vault password" in caught.value.what


class Terminal:
    """A terminal on which a person answers, and the questions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, answer: bool, is_terminal: bool = True) -> None:
        """Answer every question with `answer`."""
        self.questions: list[str] = []
        self.answer, self.is_terminal = answer, is_terminal
        monkeypatch.setattr(missing_secrets, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: is_terminal)))
        monkeypatch.setattr(typer, "confirm", self._ask)

    def _ask(self, question: str, **_options: Any) -> bool:
        self.questions.append(question)
        return self.answer


def apply_plan_of(demo: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[Any]:
    """Run `apply` up to the question whether to apply the plan; return the clusters that it asked about."""
    planned: list[Any] = []
    monkeypatch.setattr(run_verbs, "make_plan", lambda cluster, **_options: cluster)
    monkeypatch.setattr(run_verbs, "_confirm", lambda cluster, _plan: planned.append(cluster))
    monkeypatch.setattr(run_verbs, "run_plan", lambda *_arguments, **_options: (_ for _ in ()).throw(typer.Abort))
    app = typer.Typer()
    run_verbs.register(app)
    result = CliRunner().invoke(app, ["apply", str(demo), *words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return planned


def test_apply_offers_to_generate_missing_secrets(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a yes, apply continues with the new secrets."""
    terminal = Terminal(monkeypatch, answer=True)

    (cluster,) = apply_plan_of(demo, monkeypatch)

    assert terminal.questions == ["Generate them now and write them, encrypted, to group_vars/all/vault.yml?"]
    assert len(cluster.view.variables("n1")["demo_key"]) == 43
    assert (demo.parent / "group_vars" / "all" / "vault.yml").read_text().startswith("$ANSIBLE_VAULT;")


@pytest.mark.parametrize(
    ("answer", "is_terminal", "words", "asked"), [(False, True, (), 1), (True, False, (), 0), (True, True, ("--yes",), 0)]
)
def test_apply_ends_with_the_error_if_no_secret_is_generated(
    demo: Path, monkeypatch: pytest.MonkeyPatch, *, answer: bool, is_terminal: bool, words: tuple[str, ...], asked: int
) -> None:
    """After a no, without a terminal and with --yes, the fix is the command, and nothing is written."""
    terminal = Terminal(monkeypatch, answer=answer, is_terminal=is_terminal)

    with pytest.raises(InventoryError) as caught:
        apply_plan_of(demo, monkeypatch, *words)

    assert {problem.fix for problem in caught.value.problems} == {f"primus-bootstrap secrets init {demo}"}
    assert len(terminal.questions) == asked
    assert not (demo.parent / "group_vars").exists()


def test_apply_offers_nothing_if_something_else_is_wrong(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets alone would not help."""
    demo.write_text(demo.read_text().replace("10.0.0.2", "10.0.0.1"))
    terminal = Terminal(monkeypatch, answer=True)

    with pytest.raises(InventoryError):
        apply_plan_of(demo, monkeypatch)

    assert terminal.questions == []


def test_secrets_do_not_hide_other_problems(demo: Path) -> None:
    """Problems other than missing secrets are raised."""
    demo.write_text(demo.read_text() + "  vars: {demo_keyy: x}\n")
    with pytest.raises(InventoryError):
        run("secrets", "init", demo)

    assert not (demo.parent / "group_vars").exists()


def test_import_to_another_folder_names_the_variable_folders(tmp_path: Path) -> None:
    """The output says to copy group_vars to the new folder."""
    source = Path(shutil.copy(DATA / "kubespray.ini", tmp_path))
    (tmp_path / "group_vars").mkdir()
    result = run("import", source, "--output", tmp_path / "new" / "hosts.yaml")

    assert f"copy it to {tmp_path / 'new' / 'group_vars'}" in result.stderr
    assert f"created the folder {tmp_path / 'new'}\n" in result.stderr
    assert (tmp_path / "new" / "hosts.yaml").exists()
