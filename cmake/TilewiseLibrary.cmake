# The static and the shared library. Both hold the objects of tilewise_objects; no source is compiled twice.

get_property(core_objects GLOBAL PROPERTY TILEWISE_CORE_OBJECTS)
add_library(tilewise_static STATIC $<TARGET_OBJECTS:tilewise_objects> ${core_objects})
add_library(tilewise_shared SHARED $<TARGET_OBJECTS:tilewise_objects> ${core_objects})

file(GLOB tilewise_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/tilewise/*.h"
     "${PROJECT_SOURCE_DIR}/include/tilewise/*.hpp")
list(FILTER tilewise_headers EXCLUDE REGEX "/tilewise_mpi[.]h$") # of a library of its own

foreach(kind static shared)
  add_library(Tilewise::tilewise_${kind} ALIAS tilewise_${kind})
  target_sources(tilewise_${kind} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include"
                                         FILES ${tilewise_headers})
  set_target_properties(tilewise_${kind} PROPERTIES OUTPUT_NAME tilewise LINKER_LANGUAGE CXX)
endforeach()
# Users do not get cxx_std_20: the C header is C99, and tilewise.hpp itself states what it needs.
target_link_libraries(tilewise_static PUBLIC Threads::Threads ${CMAKE_DL_LIBS}) # NCCL is loaded when it is needed
target_link_libraries(tilewise_shared PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
if(TILEWISE_HAS_CUDA) # the runtime is linked in; the driver is loaded when it is needed
  target_link_libraries(tilewise_static PRIVATE CUDA::cudart_static)
  target_link_libraries(tilewise_shared PRIVATE CUDA::cudart_static)
endif()

set(version_script "${PROJECT_SOURCE_DIR}/cmake/tilewise.map")
target_link_options(tilewise_shared PRIVATE "LINKER:--version-script=${version_script}")
set_target_properties(tilewise_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                                                 LINK_DEPENDS "${version_script}")

if(BUILD_SHARED_LIBS)
  add_library(Tilewise::tilewise ALIAS tilewise_shared)
else()
  add_library(Tilewise::tilewise ALIAS tilewise_static)
endif()

# tilewise_internal is the static library with the headers of src/, for the command line, the tests and the benchmarks.
add_library(tilewise_internal INTERFACE)
target_include_directories(tilewise_internal INTERFACE "${PROJECT_SOURCE_DIR}/src")
target_link_libraries(tilewise_internal INTERFACE tilewise_static)
