"""models.yaml: whatever is wrong with it is said in a sentence each, and what is right means what it says."""

import json
from pathlib import Path

import msgspec
import pytest

from gateway.rules.wishes import Fields
from pool import models_file
from pool.entries import Entry
from pool.models_file import OF_DOOR, BadFile, ModelsFile, by_name, changes, estimated, model_rules, parsed, read, wrong

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
TOTALS = {"host:0": 8 * GIB}


def of(text: str) -> ModelsFile:
    return parsed(text.encode())


def refused(text: str) -> str:
    with pytest.raises(BadFile) as caught:
        of(text)
    return "\n".join(map(str, caught.value.args))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: {a: {priorty: 1}}", "a: there is no field priorty; is priority meant?"),
        ("modles: {}", "there is no field modles; is models meant?"),
        ("models: {a: {limits: {waitin: 1}}}", "a: limits: there is no field waitin; is waiting meant?"),
        ("profiles: [{client: [x]}]", "profiles[0]: there is no field client; is clients meant?"),
        ("models: {a: {}, a: {}}", "line 1: a stands twice, first in line 1"),
        ("models:\n  a: {}\n  b: {}\n  a: {}", "line 4: a stands twice, first in line 2"),
        ("models: {'a b': {}}", "'a b' is no name for a model"),
        ("models: {a: 3}", "a: its entry is no mapping"),
        ("models: [a]", "models: is no mapping"),
        ("models: {a: {priority: high}}", "a: priority: it is text, and has to be a whole number"),
        ("swap_share: 2", "swap_share: it has to be a number <= 0.9"),
        ("models: {a: {keep_alive_s: 5m}}", "a: keep_alive_s: it is text, and has to be a number or nothing"),
        ("models: {a: {arguments: [--seed, 1]}}", "a: arguments[1]: it is a whole number, and has to be text: put it into quotes"),
        ("models: {a: {environment: {A: 1}}}", "a: environment: it is a whole number, and has to be text"),
        ("models: {a: {command: server}}", "a: command: it is text, and has to be a list such as [a, b]"),
        ("models: {a: {remote: {model: m}}}", "a: remote: it lacks url"),
        ("drain_s: 86401", "drain_s: it has to be a number <= 86400"),
        ("models: {a: {drain_s: 86401}}", "a: drain_s: it has to be a number <= 86400"),
        ("- a", "the file is no mapping"),
        ("", "it is empty; a file without models says `models: {}`"),
        ("# all taken out\n", "it is empty; a file without models says `models: {}`"),
        ("a: [", "line 1: "),
        ("\x00", "it is no YAML: unacceptable character at position 0: special characters are not allowed"),
        ("models: &a {b: *a}", "aliases make more than"),
        ("x-1: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(f"x-{n}: &{c} [{','.join(['*' + b] * 9)}]\n" for n, (b, c) in
         enumerate(zip("abcdef", "bcdefg", strict=True), start=2)), "aliases make more than"),
    ],
)  # fmt: skip
def test_what_is_no_models_yaml_is_refused_with_what_may_be_meant(text: str, said: str) -> None:
    assert said in refused(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: {a: {engine: vlm, arguments: [m]}}", "a: engine: vlm is none; allowed: vllm, reference, command, or MODULE:FACTORY; is vllm meant?"),
        ("models: {a: {engine: reference, aliases: [b]}, b: {engine: reference}}", "b is a name of a and of b"),
        ("models: {a: {engine: command, command: [nosuchprogram, '{port}']}}", "a: command: nosuchprogram is no program that can be found"),
        ("models: {a: {engine: reference, memory: 20}}", "a: memory: it is 20 bytes: give it a unit, such as 8GiB"),
        ("models: {a: {engine: command, command: [sh]}}", "a: command: no word of it has {port}"),
        ("models: {a: {engine: command}}", "a: engine: command needs command: with the program"),
        ("models: {a: {engine: reference, command: [sh, '{port}']}}", "a: command: it has one, and its engine is reference"),
        ("models: {a: {engine: command, command: [sh, '{port}'], standby: true}}", "a: standby: a command has no second engine"),
        ("models: {a: {engine: command, command: [sh, '{port}'], kv_parked: 1GiB}}", "a: kv_parked: a command has no KV cache that could be parked"),
        ("models: {a: {engine: reference, kv_parked: 64MeB}}", "a: kv_parked: '64MeB' is no size"),
        ("models: {a: {}}", "a: arguments: the first is the model that vLLM is to serve"),
        ("models: {a: {engine: reference, memory: 9GiB}}", "a: memory: it takes 9 GiB of host:0, which has 8 GiB for models: it can never be awake"),
        ("models: {a: {engine: reference, memory: 9gb}}", "a: memory: '9gb' is no size (is 9GiB meant?)"),
        ("models: {a: {engine: reference, pin: true, memory: 5GiB}, b: {engine: reference, pin: true, memory: 5GiB}}", "pin: the pinned models don't fit together on host:0"),
        ("models: {a: {ladder: [b]}}", "a: ladder: no model is called b"),
        ("models: {a: {ladder: [b]}, b: {ladder: [a]}}", "a: ladder: b is a ladder, too"),
        ("models: {a: {ladder: [b], arguments: [x]}, b: {engine: reference}}", "a: it is a ladder, and has an engine, too"),
        ("models: {a: {engine: reference, in_order: true}}", "a: in_order: it has no ladder"),
        ("models: {chat: {engine: reference}}\ndefault: chta", "default: no model is called chta; is chat meant?"),
        ("models: {chat: {engine: reference}}\nprofiles: [{clients: [x], models: {gpt: chat|chta}}]", "profiles: no model is called chta; is chat meant?"),
        ("profiles: [{clients: [x]}, {clients: [x]}]", "profiles: x is in more than one of them"),
        ("models: {a: {engine: reference, devices: ['host:1']}}", "a: devices: host:1 is none of this host's; is host:0 meant?"),
        ("models: {a: {engine: reference, snapshot: /tmp/s}, b: {engine: reference, snapshot: /tmp/./s}}",
         "a: snapshot: b has its own there"),
        ("models: {a: {engine: reference, weights: w}, b: {engine: vllm, arguments: [m], weights: w, devices: ['host:0']}}",
         "a: weights: b has them, too, and they can't be the same with other engine and devices"),
        ("models: {a: {engine: reference}, b: {engine: reference, weights: a, devices: ['host:0']}}", "b: weights: a has"),
        ("models: {a: {engine: reference}, a.kv-0: {engine: reference}}", "a.kv-0: GMS has the KV cache of a under such"),
        ("models: {a: {engine: command, command: [sh, '{port}'], weights: w}}", "a: weights: a command has none"),
        ("models: {a: {engine: reference, snapshot: /nowhere/at/all}}", "a: snapshot: there is no directory /nowhere/at"),
        ("models: {pool: {engine: reference}}", "pool: a part of failover models up is called pool"),
        ("models: {server.lock: {engine: reference}}", "server.lock: a part of failover models up is called server.lock"),
        ("models: {a: {remote: {url: 'http://[::1:8080/v1'}}}", "a: remote: url: http://[::1:8080/v1 is no address"),
        ("models: {a: {remote: {url: 'http:///v1'}}}", "it names no host"),
        ("models: {a: {engine: reference, defaults: {seed: 99999999999999999999}}}", "a: no door could be told this"),
        (f"models: {{a: {{engine: reference, arguments: ['{'x' * 950000}']}}}}", "a: it takes more than 900000 bytes"),
        ("asleep: {'host:9': 1GiB}", "asleep: host:9 is none of this host's"),
        ("models: {a: {engine: reference, aliases: [b|c]}}", "a: aliases: b|c: a | parts the models of a ladder"),
        ("devices: [gpu0]", "devices: 'gpu0' is not a device; allowed: host:NAME"),
        ("devices: ['host:0', 'host:0']", "devices: host:0 is named twice"),
        ("capacity: lots", "capacity: 'lots' is no size"),
        ("capacity: 0", "capacity: '0' is no host device's size"),
        ("keep_free: 8GiB", "keep_free: 8 GiB leaves nothing of host:0 for models, which has 8 GiB"),
        ("listen: ':9'\nmetrics: ':9'", "metrics: clients come to :9; give another address"),
        ("models: {a: {engine: reference, aliases: [b]}}\ndefault: b", "default: b is another name of a; say a"),
        ("models: {a: {engine: command, command: [sh, '{port}'], arguments: [x]}}", "a: arguments: a command has its own behind"),
        ("models: {a: {engine: reference, chat_template: chat.jinja}}", "a: chat_template: it is the template itself"),
        ("metrics: nowhere", "metrics: 'nowhere' is no address"),
        ("models: {a: {engine: reference, memory: {'host:9': 1GiB}}}", "a: devices: host:9 is none of this host's"),
        ("listen: nowhere", "listen: 'nowhere' is no address"),
        ("asleep: {host: much}", "host: 'much' is no size"),
        ("models: {a: {engine: reference, snapshot: \"\\0\"}, b: {engine: reference, snapshot: /tmp/s}}", "a: snapshot: a NUL"),
        ("models: {a: {engine: reference, arguments: [\"\\0\"]}}", "a: arguments: a NUL is in it"),
        ("models: {a: {engine: command, command: [sh, \"{port}\\0\"]}}", "a: command: a NUL is in it"),
        ("models: {a: {engine: reference, environment: {X: \"\\0\"}}}", "a: environment: a NUL is in it"),
        ("models: {a: {engine: reference, environment: {\"\\0\": x}}}", "a: environment: a NUL is in it"),
        ("models: {a: {engine: reference, environment: {A=B: x}}}", "a: environment: 'A=B' is no variable's name"),
        ("models: {a: {engine: reference, environment: {'': x}}}", "a: environment: '' is no variable's name"),
        ("models: {a: {engine: reference, defaults: {x_priority: 3}}}", "a: defaults: x_priority is for the door, and no engine's; say priority:"),
        ("profiles: [{clients: [x], defaults: {x_keep_alive_s: 3}}]", "profiles[0]: defaults: x_keep_alive_s is for the door"),
    ],
)  # fmt: skip
def test_what_cant_be_right_is_said_in_a_sentence(text: str, said: str) -> None:
    file = of(text)
    file = msgspec.structs.replace(file, devices=file.devices or ["host:0"])
    assert any(said in sentence for sentence in wrong(file, TOTALS)), wrong(file, TOTALS)


