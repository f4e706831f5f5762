# The GPU kernels as libraries that a torch for such GPUs loads when it runs (python/fastops/_gpu.py), whichever torch
# fastops is built for: libfastops_hip.so and libfastops_cuda.so, each with a list of the GPUs that it has code for, and
# the ops for them, which are the same for both. They take the compilers as programs: no toolkit is wanted whole.
set(FASTOPS_HIP_GPUS gfx90a gfx942 gfx950 gfx1030 gfx1100 gfx1101 gfx1200 gfx1201
  CACHE STRING "AMD's GPUs that libfastops_hip.so has code for, as far as the compiler knows them")
set(FASTOPS_CUDA_GPUS sm_80 sm_86 sm_89 sm_90 sm_100 sm_120 compute_120
  CACHE STRING "NVIDIA's GPUs that libfastops_cuda.so has code for; compute_*: PTX, for newer ones")

# add_gpu_library(TARGET KIND GPUS... [FLAGS...]): launchers with the code for these GPUs, KIND being hip or cuda.
function(add_gpu_library target kind)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "GPUS;FLAGS")
  set(here ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
  set(objects)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${target}.dir)
  file(MAKE_DIRECTORY ${folder})
  set(flags -std=c++20 -O3 -I${PROJECT_SOURCE_DIR}/src -DFASTOPS_KERNELS_BUILDING ${arg_FLAGS})
  cmake_language(CALL compile_${kind})
  add_library(${target} SHARED EXCLUDE_FROM_ALL ${objects})
  target_link_libraries(${target} PRIVATE fastops_options ${CMAKE_DL_LIBS} ${runtime})
  # Nothing of the runtime is shown: others have loaded their own.
  target_link_options(${target} PRIVATE LINKER:--exclude-libs,ALL LINKER:-z,defs)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME fastops_${kind} LINKER_LANGUAGE CXX)
  harden(${target})
  list(JOIN arg_GPUS " " code)
  file(CONFIGURE OUTPUT ${folder}/libfastops_${kind}.txt CONTENT "${code}\n")
endfunction()

