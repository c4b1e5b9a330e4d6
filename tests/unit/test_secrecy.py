"""What counts as a secret: one rule for specs, templates and patches, as a table of names and values."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from servegen import secrecy
from servegen.secrecy import secret, secret_name, secret_value
from tests.proof.harness import command, spec, write_spec

SECRETS = (
    "HF_TOKEN", "TOKEN", "GITHUB_PAT", "API_KEY", "MY_API_KEY", "apiKey", "api-key", "--admin-api-key", "AWS_SECRET_ACCESS_KEY",
    "PGPASSWORD", "MYSQL_PWD", "DB_PASS", "clientSecret", "OPENAI_KEY", "API_KEY_2", "TOKEN_VALUE", "SSH_PRIVATE_KEY",
    "--ssl-keyfile-password", "MyPassword", "REGISTRY_CREDENTIALS", "ENCRYPTION_KEY", "WANDB_API_KEY", "authToken",
    "HFTOKEN", "OPENAIKEY", "--control-plane-api-keys",
)  # fmt: skip
HARMLESS = (
    "MONKEY", "HOTKEY", "CACHE_KEY", "SORT_KEY", "PUBLIC_KEY", "KEY", "KEYBOARD", "TOKENIZER", "TOKENIZERS_PARALLELISM",
    "MAX_TOKENS", "EOS_TOKEN", "EOSTOKEN", "--fim-prefix-token", "CACHE_KEYS", "KEYS",
    "--pad-token", "--max-total-tokens", "PWD", "OLDPWD", "SECRET_NAME", "TOKEN_PATH",
    "PASSWORD_FILE", "COMPAT",
    "BYPASS", "SPAT", "NCCL_IB_HCA", "CREDENTIALING", "", "_", "7",
)  # fmt: skip
LETTERS = "abcdefghij0123456789ABCDEFGHIJ"
VALUES = {
    f"hf_{LETTERS}": "a Hugging Face token",
    f"sk-proj-{LETTERS}": "an API key",
    f"nvapi-{LETTERS}": "an API key",
    f"x ghp_{LETTERS} y": "a GitHub token",
    f"github_pat_{LETTERS}": "a GitHub token",
    f"glpat-{LETTERS}": "a GitLab token",
    "npm_" + LETTERS + "abcdefg": "an npm token",
    "sk_live_" + LETTERS: "an API key",
    "rk_live_" + LETTERS: "an API key",
    "sk-ant-api03-abc-def-" + "012345": "an API key",
    f"AccountName=a;AccountKey={LETTERS}==": "an Azure key",
    f"https://a.blob.core.windows.net/c?sv=1&sig={LETTERS}%3D": "an Azure key",
    f"https://a/c?sig={LETTERS}": "an Azure key",
    f"Authorization: Bearer {LETTERS}": "a header that authorizes",
    "Authorization=Basic%20" + "dXNlcjpwYXNz": "a header that authorizes",
    "Basic " + "dXNlcjpwYXNzdw==": "a header that authorizes",
    "AKIA" + "ABCDEFGH01234567": "an AWS access key",
    "xoxb-" + "1234567890": "a Slack token",
    "-----BEGIN RSA PRIVATE" + " KEY-----\nabc": "a private key",
    "eyJhbGciOiJI" + ".eyJzdWIiOiIx" + ".abc": "a signed token",
    "http://me:pass" + "word@proxy:3128": "a password in an address",
}
PLAIN = (
    "", "hf_home", "hf-token", "sk-learn-and-more-words", "task-0123456789abcdefgh", "disk-0123456789abcdefgh", "http://proxy:3128",
    "http://host/a:b@c", "https://$USER:$PASS@host", "AKIA", "mlx5_0,mlx5_1", "eyJ", "PRIVATE KEY",
    "sk-tokenizer-v2-large-cased", "Bearer $(TOKEN)", "Basic authentication", "Bearer authentication",
    "--config=a", "npm_config_cache",
)  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_names_of_secrets(name: str) -> None:
    assert secret_name(name) and secret(name, "s3cr3t")


@pytest.mark.parametrize("name", HARMLESS)
def test_names_of_other_things(name: str) -> None:
    assert not secret_name(name) and not secret(name, "lpm")


@pytest.mark.parametrize(("value", "kind"), VALUES.items(), ids=list(VALUES.values()))
def test_values_of_secrets_whatever_their_name(value: str, kind: str) -> None:
    assert secret_value(value) == kind and secret("NOTE", value)


@pytest.mark.parametrize("value", PLAIN)
def test_values_of_other_things(value: str) -> None:
    assert secret_value(value) == ""


def test_a_switch_and_a_path_are_no_secret() -> None:
    for name, value in (("USE_TOKEN", "false"), ("GOOGLE_APPLICATION_CREDENTIALS", "/etc/gcp/key.json"), ("API_KEY", "")):
        assert secret_name(name) and not secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENAI_API_KEY", "EMPTY"), ("API_KEY", "none"), ("API_KEY", "not-needed"), ("TOKEN", "dummy"),
        ("API_KEY", "<your key>"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/creds/g.json"), ("TLS_KEY", "/certs/tls.key"), ("STORAGE_KEY", "models/llama"),
        ("APP_PWD", "/workspace"), ("ASSISTANT_TOKEN", "<|a|>"), ("ROLE_TOKEN", "[INST]"), ("SGLANG_API_KEY", "$(API_KEY)"),
        ("DB_PASSWORD", "${DB_PASSWORD}"), ("DB_PASSWORD", "vault:secret/data/db#password"), ("CREDENTIALS", "/"),
    ],
)  # fmt: skip
def test_what_says_where_a_secret_is_or_that_there_is_none_is_none(name: str, value: str) -> None:
    assert not secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DB_PASSWORD", "changeme"), ("DB_PASSWORD", "$ecret"), ("API_KEY", "empty1"), ("TOKEN", "models/llama"),
        ("API_KEY", f"/{LETTERS}"), ("API_KEY", f"a/{LETTERS}"), ("API_KEY", "$(A)b"), ("APP_PWD", "workspace"),
    ],
)  # fmt: skip
def test_what_only_looks_like_that_is_a_secret(name: str, value: str) -> None:
    assert secret(name, value)


def test_of_all_flags_of_the_engines_those_that_take_a_secret_are_told() -> None:
    contracts = Path(secrecy.__file__).parent / "engines" / "contracts"
    flags = {flag for file in contracts.glob("*.json") for flag in json.loads(file.read_text("utf-8"))["flags"]}
    assert len(flags) > 1000 and {flag for flag in flags if secret_name(flag)} == {
        "--admin-api-key", "--api-key", "--control-plane-api-keys", "--oracle-password", "--ssl-keyfile-password",
    }  # fmt: skip


def test_a_key_of_nothing_known_counts_by_its_value() -> None:
    assert secret("MY_KEY", LETTERS) and not secret("MY_KEY", "round-robin")


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ({"env": {"GITHUB_PAT": "abc"}}, "GITHUB_PAT"), ({"env": {"NOTE": f"ghp_{LETTERS}"}}, "NOTE"),
        ({"args": {"admin-api-key": "abc"}}, "admin-api-key"),
        ({"args": {"served-model-name": f"sk-{LETTERS}"}}, "served-model-name"),
    ],
)  # fmt: skip
def test_a_spec_may_hold_none(overrides: dict[str, object], key: str, tmp_path: Path) -> None:
    ran = command("build", write_spec(tmp_path / "s.yaml", spec(deploy__overrides=overrides)), "-o", tmp_path / "out")
    assert ran.code == 1 and re.search(rf"s\.yaml:\d+:\d+: error\[secret-value\].*{re.escape(key)}", ran.err), ran
    assert LETTERS not in ran.err + ran.out and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["MONKEY", "HOTKEY", "CACHE_KEY"])
def test_a_spec_may_hold_what_only_sounds_like_one(name: str, tmp_path: Path) -> None:
    file = write_spec(tmp_path / "s.yaml", spec(deploy__overrides={"env": {name: "x"}}))
    assert command("build", file, "-o", tmp_path / "out").code == 0


def test_there_is_one_rule() -> None:
    """No other file has a pattern of its own for it."""
    room = Path(secrecy.__file__).parent
    own = re.compile(r"re\.compile\(.*(PASSWORD|TOKEN)\b")
    assert [p.name for p in room.rglob("*.py") if p.name != "secrecy.py" and own.search(p.read_text("utf-8"))] == []


PARTS = ("sk-proj-", "sk-a-", "Basic ", "Bearer a", "authorization:", "AccountKey=", "x://", "&sig=", "eyJa.")


@pytest.mark.parametrize("part", PARTS)
def test_a_long_text_is_soon_read(part: str) -> None:
    before = time.perf_counter()
    secret_value(part + part[-2:] * 30_000 + "sk-@://")
    secret_value(part * 10_000 + "sk-@://")
    assert time.perf_counter() - before < 5
