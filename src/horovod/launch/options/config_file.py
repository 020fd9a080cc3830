"""Options in a YAML file: ``horovodrun --config-file job.yaml``.

Every option may stand at the top under its long name, written with dashes or underscores. Those that tune
have a place in a section, too:

    num-proc: 8
    hosts: server1:4,server2:4
    params:
      fusion_threshold_mb: 32
      hierarchical_allreduce: false
    timeline:
      filename: timeline.json

What the command line says wins over the file, wherever it stands.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horovod.errors import ConfigError
from horovod.launch.contracts.registry import CHOICES
from horovod.launch.options.table import Option, every_option
from horovod.launch.options.values import Given

__all__ = ["add_config_file"]

_CONTROLLERS = {"gloo": "ssh", "mpi": "mpirun"}


@dataclass(frozen=True)
class _Setting:
    """One key of the file: the option it means, and its value (None: as if not there)."""

    where: str
    option: Option
    value: Any


def add_config_file(given: Given, path: Path) -> None:
    """Give the options of the file, unless the command line has decided them.

    Unknown sections and keys become notices.

    Raises:
        ConfigError: the file cannot be read, a value makes no sense, or this version does not serve the
            option; names file, section and key.
    """
    decided = {option.name for _, option in given.order}
    decided |= {option.apart for _, option in given.order if option.apart}
    settings = [setting for setting in _settings(path, given.notices) if setting.value is not None]
    first: dict[str, _Setting] = {}
    for setting in settings:
        option = setting.option
        other = first.setdefault(option.apart or option.name, setting)
        if other is not setting and not option.repeatable:
            raise ConfigError(f"{setting.where}: cannot be given together with {other.where}.")
        if option.name in decided or option.apart in decided:
            continue
        if option.warning:
            warnings.warn(
                f"{setting.where} is deprecated: {option.warning}", DeprecationWarning, stacklevel=2
            )
        given.give(option, setting.value)


def _settings(path: Path, notices: list[str]) -> Iterator[_Setting]:
    top, sections = _keys()
    content = _load(path)
    for name, value in content.items():
        where = f"{path}: {name}"
        key = _folded(name)
        if key == "controller":
            yield _controller(where, value, top["launcher"])
        elif key in sections and isinstance(value, dict | None):
            yield from _section(path, name, value or {}, sections[key], notices)
        elif key in top:
            yield _setting(where, top[key], value)
        elif key in sections:
            raise ConfigError(f"{where}: is a section, with keys such as {next(iter(sections[key]))}.")
        else:
            notices.append(f"{where}: unknown, ignored{_did_you_mean(key, [*sections, *top])}")


def _section(
    path: Path, section: str, content: dict[Any, Any], keys: Mapping[str, Option], notices: list[str]
) -> Iterator[_Setting]:
    implied = {key: option.implied for key, option in keys.items() if option.implied is not None}
    for name, value in {**implied, **content}.items():
        where = f"{path}, section {section}: {name}"
        if _folded(name) in keys:
            yield _setting(where, keys[_folded(name)], value)
        else:
            notices.append(f"{where}: unknown, ignored{_did_you_mean(_folded(name), keys)}")


def _keys() -> tuple[dict[str, Option], dict[str, dict[str, Option]]]:
    """The options by their keys at the top of a file, and by section and key."""
    top: dict[str, Option] = {}
    sections: dict[str, dict[str, Option]] = {}
    for option in every_option():
        if option.in_file:
            for spelling in option.spellings:
                name = spelling.lstrip("-")
                if len(name) > 1:
                    top[_folded(name)] = option
        if option.key:
            section, _, key = option.key.partition(".")
            sections.setdefault(section, {})[key] = option
    return top, sections


def _controller(where: str, value: Any, launcher: Option) -> _Setting:
    """The reference's name for the way of starting processes."""
    if value is None:
        return _Setting(where, launcher, None)
    name = _CONTROLLERS.get(str(value).lower(), str(value).lower())
    if name not in CHOICES:
        raise ConfigError(f"{where}: must be gloo, mpi, {', '.join(CHOICES)}, not {value!r}.")
    return _Setting(where, launcher, name)


def _setting(where: str, option: Option, value: Any) -> _Setting:
    if value is None:
        return _Setting(where, option, None)
    if option.is_switch:
        return _switch(where, option, value)
    try:
        if option.listed and isinstance(value, list):
            return _Setting(where, option, tuple(_text(item) for item in value))
        if option.values > 1:
            if not isinstance(value, list) or len(value) != option.values:
                raise ValueError(f"must be a list of {option.values} values, not {value!r}")
            return _Setting(where, option, [option.read(_text(item)) for item in value])
        return _Setting(where, option, option.read(_text(value)))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}.") from None


def _switch(where: str, option: Option, value: Any) -> _Setting:
    if not isinstance(value, bool) and value not in (0, 1):
        raise ConfigError(f"{where}: must be true or false, not {value!r}.")
    if value:
        return _Setting(where, option, option.value)
    opposite = [
        other
        for other in every_option()
        if other.name == option.name and other.is_switch and other.value != option.value
    ]
    # `launcher` has several switches, none of which is the opposite of another.
    if len({other.value for other in opposite}) != 1:
        return _Setting(where, option, None)
    return _Setting(where, opposite[0], opposite[0].value)


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        kind = {bool: "true or false", dict: "a section", list: "a list"}.get(type(value), repr(value))
        raise ValueError(f"must be one value, not {kind}")
    return str(value)


def _load(path: Path) -> dict[Any, Any]:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(
            "A config file needs PyYAML: pip install pyyaml, or give the options on the command line."
        ) from error
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The config file {path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"The config file {path} is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"The config file {path} must have keys, such as num-proc: 4.")
    return content


def _folded(name: object) -> str:
    return str(name).replace("-", "_")


def _did_you_mean(key: str, known: Mapping[str, object] | list[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f". Did you mean {close[0]}?" if close else ""
