#!/usr/bin/env bash
# c-example.sh PREFIX SOURCE: compiles a C example with the flags of the installed library's package
# file, with gcc and with clang if it is installed, and runs it. A server is asked, and ended.
set -euo pipefail
prefix=$1 source=$2
package=ums
! grep -q '<windows.h>' "$source" || package=ums-windows
file=$prefix/lib/pkgconfig/$package.pc
# The package file is read directly, so that pkg-config is not needed. If pkg-config is installed,
# it must return the same flags.
flags=$(sed -nE 's/^(Cflags|Libs): //p' "$file" | sed "s|\${prefix}|$prefix|g" | tr '\n' ' ')
if command -v pkg-config >/dev/null; then
    PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --exists --print-errors ums ums-windows
fi
folder=$(mktemp -d) server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$folder"' EXIT

# Starts the server, sets and gets a key, and ends the server by SIGTERM.
ask_and_end() {
    local port answers
    "$1" 0 >"$folder/said" &
    server=$!
    until grep -q listening "$folder/said"; do sleep 0.1; done
    port=$(sed -n 's/^listening on .*://p' "$folder/said")
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf 'SET colour blue\nGET colour\nQUIT\n' >&3
    answers=$(tr '\n' ' ' <&3)
    exec 3>&-
    [ "$answers" = "OK VALUE blue BYE " ] || { echo "it answered: $answers"; return 1; }
    kill -TERM "$server"
    wait "$server"
    server=
    grep stopped "$folder/said"
}

for compiler in gcc clang; do
    if ! command -v "$compiler" >/dev/null; then
        echo "skipped, as there is no $compiler here: $source"
        [ -z "${UMS_SKIPPED:-}" ] || echo "$compiler c-example.sh $source" >>"$UMS_SKIPPED"
        continue
    fi
    program=$folder/$compiler
    # shellcheck disable=SC2086 # They are several words.
    "$compiler" -Wall -Wextra -Werror -D_GNU_SOURCE "$source" $flags "-Wl,-rpath,$prefix/lib" -o "$program"
    case $source in
    */keyvalue.c) ask_and_end "$program" ;;
    *) timeout 60 "$program" ;;
    esac
done
