"""primus_bootstrap.launch.settings.layered_settings: layers, origins, types and suggestions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.settings.layered_settings import Given, SettingsFiles, find_files, resolve

if TYPE_CHECKING:
    from pathlib import Path

NO_FILES = SettingsFiles()


def settings_files(folder: Path, **texts: str) -> SettingsFiles:
    """Write one file per layer."""
    paths: dict[str, Path | None] = dict.fromkeys(("system", "user", "project", "config"))
    for layer, text in texts.items():
        paths[layer] = folder / f"{layer}.yaml"
        (folder / f"{layer}.yaml").write_text(text)
    return SettingsFiles(**paths)


def test_each_layer_replaces_the_layers_below(tmp_path: Path) -> None:
    """The order is built-in, system, user, project, --config, environment, flags."""
    layers = ("system", "user", "project", "config")
    texts = {layer: f"direct: {{nproc: {number}}}\n" for number, layer in enumerate(layers, 1)}
    found = [resolve(NO_FILES, {})["direct.nproc"]]
    found += [resolve(settings_files(tmp_path, **dict(list(texts.items())[:count])), {})["direct.nproc"] for count in range(1, 5)]
    all_files = settings_files(tmp_path, **texts)
    found.append(resolve(all_files, {"PRIMUS_CLI_DIRECT_NPROC": "5"})["direct.nproc"])
    found.append(resolve(all_files, {"PRIMUS_CLI_DIRECT_NPROC": "5"}, [Given("direct.nproc", 6, "flag")])["direct.nproc"])

    assert found == ["auto", 1, 2, 3, 4, 5, 6]


def test_files_are_merged_key_by_key(tmp_path: Path) -> None:
    """A user's partition does not remove the image of the system file."""
    settings = resolve(settings_files(tmp_path, system="container: {image: a}\n", user="slurm:\n  options: {partition: gpu}\n"), {})

    assert settings["container.image"] == "a"
    assert settings["slurm.options"] == {"partition": "gpu"}


def test_layers_append_to_lists_and_an_empty_list_clears(tmp_path: Path) -> None:
    """An empty list also removes the built-in values."""
    grown = resolve(settings_files(tmp_path, user="container: {device: [a]}\n", project="container: {device: [b]}\n"), {})
    cleared = resolve(settings_files(tmp_path, user="container: {ulimit: []}\n"), {})

    assert grown["container.device"] == ["a", "b"]
    assert cleared["container.ulimit"] == []


def test_maps_are_merged_and_null_removes_a_key(tmp_path: Path) -> None:
    """Variables of several layers are merged."""
    settings = resolve(settings_files(tmp_path, user="direct: {env: {A: 1, B: 2}}\n", project="direct: {env: {B: null, C: x}}\n"), {})

    assert settings["direct.env"] == {"A": "1", "C": "x"}
    assert settings.items["direct.env"].origins["C"].endswith("project.yaml:1")


def test_every_value_has_its_origin(tmp_path: Path) -> None:
    """The origin of a value in a file has the line."""
    text = "# mine\ndirect:\n  grace: 5 # with a comment\n"
    settings = resolve(settings_files(tmp_path, project=text), {"PRIMUS_CLI_DIRECT_SILENT": "yes"})

    assert settings["direct.grace"] == 5
    assert settings.origin("direct.grace") == f"project {tmp_path / 'project.yaml'}:3"
    assert settings.origin("direct.silent") == "environment PRIMUS_CLI_DIRECT_SILENT"
    assert settings.origin("direct.nnodes") == "built-in"


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    """Each has its line and a fix; unknown names get the most similar one."""
    text = "direkt: {}\ndirect:\n  nprocs: 2\n  grace: soon\n  numa: maybe\n  grace: 3\ncontainer: 5\n"
    with pytest.raises(UsageError) as raised:
        resolve(settings_files(tmp_path, project=text), {"PRIMUS_CLI_DIRECT_NPROK": "1", "PRIMUS_CLI_DIRECT_SINGLE": "maybe"})
    lines = str(raised.value).replace(f"{tmp_path}/project.yaml", "FILE").splitlines()

    assert [line for line in lines if "fix" not in line] == [
        "FILE:1: unknown section: direkt",
        "FILE:3: unknown setting: direct.nprocs",
        "FILE:6: duplicate setting direct.grace",
        "FILE:7: container has no keys",
        "environment: unknown setting: PRIMUS_CLI_DIRECT_NPROK",
        "environment PRIMUS_CLI_DIRECT_SINGLE: expected true or false, got 'maybe'",
        "project FILE:5: direct.numa: unknown value 'maybe'",
    ]
    assert "  fix: did you mean direct?" in lines
    assert "  fix: did you mean nproc?" in lines
    assert "  fix: did you mean PRIMUS_CLI_DIRECT_NPROC?" in lines
    assert len([line for line in lines if line.startswith("  fix: ")]) == 7


