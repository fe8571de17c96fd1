# TILEWISE_CUDA: AUTO compiles the CUDA kernels if there is a compiler for them, ON requires one, OFF leaves them out.
# This file sets TILEWISE_HAS_CUDA. It is included and not a function, because a language is enabled for one directory.

set(TILEWISE_CUDA AUTO CACHE STRING "CUDA kernels: AUTO, ON or OFF")
set_property(CACHE TILEWISE_CUDA PROPERTY STRINGS AUTO ON OFF)
# Real architectures get machine code, virtual ones PTX for later architectures. The kernels of src/cuda/sm90 use
# instructions of exactly one architecture, which no other can run.
set(TILEWISE_CUDA_REAL "80;90" CACHE STRING "Architectures of the portable kernels, as machine code")
set(TILEWISE_CUDA_VIRTUAL "80" CACHE STRING "Architectures of the portable kernels, as PTX")
set(TILEWISE_CUDA_SM90 "90a" CACHE STRING "Architectures of src/cuda/sm90, as machine code")

set(TILEWISE_CUDA_LEAST 12.5) # cudaGetDriverEntryPointByVersion
set(TILEWISE_HAS_CUDA OFF)
set(tilewise_cuda_lack "")
if(TILEWISE_NATIVE)
  tilewise_gpus(tilewise_own_gpus)
endif()
if(TILEWISE_CUDA STREQUAL "AUTO" AND CMAKE_CROSSCOMPILING)
  set(tilewise_cuda_lack "not looked for when cross-compiling") # the nvcc that is found would be that of the host
elseif(TILEWISE_CUDA STREQUAL "AUTO" AND TILEWISE_NATIVE AND NOT tilewise_own_gpus)
  set(tilewise_cuda_lack "this machine has no GPU for them; with TILEWISE_NATIVE=OFF nvcc would be used, if it is there")
elseif(TILEWISE_CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(TILEWISE_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(TILEWISE_NVCC)
    if(TILEWISE_NVCC)
      set(CMAKE_CUDA_COMPILER "${TILEWISE_NVCC}")
    endif()
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    set(tilewise_cuda_lack "nvcc was not found")
  elseif(IS_ABSOLUTE "${CMAKE_CUDA_COMPILER}" AND NOT EXISTS "${CMAKE_CUDA_COMPILER}")
    set(tilewise_cuda_lack "nvcc was not found at ${CMAKE_CUDA_COMPILER}")
  else()
    find_package(CUDAToolkit ${TILEWISE_CUDA_LEAST})
    if(NOT CUDAToolkit_FOUND OR NOT TARGET CUDA::cudart_static)
      set(tilewise_cuda_lack "no CUDA toolkit >= ${TILEWISE_CUDA_LEAST} with libcudart_static.a belongs to ${CMAKE_CUDA_COMPILER}")
    endif()
  endif()
  if(NOT tilewise_cuda_lack)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES OFF) # set per folder by src/cuda
    endif()
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25 does not know the dialects of nvcc 13
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(TILEWISE_HAS_CUDA ON)
  endif()
endif()

# Architectures that every supported nvcc has machine code for. Other GPUs compile the PTX when a kernel is loaded.
set(tilewise_other_gpus ${tilewise_own_gpus})
list(REMOVE_ITEM tilewise_other_gpus 80 86 87 89 90)
if(tilewise_own_gpus AND NOT tilewise_other_gpus)
  set(TILEWISE_CUDA_REAL ${tilewise_own_gpus})
  set(TILEWISE_CUDA_VIRTUAL "")
endif()

if(TILEWISE_HAS_CUDA)
  message(STATUS "CUDA kernels: by nvcc ${CMAKE_CUDA_COMPILER_VERSION}, for ${TILEWISE_CUDA_REAL}")
elseif(NOT TILEWISE_CUDA)
  message(STATUS "CUDA kernels: none (TILEWISE_CUDA is ${TILEWISE_CUDA})")
elseif(TILEWISE_CUDA STREQUAL "AUTO")
  message(STATUS "CUDA kernels: none (${tilewise_cuda_lack})")
else()
  message(FATAL_ERROR "TILEWISE_CUDA is ${TILEWISE_CUDA}, but ${tilewise_cuda_lack}. Set CMAKE_CUDA_COMPILER, or use AUTO or OFF.")
endif()
