# TILEWISE_NATIVE leaves out kernels that this machine cannot run: for scripts/test and scripts/demo, which would compile them
# for minutes. A library for other machines is built without it.

# tilewise_machine_lacks(VARIABLE flag...): the flags of /proc/cpuinfo, of these, that this machine lacks. Nothing, if there is
# no such file.
function(tilewise_machine_lacks variable)
  set(lacks "")
  if(EXISTS /proc/cpuinfo)
    file(STRINGS /proc/cpuinfo flags REGEX "^flags[\t ]*:" LIMIT_COUNT 1)
    foreach(flag IN LISTS ARGN)
      if(NOT "${flags} " MATCHES " ${flag} ")
        list(APPEND lacks ${flag})
      endif()
    endforeach()
  endif()
  set(${variable} "${lacks}" PARENT_SCOPE)
endfunction()

# tilewise_gpus(VARIABLE): the compute capabilities of this machine's GPUs that the CUDA kernels run on, as in "80;90".
function(tilewise_gpus variable)
  find_program(TILEWISE_NVIDIA_SMI nvidia-smi)
  mark_as_advanced(TILEWISE_NVIDIA_SMI)
  set(found "")
  if(TILEWISE_NVIDIA_SMI)
    execute_process(COMMAND "${TILEWISE_NVIDIA_SMI}" --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE output ERROR_QUIET TIMEOUT 60)
    string(REGEX MATCHALL "[0-9]+[.][0-9]" capabilities "${output}")
    foreach(capability IN LISTS capabilities)
      string(REPLACE "." "" number "${capability}")
      if(number GREATER_EQUAL 80)
        list(APPEND found ${number})
      endif()
    endforeach()
    list(REMOVE_DUPLICATES found)
  endif()
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()

if(TILEWISE_NATIVE AND CMAKE_CROSSCOMPILING)
  message(FATAL_ERROR "TILEWISE_NATIVE is ON, but the kernels are for another machine. Use OFF.")
endif()
