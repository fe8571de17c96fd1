# TILEWISE_HAS_MPI: whether the library tilewise_mpi is built, the communicators over MPI. The core never links to MPI.
# A project that contains Tilewise asks for it.
set(tilewise_mpi_default OFF)
if(PROJECT_IS_TOP_LEVEL)
  set(tilewise_mpi_default AUTO)
endif()
set(TILEWISE_MPI ${tilewise_mpi_default} CACHE STRING "Build tilewise_mpi: AUTO (if MPI is found), ON, OFF")
set_property(CACHE TILEWISE_MPI PROPERTY STRINGS AUTO ON OFF)

set(TILEWISE_HAS_MPI FALSE)
if(TILEWISE_MPI STREQUAL "OFF" OR (TILEWISE_MPI STREQUAL "AUTO" AND CMAKE_CROSSCOMPILING))
  return() # the MPI that is found when cross-compiling would be that of the host
endif()
find_package(MPI QUIET COMPONENTS C)
if(MPI_C_FOUND)
  set(TILEWISE_HAS_MPI TRUE)
elseif(NOT TILEWISE_MPI STREQUAL "AUTO")
  message(FATAL_ERROR " TILEWISE_MPI is ON, but MPI was not found (Debian: libopenmpi-dev)")
else()
  message(STATUS "MPI: not found (Debian: libopenmpi-dev); without tilewise_mpi")
endif()
