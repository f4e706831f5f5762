# Libraries that are harder to attack, that show nothing but what is ours, and that are the same wherever they are built.
# On Linux; sanitizers want the code as it is.
set(FASTOPS_HARDENED OFF)
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT FASTOPS_SANITIZE)
  set(FASTOPS_HARDENED ON)
endif()

if(FASTOPS_HARDENED)
  # The checks are glibc's, which needs an optimizing compiler for them; distributions set a level of their own.
  target_compile_options(fastops_options INTERFACE -fstack-protector-strong
    "$<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3>")

  # A source that asks where it lies is told it from the project or from torch on, also where ccache has made the path
  # one from the build's folder (base_dir). Of several that fit, the last counts.
  foreach(place "${PROJECT_SOURCE_DIR}/;" "${torch_root};torch")
    list(GET place 0 folder)
    list(GET place 1 name)
    file(RELATIVE_PATH from_build ${PROJECT_BINARY_DIR} ${folder})
    target_compile_options(fastops_options INTERFACE
      -ffile-prefix-map=${folder}=${name} -ffile-prefix-map=${from_build}=${name})
  endforeach()

  # Of what headers of torch and of the standard library would have a library show, no other shall take anything for its
  # own. By the version, the loader refuses a backend that was compiled for another minor version of fastops.
  set(shown_map ${PROJECT_BINARY_DIR}/shown.map)
  file(CONFIGURE OUTPUT ${shown_map} @ONLY CONTENT [[
FASTOPS_@PROJECT_VERSION_MAJOR@.@PROJECT_VERSION_MINOR@ {
  global: _ZN7fastops*; _ZNK7fastops*; _ZT[ISV]N7fastops*; PyInit_*;
  local: *;
};
]])
endif()

# harden(LIBRARY...): how they are linked. What is written once, while a library is loaded, is read-only from then on.
function(harden)
  foreach(library IN LISTS ARGN)
    if(FASTOPS_HARDENED AND TARGET ${library})
      target_link_options(${library} PRIVATE LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack
        LINKER:--version-script=${shown_map})
      set_property(TARGET ${library} APPEND PROPERTY LINK_DEPENDS ${shown_map})
    endif()
  endforeach()
endfunction()
