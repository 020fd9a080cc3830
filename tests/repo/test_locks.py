"""Locks of the engine: the compiler knows every mutex, and clang refuses code without the lock."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core"
WRAPPERS = {CORE / "mutex.h", CORE / "engine/base/engine_lock.h"}
COMPILERS = sorted(Path("/usr/bin").glob("clang++*"))

SOURCE = """
#include "engine/base/engine_lock.h"

struct Account {
  farandole::Mutex mutex;
  int own FARANDOLE_GUARDED_BY(mutex) = 0;
  int shared FARANDOLE_GUARDED_BY(farandole::engine_lock) = 0;
  void pay() FARANDOLE_REQUIRES(farandole::engine_lock) { ++shared; }
};
void pay(Account& account, farandole::EngineLock& engine) {
  const farandole::Lock lock(account.mutex);
  const farandole::EngineLock::Guard guard(engine);
  ++account.own;
  account.pay();
}
"""


def test_there_is_no_mutex_that_the_compiler_does_not_know() -> None:
    plain = re.compile(r"\bstd::(mutex|shared_mutex|recursive_mutex|lock_guard|unique_lock|scoped_lock)\b")
    sources = [path for path in CORE.rglob("*.*") if path not in WRAPPERS]
    assert [str(path.relative_to(ROOT)) for path in sources if plain.search(path.read_text())] == []


@pytest.mark.skipif(not COMPILERS, reason="only clang knows locks")
@pytest.mark.parametrize(
    ("without", "complaint"),
    [
        ("", ""),
        ("const farandole::Lock lock(account.mutex);", "requires holding mutex 'account.mutex'"),
        ("const farandole::EngineLock::Guard guard(engine);", "requires holding lock 'engine_lock'"),
        (" FARANDOLE_REQUIRES(farandole::engine_lock)", "requires holding lock 'engine_lock'"),
    ],
)
def test_clang_refuses_code_without_the_lock(without: str, complaint: str) -> None:
    flags = re.findall(r"-W(?:error=)?thread-safety", (ROOT / "CMakeLists.txt").read_text())
    source = SOURCE.replace(without, "")
    command = [str(COMPILERS[-1]), "-fsyntax-only", "-std=c++20", f"-I{CORE}", *flags, "-x", "c++", "-"]
    compiled = subprocess.run(command, input=source, text=True, capture_output=True, timeout=300)
    assert (compiled.returncode == 0) == (complaint == ""), compiled.stderr
    assert complaint in compiled.stderr
