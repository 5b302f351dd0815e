"""primus_bootstrap.launch.commandline.layered_settings: layers, origins, kinds, and hints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.commandline.layered_settings import Given, SettingsFiles, find_files, resolve

if TYPE_CHECKING:
    from pathlib import Path

NOWHERE = SettingsFiles()


def places(folder: Path, **texts: str) -> SettingsFiles:
    """Write one file a layer."""
    paths: dict[str, Path | None] = dict.fromkeys(("system", "user", "project", "config"))
    for layer, text in texts.items():
        paths[layer] = folder / f"{layer}.yaml"
        (folder / f"{layer}.yaml").write_text(text)
    return SettingsFiles(**paths)


def test_every_layer_wins_over_those_below_it(tmp_path: Path) -> None:
    """The order is built-in, system, user, project, --config, environment, flags, for each key on its own."""
    layers = ("system", "user", "project", "config")
    texts = {layer: f"direct: {{nproc: {number}}}\n" for number, layer in enumerate(layers, 1)}
    found = [resolve(NOWHERE, {})["direct.nproc"]]
    found += [resolve(places(tmp_path, **dict(list(texts.items())[:count])), {})["direct.nproc"] for count in range(1, 5)]
    everywhere = places(tmp_path, **texts)
    found.append(resolve(everywhere, {"PRIMUS_CLI_DIRECT_NPROC": "5"})["direct.nproc"])
    found.append(resolve(everywhere, {"PRIMUS_CLI_DIRECT_NPROC": "5"}, [Given("direct.nproc", 6, "flag")])["direct.nproc"])

    assert found == ["auto", 1, 2, 3, 4, 5, 6]


def test_a_file_with_one_key_keeps_all_others(tmp_path: Path) -> None:
    """Files are merged key by key: a user's partition does not lose the image of the system's file."""
    settings = resolve(places(tmp_path, system="container: {image: a}\n", user="slurm:\n  options: {partition: gpu}\n"), {})

    assert settings["container.image"] == "a"
    assert settings["slurm.options"] == {"partition": "gpu"}


def test_lists_grow_and_an_empty_one_clears(tmp_path: Path) -> None:
    """A layer adds to a list; an empty list takes everything below away, built-in values too."""
    grown = resolve(places(tmp_path, user="container: {device: [a]}\n", project="container: {device: [b]}\n"), {})
    cleared = resolve(places(tmp_path, user="container: {ulimit: []}\n"), {})

    assert grown["container.device"] == ["a", "b"]
    assert cleared["container.ulimit"] == []


def test_maps_are_merged_and_null_removes(tmp_path: Path) -> None:
    """Variables of several layers come together; null takes one away."""
    settings = resolve(places(tmp_path, user="direct: {env: {A: 1, B: 2}}\n", project="direct: {env: {B: null, C: x}}\n"), {})

    assert settings["direct.env"] == {"A": "1", "C": "x"}
    assert settings.items["direct.env"].origins["C"].endswith("project.yaml:1")


def test_every_value_says_where_it_comes_from(tmp_path: Path) -> None:
    """The origin of a file's value has its line."""
    text = "# mine\ndirect:\n  grace: 5 # with a comment\n"
    settings = resolve(places(tmp_path, project=text), {"PRIMUS_CLI_DIRECT_SILENT": "yes"})

    assert settings["direct.grace"] == 5
    assert settings.origin("direct.grace") == f"project {tmp_path / 'project.yaml'}:3"
    assert settings.origin("direct.silent") == "environment PRIMUS_CLI_DIRECT_SILENT"
    assert settings.origin("direct.nnodes") == "built-in"


def test_all_problems_come_at_once_each_with_its_line_and_a_fix(tmp_path: Path) -> None:
    """Unknown sections and keys get the nearest name; values of another kind say what is expected."""
    text = "direkt: {}\ndirect:\n  nprocs: 2\n  grace: soon\n  numa: maybe\n  grace: 3\ncontainer: 5\n"
    with pytest.raises(UsageError) as raised:
        resolve(places(tmp_path, project=text), {"PRIMUS_CLI_DIRECT_NPROK": "1", "PRIMUS_CLI_DIRECT_SINGLE": "maybe"})
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


