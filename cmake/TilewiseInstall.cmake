# Installs the headers, both libraries, the CMake package, the pkg-config file and the command line program.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Tilewise")

install(TARGETS tilewise_static tilewise_shared EXPORT TilewiseTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT TilewiseTargets NAMESPACE Tilewise:: DESTINATION "${package_dir}")

if(TILEWISE_HAS_MPI) # targets of their own, so that find_package(Tilewise) does not look for MPI
  install(TARGETS tilewise_mpi EXPORT TilewiseMpiTargets
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
          LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
          FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(EXPORT TilewiseMpiTargets NAMESPACE Tilewise:: DESTINATION "${package_dir}")
endif()

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/TilewiseConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/TilewiseConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/TilewiseConfigVersion.cmake" COMPATIBILITY SameMajorVersion)
install(FILES "${PROJECT_BINARY_DIR}/TilewiseConfig.cmake" "${PROJECT_BINARY_DIR}/TilewiseConfigVersion.cmake"
        DESTINATION "${package_dir}")

# The prefix is relative to the position of the file, so that an installed tree can be moved.
file(RELATIVE_PATH prefix_from_pkgconfig "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
set(tilewise_cuda_libs "")
if(TILEWISE_HAS_CUDA)
  set(tilewise_cuda_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/tilewise.pc.in" "${PROJECT_BINARY_DIR}/tilewise.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/tilewise.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

foreach(program tilewise_cli tilewise_mpi_cli)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  endif()
endforeach()