# Code for each GPU by itself, then all of it compressed into what the launching code brings to the runtime. Both are
# told one name of the file (cuid), from which names of kernels are made.
macro(compile_hip)
  set(hip ${FASTOPS_HIP_CLANG} -x hip --hip-path=${FASTOPS_HIP_PATH} -Wall -Wextra -ffp-contract=off ${flags})
  set(libraries ${folder}/bitcode)
  set(prepare ${PROJECT_SOURCE_DIR}/tools/gpu/device_libraries.py)
  add_custom_command(OUTPUT ${libraries}/ocml.bc DEPENDS ${prepare}
    COMMAND ${Python_EXECUTABLE} ${prepare} --clang ${FASTOPS_HIP_CLANG} --out ${libraries} ${arg_GPUS} VERBATIM)
  foreach(kernel IN LISTS kernels)
    get_filename_component(name ${kernel} NAME_WE)
    set(targets host-x86_64-unknown-linux-gnu)
    set(code)
    foreach(gpu IN LISTS arg_GPUS)
      set(file ${folder}/${name}.${gpu}.co)
      add_custom_command(OUTPUT ${file} DEPENDS ${kernel} ${libraries}/ocml.bc DEPFILE ${file}.d
        COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${hip} --cuda-device-only --no-gpu-bundle-output --offload-arch=${gpu}
                --rocm-device-lib-path=${libraries} -cuid=${name} -c ${kernel} -o ${file} -MD -MF ${file}.d
        COMMENT "Code of ${name} for ${gpu}" VERBATIM)
      list(APPEND targets hipv4-amdgcn-amd-amdhsa--${gpu})
      list(APPEND code ${file})
    endforeach()
    set(bundle ${folder}/${name}.hipfb)
    list(JOIN targets , targets)
    list(TRANSFORM code PREPEND -input= OUTPUT_VARIABLE inputs)
    add_custom_command(OUTPUT ${bundle} DEPENDS ${code}
      COMMAND ${CMAKE_COMMAND} -E env COMPRESSED_BUNDLE_FORMAT_VERSION=2 # that every runtime reads
              ${FASTOPS_HIP_BUNDLER} -type=o -bundle-align=4096 -compress -targets=${targets}
              -input=/dev/null ${inputs} -output=${bundle} VERBATIM)
    set(object ${folder}/${name}.o)
    list(GET arg_GPUS 0 gpu)
    add_custom_command(OUTPUT ${object} DEPENDS ${kernel} ${bundle} DEPFILE ${object}.d
      COMMAND ${hip} --cuda-host-only --offload-arch=${gpu} -nogpulib -fPIC -fvisibility=hidden -fstack-protector-strong
              -Xclang -fcuda-include-gpubinary -Xclang ${bundle} -Xclang -cuid=${name}
              -c ${kernel} -o ${object} -MD -MF ${object}.d
      COMMENT "Launching code of ${name} for HIP" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  list(APPEND objects ${here}/hip_runtime.cpp)
endmacro()

# nvcc does all of that at once. The runtime is linked statically, so that the driver is all it takes.
macro(compile_cuda)
  set(host_flags -Xcompiler=-fPIC,-fvisibility=hidden,-fstack-protector-strong,-Wall,-Wextra)
  set(codes)
  foreach(gpu IN LISTS arg_GPUS)
    string(REGEX MATCH "[0-9]+[af]?" number ${gpu})
    list(APPEND codes -gencode arch=compute_${number},code=${gpu})
  endforeach()
  foreach(kernel IN LISTS kernels)
    get_filename_component(name ${kernel} NAME_WE)
    set(object ${folder}/${name}.o)
    add_custom_command(OUTPUT ${object} DEPENDS ${kernel} DEPFILE ${object}.d
      COMMAND ${FASTOPS_NVCC} -x cu ${codes} -fmad=false -Xfatbin -compress-all --compress-mode=size
              --frandom-seed=${name} ${host_flags} ${flags} -c ${kernel} -o ${object} -MD -MF ${object}.d
      COMMENT "Code of ${name} for ${arg_GPUS}" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set(object ${folder}/cuda_runtime.o)
  set(source ${here}/cuda_runtime.cpp)
  add_custom_command(OUTPUT ${object} DEPENDS ${source} ${here}/kernels.h
    COMMAND ${FASTOPS_NVCC} -x c++ ${host_flags} ${flags} -c ${source} -o ${object} VERBATIM)
  list(APPEND objects ${object})
  find_package(Threads REQUIRED)
  set(runtime ${FASTOPS_CUDART} Threads::Threads rt)
endmacro()

# What the compilers and their headers are; `lacks` is what is missing.
macro(find_hip)
  find_program(FASTOPS_HIP_CLANG NAMES clang++-20 clang++-19 amdclang++ HINTS "$ENV{ROCM_PATH}/llvm/bin" /opt/rocm/llvm/bin)
  find_path(FASTOPS_HIP_PATH include/hip/hip_runtime.h HINTS "$ENV{ROCM_PATH}" /opt/rocm /usr)
  if(FASTOPS_HIP_CLANG AND FASTOPS_HIP_PATH)
    execute_process(COMMAND ${FASTOPS_HIP_CLANG} -print-prog-name=clang-offload-bundler
      OUTPUT_VARIABLE FASTOPS_HIP_BUNDLER OUTPUT_STRIP_TRAILING_WHITESPACE)
  else()
    set(lacks "clang++ (19 or newer) or the headers of HIP (on Debian: clang-19 clang-tools-19 lld-19 libamdhip64-dev rocm-device-libs)")
  endif()
endmacro()
macro(find_cuda)
  find_program(FASTOPS_NVCC nvcc)
  if(FASTOPS_NVCC)
    execute_process(COMMAND ${FASTOPS_NVCC} --dryrun -x cu -c /dev/null OUTPUT_VARIABLE says ERROR_VARIABLE says)
    string(REGEX MATCHALL "-L[^\" ]+" places "${says}")
    list(TRANSFORM places REPLACE "^-L" "")
    find_library(FASTOPS_CUDART cudart_static HINTS ${places})
  endif()
  if(NOT FASTOPS_CUDART)
    set(lacks "nvcc or the static CUDA runtime, libcudart_static.a (tools/gpu/nvcc.sh gets both from PyPI)")
  endif()
endmacro()

# Sets `known` to those of AMD's GPUs that the compiler knows.
function(find_known_gpus)
  set(known)
  foreach(gpu IN LISTS ARGN)
    execute_process(
      COMMAND ${FASTOPS_HIP_CLANG} --target=amdgcn-amd-amdhsa -mcpu=${gpu} -nogpulib -x c -c /dev/null -o /dev/null
      RESULT_VARIABLE is_unknown OUTPUT_QUIET ERROR_QUIET)
    if(is_unknown)
      message(WARNING "${FASTOPS_HIP_CLANG} does not know ${gpu}: there will be no code for it.")
    else()
      list(APPEND known ${gpu})
    endif()
  endforeach()
  set(known ${known} PARENT_SCOPE)
endfunction()

# The ops, for the torch at hand. The launchers are those of the library that was loaded before.
function(add_gpu_bindings)
  add_library(gpu_bindings MODULE ${ARGN} ${bindings})
  target_link_libraries(gpu_bindings PRIVATE libfastops fastops_options torch_libraries)
  set_target_properties(gpu_bindings PROPERTIES PREFIX "" UNITY_BUILD ON
    INSTALL_RPATH "${origin};${origin}/..;${origin}/../../torch/lib")
  harden(gpu_bindings)
endfunction()

function(install_gpu_bindings)
  add_gpu_bindings()
  set_target_properties(gpu_bindings PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
  install(TARGETS gpu_bindings LIBRARY DESTINATION ${torch_folder})
endfunction()

# install_built_gpu_libraries(FOLDER): those that there are, and the ops. Sets `lists`, of what they have code for.
function(install_built_gpu_libraries folder)
  file(GLOB lists ${folder}/libfastops_*.txt)
  set(lists ${lists} PARENT_SCOPE)
  if(lists)
    string(REPLACE .txt .so libraries "${lists}")
    install(FILES ${libraries} ${lists} DESTINATION fastops)
    install_gpu_bindings()
  endif()
endfunction()

# install_gpu_library(KIND): the library for all GPUs, which the package gets.
function(install_gpu_library kind)
  if(NOT kind MATCHES "^(hip|cuda)$")
    message(FATAL_ERROR "FASTOPS_GPU_LIBRARIES has '${kind}', but can have hip and cuda.")
  endif()
  cmake_language(CALL find_${kind})
  if(lacks)
    message(FATAL_ERROR "FASTOPS_GPU_LIBRARIES has ${kind}, but there is no ${lacks}.")
  endif()
  string(TOUPPER ${kind} name)
  set(gpus ${FASTOPS_${name}_GPUS})
  if(kind STREQUAL hip)
    find_known_gpus(${gpus})
    set(gpus ${known})
  endif()
  message(STATUS "Library of kernels for ${kind}: ${gpus}")
  add_gpu_library(fastops_${kind} ${kind} GPUS ${gpus})
  set_target_properties(fastops_${kind} PROPERTIES EXCLUDE_FROM_ALL OFF)
  install(TARGETS fastops_${kind} LIBRARY DESTINATION fastops COMPONENT gpu_libraries)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/fastops_${kind}.dir/libfastops_${kind}.txt DESTINATION fastops
          COMPONENT gpu_libraries)
endfunction()
