#!/usr/bin/env bash
# c-example.sh PREFIX SOURCE: compiles a C example with the flags of the installed library's package
# file, and runs it.
set -euo pipefail
prefix=$1 source=$2
file=$prefix/lib/pkgconfig/ums-windows.pc
# The package file is read directly, so that pkg-config is not needed. If pkg-config is installed,
# it must return the same flags.
flags=$(sed -nE 's/^(Cflags|Libs): //p' "$file" | sed "s|\${prefix}|$prefix|g" | tr '\n' ' ')
if command -v pkg-config >/dev/null; then
    PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --exists --print-errors ums ums-windows
fi
program=$(mktemp)
trap 'rm -f "$program"' EXIT
# shellcheck disable=SC2086 # They are several words.
cc -Wall -Wextra -Werror -D_GNU_SOURCE "$source" $flags "-Wl,-rpath,$prefix/lib" -o "$program"
timeout 60 "$program"
