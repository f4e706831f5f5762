# CMAKE_CUDA_ARCHITECTURES, where it is not given: from TORCH_CUDA_ARCH_LIST, which lists them as PyTorch's own build
# does ("8.0;9.0a 12.0+PTX"); without it, those of the GPUs in this machine; on a machine without, those that torch was
# built for, as far as nvcc knows them.
if(CMAKE_CUDA_ARCHITECTURES OR DEFINED ENV{CUDAARCHS})
  return()
endif()

if(NOT "$ENV{TORCH_CUDA_ARCH_LIST}" STREQUAL "")
  string(REPLACE " " ";" listed "$ENV{TORCH_CUDA_ARCH_LIST}")
  foreach(architecture IN LISTS listed)
    if(NOT architecture MATCHES "^([0-9]+)\\.([0-9]+[af]?)(\\+PTX)?$")
      message(FATAL_ERROR "TORCH_CUDA_ARCH_LIST has '${architecture}', but needs numbers such as 9.0 or 9.0+PTX.")
    endif()
    if(CMAKE_MATCH_3)
      list(APPEND CMAKE_CUDA_ARCHITECTURES ${CMAKE_MATCH_1}${CMAKE_MATCH_2})
    else()
      list(APPEND CMAKE_CUDA_ARCHITECTURES ${CMAKE_MATCH_1}${CMAKE_MATCH_2}-real)
    endif()
  endforeach()
  return()
endif()

# As torch lists them: "sm_80 sm_90a compute_120". A CPU build of torch lists none.
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import torch
count = torch.cuda.device_count()
here = ['sm_%d%d' % torch.cuda.get_device_capability(i) for i in range(count)]
built_for = getattr(torch._C, '_cuda_getArchFlags', lambda: None)() or ''
print(*here or built_for.split(), sep=';', end='')"
  OUTPUT_VARIABLE torch_lists
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch
  OUTPUT_VARIABLE nvcc_knows
  COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[0-9]+" nvcc_knows "${nvcc_knows}")
foreach(architecture IN LISTS torch_lists)
  string(REGEX MATCH "[0-9]+" number "${architecture}")
  if(number IN_LIST nvcc_knows)
    if(architecture MATCHES "^sm_")
      list(APPEND CMAKE_CUDA_ARCHITECTURES ${number}-real)
    else()
      list(APPEND CMAKE_CUDA_ARCHITECTURES ${number}-virtual)
    endif()
  endif()
endforeach()
if(CMAKE_CUDA_ARCHITECTURES)
  list(REMOVE_DUPLICATES CMAKE_CUDA_ARCHITECTURES)
else()
  set(CMAKE_CUDA_ARCHITECTURES all-major)
endif()
