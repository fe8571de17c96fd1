# Compiler options for everything in this directory and below. A project that adds Tilewise with add_subdirectory keeps
# its own flags.

option(TILEWISE_WERROR "Treat warnings as errors" OFF)
set(TILEWISE_SANITIZE "" CACHE STRING "Sanitizers, as in -fsanitize=: address,undefined or thread")
option(TILEWISE_COVERAGE "Instrument for coverage" OFF)
option(TILEWISE_FUZZ "Build the libFuzzer targets (clang only)" OFF)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
endif()

set(CMAKE_C_STANDARD 99)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
# The static and the shared library are made of one set of objects.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# These are for C and C++ only; nvcc has its own (src/cuda/CMakeLists.txt).
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wconversion;-Wshadow>")
# A project that adds Tilewise may be compiled with -ffast-math, -Ofast or -fno-exceptions. The kernels need infinity, NaN
# and the order of operations that is written, and the C interface catches exceptions. These options follow the flags of
# the project and undo that; src/math/config.h refuses what they could not undo.
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fno-fast-math;-fno-unsafe-math-optimizations>"
                    "$<$<COMPILE_LANG_AND_ID:C,GNU>:-fno-allow-store-data-races;-fno-single-precision-constant>"
                    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-allow-store-data-races;-fno-single-precision-constant>"
                    "$<$<COMPILE_LANGUAGE:CXX>:-fexceptions>"
                    "$<$<COMPILE_LANGUAGE:CUDA>:-ftz=false;-prec-div=true;-prec-sqrt=true;-Xcompiler=-fno-fast-math>")
# When one of those flags reaches the linker too, the compiler adds crtfastmath.o, whose constructor makes every program
# that loads the library flush denormal numbers to zero. -Ofast is undone by another -O only.
add_link_options(-fno-fast-math -fno-unsafe-math-optimizations)
if("${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_RELEASE} ${CMAKE_SHARED_LINKER_FLAGS}" MATCHES "-Ofast")
  add_link_options(-O3)
endif()
# A compiler that fuses a*b+c on its own gives other bits for each target and version. Fused operations are written
# explicitly.
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 wrongly reports an overlap in every inlined `"text" + std::string` (GCC bug 105651).
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-Wno-restrict>")
endif()
if(TILEWISE_WERROR)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-Werror>")
endif()

if(TILEWISE_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${TILEWISE_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer>")
  add_link_options(-fsanitize=${TILEWISE_SANITIZE})
  # Under a sanitizer g++ wrongly reports uninitialised members inside <regex>; the sanitizer itself checks at run time.
  add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>")
endif()
if(TILEWISE_COVERAGE)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:--coverage;-fprofile-update=atomic>")
  add_link_options(--coverage)
endif()
if(TILEWISE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "TILEWISE_FUZZ needs clang; the compiler is ${CMAKE_CXX_COMPILER_ID}. Try: cmake --preset fuzz")
  endif()
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=fuzzer-no-link>")
endif()
