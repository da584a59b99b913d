# Defines the target gyrator::runtime: the library, its headers, and C++17 for gyrator.hpp.
get_filename_component(_gyrator_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET gyrator::runtime)
  add_library(gyrator::runtime SHARED IMPORTED)
  set_target_properties(gyrator::runtime PROPERTIES
    IMPORTED_LOCATION "${_gyrator_prefix}/lib/libgyrator_runtime.so.1"
    IMPORTED_SONAME "libgyrator_runtime.so.1"
    INTERFACE_INCLUDE_DIRECTORIES "${_gyrator_prefix}/include")
endif()
unset(_gyrator_prefix)
