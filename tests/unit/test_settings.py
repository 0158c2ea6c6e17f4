"""Settings: layers, bounds, origins, and what a repository may say."""

from __future__ import annotations

import pytest

from rambarde.errors import ConfigError
from rambarde.loops import LoopSettings
from rambarde.settings import environment_name, load_settings, schema
from rambarde.settings_json import parse_json
from rambarde.settings_shape import LOOP_KEYS
from support.policies import WORKSPACE_WRITE

DEFAULTS = load_settings({}, folder="/nonexistent")


def load(tmp_path, text="", environment=None, flags=(), name="config.toml"):
    (tmp_path / name).write_text(text)
    return load_settings(environment or {}, folder=str(tmp_path), flags=flags)


def faults(tmp_path, text="", environment=None, flags=(), name="config.toml"):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, environment, flags, name)
    return [str(fault).replace(str(tmp_path), "~") for fault in caught.value.faults]


def test_defaults_are_the_nets_on():
    """With nothing set every net is on, and every origin is the default."""
    execution = DEFAULTS.execution
    assert (execution.subagentMaxDepth, execution.subagentMaxPerSession) == (3, 200)
    assert (execution.subagentMaxConcurrent, execution.sessionMaxDuration) == (20, 1800)
    assert (execution.sessionMaxActions, execution.sandboxTier) == (None, "A")
    assert DEFAULTS.loops == LoopSettings()
    assert {DEFAULTS.origin(key) for key in DEFAULTS.values()} == {"default"}
    assert DEFAULTS.warnings == ()


def test_later_layer_wins_and_is_named(tmp_path):
    """The environment goes over defaults, the file over the environment, flags over the file."""
    one = load(
        tmp_path,
        "[execution]\nsubagentMaxDepth = 5\nsubagentMaxConcurrent = 6\n",
        {"RAMBARDE_SUBAGENT_MAX_DEPTH": "7", "RAMBARDE_SESSION_MAX_ACTIONS": "9", "HOME": "/x"},
        ["subagentMaxConcurrent=8", "model.engine=offline"],
    )
    assert (one.execution.subagentMaxDepth, one.origin("subagentMaxDepth")) == (
        5, f"{tmp_path}/config.toml:2",
    )  # fmt: skip
    assert (one.execution.subagentMaxConcurrent, one.origin("subagentMaxConcurrent")) == (
        8, "--set subagentMaxConcurrent",
    )  # fmt: skip
    assert one.origin("sessionMaxActions") == "RAMBARDE_SESSION_MAX_ACTIONS"
    assert (one.model.engine, one.origin("model.engine")) == ("offline", "--set model.engine")
    assert f"execution.subagentMaxDepth = 5  ({tmp_path}/config.toml:2)" in one.lines(origin=True)
    assert "execution.sessionMaxDuration = 1800" in one.lines(origin=False)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "1.0", '"unlimited"', '""', "true", "inf"])
@pytest.mark.parametrize("key", ["subagentMaxDepth", "sessionMaxActions", "treeMaxTokens"])
def test_net_cannot_be_removed_by_the_file(tmp_path, key, value):
    """Zero, negative, fractional and worded nets are refused with file and line."""
    (text,) = faults(tmp_path, f"[execution]\n\n{key} = {value}\n")
    assert text.startswith(f"~/config.toml:3: {key} is ")
    assert "a whole number from 1" in text


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "unlimited", "", "0x5", "１", "9" * 20])
def test_net_cannot_be_removed_by_a_variable_or_a_flag(tmp_path, value):
    """The same holds in each layer."""
    name = "RAMBARDE_SUBAGENT_MAX_CONCURRENT"
    assert faults(tmp_path, environment={name: value})[0].startswith(f"{name}: subagent")
    flag = f"subagentMaxDepth={value}"
    assert faults(tmp_path, flags=[flag])[0].startswith("--set subagentMaxDepth: ")


