#!/bin/sh
# Compiles a user of tilewise.hpp with the flags of other projects: it works, or one #error says what is missing.
# Usage: wrapper.sh PREFIX LIBRARY_DIRECTORY WORK_DIRECTORY COMPILER...
set -eu
prefix=$1 libraries=$2 work=$3
shift 3
program=$(dirname "$0")/consumer/wrapper.cpp
mkdir -p "$work"

works() {
  # shellcheck disable=SC2086 # flags are words
  "$compiler" $1 -Wall -Wextra -Wpedantic -Werror "-I$prefix/include" "$program" -o "$work/wrapper" "-L$libraries" -ltilewise
  LD_LIBRARY_PATH="$libraries" "$work/wrapper"
}

refused() {
  # shellcheck disable=SC2086
  if "$compiler" $1 -fsyntax-only "-I$prefix/include" "$program" >"$work/errors" 2>&1; then
    echo "$compiler $1 is accepted" >&2
    exit 1
  fi
  grep 'error:' "$work/errors" | head -n 1 | grep -F "$2" || { cat "$work/errors" >&2; exit 1; }
}

for compiler in "$@"; do
  works "-std=c++20"
  works "-std=c++20 -ffast-math -fno-rtti -fshort-enums -O2"
  refused "-std=c++17" "tilewise.hpp needs C++20"
  refused "-std=c++20 -fno-exceptions" "tilewise.hpp reports failures as exceptions"
done
