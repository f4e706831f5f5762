# The CMake package: what a backend in another Python package compiles and links with. docs/backend.md is the guide.
#
# Headers are installed as <fastops/...>; within src/ they include each other without that prefix.
include(CMakePackageConfigHelpers)

set(public_headers
  compiler.h dtype.h export.h fastops.h
  activations/activations.h activations/base.h activations/derivative.h activations/functions.h activations/jet.h
  activations/piecewise.h activations/scalar_of.h activations/smooth.h activations/table.h
  backends/cpu/kernels.h backends/cpu/launchers.h
  ops/activation.h ops/activation_spec.h ops/axes.h ops/bias_act.h ops/checks.h ops/device.h ops/device_steps.h ops/dtype_of.h ops/gated_act.h
  ops/gated_mlp.h ops/matrix.h ops/mlp.h ops/mlp_jet.h ops/operator.h
  ops/sequential.h)
set(generated_headers ${CMAKE_CURRENT_BINARY_DIR}/include)
foreach(header ${public_headers})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS src/${header})
  file(READ src/${header} text)
  string(REPLACE "#include \"" "#include \"fastops/" text "${text}")
  file(CONFIGURE OUTPUT ${generated_headers}/fastops/${header} CONTENT "${text}" @ONLY)
endforeach()
install(DIRECTORY ${generated_headers} DESTINATION fastops)

set(package_dir fastops/share/cmake/fastops)
set_target_properties(libfastops PROPERTIES EXPORT_NAME fastops)
target_include_directories(libfastops INTERFACE $<INSTALL_INTERFACE:fastops/include>)
target_compile_features(libfastops INTERFACE cxx_std_20)
install(EXPORT fastops-targets NAMESPACE fastops:: DESTINATION ${torch_folder}/cmake)
if(NOT FASTOPS_KERNELS)
  install(EXPORT fastops-kernels NAMESPACE fastops:: DESTINATION ${package_dir})
endif()
configure_package_config_file(cmake/fastopsConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/fastopsConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/fastopsConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/torch.cmake cmake/torch_facts.py ${CMAKE_CURRENT_BINARY_DIR}/fastopsConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/fastopsConfigVersion.cmake DESTINATION ${package_dir})