def test_all_faults_of_all_layers_come_at_once(tmp_path):
    """One attempt tells every fault, with the near miss of a wrong key."""
    assert faults(
        tmp_path,
        "[execution]\nsubagentMaxDeth = 3\nsandboxTier = 'Z'\n[modle]\n[agents]\ndefault = ''\n",
        flags=["x", "y.z=1", "model.engin=a"],
    ) == [
        "--set model.engin: unknown key engin; did you mean engine?",
        "--set x: must be key=value",
        "--set y.z: unknown key y.z",
        "~/config.toml:2: unknown key subagentMaxDeth; did you mean subagentMaxDepth?",
        "~/config.toml:3: sandboxTier is 'Z': input should be 'A', 'A-proc', 'B' or 'C'",
        "~/config.toml:4: unknown key modle; did you mean model?",
        "~/config.toml:6: default is '': string should have at least 1 character",
    ]


def test_absurd_value_loads_and_is_told(tmp_path):
    """Above ten times its default a net loads, with a warning at its origin."""
    one = load(tmp_path, "[execution]\nsubagentMaxConcurrent = 201\nsubagentMaxDepth = 30\n")
    (warning,) = one.warnings
    assert (warning.path, warning.line) == (f"{tmp_path}/config.toml", 2)
    assert "201, more than ten times its default 20" in warning.text


def test_unknown_variable_is_told(tmp_path):
    """A misspelt variable has no effect, which is said."""
    (warning,) = load(tmp_path, environment={"RAMBARDE_SUBAGENT_MAXDEPTH": "9"}).warnings
    assert "did you mean RAMBARDE_SUBAGENT_MAX_DEPTH" in warning.text


@pytest.mark.parametrize("key", sorted(LOOP_KEYS))
def test_loop_threshold_moves_within_bounds_only(tmp_path, key):
    """No loop rule can be switched off: a threshold is 2 or more, and at most ten defaults."""
    for value in (0, 1, 10**6):
        assert f"{key} is {value}" in faults(tmp_path, f"[execution]\n{key} = {value}\n")[0]


def test_loop_notice_comes_before_its_stop(tmp_path):
    """Thresholds that do not fit together are a fault where one of them is set."""
    assert faults(tmp_path, "[execution]\nloopErrorNotice = 9\n") == [
        "~/config.toml:2: loopErrorNotice must be below loopErrorStop"
    ]
    one = load(tmp_path, "[execution]\nloopErrorNotice = 9\nloopErrorStop = 10\n")
    assert (one.loops.error_notice, one.loops.error_stop) == (9, 10)


def test_json_file_has_the_same_keys_and_lines(tmp_path):
    """config.json is read like config.toml; `$schema` says nothing."""
    text = '{"$schema": "x",\n "execution": {\n  "subagentMaxDepth": 4}}'
    one = load(tmp_path, text, name="config.json")
    assert (one.execution.subagentMaxDepth, one.origin("subagentMaxDepth")) == (
        4, f"{tmp_path}/config.json:3",
    )  # fmt: skip
    told = faults(tmp_path, text.replace("4", "0"), name="config.json")
    assert told[0].startswith("~/config.json:3: subagentMaxDepth is 0")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1,\n "a": 2}', "f:2: holds the key 'a' twice"),
        ('{"a": [1, {"b": "\\"}"}, {"b": 2}]}', ""),
        ("{\n", "f:2: is no JSON"),
        ("[]", "f:1: is no object"),
        ('{"a": NaN}', "is no number"),
        ("[" * 99_999, "is no JSON"),
    ],
)
def test_json_that_is_not_taken_is_told(text, told):
    """Equal keys, broken text and endless nesting are refused."""
    from rambarde.policy.source import UnreadableError

    if not told:
        assert parse_json(text.encode(), "f").lines == {
            ("a",): 1, ("a", 1, "b"): 1, ("a", 2, "b"): 1,
        }  # fmt: skip
        return
    with pytest.raises(UnreadableError) as caught:
        parse_json(text.encode(), "f")
    assert told in str(caught.value)


def test_two_files_are_one_too_many(tmp_path):
    """Which of two files holds is not guessed."""
    (tmp_path / "config.json").write_text("{}")
    assert faults(tmp_path) == ["~/config.json: stands beside config.toml: keep one of them"]


