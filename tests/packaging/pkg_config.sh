#!/bin/sh
# Builds and runs both consumers with the flags of pkg-config and nothing else.
# Usage: pkg_config.sh static|shared LIBRARY_DIRECTORY WORK_DIRECTORY VERSION
set -eu
kind=$1 libraries=$2 work=$3 version=$4
sources=$(dirname "$0")/consumer
export PKG_CONFIG_PATH="$libraries/pkgconfig"
mkdir -p "$work"

said=$("$PKG_CONFIG" --modversion tilewise)
[ "$said" = "$version" ] || { echo "tilewise.pc says $said, expected $version" >&2; exit 1; }

static=
[ "$kind" = shared ] || static=-static
# shellcheck disable=SC2046,SC2086 # flags are words
"$CC" -std=c99 $static "$sources/consumer.c" -o "$work/consumer_c" $("$PKG_CONFIG" ${static:+--static} --cflags --libs tilewise) -lm
# shellcheck disable=SC2046,SC2086
"$CXX" -std=c++20 $static "$sources/consumer.cpp" -o "$work/consumer_cxx" $("$PKG_CONFIG" ${static:+--static} --cflags --libs tilewise)
LD_LIBRARY_PATH="$libraries" "$work/consumer_c"
LD_LIBRARY_PATH="$libraries" "$work/consumer_cxx"
