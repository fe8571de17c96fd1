#!/bin/sh
# Configures a project that contains Tilewise and is compiled with flags that the kernels cannot have, and checks that
# Tilewise undoes them: every source passes the #error of src/math/config.h, the C interface can catch exceptions, and the
# shared library is linked without crtfastmath.o. It builds nothing.
# Usage: foreign_flags.sh TILEWISE_SOURCE_DIR WORK_DIRECTORY
set -eu
source=$1 work=$2
cmake=${CMAKE:-cmake}

# Prints the compile commands of Tilewise's C++ sources, each without its output file, or those of one source.
compile_commands() {
  "$NINJA" -C "$work" -t commands tilewise_shared | grep -e " -c .*/src/.*${1-}[.]cc\$" | sed 's/ -MD -MT [^ ]* -MF [^ ]*//; s/ -o [^ ]*//'
}

check() {
  rm -rf "$work"
  "$cmake" -S "$(dirname "$0")/consumer" -B "$work" -G Ninja "-DCMAKE_MAKE_PROGRAM=$NINJA" -DCMAKE_BUILD_TYPE=Release \
    "-DCMAKE_C_COMPILER=$CC" "-DCMAKE_CXX_COMPILER=$CXX" "-DCMAKE_C_FLAGS=$1" "-DCMAKE_CXX_FLAGS=$1 $2" \
    "-DTILEWISE_SOURCE_DIR=$source" -DTILEWISE_ORIGIN=add_subdirectory -DTILEWISE_CUDA=OFF -DCONSUMER_LANGUAGES=CXX \
    -DCONSUMER_LIBRARY=Tilewise::tilewise_shared --no-warn-unused-cli >/dev/null
  compile_commands >"$work/commands"
  count=$(wc -l <"$work/commands")
  [ "$count" -ge 20 ] || { echo "only $count sources were found" >&2; exit 1; }
  (cd "$work" && sed 's| -c | -E -o /dev/null |' commands | sh -e)
  (cd "$work" && compile_commands /capi/capi | sed 's| -c | -fsyntax-only |' | sh -e)
  "$NINJA" -C "$work" -t commands tilewise_shared | grep -e ' -shared ' | sed 's/^: && //; s/ && :$//; s/$/ -###/' >"$work/link"
  [ -s "$work/link" ] || { echo "no link command was found" >&2; exit 1; }
  if (cd "$work" && sh link 2>&1) | grep crtfastmath; then
    echo "with $1 the shared library changes the floating-point environment of every program that loads it" >&2
    exit 1
  fi
  echo "undone: $1 $2"
}

check -ffast-math "-fno-exceptions -fno-rtti -fshort-enums"
check -Ofast ""
check "-funsafe-math-optimizations -ffinite-math-only -fno-signed-zeros -freciprocal-math" ""
