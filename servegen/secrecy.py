"""What must never be written to a file: values that are secrets, told by the name that they bear or by their form.

One rule for specs, templates and patches, because all of them end in files that are committed.
"""

from __future__ import annotations

import re
from functools import cache

#: Words of a name: parted by anything that is no letter, by digits, and where a small letter meets a capital.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
#: What may follow the word that counts: API_KEY_2, TOKEN_VALUE.
_TAILS = frozenset(("VALUE", "TEXT", "RAW", "BASE", "B"))
#: Last words that name a secret by themselves.
_SECRETS = frozenset(
    ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "PAT", "CREDENTIAL", "CREDENTIALS", "APIKEY", "AUTHKEY",
     "SECRETKEY", "ACCESSKEY", "PRIVATEKEY", "AUTHTOKEN", "ACCESSTOKEN", "HFTOKEN", "GITHUBTOKEN", "GHTOKEN", "GITLABTOKEN",
     "BEARERTOKEN", "REFRESHTOKEN", "SESSIONTOKEN", "BOTTOKEN", "NPMTOKEN", "VAULTTOKEN", "APITOKEN")
)  # fmt: skip
#: A token of text, which a model has, is no secret.
_OF_TEXT = frozenset(
    ("MAX", "MIN", "NUM", "PER", "EOS", "BOS", "PAD", "UNK", "SEP", "CLS", "MASK", "STOP", "START", "END", "IMAGE",
     "VIDEO", "AUDIO", "SPECIAL", "NEXT", "NEW", "FIRST", "LAST", "THINK", "TOOL", "EOD", "EOT", "EOM", "PREFIX", "MIDDLE",
     "SUFFIX")
)  # fmt: skip
#: What a key opens, or who gives it out; any other key may be that of a cache, a map, a table or a keyboard.
_KEYS = frozenset(
    ("API", "ACCESS", "PRIVATE", "SECRET", "ENCRYPTION", "SIGNING", "AUTH", "MASTER", "ADMIN", "ACCOUNT", "SUBSCRIPTION",
     "LICENSE", "DEPLOY", "SERVICE", "CLIENT", "SSH", "TLS", "SSL", "RSA", "HMAC", "JWT", "FERNET", "WEBHOOK", "STORAGE",
     "OPENAI", "ANTHROPIC", "AZURE", "AWS", "WANDB", "COHERE", "GROQ", "NGC", "NVIDIA", "HF")
)  # fmt: skip
_PASSES = frozenset(
    ("DB", "USER", "ADMIN", "ROOT", "SMTP", "MAIL", "MYSQL", "POSTGRES", "PG", "REDIS", "AUTH", "PROXY", "REGISTRY",
     "DOCKER")
)  # fmt: skip
#: What says whether there is a secret, that there is none, or where it is. A password that would work (changeme) is not here.
_HARMLESS = re.compile(
    r"|true|false|yes|no|on|off|[01]"
    r"|empty|none|null|nil|dummy|fake|unused|placeholder|no[-_]?key([-_]required)?|not[-_ ]?(needed|required|used|set)"
    r"|<[^<>]*>|\[/?[a-z_]+\]"  # a token of text, and what a reader is to fill in
    r"|(\$\(\w+\)|\$\{\w+\})+"
    r"|(vault|bao|op|awssm|file):\S+|arn:aws[\w-]*:(secretsmanager|ssm):\S+|projects/[^/\s]+/secrets/\S+",
    re.IGNORECASE,
)
#: A path, absolute or, where a key is that of an object in a store, relative.
_ABSOLUTE = re.compile(r"~?/[\w./@+,=~-]*")
_RELATIVE = re.compile(r"\.{0,2}[a-z][\w.-]*(/[\w.-]+)+/?")
#: What a generator of keys gives: long, of letters and digits.
_RANDOM = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9+/=_-]{20,}")

