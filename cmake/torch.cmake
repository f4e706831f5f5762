# The torch that the interpreter imports, as targets: torch_headers, torch_libraries, torch_python. TORCH_VERSION,
# TORCH_MINOR ("2.13"), TORCH_CXX11_ABI, TORCH_DEBUG and TORCH_GPU are set.
#
# Not find_package(Torch): for a CUDA or ROCm build of torch that wants the whole toolkit, which a CPU build of fastops
# does without.
set(FASTOPS_TORCH_ROOT "$ENV{FASTOPS_TORCH_ROOT}" CACHE PATH
  "Another torch than the one that is imported: its folder, of which version.py and include/ are enough on Linux")
if(FASTOPS_TORCH_ROOT)
  get_filename_component(FASTOPS_TORCH_ROOT "${FASTOPS_TORCH_ROOT}" ABSOLUTE BASE_DIR "${PROJECT_SOURCE_DIR}")
endif()
execute_process(
  COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/torch_facts.py ${FASTOPS_TORCH_ROOT}
  OUTPUT_VARIABLE torch_facts
  RESULT_VARIABLE torch_missing
  ERROR_VARIABLE torch_error)
if(torch_missing AND FASTOPS_TORCH_ROOT)
  message(FATAL_ERROR "FASTOPS_TORCH_ROOT, ${FASTOPS_TORCH_ROOT}, is not the folder of a torch:\n${torch_error}")
elseif(torch_missing)
  message(FATAL_ERROR
    "fastops is built against the torch that you have, but ${Python_EXECUTABLE} cannot import torch.\n"
    "Install torch first, then build without isolation:\n"
    "  pip install torch scikit-build-core cmake ninja\n"
    "  pip install --no-build-isolation .")
endif()
list(GET torch_facts 0 TORCH_VERSION)
list(GET torch_facts 1 TORCH_CXX11_ABI)
list(GET torch_facts 2 TORCH_DEBUG)
list(GET torch_facts 3 TORCH_GPU)
list(GET torch_facts 4 torch_root)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" TORCH_MINOR "${TORCH_VERSION}")
if(TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "fastops needs torch 2.11 or newer, but found ${TORCH_VERSION} in ${torch_root}.")
endif()
message(STATUS "torch ${TORCH_VERSION} in ${torch_root}")

add_library(torch_headers INTERFACE)
target_include_directories(torch_headers SYSTEM INTERFACE ${torch_root}/include
                                                          ${torch_root}/include/torch/csrc/api/include)
target_compile_definitions(torch_headers INTERFACE _GLIBCXX_USE_CXX11_ABI=${TORCH_CXX11_ABI})

# Where there are headers alone, an empty library that has the name stands for torch's: which symbols torch has is seen
# where it is loaded.
function(find_torch_library name)
  find_library(torch_${name}_path ${name} PATHS ${torch_root}/lib NO_DEFAULT_PATH)
  set(library ${torch_${name}_path})
  if(NOT library AND FASTOPS_TORCH_ROOT AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
    set(library ${CMAKE_BINARY_DIR}/torch_stand_ins/lib${name}.so)
    file(WRITE ${library}.cpp "")
    execute_process(
      COMMAND ${CMAKE_CXX_COMPILER} -shared -nostdlib -Wl,-soname,lib${name}.so ${library}.cpp -o ${library}
      COMMAND_ERROR_IS_FATAL ANY)
    target_link_options(${ARGV1} INTERFACE LINKER:--no-as-needed)
  elseif(NOT library)
    message(FATAL_ERROR "${torch_root}/lib has no library ${name}.")
  endif()
  target_link_libraries(${ARGV1} INTERFACE ${library})
endfunction()

add_library(torch_libraries INTERFACE)
target_link_libraries(torch_libraries INTERFACE torch_headers)
find_torch_library(torch_cpu torch_libraries)
find_torch_library(c10 torch_libraries)

add_library(torch_python INTERFACE)
find_torch_library(torch_python torch_python)

# at::parallel_for is a header that uses OpenMP. It must run on torch's own pool of threads, so the OpenMP library is the
# one that torch has loaded: its own copy, where the wheel has one. That is LLVM's (Intel's build of it on Windows), which
# ends a process with two of them; but Windows' wheel has nothing to link with, and macOS's library has the name of a place
# on the machine that built it. So what is linked with is made here: it knows the library as torch's do, and the functions
# that at::parallel_for comes to.
set(openmp_functions
  __kmpc_end_serialized_parallel __kmpc_fork_call __kmpc_global_thread_num __kmpc_serialized_parallel
  omp_get_max_threads omp_get_num_threads omp_get_thread_num omp_in_parallel omp_set_num_threads)
set(torch_openmp_library "")
if(MSVC AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(torch_openmp_library ${CMAKE_BINARY_DIR}/libiomp5md.lib)
  string(JOIN "\n" definition "LIBRARY libiomp5md.dll" EXPORTS ${openmp_functions})
  file(WRITE ${CMAKE_BINARY_DIR}/libiomp5md.def "${definition}\n")
  execute_process(
    COMMAND ${CMAKE_AR} /def:${CMAKE_BINARY_DIR}/libiomp5md.def /out:${torch_openmp_library} /machine:x64
    COMMAND_ERROR_IS_FATAL ANY)
elseif(EXISTS ${torch_root}/lib/libomp.dylib AND EXISTS ${torch_root}/include/omp.h)
  set(torch_openmp_library ${CMAKE_BINARY_DIR}/libomp.tbd)
  list(TRANSFORM openmp_functions PREPEND _)
  string(JOIN ", " symbols ${openmp_functions})
  file(WRITE ${torch_openmp_library} "--- !tapi-tbd
tbd-version: 4
targets: [arm64-macos, x86_64-macos]
install-name: '@rpath/libomp.dylib'
exports:
  - targets: [arm64-macos, x86_64-macos]
    symbols: [${symbols}]
...
")
endif()
if(torch_openmp_library)
  add_library(torch_openmp INTERFACE)
  target_compile_options(torch_openmp INTERFACE "SHELL:-Xclang -fopenmp")
  target_link_libraries(torch_openmp INTERFACE ${torch_openmp_library})
  target_link_libraries(torch_libraries INTERFACE torch_openmp)
  return()
endif()
find_package(OpenMP COMPONENTS CXX)
if(OpenMP_CXX_FOUND)
  add_library(torch_openmp INTERFACE)
  separate_arguments(openmp_flags UNIX_COMMAND "${OpenMP_CXX_FLAGS}")
  target_compile_options(torch_openmp INTERFACE ${openmp_flags})
  target_include_directories(torch_openmp SYSTEM INTERFACE ${OpenMP_CXX_INCLUDE_DIRS})
  file(GLOB torch_openmp_library ${torch_root}/lib/libgomp*.so*)
  if(torch_openmp_library)
    target_link_libraries(torch_openmp INTERFACE ${torch_openmp_library})
  else()
    target_link_libraries(torch_openmp INTERFACE ${OpenMP_CXX_LIBRARIES})
  endif()
  target_link_libraries(torch_libraries INTERFACE torch_openmp)
else()
  message(WARNING "No OpenMP: fastops' own loops will run on one thread. Clang has it in a package of its own "
    "(Debian: libomp-dev).")
endif()