def test_a_file_with_training_settings_is_explained(tmp_path: Path) -> None:
    """--config before the runtime has the settings of primus-cli, after the task those of the trainer."""
    file = tmp_path / "config.yaml"
    with pytest.raises(UsageError) as raised:
        resolve(settings_files(tmp_path, config="train: {steps: 3}\nmian: {}\n"), {})

    assert str(raised.value).splitlines() == [
        f"{file}:1: train is a section of the training settings, not of primus-cli",
        f"  fix: pass a file with training settings after the task: -- train pretrain --config {file}",
        f"{file}:2: unknown section: mian",
        "  fix: did you mean main?",
    ]


@pytest.mark.parametrize(
    ("value", "message"),
    [("5.5", "expected a number or auto"), ("true", "expected a number or auto"), ("-1", "below 0"), ("fast", "a number or auto")],
)
def test_invalid_numbers_are_errors(tmp_path: Path, value: str, message: str) -> None:
    """Fractions, booleans, words and negative numbers."""
    with pytest.raises(UsageError, match=message):
        resolve(settings_files(tmp_path, project=f"direct: {{nproc: {value}}}\n"), {})


@pytest.mark.parametrize(
    "text", ["- a\n", "direct: [\n", "direct: {env: {A: [1]}}\n", "direct: {hooks: hooks}\n", "direct: {python: 3.1}\n"]
)
def test_invalid_files_are_errors(tmp_path: Path, text: str) -> None:
    """Lists, invalid YAML, nested values and unquoted versions."""
    with pytest.raises(UsageError, match="fix: "):
        resolve(settings_files(tmp_path, project=text), {})


def test_unquoted_on_and_off_are_accepted(tmp_path: Path) -> None:
    """YAML reads them as booleans."""
    assert resolve(settings_files(tmp_path, project="direct: {numa: on}\n"), {})["direct.numa"] == "on"
    assert resolve(settings_files(tmp_path, project="direct: {numa: off}\n"), {})["direct.numa"] == "off"


def test_an_empty_file_and_an_empty_section_change_nothing(tmp_path: Path) -> None:
    """They are not errors."""
    assert resolve(settings_files(tmp_path, user="", project="direct:\n"), {}).items == resolve(NO_FILES, {}).items


def test_the_project_file_is_found_from_a_subfolder(tmp_path: Path) -> None:
    """The nearest .primus.yaml counts, and the user's file is not used twice."""
    home = tmp_path / "home"
    below = home / "project" / "deep"
    below.mkdir(parents=True)
    (home / ".primus.yaml").write_text("")
    only_user = find_files({"HOME": str(home)}, below)
    (home / "project" / ".primus.yaml").write_text("")
    both = find_files({"HOME": str(home)}, below)

    assert (only_user.user, only_user.project) == (home / ".primus.yaml", None)
    assert both.project == home / "project" / ".primus.yaml"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another account")
@pytest.mark.parametrize("layer", ["user", "project"])
def test_settings_of_another_account_are_an_error(tmp_path: Path, layer: str) -> None:
    """A .primus.yaml that another account created in /tmp must not control root's runs; the message names file and owner."""
    found = settings_files(tmp_path, **{layer: "direct: {env: {LD_PRELOAD: /home/ada/x.so}}\n"})
    os.chown(tmp_path / f"{layer}.yaml", 1000, 1000)

    with pytest.raises(UsageError, match="uid 1000") as refused:
        resolve(found, {})
    assert "--config" in refused.value.fix


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another account")
def test_settings_of_another_account_are_used_with_config(tmp_path: Path) -> None:
    """The user has named the file."""
    found = settings_files(tmp_path, config="direct: {grace: 7}\n")
    os.chown(tmp_path / "config.yaml", 1000, 1000)

    assert resolve(found, {})["direct.grace"] == 7


def test_a_named_pipe_does_not_block(tmp_path: Path) -> None:
    """Also if it replaces the file after the search."""
    os.mkfifo(tmp_path / ".primus.yaml")

    assert resolve(SettingsFiles(None, None, tmp_path / ".primus.yaml", None), {}).items == resolve(NO_FILES, {}).items


def test_a_duplicate_section_is_an_error(tmp_path: Path) -> None:
    """YAML would silently ignore the first one."""
    with pytest.raises(UsageError, match=r"user\.yaml:2: duplicate section direct"):
        resolve(settings_files(tmp_path, user="direct: {grace: 1}\ndirect: {silent: true}\n"), {})


@pytest.mark.parametrize(("name", "text"), [("ENV", '{"a": "b"'), ("HOOKS", "[a")])
def test_a_variable_with_invalid_yaml_is_an_error(name: str, text: str) -> None:
    """The message names the variable."""
    with pytest.raises(UsageError, match=f"environment PRIMUS_CLI_DIRECT_{name}: not valid YAML"):
        resolve(NO_FILES, {f"PRIMUS_CLI_DIRECT_{name}": text})


def test_variables_keep_the_text_of_the_file(tmp_path: Path) -> None:
    """010 is not an octal number, and 1.30 is not 1.3; null removes a variable."""
    text = "direct:\n  env: {A: 010, B: 1.30, C: 1e-4, D: 2026-11-22, E: null, F: true, G: '07'}\n"
    found = resolve(settings_files(tmp_path, user=text), {})["direct.env"]

    assert found == {"A": "010", "B": "1.30", "C": "1e-4", "D": "2026-11-22", "F": True, "G": "07"}
