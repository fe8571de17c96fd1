# tilewise_cuda_instances(VARIABLE KERNEL INCLUDE TABLE [PER_FILE n] [DTYPES dtype...]): the kernels of a table, instantiated.
#
# A table is a constexpr array in a header, TABLE "header:array". Each source file made here instantiates the template KERNEL,
# which the header INCLUDE defines, for PER_FILE consecutive rows (default 2) and one of DTYPES (bf16, fp16; e4m3, e5m2; without
# DTYPES the row is the only argument). The names of the files are appended to VARIABLE.
function(tilewise_cuda_instances variable kernel include table)
  cmake_parse_arguments(PARSE_ARGV 4 instances "" "PER_FILE" "DTYPES")
  string(REPLACE ":" ";" table "${table}")
  list(GET table 0 header)
  list(GET table 1 array)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
  # Rows begin with a brace, four columns in: clang-format sees to that, and the compiler checks the count.
  file(READ "${header}" text)
  string(REGEX MATCH "${array}\\[\\] = {.*" text "${text}")
  string(REGEX REPLACE "\n};.*" "" text "${text}")
  string(REGEX MATCHALL "\n    {" rows "${text}")
  list(LENGTH rows rows)
  string(REGEX REPLACE "/[^/]*$" "" folder "${include}")
  string(REPLACE "/" "_" prefix "${folder}")
  string(REGEX REPLACE "::[^:]*$" "" namespace "${kernel}")
  string(REGEX REPLACE "^.*::" "" short "${kernel}")
  string(TOLOWER "${short}" name)
  if(NOT instances_PER_FILE)
    set(instances_PER_FILE 2)
  endif()
  if(NOT instances_DTYPES)
    set(instances_DTYPES any)
  endif()
  math(EXPR last "${rows} - 1")
  set(files ${${variable}})
  foreach(dtype IN LISTS instances_DTYPES)
    foreach(first RANGE 0 ${last} ${instances_PER_FILE})
      set(instantiations "")
      math(EXPR end "${first} + ${instances_PER_FILE} - 1")
      if(end GREATER last)
        set(end ${last})
      endif()
      foreach(row RANGE ${first} ${end})
        set(arguments ${row})
        if(dtype MATCHES "bf16|e4m3")
          string(APPEND arguments ", false")
        elseif(dtype MATCHES "fp16|e5m2")
          string(APPEND arguments ", true")
        endif()
        string(APPEND instantiations "template struct ${short}<${arguments}>;\n")
      endforeach()
      set(file "${CMAKE_CURRENT_BINARY_DIR}/instances/${prefix}_${name}_${dtype}_${first}_${end}.cu")
      file(CONFIGURE OUTPUT "${file}" CONTENT "// Made by src/cuda/CMakeLists.txt from rows ${first} to ${end} of ${array}.
#include \"cuda/${include}\"

namespace ${namespace} {

static_assert(sizeof(${array}) == ${rows} * sizeof(${array}[0]), \"CMake has counted the rows of ${array}.\");
${instantiations}
}  // namespace ${namespace}
" @ONLY)
      list(APPEND files "${file}")
    endforeach()
  endforeach()
  set(${variable} ${files} PARENT_SCOPE)
endfunction()
