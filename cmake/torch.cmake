# The torch that the interpreter imports, as targets: torch_headers, torch_libraries, torch_python. TORCH_VERSION is set.
#
# Not find_package(Torch): for a CUDA or ROCm build of torch that wants the whole toolkit, which a CPU build of fastops
# does without.
execute_process(
  COMMAND ${Python_EXECUTABLE} -c
          "import torch, os; print(torch.__version__, int(torch._C._GLIBCXX_USE_CXX11_ABI), os.path.dirname(torch.__file__).replace(os.sep, '/'), sep=';', end='')"
  OUTPUT_VARIABLE torch_facts
  RESULT_VARIABLE torch_missing
  ERROR_QUIET)
if(torch_missing)
  message(FATAL_ERROR
    "fastops is built against the torch that you have, but ${Python_EXECUTABLE} cannot import torch.\n"
    "Install torch first, then build without isolation:\n"
    "  pip install torch scikit-build-core cmake ninja\n"
    "  pip install --no-build-isolation .")
endif()
list(GET torch_facts 0 TORCH_VERSION)
list(GET torch_facts 1 torch_cxx11_abi)
list(GET torch_facts 2 torch_root)
if(TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "fastops needs torch 2.11 or newer, but found ${TORCH_VERSION} in ${torch_root}.")
endif()
message(STATUS "torch ${TORCH_VERSION} in ${torch_root}")

add_library(torch_headers INTERFACE)
target_include_directories(torch_headers SYSTEM INTERFACE ${torch_root}/include
                                                          ${torch_root}/include/torch/csrc/api/include)
target_compile_definitions(torch_headers INTERFACE _GLIBCXX_USE_CXX11_ABI=${torch_cxx11_abi})

function(find_torch_library name)
  find_library(torch_${name}_path ${name} PATHS ${torch_root}/lib NO_DEFAULT_PATH REQUIRED)
  target_link_libraries(${ARGV1} INTERFACE ${torch_${name}_path})
endfunction()

add_library(torch_libraries INTERFACE)
target_link_libraries(torch_libraries INTERFACE torch_headers)
find_torch_library(torch_cpu torch_libraries)
find_torch_library(c10 torch_libraries)

add_library(torch_python INTERFACE)
find_torch_library(torch_python torch_python)

# at::parallel_for is a header that uses OpenMP. It must run on torch's own pool of threads, so the OpenMP library is the
# one that torch has loaded: its own copy, where the wheel has one.
find_package(OpenMP COMPONENTS CXX)
if(OpenMP_CXX_FOUND)
  add_library(torch_openmp INTERFACE)
  separate_arguments(openmp_flags UNIX_COMMAND "${OpenMP_CXX_FLAGS}")
  target_compile_options(torch_openmp INTERFACE ${openmp_flags})
  target_include_directories(torch_openmp SYSTEM INTERFACE ${OpenMP_CXX_INCLUDE_DIRS})
  file(GLOB torch_openmp_library ${torch_root}/lib/libgomp*.so* ${torch_root}/lib/libomp*.dylib)
  if(torch_openmp_library)
    target_link_libraries(torch_openmp INTERFACE ${torch_openmp_library})
  else()
    target_link_libraries(torch_openmp INTERFACE ${OpenMP_CXX_LIBRARIES})
  endif()
  target_link_libraries(torch_libraries INTERFACE torch_openmp)
else()
  message(STATUS "No OpenMP: fastops' own loops will run on one thread")
endif()
