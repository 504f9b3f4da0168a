"""The `CNI_*` variables of a call: checked before any of it becomes a key, a log field or a file name.

Sources: CNI spec 1.1.0, section 2 "Parameters" (container ID, `CNI_ARGS`); the kernel's `dev_valid_name` for
interface names; Kubernetes' limits for names. Where the spec sets no limit to a length we do.

A DEL is different: it must not fail for what it names badly, because then nobody can get rid of the pod. What is
malformed could never have been given a lease, so there it counts as not said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from allotment.addressing.errors import EnvironmentInvalid
from allotment.cni.versions import Verb

__all__ = [
    "Arguments",
    "container_id",
    "interface",
    "is_name",
    "netns",
    "parse_arguments",
    "parse_verb",
    "shown",
]

Arguments = Mapping[str, str]
"""The pairs of `CNI_ARGS`; of a key said twice the last counts."""

_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*", re.ASCII)
"""A container ID and a network name (CNI spec 1.1.0, sections 1 and 2); the pod's names are held to it as well."""

_MAX_NAME: Final = 253
_MAX_INTERFACE: Final = 15  # bytes: IFNAMSIZ with the closing zero is 16
_MAX_PATH: Final = 4096  # PATH_MAX
_IDENTITIES: Final = ("K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_UID", "K8S_POD_INFRA_CONTAINER_ID")


def shown(text: str) -> str:
    """Text from outside as a message may show it: quoted, escaped and cut to a bearable length."""
    return repr(text if len(text) <= 80 else text[:77] + "…")


def is_name(text: str) -> bool:
    """Whether this may be a container ID, a network name, or a name of a pod."""
    return len(text) <= _MAX_NAME and _NAME.fullmatch(text) is not None


def parse_verb(env: Mapping[str, str]) -> Verb:
    """CNI_COMMAND.

    Raises:
        EnvironmentInvalid: it is missing or none of the six.
    """
    text = env.get("CNI_COMMAND", "")
    try:
        return Verb(text)
    except ValueError:
        known = ", ".join(Verb)
        raise EnvironmentInvalid(f"CNI_COMMAND is {shown(text)}; it must be one of {known}") from None


def container_id(env: Mapping[str, str], verb: Verb) -> str:
    """CNI_CONTAINERID; a malformed one is "" for DEL.

    Raises:
        EnvironmentInvalid: it is missing, or malformed and this is no DEL.
    """
    text = _needed(env, "CNI_CONTAINERID", verb)
    if is_name(text):
        return text
    if verb is Verb.DEL:
        return ""
    raise EnvironmentInvalid(
        f"CNI_CONTAINERID is {shown(text)}; it must begin with a letter or digit, go on with letters, digits, "
        f"'_', '.' or '-', and have at most {_MAX_NAME} of them"
    )


def interface(env: Mapping[str, str], verb: Verb) -> str:
    """CNI_IFNAME; a malformed one is "" for DEL.

    Raises:
        EnvironmentInvalid: it is missing, or malformed and this is no DEL.
    """
    text = _needed(env, "CNI_IFNAME", verb)
    if _is_interface(text):
        return text
    if verb is Verb.DEL:
        return ""
    raise EnvironmentInvalid(
        f"CNI_IFNAME is {shown(text)}; it must have at most {_MAX_INTERFACE} bytes, no '/', ':' or white space, "
        "and be neither '.' nor '..'"
    )


def netns(env: Mapping[str, str], verb: Verb) -> str:
    """CNI_NETNS; for DEL "" when it is missing or malformed.

    Raises:
        EnvironmentInvalid: it is missing or malformed and this is no DEL.
    """
    text = env.get("CNI_NETNS", "")
    if verb is Verb.DEL:
        return text if _is_path(text) else ""
    text = _needed(env, "CNI_NETNS", verb)
    if _is_path(text):
        return text
    raise EnvironmentInvalid(
        f"CNI_NETNS is {shown(text)}; it must be an absolute path such as '/run/netns/NAME', without control "
        f"characters, of at most {_MAX_PATH} bytes"
    )


def parse_arguments(env: Mapping[str, str], verb: Verb) -> Arguments:
    """CNI_ARGS as pairs; an empty value counts as not said.

    Keys we don't use are ignored, with IgnoreUnknown or without: every plugin of a list is handed the same
    variables. For DEL what can't be read counts as not said.

    Raises:
        EnvironmentInvalid: a pair has no `=`, or one of the pod's names is malformed, and this is no DEL.
    """
    text = env.get("CNI_ARGS", "")
    arguments: dict[str, str] = {}
    for pair in text.split(";"):
        key, equals, value = pair.partition("=")
        if equals:
            if value:
                arguments[key] = value
        elif pair.strip() and verb is not Verb.DEL:
            raise EnvironmentInvalid(f"CNI_ARGS has {shown(pair)}, which is no KEY=VALUE; pairs are separated by ';'")
    for key in _IDENTITIES:
        value = arguments.get(key, "")
        if value and not is_name(value):
            if verb is not Verb.DEL:
                raise EnvironmentInvalid(
                    f"CNI_ARGS has {key}={shown(value)}; it must begin with a letter or digit, go on with letters, "
                    f"digits, '_', '.' or '-', and have at most {_MAX_NAME} of them"
                )
            del arguments[key]
    return arguments


def _needed(env: Mapping[str, str], name: str, verb: Verb) -> str:
    text = env.get(name, "")
    if not text:
        raise EnvironmentInvalid(f"{name} is not set, and {verb} needs it; the runtime has to set it")
    return text


def _is_interface(text: str) -> bool:
    return (
        text not in (".", "..")
        and "/" not in text
        and ":" not in text
        and " " not in text
        and text.isprintable()  # no other white space, no control character, nothing that isn't UTF-8
        and len(text.encode()) <= _MAX_INTERFACE
    )


def _is_path(text: str) -> bool:
    return text.startswith("/") and text.isprintable() and len(text.encode()) <= _MAX_PATH