def test_what_a_door_takes_for_itself_is_no_default() -> None:
    assert set(Fields.__struct_fields__) == set(OF_DOOR)


def test_models_that_share_their_weights_may_share_a_snapshot_of_them() -> None:
    models = "a: {engine: reference, snapshot: /tmp/s}, b: {engine: reference, weights: a, snapshot: /tmp/s}"
    file = msgspec.structs.replace(of(f"models: {{{models}}}"), devices=["host:0"])
    assert wrong(file, TOTALS) == []


def test_what_stays_asleep_needs_no_room_beside_another_pinned_one() -> None:
    """A dual-pods controller pins all that it launches, and puts them to sleep and wakes them itself."""
    takes = "{engine: reference, pin: true, memory: 5GiB}"
    file = msgspec.structs.replace(of(f"models: {{a: {takes}, b: {takes}}}"), devices=["host:0"])
    assert wrong(file, TOTALS, {"a"}) == [] != wrong(file, TOTALS, {"c"})


@pytest.mark.parametrize("pin", ["", ", pin: true"])
def test_what_only_a_name_tells_is_no_reason_to_refuse_a_model(pin: str) -> None:
    file = msgspec.structs.replace(of(f"models: {{a: {{arguments: [big-70B]{pin}}}}}"), devices=["host:0"])
    assert model_rules(file.models["a"], file.devices).bytes["host:0"] > TOTALS["host:0"]
    assert wrong(file, TOTALS) == []


