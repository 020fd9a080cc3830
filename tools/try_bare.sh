#!/bin/sh
# Use the project as a new user would: a fresh Debian in a folder, a fresh clone of what is committed here, the commands
# of the README, nothing else. Needs root, debootstrap and a network. Run it by hand when requirements change:
#
#     tools/try_bare.sh bookworm                     # make demo
#     tools/try_bare.sh trixie "make demo test"
#     BIND="/etc/pip.conf /srv/wheels" tools/try_bare.sh bookworm
#
# BIND: files and folders of this machine that are to be seen inside, such as a configuration of pip; GIVE: names of
# variables that are to be known inside, such as PIP_FIND_LINKS. FOLDER (else one in /var/tmp) keeps the Debian; the next run
# of the same suite starts from it as it was fresh.
set -eu

suite=${1:?which Debian: bookworm or trixie}
commands=${2:-make demo}
folder=${FOLDER:-/var/tmp/farandole-bare}
sources=$(cd "$(dirname "$0")/.." && pwd)
# What the README asks for, and git, which brought the sources.
packages=g++,python3-venv,python3-dev,make,ca-certificates,git

mkdir -p "$folder"
if [ ! -e "$folder/$suite.tar" ]; then
  rm -rf "$folder/$suite"
  echo "making a fresh Debian ($suite) in $folder"
  debootstrap --variant=minbase --include="$packages" "$suite" "$folder/$suite" >"$folder/$suite.log"
  tar --create --file "$folder/$suite.tar.part" --directory "$folder" "$suite"
  mv "$folder/$suite.tar.part" "$folder/$suite.tar"
fi
rm -rf "${folder:?}/$suite"
tar --extract --file "$folder/$suite.tar" --directory "$folder"
root=$folder/$suite
git clone --quiet --no-hardlinks "$sources" "$root/srv/farandole"
cp /etc/resolv.conf "$root/etc/resolv.conf"
echo "127.0.0.1 localhost" >"$root/etc/hosts"  # which an installation has, and a folder of packages has not

# Mounts of a namespace of its own end with it, and so do the processes.
given=""
for name in ${GIVE:-}; do
  value=$(printenv "$name")
  given="$given $name=$value"
done
export root commands given BIND="${BIND:-}"
began=$(date +%s)
unshare --mount --pid --fork --kill-child sh -eu -c '
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/dev/shm"
  for path in $BIND; do
    if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root${path%/*}" && touch "$root$path"; fi
    mount --bind "$path" "$root$path"
  done
  # Not chroot: who enters namespaces from there, as the tests of several hosts do, is outside again.
  cd "$root"
  mkdir .outside
  pivot_root . .outside
  umount --lazy /.outside
  home=~root  # ssh looks there, whatever HOME says
  exec env -i HOME="$home" PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 $given \
    sh -c "cd /srv/farandole && $commands"'
echo "$suite: \"$commands\" succeeded in $(($(date +%s) - began)) s"