_FORMS = {
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{20,}",
    "an API key": r"(?<![\w-])sk-((proj|ant|or|svcacct|admin|lf)-(?=[\w-]*\d)[\w-]{16,}|(?=[A-Za-z_]*\d)\w{16,})"
    r"|\bnvapi-[\w-]{20,}|\bAIza[\w-]{35}|\b[sr]k_(live|test)_[A-Za-z0-9]{16,}",
    "a GitHub token": r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}",
    "a GitLab token": r"\bglpat-[\w-]{16,}",
    "an npm token": r"\bnpm_[A-Za-z0-9]{30,}",
    "an AWS access key": r"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
    "an Azure key": r"\b(Account|SharedAccess)Key=[A-Za-z0-9+/]{20,}|[?&]sig=[\w%+/-]{16,}",
    "a Slack token": r"\bxox[abeprs]-[\w-]{10,}",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY",
    "a signed token": r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*",
    "a header that authorizes": r"\b[Bb]earer(\s|%20)+(?=[A-Za-z._~+/-]*\d)[\w.~+/-]{12,}|\bBasic(\s|%20)+[A-Za-z0-9+/]{6,}={1,2}"
    r"|\b[Aa]uthorization['\"]?\s*[:=]\s*['\"]?Basic(\s|%20)+[A-Za-z0-9+/]{8,}",
    "a password in an address": r"\b[a-z][a-z0-9+.-]{0,30}://[^\s/:@'\"]*:(?!\$)[^\s/@'\"]+@",
}
_WHATS = tuple(_FORMS)
#: One of them is in every text that holds a secret, but for a password in an address.
_MARKS = (
    "hf_", "sk-", "nvapi-", "AIza", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "AKIA", "ASIA", "xox",
    "-----BEGIN", "eyJ", "k_live_", "k_test_", "npm_", "Key=", "sig=", "earer", "Basic",
)  # fmt: skip


@cache
def _by_form() -> re.Pattern[str]:
    """All forms at once. Few texts have a mark, and compiling it takes longer than reading a spec without one."""
    return re.compile("|".join(f"(?P<f{i}>{form})" for i, form in enumerate(_FORMS.values())))


def secret_name(name: str) -> bool:
    """Whether a variable or flag of this name holds a secret, whatever its value."""
    words = _words(name)
    if not words:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "TOKEN" and before in _OF_TEXT:
        return False
    if last in _SECRETS or last.endswith(("PASSWORD", "PASSWD", "PASSPHRASE")):
        return True
    if last == "PASS":
        return before in _PASSES
    one = last.removesuffix("S")
    if one.endswith("KEY"):
        return (one.removesuffix("KEY") or before) in _KEYS
    return last == "PWD" and bool(before)


def secret_value(text: str) -> str:
    """What kind of secret stands in a text, "" if none does that is known by its form."""
    if not any(mark in text for mark in _MARKS) and not ("@" in text and "://" in text):
        return ""  # most texts, and the search is slow
    match = _by_form().search(text)
    return next((_WHATS[i] for i in range(len(_WHATS)) if match[f"f{i}"]), "") if match else ""


def secret(name: str, value: str) -> bool:
    """Whether a variable of this name and value would show a secret to all who read the file."""
    if secret_value(value):
        return True
    words = _words(name)
    if _HARMLESS.fullmatch(value) or _is_path(value, key=words[-1:] == ["KEY"]):
        return False
    return secret_name(name) or (words[-1:] == ["KEY"] and _RANDOM.fullmatch(value) is not None)


def _is_path(value: str, *, key: bool) -> bool:
    """Whether a value says where something is; keys in base64 have slashes, too, but what is between them is random."""
    if not (_ABSOLUTE.fullmatch(value) or (key and _RELATIVE.fullmatch(value))):
        return False
    return not any(_RANDOM.fullmatch(part) for part in value.split("/"))


def _words(name: str) -> list[str]:
    words = [word.upper() for word in _WORD.findall(name)]
    while len(words) > 1 and words[-1] in _TAILS:
        words.pop()
    return words