@pytest.mark.parametrize(
    ("value", "message"),
    [("5.5", "expected a number or auto"), ("true", "expected a number or auto"), ("-1", "below 0"), ("fast", "a number or auto")],
)
def test_a_number_is_a_number(tmp_path: Path, value: str, message: str) -> None:
    """Fractions, booleans, words and negative numbers are refused."""
    with pytest.raises(UsageError, match=message):
        resolve(places(tmp_path, project=f"direct: {{nproc: {value}}}\n"), {})


@pytest.mark.parametrize(
    "text", ["- a\n", "direct: [\n", "direct: {env: {A: [1]}}\n", "direct: {hooks: hooks}\n", "direct: {python: 3.1}\n"]
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    """No file is half read: lists, broken YAML, nested values and unquoted versions end in a message."""
    with pytest.raises(UsageError, match="fix: "):
        resolve(places(tmp_path, project=text), {})


def test_yaml_reads_on_and_off_as_booleans(tmp_path: Path) -> None:
    """`numa: on` without quotes means on."""
    assert resolve(places(tmp_path, project="direct: {numa: on}\n"), {})["direct.numa"] == "on"
    assert resolve(places(tmp_path, project="direct: {numa: off}\n"), {})["direct.numa"] == "off"


def test_an_empty_file_and_an_empty_section_change_nothing(tmp_path: Path) -> None:
    """A file that is being written says nothing wrong."""
    assert resolve(places(tmp_path, user="", project="direct:\n"), {}).items == resolve(NOWHERE, {}).items


def test_the_project_file_is_found_from_below(tmp_path: Path) -> None:
    """The nearest .primus.yaml of the folders above counts, the user's own is not taken twice."""
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
def test_settings_of_another_account_are_refused(tmp_path: Path, layer: str) -> None:
    """A .primus.yaml that another account has put into /tmp or a home does not decide what root runs; the message names file and owner."""
    found = places(tmp_path, **{layer: "direct: {env: {LD_PRELOAD: /home/ada/x.so}}\n"})
    os.chown(tmp_path / f"{layer}.yaml", 1000, 1000)

    with pytest.raises(UsageError, match="uid 1000") as refused:
        resolve(found, {})
    assert "--config" in refused.value.fix


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another account")
def test_settings_of_another_account_are_taken_by_name(tmp_path: Path) -> None:
    """`--config FILE` is a decision of the caller: the owner of the file does not matter."""
    found = places(tmp_path, config="direct: {grace: 7}\n")
    os.chown(tmp_path / "config.yaml", 1000, 1000)

    assert resolve(found, {})["direct.grace"] == 7


def test_a_named_pipe_in_place_of_settings_does_not_hold_the_program(tmp_path: Path) -> None:
    """Reading ends at once, also where a pipe replaces the file after it was found."""
    os.mkfifo(tmp_path / ".primus.yaml")

    assert resolve(SettingsFiles(None, None, tmp_path / ".primus.yaml", None), {}).items == resolve(NOWHERE, {}).items


def test_a_section_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    """YAML would forget the first one in silence."""
    with pytest.raises(UsageError, match=r"user\.yaml:2: duplicate section direct"):
        resolve(places(tmp_path, user="direct: {grace: 1}\ndirect: {silent: true}\n"), {})


@pytest.mark.parametrize(("name", "text"), [("ENV", '{"a": "b"'), ("HOOKS", "[a")])
def test_a_variable_that_is_no_yaml_is_an_error(name: str, text: str) -> None:
    """It names the variable and how to write it."""
    with pytest.raises(UsageError, match=f"environment PRIMUS_CLI_DIRECT_{name}: not valid YAML"):
        resolve(NOWHERE, {f"PRIMUS_CLI_DIRECT_{name}": text})


def test_variables_are_taken_as_they_are_written(tmp_path: Path) -> None:
    """010 is no octal number and 1.30 not 1.3: a variable is a text. Null still takes one away, and a bare true is still judged."""
    text = "direct:\n  env: {A: 010, B: 1.30, C: 1e-4, D: 2026-11-22, E: null, F: true, G: '07'}\n"
    found = resolve(places(tmp_path, user=text), {})["direct.env"]

    assert found == {"A": "010", "B": "1.30", "C": "1e-4", "D": "2026-11-22", "F": True, "G": "07"}
