# What the command line, the tests, the examples and the benchmarks share. Never part of the library.

find_package(nlohmann_json 3.11 REQUIRED)
if(TILEWISE_BUILD_CLI)
  find_package(CLI11 REQUIRED)
  find_package(fmt 9 REQUIRED)
endif()
if(TILEWISE_BUILD_TESTS AND CMAKE_CROSSCOMPILING) # from the sources that Debian and Ubuntu install with libgtest-dev
  add_subdirectory(/usr/src/googletest "${PROJECT_BINARY_DIR}/googletest" EXCLUDE_FROM_ALL)
elseif(TILEWISE_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(TILEWISE_BUILD_BENCH)
  find_package(benchmark REQUIRED)
endif()

foreach(part io verify) # tilewise_io: .npy and .safetensors; tilewise_verify: the cases and the accuracy rule
  add_subdirectory("${PROJECT_SOURCE_DIR}/src/${part}" "${PROJECT_BINARY_DIR}/src/${part}")
endforeach()