def test_what_is_launched_counts_among_the_models_that_there_may_be() -> None:
    file = of("models: {a: {engine: reference}}")
    many = {f"m{n}": msgspec.structs.replace(file.models["a"], name=f"m{n}") for n in range(257)}
    said = "there are 257 models, and there may be 256"
    assert said in wrong(msgspec.structs.replace(file, models=many), TOTALS)
    assert said not in wrong(file, TOTALS)


@pytest.mark.parametrize("name", ["a/b", "../a", ".a", "a\n"])
def test_a_model_that_is_launched_has_a_name_that_a_directory_may_have(name: str) -> None:
    file = of("models: {a: {engine: reference}}")
    more = {name: msgspec.structs.replace(file.models["a"], name=name)}
    said = wrong(msgspec.structs.replace(file, models=more), TOTALS)
    assert said[0].startswith(f"models: {name!r} is no name for a model"), said


def test_a_file_that_is_right_says_what_it_means_and_anchors_may_be_used(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(
        "x-usual: &usual {engine: reference, memory: {host:0: 1GiB}, keep_alive_s: 300}\n"
        "devices: [host:0]\ndefault: chat\n"
        "models:\n"
        "  chat: {<<: *usual, aliases: [gpt-4o, org/chat:latest], pin: true}\n"
        "  small: {<<: *usual, memory: 512MiB}\n"
        "  both: {ladder: [chat, small, far]}\n"
        "  far: {remote: {url: 'https://example.com', key_env: KEY}}\n"
    )
    file = read(path)
    assert wrong(file, TOTALS) == [] and list(file.models) == ["chat", "small", "both", "far"]
    assert model_rules(file.models["small"], file.devices).bytes == {"host:0": 512 << 20}
    assert (file.models["chat"].keep_alive_s, file.models["chat"].name) == (300, "chat")
    assert [entry.runs for entry in file.models.values()] == [True, True, False, False]


def test_a_file_that_cant_be_read_or_is_too_large_is_said(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(BadFile, match="can't be read"):
            read(path)
    large = tmp_path / "large"
    large.write_bytes(b"#" * (models_file.MOST_BYTES + 1))
    with pytest.raises(BadFile, match="larger than"):
        read(large)


def test_entries_that_no_door_could_be_told_in_one_frame_are_refused_together() -> None:
    """The pool said that they were there, and every door lost it."""
    entries = "".join(f"  m{n}: {{engine: reference, chat_template: *t}}\n" for n in range(60))
    file = of(f"x-t: &t '{{{'a' * 90_000}}}'\nmodels:\n{entries}")
    assert wrong(file, {}) == ["all entries together take 5.2 MiB, and may take 4 MiB"]


def test_memory_is_estimated_by_the_files_then_by_the_name(tmp_path: Path) -> None:
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(b"1" * 1000)
    assert estimated(Entry(engine="command", command=["sh", "-m", str(gguf)])) == 1100
    for number in (1, 2, 3):  # only the first is named
        (tmp_path / f"large-0000{number}-of-00003.gguf").write_bytes(b"1" * 1000)
    large = ["sh", "-m", str(tmp_path / "large-00001-of-00003.gguf")]
    assert estimated(Entry(engine="command", command=large)) == 3300
    assert estimated(Entry(engine="command", command=[*large, "--mmproj", str(gguf)])) == 4400
    for number in (1, 2):
        (tmp_path / f"m[4]-0000{number}-of-00003.gguf").write_bytes(b"1" * 1000)
    (tmp_path / "m[4]-00003-of-00003.gguf").symlink_to("nowhere")  # not downloaded yet
    assert estimated(Entry(engine="command", command=["sh", "-m", str(tmp_path / "m[4]-00001-of-00003.gguf")])) == 2200
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "1.safetensors").write_bytes(b"1" * 1000)
    (tmp_path / "model" / "2.safetensors").symlink_to("nowhere")
    assert estimated(Entry(arguments=[str(tmp_path / "model")])) == 1300
    assert estimated(Entry(engine="reference", arguments=["--preset", "8B"])) == 0
    assert by_name("Qwen/Qwen3-8B") == round(8e9 * 2 * 1.3)
    assert by_name("mixtral-8x7b-instruct") == round(56e9 * 2 * 1.3)
    assert by_name("Llama-3.1-70B-Instruct-AWQ") == round(70e9 * 4.5 / 8 * 1.3)
    assert by_name("gpt2") == by_name("a1b2") == 0


def test_what_has_changed_is_said_and_what_waits_for_the_next_start() -> None:
    before = of("models: {a: {engine: reference}, b: {engine: reference}}")
    after = of("models: {a: {engine: reference, priority: 1}, c: {engine: reference}}\nswap_share: 0.2\nlisten: ':9'")
    assert changes(before, after) == [
        "a: priority changed",
        "b was taken out",
        "c is new",
        "listen changed",
        "listen: not before failover models up is started again",
        "swap_share changed",
    ]
    assert changes(before, before) == []


def test_the_schema_for_editors_is_the_one_in_the_docs() -> None:
    assert (ROOT / "docs" / "using" / "models.schema.json").read_text() == models_file.schema() + "\n", (
        "failover models schema > docs/using/models.schema.json"
    )
    assert "keep_alive_s" in json.dumps(json.loads(models_file.schema())["$defs"]["Entry"]["properties"])
