# tilewise_test(NAME SOURCES file... [LIBS target...] [LABELS label...] [ARGS arg...] [TIMEOUT seconds])
#
# Adds a GoogleTest program. Each of its tests is a test of ctest, named NAME.Suite.Test. It may include the headers of
# src/ and tests/. Labels: "matrix" (registry x cases; runs again for each forced CPU target), "threads" (runs under the
# thread sanitizer, whose preset builds nothing else), "slow" (over 10 s) and "emulated" (CUDA kernels on an emulated GPU): scripts/test
# leaves them to scripts/test --all and to .ci/run.
function(tilewise_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "" "TIMEOUT" "SOURCES;LIBS;LABELS;ARGS")
  if(NOT test_TIMEOUT)
    set(test_TIMEOUT 300)
  endif()
  if(TILEWISE_SANITIZE OR TILEWISE_COVERAGE) # instrumented kernels run more threads than there are cores
    math(EXPR test_TIMEOUT "3 * ${test_TIMEOUT}")
  endif()
  add_executable(${name} ${test_SOURCES})
  target_link_libraries(${name} PRIVATE tilewise_internal ${test_LIBS} GTest::gtest_main)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  # Most of the time of compiling a test is that of its headers.
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  # The library and the oracles of src/verify do the expensive work; less optimisation compiles in half the time.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  add_dependencies(standard_tests ${name})
  if("threads" IN_LIST test_LABELS)
    add_dependencies(thread_tests ${name})
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
                       EXTRA_ARGS ${test_ARGS})
  # gtest_discover_tests cannot carry a list of labels; ctest reads this file after the list of tests.
  set(properties_file "${CMAKE_CURRENT_BINARY_DIR}/${name}_properties.cmake")
  file(WRITE "${properties_file}" "foreach(test IN LISTS ${name}_TESTS)
  set_tests_properties(\"\${test}\" PROPERTIES TIMEOUT ${test_TIMEOUT} LABELS \"${test_LABELS}\")
endforeach()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${properties_file}")
endfunction()

# tilewise_python_test(NAME SCRIPT [ARGS arg...] [LABELS label...] [TIMEOUT seconds])
#
# Adds a Python script that needs numpy, safetensors or onnx. TILEWISE_TEST_PYTHON names the interpreter of a virtual
# environment that has them; scripts/test makes one. Without it these tests do not exist, and the configuration says so.
# Under the address sanitizer, the sanitizer's runtime must be in the process before Python loads libtilewise.so, and so
# must libstdc++, or the runtime finds no __cxa_throw to intercept. Leaks there are those of Python.
function(tilewise_python_test name script)
  if(NOT TILEWISE_TEST_PYTHON)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 2 test "" "TIMEOUT" "ARGS;LABELS")
  if(NOT test_TIMEOUT)
    set(test_TIMEOUT 300)
  endif()
  cmake_path(ABSOLUTE_PATH script BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND "${TILEWISE_TEST_PYTHON}" "${script}" ${test_ARGS})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${test_TIMEOUT} LABELS "${test_LABELS}")
  if(TILEWISE_SANITIZE MATCHES "address")
    foreach(runtime asan stdc++)
      execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=lib${runtime}.so OUTPUT_VARIABLE ${runtime}_file
                      OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    endforeach()
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "LD_PRELOAD=${asan_file}:${stdc++_file};ASAN_OPTIONS=detect_leaks=0")
  endif()
endfunction()