def test_named_file_replaces_the_folders(tmp_path):
    """RAMBARDE_CONFIG names the file; one that is not there is a fault."""
    (tmp_path / "mine.toml").write_text("[execution]\nsubagentMaxDepth = 2\n")
    named = {"RAMBARDE_CONFIG": str(tmp_path / "mine.toml")}
    assert load(tmp_path, "x = ", named).execution.subagentMaxDepth == 2
    assert "does not exist" in faults(tmp_path, "", {"RAMBARDE_CONFIG": "/nonexistent"})[0]


def test_repository_lowers_numbers_only():
    """A repository's file can make a net tighter; all else it says is told and without effect."""
    one = DEFAULTS.narrow_by_repo(
        b'[execution]\nsubagentMaxDepth = 2\nsubagentMaxConcurrent = 21\nsandboxTier = "C"\n'
        b"sessionMaxActions = 50\nsubagentMaxPerSession = 0\nnew = 1\n"
        b'[model]\nengine = "http://evil.example"\n[agents]\ndefault = "x"\n'
    )
    assert (one.execution.subagentMaxDepth, one.execution.sessionMaxActions) == (2, 50)
    assert one.origin("subagentMaxDepth") == ".rambarde/config.toml:2"
    assert (one.execution.subagentMaxConcurrent, one.execution.sandboxTier) == (20, "A")
    assert (one.model, one.agents) == (DEFAULTS.model, DEFAULTS.agents)
    assert [w.line for w in one.warnings] == [3, 4, 6, 7, 9, 11]
    assert all("ignored: " in w.text for w in one.warnings)


@pytest.mark.parametrize(
    "data", [b"\xff", b"x = ", b"execution = 3", b"a." * 5000 + b"b = 1", b"[execution]\nx=[1]"]
)
def test_hostile_file_of_a_repository_stops_nothing(data):
    """What does not load is told, and the settings stay as they were."""
    one = DEFAULTS.narrow_by_repo(data)
    assert one.execution == DEFAULTS.execution
    assert one.warnings


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            b"[execution]\nsubagentMaxDept = 2",
            "no setting; did you mean execution.subagentMaxDepth",
        ),
        (b"subagentMaxDepth = 2", "is no setting; did you mean execution.subagentMaxDepth?"),
        (b"[modle]\nengine = 'x'", "modle.engine is no setting; did you mean model.engine?"),
        (b"[model]\nengine = 'x'", "config.toml, or by --set model.engine=VALUE"),
        (b"[execution]\nsandboxTier = 'C'", "or by --set execution.sandboxTier=VALUE"),
    ],
)
def test_repository_is_told_where_a_key_belongs(data, words):
    """A slip is named with the nearest setting; what is the person's with the place for it."""
    (warning,) = load_settings({}, folder="/nowhere").narrow_by_repo(data).warnings
    assert words in warning.text


def test_repository_cannot_flood_with_warnings():
    """A stranger's file does not fill the screen."""
    data = b"".join(b"k%d = 1\n" % n for n in range(5000))
    assert len(DEFAULTS.narrow_by_repo(data).warnings) <= 50


def test_limits_follow_what_a_person_set_only(tmp_path):
    """A declared limit stays where no layer sets it."""
    declared = WORKSPACE_WRITE.limits
    assert DEFAULTS.limits(declared) == declared
    one = load(tmp_path, "[execution]\nsessionMaxActions = 5\nsessionMaxDuration = 60\n")
    changed = one.limits(declared)
    assert (changed.max_actions, changed.max_duration_s) == (5, 60)
    assert changed.tree_tokens == declared.tree_tokens


def test_schema_names_every_key_and_refuses_others():
    """The published schema is the model's own."""
    sections = schema()["$defs"]
    assert "subagentMaxDepth" in sections["ExecutionSection"]["properties"]
    assert sections["ExecutionSection"]["additionalProperties"] is False
    assert sections["ExecutionSection"]["properties"]["subagentMaxDepth"]["minimum"] == 1


def test_variable_of_each_key_is_its_own():
    """No two keys share a variable."""
    names = [environment_name(*key.split(".")) for key in DEFAULTS.values()]
    assert len(set(names)) == len(names)
    assert "RAMBARDE_MODEL_KEY_FILE" in names
