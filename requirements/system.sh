#!/bin/sh
# The system packages that building and testing need, by the names of Debian and Ubuntu. As root on one of these, what
# is missing is installed. Else a line says what would. Without the first kind nothing can be compiled and tested, so
# that is an error; without the second kind some tests are skipped.
set -eu

needed=""
useful=""
have() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ]; }
found() { for path; do [ ! -e "$path" ] || return 0; done; return 1; }  # the shell has expanded a pattern

have g++ || have clang++ || needed="$needed g++"
found /usr/include/gtest/gtest.h /usr/local/include/gtest/gtest.h || needed="$needed libgtest-dev"
have nm || useful="$useful binutils"
# Ranks on several hosts.
have ip || useful="$useful iproute2"
have ssh || useful="$useful openssh-client"
have sshd || useful="$useful openssh-server"
have srun || useful="$useful slurm-wlm"
have munged || useful="$useful munge"
[ -x /usr/bin/mpirun ] || useful="$useful openmpi-bin"
found /usr/lib/*/pmix2/lib/libpmix.so || useful="$useful libpmix-dev"  # what Slurm loads for --mpi=pmix
# Sanitizers compile faster with it, and the C++ parsers are fuzzed.
found /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a || useful="$useful clang libclang-rt-dev"
# What Spark runs on.
have java || useful="$useful openjdk-17-jre-headless"
# The shells that completion is written for.
have zsh || useful="$useful zsh"
have fish || useful="$useful fish"
# The same files are compiled for the module and for the wheel: once is enough.
have ccache || useful="$useful ccache"
# Every C++ test is a program: this links them in a small part of the time.
have mold || useful="$useful mold"

[ -n "$needed$useful" ] || exit 0
if [ "$(id -u)" -eq 0 ] && have apt-get; then
  echo "installing the system packages$needed$useful"
  apt-get -qq update
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $needed$useful >/dev/null
elif [ -n "$needed" ]; then
  echo "The tests need system packages that are not here. On Debian or Ubuntu: sudo apt-get install$needed$useful" >&2
  exit 1
else
  echo "Some tests will be skipped for want of system packages. On Debian or Ubuntu: sudo apt-get install$useful"
fi
