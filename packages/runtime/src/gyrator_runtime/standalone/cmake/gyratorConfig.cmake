# Defines gyrator::runtime and gyrator::torch: libraries, their headers, and C++17 for gyrator.hpp.
# gyrator::torch takes libtorch, of whichever version: GYRATOR_LIBTORCH is the folder of its
# libtorch_cpu.so, or else find_package(Torch) has been called.
get_filename_component(_gyrator_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
foreach(_gyrator_name runtime torch)
  set(_gyrator_soname "libgyrator_${_gyrator_name}.so.1")
  if(NOT TARGET gyrator::${_gyrator_name} AND EXISTS "${_gyrator_prefix}/lib/${_gyrator_soname}")
    add_library(gyrator::${_gyrator_name} SHARED IMPORTED)
    set_target_properties(gyrator::${_gyrator_name} PROPERTIES
      IMPORTED_LOCATION "${_gyrator_prefix}/lib/${_gyrator_soname}"
      IMPORTED_SONAME "${_gyrator_soname}"
      INTERFACE_INCLUDE_DIRECTORIES "${_gyrator_prefix}/include")
  endif()
endforeach()
if(TARGET gyrator::torch)
  # Named outright, so that the program says where it is.
  if(GYRATOR_LIBTORCH)
    set(_gyrator_libtorch "${GYRATOR_LIBTORCH}/libtorch_cpu.so")
  else()
    set(_gyrator_libtorch torch_cpu)
  endif()
  set_target_properties(gyrator::torch PROPERTIES INTERFACE_LINK_LIBRARIES
    "-Wl,--no-as-needed;${_gyrator_libtorch};-Wl,--as-needed")
endif()
unset(_gyrator_prefix)
unset(_gyrator_soname)
unset(_gyrator_libtorch)
