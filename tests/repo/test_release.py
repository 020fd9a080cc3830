"""What is released beside the wheel: extras that exist, the name `horovod`, sources for others to compile."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tools.release import distributions, headers, recipe
from tools.release.targets import ABIS, MACHINES

import horovod

if sys.version_info >= (3, 11):
    import tomllib as toml
else:
    import tomli as toml

ROOT = Path(__file__).resolve().parents[2]
NAME = ROOT / "tools" / "release" / "horovod" / "pyproject.toml"


def extras(project: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = toml.loads(project.read_text())["project"]["optional-dependencies"]
    return found


def test_extras_name_what_exists() -> None:
    modules = {"mpi": "horovod.backends.mpi", "parquet": "horovod.data.parquet"}
    found = extras(ROOT / "pyproject.toml")
    assert {"torch", "tensorflow", "keras"} <= found.keys()
    for name in found.keys() - {"dev"}:
        assert importlib.util.find_spec(modules.get(name, f"horovod.{name}")) is not None, name


def test_the_name_horovod_has_the_version_of_the_interface_and_extras_of_ours() -> None:
    assert f'version = "{horovod.__version__}"' in NAME.read_text()
    ours = extras(ROOT / "pyproject.toml")
    for needed in extras(NAME).values():
        (extra,) = re.findall(r"^farandole\[(\w+)\]$", needed[0])
        assert extra in ours


def test_the_name_horovod_is_empty_and_requires_farandole(tmp_path: Path) -> None:
    wheel = distributions.horovod_name(tmp_path)
    assert wheel.name == f"horovod-{horovod.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if ".dist-info/" not in name] == []
        (metadata,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    assert [line for line in lines if line.startswith("Requires-Dist:") and "extra" not in line] == [
        "Requires-Dist: farandole"
    ]


def test_warnings_are_errors_for_us_only(tmp_path: Path) -> None:
    """Who builds the sources may have a newer compiler, which warns of more."""
    assert "-Werror" not in compile_commands(tmp_path / "users")
    ours = compile_commands(tmp_path / "ours", "--preset=release")
    assert "-Werror" in ours


def compile_commands(folder: Path, *options: str) -> str:
    cmake = Path(sys.executable).parent / "cmake"
    command = [str(cmake), *options, "-S", str(ROOT), "-B", str(folder), "-DFARANDOLE_BUILD_PYTHON=OFF"]
    found = shutil.which("ninja", path=str(cmake.parent))
    subprocess.run([*command, "-GNinja", f"-DCMAKE_MAKE_PROGRAM={found}"], check=True, capture_output=True)
    return (folder / "compile_commands.json").read_text()


def test_the_sources_are_small_and_hold_what_a_build_needs(tmp_path: Path) -> None:
    sources = distributions.source_distribution(tmp_path)
    assert sources.name == f"farandole-{recipe.version()}.tar.gz"
    assert sources.stat().st_size < 3_000_000
    folder = distributions.unpacked(sources, tmp_path)
    for name in ("CMakeLists.txt", "LICENSE", "core/engine", "src/horovod/__init__.py", "tools/release"):
        assert (folder / name).exists(), name
    assert list(folder.rglob("*.so")) == []


def test_the_version_is_the_same_in_both_places() -> None:
    assert f"project(farandole VERSION {recipe.version()} " in (ROOT / "CMakeLists.txt").read_text()


def python_headers(folder: Path, version: str) -> Path:
    folder.mkdir()
    (folder / "Python.h").touch()
    (folder / "patchlevel.h").write_text(f'#define PY_VERSION             "{version}"\n')
    return folder


def test_headers_are_taken_from_the_folder_that_is_named(tmp_path: Path) -> None:
    of_310, of_311, stable = ABIS
    named = {
        "cp310": python_headers(tmp_path / "a", "3.10.13"),
        "cp312": python_headers(tmp_path / "b", "3.14.0rc1"),
        "cp311": python_headers(tmp_path / "c", "3.13.1"),
    }
    assert headers.find(of_310, named) == tmp_path / "a"
    assert headers.find(stable, named) == tmp_path / "b"
    with pytest.raises(headers.HeadersError, match=r"holds headers of Python 3\.13, and cp311"):
        headers.find(of_311, named)


def test_missing_headers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        headers.HeadersError, match=r"No headers of Python 3\.12 or newer .*--python-include cp312="
    ):
        headers.find(ABIS[2], {})


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, in place of ours."""
    (tmp_path / "pyproject.toml").write_text('version = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n")
    monkeypatch.setattr(recipe, "ROOT", tmp_path)
    monkeypatch.setattr(recipe, "DIST", tmp_path / "dist")
    monkeypatch.setattr(recipe, "WORK", tmp_path / "dist" / "work")
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Somebody")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "somebody@example.org")
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".git/info/exclude").write_text("dist\n")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "Change something")


def test_a_release_is_tagged_once_with_a_place_in_the_changelog(checkout: Path) -> None:
    with pytest.raises(recipe.RecipeError, match=r'no heading "## \[1\.2\.0\] - DATE"'):
        recipe.tag()
    (checkout / "CHANGELOG.md").write_text("## [1.2.0] - 2027-01-31\n")
    with pytest.raises(recipe.RecipeError, match=r"not committed:\n.*CHANGELOG\.md"):
        recipe.tag()
    commit(checkout)
    assert recipe.tag() == "v1.2.0"
    assert git(checkout, "describe").strip() == "v1.2.0"
    with pytest.raises(recipe.RecipeError, match=r"v1\.2\.0 exists"):
        recipe.tag()


def test_auditwheel_may_grant_more_than_a_wheel_is_called() -> None:
    name = "manylinux_2_28_x86_64"
    assert [recipe.serves(f"manylinux_2_{minor}_x86_64", name) for minor in (5, 26, 28, 29)] == [True] * 3 + [
        False
    ]
    assert not recipe.serves("manylinux_2_26_aarch64", name)
    assert not recipe.serves("linux_x86_64", name)


def test_nothing_is_uploaded_that_is_not_whole_and_tagged(checkout: Path) -> None:
    with pytest.raises(
        recipe.RecipeError, match=r"dist lacks .*cp310-manylinux_2_28_x86_64.*aarch64.*tar\.gz"
    ):
        recipe.upload(really=False)
    (checkout / "dist").mkdir()
    for name in recipe.missing():
        (checkout / "dist" / name).touch()
    assert len(list((checkout / "dist").iterdir())) == len(ABIS) * len(MACHINES) + 1
    with pytest.raises(recipe.RecipeError, match=r"not tagged v1\.2\.0"):
        recipe.upload(really=False)


def test_nothing_is_uploaded_that_another_commit_made(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "dist" / "work").mkdir(parents=True)
    for name in recipe.missing():
        (checkout / "dist" / name).touch()
    (checkout / "dist" / "work" / "commit").write_text(git(checkout, "rev-parse", "HEAD").strip())
    (checkout / "CHANGELOG.md").write_text("## [1.2.0] - 2027-01-31\n")
    commit(checkout)
    recipe.tag()
    with pytest.raises(
        recipe.RecipeError, match=r"dist was built from \w+, and this is \w+: make wheels again"
    ):
        recipe.upload(really=False)
    (checkout / "dist" / "work" / "commit").write_text(git(checkout, "rev-parse", "HEAD").strip())
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(recipe, "check", lambda: asked.append(()))
    recipe.upload(really=False)
    assert asked == [()], "the right commit comes to the last look"
