#!/usr/bin/env bash
# packages.sh: packs the crates, and builds and runs the README's first program from the packed files alone, in an empty folder.
#
# The packed crates stand for what the registry would have; the other dependencies come from the registry, in the versions of
# Cargo.lock. Prints how many crates a user's lock file has.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD target=${CARGO_TARGET_DIR:-$PWD/target}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

checks=0
passed() { checks=$((checks + 1)); echo "ok: $1"; }
failed() { echo "packages.sh: $1" >&2; exit 1; }

# block LANGUAGE: the first block of the README in this language.
block() { awk -v open="\`\`\`$1" '$0 == open { inside = 1; next } inside && /^```/ { exit } inside' "$root/README.md"; }

rm -rf "$target/package"
cargo package -q --locked --workspace --exclude xtask --no-verify --allow-dirty 2>"$folder/said" || { cat "$folder/said" >&2; failed "cargo package failed"; }
for file in "$target"/package/*.crate; do
    tar -xzf "$file" -C "$folder"
    name=$(basename "$file" .crate)
    for needed in README.md LICENSE-MIT LICENSE-APACHE Cargo.toml; do
        [ -s "$folder/$name/$needed" ] || failed "$name has no $needed"
    done
    for key in description repository keywords categories license readme rust-version; do
        grep -q "^$key = " "$folder/$name/Cargo.toml" || failed "$name has no $key"
    done
    passed "$name is packed with its licences, its README and what a registry shows"
done

cd "$folder"
cargo new -q --vcs none hello
cd hello
echo 'ums = "0.1"' >>Cargo.toml
mkdir .cargo
{
    echo "[patch.crates-io]"
    for crate in ums ums-context ums-fiber ums-macros; do
        echo "$crate.path = \"$(echo "$folder/$crate"-[0-9]*)\""
    done
} >.cargo/config.toml
cp "$root/Cargo.lock" .
block rust >src/main.rs
CARGO_TARGET_DIR=$target/packed cargo build -q
[ "$("$target/packed/debug/hello")" = "$(block text)" ] || failed "the README's program prints something else"
passed "the README's program runs"

sed -i 's/^ums = .*/ums = { version = "0.1", default-features = false }/' Cargo.toml
CARGO_TARGET_DIR=$target/packed cargo build -q
printed=$(UMS_MONITOR=on UMS_STATS=on UMS_TRACE=it.json "$target/packed/debug/hello" 2>"$folder/said")
[ "$printed" = "$(block text)" ] || failed "without features, the README's program prints something else"
for lacking in "UMS_MONITOR monitor" "UMS_STATS metrics" "UMS_TRACE traces"; do
    sentence="ums: ${lacking% *} has no effect: the program was built without the feature \`${lacking#* }\` of ums"
    grep -qFx "$sentence" "$folder/said" || failed "without features, ${lacking% *} is not refused: $(cat "$folder/said")"
done
passed "without features, it runs and says which variables have no effect"

crates=$(sed -n 's/^name = "\(.*\)"/\1/p' Cargo.lock | sort)
for unwanted in loom proptest arbitrary tokio console-subscriber; do
    ! grep -qx "$unwanted" <<<"$crates" || failed "a user's lock file has $unwanted, which only tests need"
done
passed "a user's lock file has $(wc -l <<<"$crates") crates, none of them for tests"
echo "packages.sh: $checks checks passed, 0 failed"
