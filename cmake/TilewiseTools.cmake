# The dependencies, tilewise_io and tilewise_verify: shared by the command line, the tests, the examples and the benchmarks.
# Never part of the library.

set(tilewise_missing "")
set(tilewise_without "") # options that do without what is missing

# tilewise_need(PACKAGE VERSION NAME OPTION...): finds a package, or notes its name and the options that need it.
macro(tilewise_need package version name)
  find_package(${package} ${version} QUIET)
  if(NOT ${package}_FOUND)
    list(APPEND tilewise_missing "${name}")
    foreach(option ${ARGN})
      if(TILEWISE_BUILD_${option})
        list(APPEND tilewise_without "-DTILEWISE_BUILD_${option}=OFF")
      endif()
    endforeach()
  endif()
endmacro()

find_package(ZLIB QUIET) # optional, for .npz files
tilewise_need(nlohmann_json 3.11 "nlohmann-json >= 3.11" CLI TESTS EXAMPLES BENCH)
if(TILEWISE_BUILD_CLI)
  tilewise_need(CLI11 "" "CLI11" CLI)
  tilewise_need(fmt 9 "fmt >= 9" CLI)
endif()
if(TILEWISE_BUILD_TESTS AND CMAKE_CROSSCOMPILING) # from the sources that Debian and Ubuntu install with libgtest-dev
  add_subdirectory(/usr/src/googletest "${PROJECT_BINARY_DIR}/googletest" EXCLUDE_FROM_ALL)
elseif(TILEWISE_BUILD_TESTS)
  tilewise_need(GTest "" "GoogleTest" TESTS)
endif()
if(TILEWISE_BUILD_BENCH)
  tilewise_need(benchmark "" "Google Benchmark" BENCH)
endif()

if(tilewise_missing)
  list(REMOVE_DUPLICATES tilewise_without)
  list(JOIN tilewise_missing ", " tilewise_missing)
  list(JOIN tilewise_without " " tilewise_without)
  # CMake breaks a message into lines unless it begins with a space.
  message(FATAL_ERROR " Not found: ${tilewise_missing}. Install with scripts/install-dependencies, or do without: ${tilewise_without}")
endif()

foreach(part io verify) # tilewise_io: .npy, .npz and .safetensors; tilewise_verify: the cases and the accuracy rule
  add_subdirectory("${PROJECT_SOURCE_DIR}/src/${part}" "${PROJECT_BINARY_DIR}/src/${part}")
endforeach()
